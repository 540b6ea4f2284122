"""A run of real nodes under `icestream ray`, and what a test does to it and sees of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proc import is_alive, parent, variable
from ray_cluster import PATIENCE_S, SECRET, Driver, Machines, drive, wait_until

from common.locks import newest_number
from workloads.base.checkpoint import newest_step

NODES = 2


@dataclass(frozen=True)
class Moment:
    """How far a run has come."""

    attempt: int
    step: int


class RayRun:
    """One run: its drivers, one after the other, and its nodes."""

    def __init__(self, machines: Machines, folder: Path, *options: str) -> None:
        self.machines = machines
        self.folder = folder
        self.shared = folder / "shared"
        self.local = folder / "local"
        self.released = folder / "released"
        self.ports: set[int] = set()
        """Ports at which the trainers met."""
        self.sockets: set[str] = set()
        """Abstract sockets of its fetchers."""
        self._fields = {
            "nodes": NODES,
            "possible": [1, NODES],
            "cpus": 1,
            "gpus": 0,
            "wait_s": 2.0,
            "shared": str(self.shared),
            "run_dir": str(self.local),
            "options": options,
            "config": f'input = ["https://me:{SECRET}@host.example"]',  # the options name others
            "environment": {"ICESTREAM_SEED": "3"},
        }
        self.driver = self.start(PATIENCE_S)

    def start(self, kills_after_s: float) -> Driver:
        """Start a driver, which gives nodes that it stops so much time."""
        fields = self._fields | {"kills_after_s": kills_after_s}
        self.driver = Driver(self.machines, self.folder, drive(self.machines, fields))
        return self.driver

    def trains_on(self, after: Moment | None = None) -> Moment:
        """Moment at which a later attempt than ``after`` has written a checkpoint of its own.

        It went on from a checkpoint no older than that of ``after``.
        """
        former = after.attempt if after is not None else 0
        number = self.wait(lambda: (now := self.attempt()) > former and now, f"an attempt after {former}")
        at_begin = newest_step(self.shared)
        self.wait(lambda: newest_step(self.shared) > at_begin, f"a checkpoint of attempt {number}")
        if after is not None:
            assert self.resumed_at() >= after.step
            assert f"all go on from step {self.resumed_at()}\n" in self.driver.output(), "the driver knows it"
        self.ports |= {int(variable(self.trainer(0), "MASTER_PORT"))}
        self.sockets |= {lifeline(path) for path in self.local.glob("node-*/shards/*")} & abstract_sockets()
        return Moment(number, newest_step(self.shared))

    def attempt(self) -> int:
        return newest_number(self.shared)

    def resumed_at(self) -> int:
        """Step from which the newest attempt went on, by the log of its first trainer."""
        log = (self.local / "node-0" / "logs" / "trainer.log").read_text()
        return int(re.findall(r"resumes from step-(\d+)", log)[-1])

    def wait(self, holds: Callable[[], Any], what: str) -> Any:
        def event() -> Any:
            found = holds()
            assert found or self.driver.process.poll() is None, f"the driver ended before {what}: {self.report()}"
            return found

        return wait_until(event, lambda: f"{what}: {self.report()}")

    def report(self) -> str:
        logs = sorted([*self.local.glob("*.log"), *self.local.rglob("logs/*.log")])
        return "\n".join([self.driver.output(), *(f"--- {log}\n{log.read_text()[-2000:]}" for log in logs)])

    # ------------------------------------------------------------ nodes

    def trainer(self, node: int) -> int:
        """Process of the trainer of a node."""

        def found() -> list[int]:
            return self.driver.pids("trainer", str(self.local / f"node-{node}"))

        return int(self.wait(found, f"node {node} trains")[0])

    def supervisor(self, node: int) -> int:
        return parent(self.trainer(node))

    def machine(self, node: int) -> str:
        """Name of the machine on which a node runs."""
        return variable(self.trainer(node), "STAND_IN_MACHINE")

    def places(self) -> list[str]:
        """Machine of each of two nodes."""
        return [self.machine(node) for node in range(NODES)]

    def freeze(self, node: int, *, with_guard: bool) -> list[int]:
        """Stop every process of a node; those that could start others first."""
        supervisor = self.supervisor(node)
        guard = [parent(supervisor)] if with_guard else []
        services = self.driver.pids(str(self.local / f"node-{node}"))
        assert len(services) >= 3, "a fetcher, a decoder, a trainer"
        pids = [*guard, supervisor, *services]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return pids

    def lose(self, node: int) -> str:
        """Lose the machine of a node, at once with all that runs there; its name.

        Without the freeze the guard would see that Ray's worker is gone, and end the node with a checkpoint.
        """
        name = self.machine(node)
        pids = self.freeze(node, with_guard=True)
        self.machines.lose(name)
        self.wait(lambda: f"node {node} is lost" in self.driver.output(), "the driver notices")
        for pid in pids:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        return name

    # ------------------------------------------------------------ end

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.shared / "summary.json").read_text())
        return summary

    def trained(self) -> Counter[tuple[int, ...]]:
        """Times that each part of the data was trained, by the audits: shard, epoch, unit, microbatch, events."""
        texts = [path.read_text() for path in self.shared.rglob("audit*.jsonl")]
        lines = [json.loads(line) for text in texts for line in text.splitlines()]
        names = ("shard", "epoch", "unit", "microbatch", "events")
        return Counter(tuple(line[name] for name in names) for line in lines)

    def nothing_is_left(self) -> None:
        """No process, no abstract socket, no port, no half file."""
        self.driver.nothing_is_left()
        assert self.sockets
        wait_until(lambda: not self.sockets & abstract_sockets(), "no socket is left")
        assert self.ports
        wait_until(lambda: not self.ports & listening(), "no port is left")
        assert not list(self.folder.rglob("*.part"))


def abstract_sockets() -> set[str]:
    return set(re.findall(r"@icestream-\w+", Path("/proc/net/unix").read_text()))


def lifeline(run_dir: Path) -> str:
    """Name of the abstract socket of a fetcher."""
    name = f"{os.getuid()}\0{run_dir.resolve()}".encode()
    return f"@icestream-{hashlib.blake2b(name, digest_size=12).hexdigest()}"


def listening() -> set[int]:
    """TCP ports of this machine at which somebody listens."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {int(fields[1].rpartition(":")[2], 16) for fields in lines if fields[3] == "0A"}
