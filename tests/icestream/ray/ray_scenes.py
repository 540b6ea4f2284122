"""A run of stand-in nodes under `icestream ray`, and what a test does to it and sees of it."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ray_cluster import SECRET, Driver, Machines, drive, wait_until


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

    def __init__(self, machines: Machines, folder: Path) -> None:
        self.shared = folder / "shared"
        self.shared.mkdir()
        fields = {
            "nodes": 2,
            "possible": [1, 2],
            "cpus": 1,
            "gpus": 0,
            "wait_s": 2.0,
            "shared": str(self.shared),
            "run_dir": str(folder / "local"),
            "options": ["-i", f"https://me:{SECRET}@host.example/data"],
            "config": f'input = ["https://me:{SECRET}@host.example"]',
            "environment": {"ICESTREAM_SEED": "3"},
            "target": "stand_in_node:main",
        }
        self.driver = Driver(machines, folder, drive(machines, fields))

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
            assert self.driver.process.poll() is None, self.driver.output()
            by_port: dict[int, list[Start]] = {}
            for start in self.starts():
                by_port.setdefault(start.port, []).append(start)
            attempts = list(by_port.values())
            found = attempts[number - 1] if len(attempts) >= number else []
            return sorted(found, key=lambda start: start.node) if found and len(found) == found[0].nodes else []

        result: list[Start] = wait_until(complete, lambda: f"attempt {number} runs: {self.story}{self.driver.output()}")
        return result

    def checkpoint(self) -> int:
        path = self.shared / "checkpoint"
        return int(path.read_text()) if path.exists() else 0

    def trains_on(self) -> int:
        """Step of a checkpoint that is newer than the newest now."""
        now = self.checkpoint()
        return int(wait_until(lambda: self.checkpoint() > now and self.checkpoint(), "there is a new checkpoint"))

    def end(self) -> int:
        """Exit code of the driver, at its end, which has left nothing."""
        code = self.driver.end()
        assert SECRET not in self.driver.output()
        self.driver.nothing_is_left()
        for start in self.starts():
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", start.port)) != 0
        return code


@contextmanager
def scene(machines: Machines, folder: Path) -> Iterator[Scene]:
    """A run; if a test fails, nothing of it stays."""
    running = Scene(machines, folder)
    try:
        yield running
    finally:
        running.driver.kill_all()
