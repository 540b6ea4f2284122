"""Ray cluster of a test in a process of its own, and what is left of a run there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from proc import command_line, is_alive, processes

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PATIENCE_S = 600.0
SECRET = "hunter2"
GUARD = "icestream.commands.ray.guard"


def wait_until(holds: Callable[[], Any], what: Callable[[], str] | str) -> Any:
    """First true value; the wait is bounded."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline_s, f"waited in vain until {what if isinstance(what, str) else what()}"
        time.sleep(0.05)
    return found


class Machines:
    """Ray cluster on the loopback interface."""

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


class Driver:
    """`icestream ray` of one run, given in a folder of its own: its nodes and their guards work there, too."""

    def __init__(self, machines: Machines, folder: Path, command: list[str]) -> None:
        self.folder = folder.resolve()
        self.output_file = folder / "output.txt"
        with self.output_file.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=machines.environment, cwd=folder
            )

    def output(self) -> str:
        return self.output_file.read_text()

    def end(self) -> int:
        """Exit code, at the end."""
        return self.process.wait(PATIENCE_S)

    def pids(self, *words: str) -> list[int]:
        """Processes of the run, but for the driver, whose command lines have these words."""
        return [
            pid
            for pid in processes()
            if works_in(pid) == self.folder and pid != self.process.pid and is_alive(pid)
            if set(words) <= set(command_line(pid))
        ]

    def nothing_is_left(self) -> None:
        """No process of the run: no node, no guard, no service. With them go their ports."""
        wait_until(lambda: not self.pids(), lambda: f"no process is left: {[command_line(pid) for pid in self.pids()]}")

    def kill_all(self) -> None:
        """End what a failed test has left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def drive(machines: Machines, fields: Mapping[str, Any]) -> list[str]:
    """Command that runs a RaySession with these fields."""
    return [sys.executable, str(HERE / "ray_drive.py"), machines.address, json.dumps(fields)]


def works_in(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return None
