"""Ray's actor for one node: it starts the guard of the node's process, and reports what becomes of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

import ray
import ray.util

from common.paths import make_for_owner, require_private
from common.process import python_command
from workloads.base.checkpoint import newest_step

_MOST_READ = 1 << 16
_GPUS = ("CUDA_VISIBLE_DEVICES",)
"""Variables by which Ray gives GPUs to an actor."""


@dataclass(frozen=True)
class ActorPlace:
    """Place of an actor in the cluster."""

    machine: str
    """Ray's id of the machine."""
    host: str
    """Its address in the cluster."""
    port: int
    """A port that was free there a moment ago."""
    newest_step: int
    """Step of the newest checkpoint that is seen there; 0 before the first."""


@dataclass(frozen=True)
class NodeJob:
    """Program of one node."""

    target: str
    """`module:function`, called with `arguments` as sys.argv."""
    arguments: tuple[str, ...]
    config: str | None
    """Text of a TOML file that the program is given with `-c`."""
    environment: dict[str, str]
    """Variables beside those of the machine."""
    folder: str
    """Working directory, where it exists."""
    output: str
    """File to which the output of the program is appended."""
    kills_after_s: float
    """Time after which the guard kills a node that was asked to end."""


@dataclass(frozen=True)
class NodeReport:
    """State of the node's process."""

    exit_code: int | None
    """None while it runs."""
    lines: tuple[str, ...]
    """Complete lines of its output since the last report."""


class NodeActor:
    """Short methods only, one after the other: the driver asks again and again, and a call never waits."""

    def __init__(self) -> None:
        self._lifeline = -1
        """Pipe to the guard; its end asks for the node's."""
        self._exit = -1
        """Pipe on which the guard writes the exit code."""
        self._output = -1
        self._rest = b""
        """Output behind its last complete line."""

    def place(self, shared: Path) -> ActorPlace:
        """Place of this actor, and of the run in ``shared``."""
        host = ray.util.get_node_ip_address()
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
            port = probe.getsockname()[1]
        return ActorPlace(ray.get_runtime_context().get_node_id(), host, port, newest_step(shared))

    def start(self, job: NodeJob) -> None:
        """Start the node. Raises OSError if its output has no place, and BadInputError for one of others."""
        output = Path(job.output)
        make_for_owner(output.parent)
        require_private(output.parent, "--run-dir")
        write = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self._output = os.open(output, os.O_RDONLY)
        os.lseek(self._output, 0, os.SEEK_END)
        guards_end, self._lifeline = os.pipe()
        self._exit, guards_word = os.pipe()
        os.set_blocking(self._exit, False)
        starter = subprocess.Popen(
            python_command("icestream.commands.ray.guard", anywhere=True),
            stdin=guards_end,
            stdout=guards_word,
            stderr=write,
            cwd=job.folder if Path(job.folder).is_dir() else None,
            env=machine_environment() | job.environment,
        )
        for descriptor in (write, guards_end, guards_word):
            os.close(descriptor)
        with open(self._lifeline, "wb", closefd=False) as line:
            line.write(json.dumps(asdict(job)).encode() + b"\n")
        starter.wait()  # it ends as soon as it has read the job: the guard goes on by itself

    def report(self) -> NodeReport:
        """State now. A guard that has ended without a word counts as a killed node."""
        try:
            said = os.read(self._exit, 64)
        except BlockingIOError:
            return NodeReport(None, self._lines())
        return NodeReport(int(said or b"-9"), self._lines())

    def stop(self) -> None:
        """Ask for a checkpoint and the end; the guard sees to it."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _lines(self) -> tuple[str, ...]:
        *lines, self._rest = (self._rest + os.read(self._output, _MOST_READ)).split(b"\n")
        self._rest = self._rest[-_MOST_READ:]
        return tuple(line.decode(errors="replace") for line in lines)


def machine_environment() -> dict[str, str]:
    """Environment that the machine gave to Ray's worker, and the GPUs that Ray has reserved.

    Without what Ray sets for its own workers: one thread for OpenMP, a debugger of its own.
    """
    given = Path("/proc/self/environ").read_text(errors="surrogateescape").split("\0")
    found = dict(entry.split("=", 1) for entry in given if "=" in entry and not entry.startswith("RAY_"))
    return found | {name: os.environ[name] for name in _GPUS if name in os.environ}
