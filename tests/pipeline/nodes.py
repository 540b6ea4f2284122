"""Nodes of one run as processes of this machine, each with a run directory of its own."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from federation.free_ports import free_port
from runs import Process, Processes, Summary, kill


class Nodes:
    """All starts of a run: of each, its nodes' processes."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        self.folder = folder
        self.shared = folder / "shared"
        self._arguments = list(arguments)
        self._places: list[Processes] = []

    def node(self, place: int) -> Processes:
        """Machine with this number: a run directory, with the logs of what was started there."""
        while len(self._places) <= place:
            number = len(self._places)
            logs = self.folder / f"logs-{number}"
            logs.mkdir(parents=True)
            self._places.append(Processes(self.folder / f"node-{number}", logs))
        return self._places[place]

    def start(self, nodes: int, *more: str, first_place: int = 0, brake_after: int | None = None) -> list[Process]:
        """Start all nodes, on the machines from ``first_place`` on. With ``brake_after``, slow from this step on."""
        started, port = [], free_port()
        for node in range(nodes):
            machine = self.node(first_place + node)
            place = ("--node", str(node), "--nodes", str(nodes), "--master", f"127.0.0.1:{port}")
            environment = machine.brake(brake_after) if brake_after is not None else {}
            command = (*place, "--shared", str(self.shared), *self._arguments, *more)
            started.append(machine.start("node", *command, environment=environment))
        return started

    def train(self, nodes: int, *more: str, first_place: int = 0) -> Summary:
        """Start all nodes, which have to come to a good end."""
        ends = self.ends(self.start(nodes, *more, first_place=first_place))
        assert ends == [0] * nodes, self.report()
        return self.summary()

    def ends(self, started: Sequence[Process]) -> list[int]:
        """Exit codes of nodes, at their ends."""
        return [self.node(0).finish(one) for one in started]

    def start_and_reach(self, step: int, nodes: int, *more: str) -> list[Process]:
        """Start all nodes; returns when there is a checkpoint of ``step`` or later. They are slow from there on."""
        started = self.start(nodes, *more, brake_after=step)
        self.wait(lambda: self.step() >= step or any(one.ended() for one in started), f"step {step}")
        assert not any(one.ended() for one in started), self.report()
        return started

    def wait(self, event: Callable[[], object], what: str) -> None:
        try:
            self.node(0).wait_for(event, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.report()}") from None

    def release(self) -> None:
        for machine in self._places:
            machine.release()

    def freeze(self, place: int) -> list[int]:
        """Stop every process of a machine, the supervisor first."""
        machine = self.node(place)
        pids = [*machine.pids("node"), *machine.pids()]
        for pid in pids:
            kill(pid, signal.SIGSTOP)
        return pids

    # ------------------------------------------------------------ results

    def step(self) -> int:
        """Step of the newest checkpoint; 0 before the first."""
        return max((int(path.stem[5:]) for path in (self.shared / "checkpoints").glob("step-*.pt")), default=0)

    def checkpoint(self) -> dict[str, Any]:
        path = self.shared / "checkpoints" / f"step-{self.step():09d}.pt"
        checkpoint: dict[str, Any] = torch.load(path, weights_only=True)
        return checkpoint

    def summary(self) -> Summary:
        return Summary(json.loads((self.shared / "summary.json").read_text()))

    def audits(self) -> dict[str, str]:
        """Audits by their place in the shared folder, one for each trainer of a shard."""
        return {str(path.relative_to(self.shared)): path.read_text() for path in self.shared.rglob("audit*.jsonl")}

    # ------------------------------------------------------------ ends

    def assert_nothing_is_left(self) -> None:
        for machine in self._places:
            machine.assert_nothing_is_left()
        assert not [path for path in self.folder.rglob("*.part") if "logs" not in path.parts]

    def end(self) -> None:
        for machine in self._places:
            machine.end()

    def report(self) -> str:
        return "\n".join(f"=== {machine.run_dir}\n{machine.report()}" for machine in self._places)
