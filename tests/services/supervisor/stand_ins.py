"""A run with real processes under the supervisor: stand-ins of a few lines instead of the services.

A stand-in appends a line to `story.txt` for everything that happens to it. The supervisor's own regular look at
the run drives each test: once the story has come far enough, the test acts (a signal, mostly). No test waits for a
time; one that hangs is ended by PATIENCE_S."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import pytest
from proc import is_alive, wait_for

from common.status import FetcherStatus, write_status
from services.config.settings import LocalConfig
from services.supervisor import supervisor as supervisor_module
from services.supervisor.supervisor import Processes, SessionOutcome, Supervisor, TrainerGroup

PATIENCE_S = 60.0
STAND_IN = """
import json, os, signal, sys, time
from pathlib import Path

name, behaviour, run_dir = sys.argv[1], sys.argv[2], Path(sys.argv[3])

def tell(what):
    story = os.open(run_dir / "story.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(story, f"{name} {what} {os.getpid()}\\n".encode())
    os.close(story)

def report(state):
    part = run_dir / "status" / f"{name}.part"
    part.write_text(json.dumps({"state": state, "pid": os.getpid()}))
    part.replace(run_dir / "status" / f"{name}.json")

def on_sigterm(number, frame):
    tell("SIGTERM")
    if behaviour != "stubborn":
        if name == "trainer":
            report("stopped")
        sys.exit({"fails to stop": 1, "can't save": 2}.get(behaviour, 0))

(run_dir / "status").mkdir(exist_ok=True)
signal.signal(signal.SIGTERM, on_sigterm)
first = not (run_dir / f"{name}.was-here").exists()
(run_dir / f"{name}.was-here").touch()
tell("started")
if behaviour == "leaves when told":
    while not (run_dir / f"{name}.leave").exists():
        time.sleep(0.01)
    (run_dir / f"{name}.leave").unlink()
    sys.exit(0)
if behaviour == "has a child":
    import subprocess
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"])
    tell(f"child-{child.pid}")
elif behaviour == "refuses":
    print("Error: an older complaint", flush=True)
    print("Error: no such file: demo", file=sys.stderr, flush=True)
    print("some more words", flush=True)
    sys.exit(2)
elif behaviour == "shows its environment":
    print({key: value for key, value in os.environ.items() if "ICESTREAM" in key}, flush=True)
    sys.exit(2)
elif behaviour == "refuses silently":
    sys.exit(2)
elif behaviour == "can't save":
    print("Error: the disk is full", flush=True)
elif behaviour == "has a bug":
    tell("failed")
    raise ValueError("no such column: theta")
elif behaviour == "leaves once" and first:
    sys.exit(0)
elif behaviour == "crashes, then finishes" and first:
    os.kill(os.getpid(), signal.SIGKILL)
elif behaviour == "follows":
    while not (run_dir / ("trainer.done" if name == "fetcher" else "fetcher.done")).exists():
        time.sleep(0.01)
    tell("followed")
    if name == "fetcher":
        report("finished")
        (run_dir / "fetcher.done").touch()
    sys.exit(0)
elif "finishes" in behaviour or behaviour == "gives up":
    report("training" if behaviour == "gives up" else "finished")
    (run_dir / "trainer.done").touch()
    sys.exit(0)
while True:
    time.sleep(0.02)  # not pause(): a signal just before it would not be heard before the next one
"""
Story = list[tuple[str, str]]


class Stage:
    """A run directory, stand-ins with behaviours, and a script: (when the story is so far, do this) in order."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.behaviours: dict[str, str] = {}
        self.script: list[tuple[Callable[[Story], bool], Callable[[], None]]] = []
        self.said: list[str] = []
        self.group: TrainerGroup | None = None
        self.processes = Processes({}, {})
        self.seen: set[str] = set()
        """Every process that ever ran, also one that had no time to tell of itself."""
        self._deadline_s = time.monotonic() + PATIENCE_S

    def command_for(self, name: str) -> list[str]:
        behaviour = self.behaviours.get(name, "waits")
        return [sys.executable, "-I", "-S", "-c", STAND_IN, name, behaviour, str(self.run_dir)]

    def lines(self) -> list[list[str]]:
        path = self.run_dir / "story.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def story(self) -> Story:
        return [(line[0], line[1]) for line in self.lines()]

    def pids(self) -> list[int]:
        pids = [int(line[2]) for line in self.lines()]
        return pids + [int(what.partition("-")[2]) for _, what in self.story() if what.startswith("child-")]

    def watch(self, processes: Processes) -> None:
        assert time.monotonic() < self._deadline_s, f"stuck: {self.story()} {self.said}"
        self.processes = processes
        self.seen |= processes.pids.keys()
        if self.script and self.script[0][0](self.story()):
            self.script.pop(0)[1]()

    def kill(self, name: str) -> Callable[[], None]:
        return lambda: os.kill(self.processes.pids[name], signal.SIGKILL)

    def tell_wanted(self, wanted: int, *connected: str) -> None:
        """What the fetcher would say: so many decoders are wanted, and these have joined."""
        pids = tuple(self.processes.pids[name] for name in connected)
        status = FetcherStatus(pid=self.processes.pids["fetcher"], decoders_wanted=wanted, decoder_pids=pids)
        write_status(self.run_dir, "fetcher", status)

    def run(
        self,
        decoders: int | Literal["auto"] = 2,
        stop_timeout_s: float = PATIENCE_S,
        restart_s: float = 0,
        trainers: int = 1,
        shards: Sequence[int] = (),
    ) -> SessionOutcome:
        local = LocalConfig(decoders=decoders, trainers=trainers, restart_min_s=restart_s)
        supervisor = Supervisor(
            self.run_dir,
            local,
            self.command_for,
            group=self.group,
            shards=shards,
            watch=self.watch,
            say=self.said.append,
            tick_s=0.01,
            hurry_after_s=0.0,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(supervisor_module, "STOP_TIMEOUT_S", stop_timeout_s)
            outcome = supervisor.run()
        assert not self.script, f"the run ended too early: {self.story()}"
        return outcome


def assert_gone(pids: list[int]) -> None:
    """None of the processes is left. Killed ones that somebody else has to reap get a moment for it."""
    wait_for(lambda: not any(map(is_alive, pids)), f"one of the processes {pids} is left")


def started(*names: str) -> Callable[[Story], bool]:
    return lambda story: all((name, "started") in story for name in names)


def started_times(name: str, times: int) -> Callable[[Story], bool]:
    return lambda story: story.count((name, "started")) == times


def signal_self(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


EVERYONE = ("fetcher", "decoder-0", "decoder-1", "trainer")
CTRL_C = signal_self(signal.SIGINT)
