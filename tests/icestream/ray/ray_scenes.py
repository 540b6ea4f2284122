"""A run of stand-in nodes under `icestream ray`, and what a test does to it and sees of it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PATIENCE_S = 90.0
SECRET = "hunter2"
GUARD = "icestream.commands.ray.guard"


def wait_until(holds: Callable[[], Any], what: str) -> Any:
    """First true value; the wait is bounded."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline_s, f"waited in vain until {what}"
        time.sleep(0.05)
    return found


class Machines:
    """Ray cluster on the loopback interface, in a process of its own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        with (folder / "errors.txt").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, HERE / "ray_machines.py"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # The address for `auto` is there, too: nobody else's is overwritten.
                env=environment | {"RAY_TMPDIR": str(folder)},
            )
        self.address = self._answer()
        assert self.address, (folder / "errors.txt").read_text()
        self.names: set[str] = set()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        assert self._answer() == "done"

    def add(self, name: str) -> None:
        self._ask(f"add {name}")
        self.names.add(name)

    def lose(self, name: str) -> None:
        self._ask(f"lose {name}")
        self.names.remove(name)

    def be(self, *names: str) -> None:
        """Have exactly these machines."""
        for name in self.names - set(names):
            self.lose(name)
        for name in names:
            if name not in self.names:
                self.add(name)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait(PATIENCE_S)


@dataclass(frozen=True)
class Start:
    """One start of a stand-in node."""

    node: int
    nodes: int
    machine: str
    pid: int
    step: int
    port: int


class Scene:
    """One run: its driver, its story, its end."""

    def __init__(self, machines: Machines, folder: Path, *options: str, nodes: int = 2) -> None:
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.output = folder / "output.txt"
        fields = {
            "nodes": nodes,
            "shards": nodes,
            "cpus": 1,
            "gpus": 0,
            "wait_s": 2.0,
            "shared": str(self.shared),
            "run_dir": str(folder / "local"),
            "options": ["-i", f"https://me:{SECRET}@host.example/data", *options],
            "config": f'input = ["https://me:{SECRET}@host.example"]',
            "environment": {"ICESTREAM_SEED": "3"},
        }
        with self.output.open("wb") as output:
            self.driver = subprocess.Popen(
                [sys.executable, HERE / "ray_drive.py", machines.address, json.dumps(fields)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=machines.environment,
            )

    @property
    def story(self) -> str:
        path = self.shared / "story.txt"
        return path.read_text() if path.exists() else ""

    def starts(self) -> list[Start]:
        found = re.findall(
            r"^node (\d+) of (\d+) started machine=(\S*) pid=(\d+) step=(\d+) master=\S+:(\d+)$", self.story, re.M
        )
        return [Start(int(a), int(b), name, int(c), int(d), int(e)) for a, b, name, c, d, e in found]

    def attempt(self, number: int) -> list[Start]:
        """Starts of the attempt with this number (1 for the first), once all of its nodes have started."""

        def complete() -> list[Start]:
            assert self.driver.poll() is None, self.output.read_text()
            by_port: dict[int, list[Start]] = {}
            for start in self.starts():
                by_port.setdefault(start.port, []).append(start)
            attempts = list(by_port.values())
            found = attempts[number - 1] if len(attempts) >= number else []
            return sorted(found, key=lambda start: start.node) if found and len(found) == found[0].nodes else []

        result: list[Start] = wait_until(complete, f"attempt {number} runs: {self.story}")
        return result

    def checkpoint(self) -> int:
        path = self.shared / "checkpoint"
        return int(path.read_text()) if path.exists() else 0

    def trains_on(self) -> int:
        """Step of a checkpoint that is newer than the newest now."""
        now = self.checkpoint()
        return int(wait_until(lambda: self.checkpoint() > now and self.checkpoint(), "there is a new checkpoint"))

    def finish(self) -> None:
        """Let the nodes finish; the driver says so."""
        (self.shared / "finish").touch()
        assert self.end() == 0

    def end(self) -> int:
        """Exit code of the driver, at its end."""
        code = self.driver.wait(PATIENCE_S)
        assert SECRET not in self.output.read_text()
        return code

    def nothing_is_left(self) -> None:
        """No node, no guard, no port."""
        wait_until(lambda: not any(is_alive(start.pid) for start in self.starts()), "no node is left")
        wait_until(lambda: not command_lines(GUARD), "no guard is left")
        for start in self.starts():
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", start.port)) != 0


@contextmanager
def scene(machines: Machines, folder: Path, *options: str, nodes: int = 2) -> Iterator[Scene]:
    """A run; at its end nothing of it is left, and if a test fails nothing stays either."""
    running = Scene(machines, folder, *options, nodes=nodes)
    try:
        yield running
        running.nothing_is_left()
    finally:
        if running.driver.poll() is None:
            running.driver.kill()
            running.driver.wait()
        for start in running.starts():
            if is_alive(start.pid):
                os.kill(start.pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """True for a process that has not ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command_lines(word: str) -> list[str]:
    """Command lines of all processes with this word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line:
            found.append(line)
    return found
