"""Starts icestream's processes as a user does, waits for what they report, and looks for what they left.

Nothing here sleeps for a fixed time: `Processes.wait_for` polls for an event, is bounded by PATIENCE_S, and shows the
logs if the event does not come.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from faulty_services import BRAKE_VARIABLE
from proc import command_line, fields, processes
from zygote import MODULE, Forked

from common.locks import start_ticks
from common.status import FetcherStatus, TrainerStatus, read_status

PATIENCE_S = 240.0
_POLL_S = 0.01
PACKAGE_ROOT = Path(__file__).resolve().parent.parent.parent
ICESTREAM = ("-m", MODULE)
"""Program of a new interpreter."""

T = TypeVar("T")

TINY_MODEL = (
    *("trainer.device=cpu", "trainer.threads=1", "trainer.wgan.critic_steps=1", "trainer.wgan.likelihood_steps=5"),
    "trainer.wgan.network.hidden=8",
)
"""A network that trains in milliseconds a step."""

SMALL_STREAM = (
    *TINY_MODEL,
    "stream.block_files=2",
    "stream.unit_events=400",
    "stream.batch_events=200",
    "stream.slots=3",
    "stream.slot_mib=1",
    "trainer.checkpoint_every=5",
    "trainer.validation.events=0",
    "trainer.audit=true",
    "local.restart_min_s=0",
)
"""On the `showers` fixture: 15 units of two microbatches, and 30 steps, an epoch, in two blocks."""


COUNTING = (*SMALL_STREAM, "trainer.model=none")
"""The same stream to a trainer that only counts: where weights are not the question."""


def settings(*assignments: str) -> list[str]:
    """Configuration as command-line arguments."""
    return [argument for assignment in assignments for argument in ("--set", assignment)]


@dataclass
class Process:
    """One command that a test has started, with its output in a file."""

    popen: subprocess.Popen[bytes] | Forked
    output_path: Path

    @property
    def pid(self) -> int:
        return self.popen.pid

    def output(self) -> str:
        """Standard output and error so far."""
        return self.output_path.read_text(errors="replace")

    def ended(self) -> bool:
        return self.popen.poll() is not None

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)


@dataclass
class Processes:
    """The processes of one run directory, whoever started them."""

    run_dir: Path
    logs: Path
    """Folder of the outputs, outside of the run directory."""
    started: list[Process] = field(default_factory=list)
    _brakes: list[Path] = field(default_factory=list)
    """Files that release the trainers."""

    # ------------------------------------------------------------ starting and waiting

    def start(
        self,
        verb: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = (),
        within: Sequence[str] = (),
    ) -> Process:
        """`icestream VERB --run-dir RUN …` in a session of its own.

        It is forked from a process that has imported everything, or, with ``program``, a new interpreter that runs it,
        started by the command ``within``.
        """
        output_path = self.logs / f"{len(self.started)}-{verb}.log"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
        variables = inherited | {"OMP_NUM_THREADS": "1"} | dict(environment or {})
        command = [sys.executable, *(program or ICESTREAM), verb, "--run-dir", str(self.run_dir), *arguments]
        popen: subprocess.Popen[bytes] | Forked
        with output_path.open("wb") as output:
            if not program:
                popen = Forked(command, output=output.fileno(), environment=variables, cwd=PACKAGE_ROOT)
            else:
                streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
                popen = subprocess.Popen(
                    [*within, *command], cwd=PACKAGE_ROOT, env=variables, start_new_session=True, **streams
                )
        self.started.append(Process(popen, output_path))
        return self.started[-1]

    def finish(self, process: Process) -> int:
        """Wait for the end of a process; its exit code."""
        try:
            return process.popen.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"waited {PATIENCE_S:g} s for the end of {process.output_path.name}\n{self.report()}"
            ) from None

    def run(self, verb: str, *arguments: str, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Start a command and wait for its end: exit code and output."""
        process = self.start(verb, *arguments, environment=environment)
        return self.finish(process), process.output()

    def train(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Summary:
        """`icestream run` to its end, which has to be a good one, and to leave no half-written file of this or of a
        killed start."""
        exit_code, output = self.run("run", *arguments, environment=environment)
        assert exit_code == 0, f"{output}\n{self.report()}"
        assert not list(self.run_dir.rglob("*.part"))
        return self.summary()

    def wait_for(self, event: Callable[[], T | None], what: str) -> T:
        """The first true value of ``event()``. A file that is not there, or not any more, is one that hasn't come."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            asked_s = time.monotonic()
            value = None
            with contextlib.suppress(FileNotFoundError):
                value = event()
            if value:
                return value
            took_s = time.monotonic() - asked_s
            time.sleep(max(_POLL_S, min(10 * took_s, 0.25)))  # who waits leaves the cores to those that are waited for
        raise AssertionError(f"waited {PATIENCE_S:g} s for {what}\n{self.report()}")

    def wait_in(self, process: Process, event: Callable[[], T | None], what: str) -> T:
        """The same, while ``process`` has to be alive."""

        def event_of_living() -> T | None:
            value = event()
            assert value or not process.ended(), f"the process ended before {what}\n{self.report()}"
            return value

        return self.wait_for(event_of_living, what)

    def brake(self, free_steps: int = 0, pause_s: float = 1.0) -> dict[str, str]:
        """Environment of trainers that have time to be disturbed, on however busy a machine: after its first steps each
        takes ``pause_s`` longer, until `release`."""
        self._brakes.append(self.logs / f"released-{len(self._brakes)}")
        return {BRAKE_VARIABLE: f"{free_steps} {pause_s} {self._brakes[-1]}"}

    def release(self) -> None:
        """Full speed for all trainers with a brake."""
        for path in self._brakes:
            path.touch()

    def start_and_reach(
        self, step: int, command: Sequence[str], *, before: int, environment: Mapping[str, str] | None = None
    ) -> Process:
        """`icestream run`, returned when it has a checkpoint of ``step`` or later, and is far from step ``before``. Its
        trainers have a brake from there on."""
        process = self.start("run", *command, environment=self.brake(step) | dict(environment or {}))
        self.wait_in(process, lambda: self.checkpoint_step() >= step, f"the checkpoint of step {step}")
        assert self.checkpoint_step() < before - 20, "the run went on too fast to be disturbed in its middle"
        return process

    # ------------------------------------------------------------ what the run tells

    @property
    def fetcher(self) -> FetcherStatus:
        return read_status(self.run_dir, "fetcher", FetcherStatus) or FetcherStatus()

    @property
    def trainer(self) -> TrainerStatus:
        return read_status(self.run_dir, "trainer", TrainerStatus) or TrainerStatus()

    def log(self, name: str) -> str:
        """Of one process of `icestream run`: fetcher, decoder-0, …, trainer."""
        path = self.run_dir / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def summary(self) -> Summary:
        return Summary(json.loads((self.run_dir / "summary.json").read_text()))

    def checkpoint_step(self) -> int:
        """Step of the newest checkpoint; 0 before the first."""
        names = [path.stem for path in (self.run_dir / "checkpoints").glob("step-*") if path.suffix in (".pt", ".json")]
        return max((int(name.removeprefix("step-")) for name in names), default=0)

    def checkpoint(self) -> dict[str, Any]:
        """The newest checkpoint."""
        path = self.run_dir / "checkpoints" / f"step-{self.checkpoint_step():09d}.pt"
        checkpoint: dict[str, Any] = torch.load(path, weights_only=True)
        return checkpoint

    def audit(self) -> list[str]:
        return (self.run_dir / "audit.jsonl").read_text().splitlines()

    def audits(self) -> list[str]:
        """Lines of the audits of all trainers: see audits_in."""
        return audits_in(self.run_dir)

    def pids(self, verb: str = "") -> list[int]:
        """Living processes of the run, of one verb or of all, oldest first; those that only wait to be reaped don't
        count."""
        wanted = {str(self.run_dir), MODULE, *([verb] if verb else [])}
        started = {pid: fields(pid) for pid in processes() if wanted <= set(command_line(pid))}
        alive = [(int(told[19]), pid) for pid, told in started.items() if told and told[0] not in "ZX"]
        return [pid for _, pid in sorted(alive)]  # by their start

    def the_pid(self, verb: str) -> int:
        """Of the only process of that verb."""
        (pid,) = self.pids(verb)
        return pid

    def kill(self, *pids: int) -> None:
        """SIGKILL to processes, and their end: on a busy machine it takes a moment, in which a process has no command
        line any more, but still its files and locks."""
        started = {pid: start_ticks(pid) for pid in pids}
        for pid in pids:
            kill(pid)
        self.wait_for(
            lambda: not any(ticks and start_ticks(pid) == ticks for pid, ticks in started.items()),
            f"the end of processes {pids}",
        )

    def kill_all(self) -> None:
        """SIGKILL to every process of the run, the supervisor first, so that it starts nobody again."""
        self.kill(*dict.fromkeys([*self.pids("run"), *self.pids()]))

    def report(self) -> str:
        """Everything that explains a failure."""
        paths = [*(process.output_path for process in self.started), *sorted((self.run_dir / "logs").glob("*.log"))]
        parts = [f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in paths]
        return "\n".join([*parts, f"--- status\n{self.fetcher}\n{self.trainer}", f"--- processes\n{self.pids()}"])

    # ------------------------------------------------------------ what the run left

    def assert_nothing_is_left(self) -> None:
        """No process and no abstract socket of the run. (A socket file may wait for the next fetcher to remove it.)"""
        self.wait_for(lambda: not self.pids(), "the end of all processes")
        for process in self.started:
            self.finish(process)
        name = f"{os.getuid()}\0{self.run_dir.resolve()}".encode()
        lifeline = f"@icestream-{hashlib.blake2b(name, digest_size=12).hexdigest()}"
        # The kernel lets go of a killed process's sockets a moment after it has vanished.
        self.wait_for(lambda: lifeline not in Path("/proc/net/unix").read_text(), "the end of its abstract sockets")

    def assert_nowhere(self, *secrets: str, but: Sequence[str] = ()) -> None:
        """No secret is in an output, file or file name of the run, but in files that only their owner can read."""
        for path in [*(process.output_path for process in self.started), *self.run_dir.rglob("*")]:
            assert not any(secret in str(path) for secret in secrets), path
            if path.name in but:
                assert path.stat().st_mode & 0o077 == 0
            elif path.is_file():
                content = path.read_bytes()
                assert not any(secret.encode() in content for secret in secrets), path

    def end(self) -> None:
        """Kill what a failed test has left."""
        for pid in self.pids():
            kill(pid)
        for process in self.started:
            process.popen.wait(PATIENCE_S)


def finished(folder: Path, arguments: Sequence[str]) -> Iterator[Processes]:
    """A run that nobody disturbs, at its end, for a fixture."""
    processes = Processes(folder / "run", folder)
    try:
        processes.train(*arguments)
        processes.assert_nothing_is_left()
        yield processes
    finally:
        processes.end()


class Summary(dict[str, Any]):
    """The content of summary.json."""

    @property
    def events(self) -> dict[str, int]:
        """Events by fate, without zeros."""
        return {fate: self[f"events_{fate}"] for fate in FATES if self[f"events_{fate}"]}

    def assert_read(self, events: int) -> None:
        """Every event that was read has a fate, and as many were read as the files hold."""
        assert self["adds_up"]
        assert sum(self.events.values()) == self["events_read"] == events, self


FATES = ("trained", "outlier", "empty", "quarantined", "held_out", "filtered", "invalid")


def place_of(line: str) -> tuple[int, int, int]:
    """Place in the stream of what a line of an audit is about: shard, unit, microbatch."""
    found = json.loads(line)
    return found["shard"], found["unit"], found["microbatch"]


def audits_in(folder: Path) -> list[str]:
    """Lines of the audits of all trainers and shards, in the order of the stream: of each shard, one after another.

    Who trained a microbatch doesn't matter; each trainer has trained its share in this order, nothing twice.
    """
    lines: list[str] = []
    for path in sorted(folder.rglob("audit*.jsonl")):
        of_trainer = path.read_text().splitlines()
        assert of_trainer == sorted(of_trainer, key=place_of), path
        lines += of_trainer
    assert len({place_of(line) for line in lines}) == len(lines)
    return sorted(lines, key=place_of)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process, if it is still there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def same(one: Any, other: Any) -> bool:
    """Equal to the bit, through dicts and lists."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
