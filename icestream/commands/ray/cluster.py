"""Nodes of a run on a Ray cluster: machines reserved, actors started, asked and given back. No call waits long."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from icestream.commands.ray.driver import (
    RESERVED_WITHIN_S,
    NodeEnded,
    NodeExit,
    NodeGone,
    NodeRunning,
    NodeState,
)
from icestream.commands.ray.node_actor import ActorPlace, NodeActor, NodeJob, NodeReport

ANSWERS_WITHIN_S = 30.0
"""Time after which an actor that does not answer counts as lost; Ray itself notices a dead machine earlier."""
STARTS_WITHIN_S = 600.0
"""The same for an actor's first answer: Ray starts a Python process for it, which imports this package and torch, from
a shared disk perhaps, on a machine that may be busy."""

_CREATION = "creation task"
"""Words of Ray's error for an actor that could not be made: icestream is not installed on that machine, say."""


@dataclass(frozen=True)
class Meeting:
    """Place of one node among all of an attempt."""

    node: int
    nodes: int
    master: str
    """HOST:PORT of node 0."""


@dataclass
class _Member:
    """One node of the current attempt."""

    actor: Any
    call: Any
    """Unanswered call of the actor."""
    asked_s: float
    place: ActorPlace | None = None
    state: NodeState = field(default_factory=NodeRunning)


class RayNodes:
    """Machines and nodes of one attempt after the other.

    ``shared``: folder of the results, as the machines see it. ``job_for`` makes the program of a node; ``heard`` is
    given the new lines of a node's output.
    """

    def __init__(
        self,
        cpus: float,
        gpus: float,
        shared: Path,
        job_for: Callable[[Meeting], NodeJob],
        heard: Callable[[int, Sequence[str]], None],
    ) -> None:
        self._needs = {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}
        self._shared = shared
        self._job_for = job_for
        self._heard = heard
        self._group: PlacementGroup | None = None
        self._reserving: Any = None
        self._refused_at_s = 0.0
        self._count = 0
        self._members: list[_Member] = []
        self._has_started = False
        self._former: dict[str, int] = {}
        """Node that a machine was in the last attempt: it has the files of that one."""

    def machines(self) -> int:
        """Number of machines that are alive and large enough for a node."""
        return sum(
            machine["Alive"] and all(machine["Resources"].get(name, 0) >= need for name, need in self._needs.items())
            for machine in ray.nodes()
        )

    @property
    def states(self) -> list[NodeState]:
        """States of the attempt's nodes; none before its machines are reserved."""
        return [member.state for member in self._members]

    @property
    def places(self) -> list[str]:
        """Addresses of the attempt's nodes."""
        return [member.place.host if member.place is not None else "" for member in self._members]

    @property
    def resumes_at(self) -> int | None:
        """Step of the newest checkpoint, once all machines of the attempt have said which they see."""
        places = [member.place for member in self._members]
        steps = [place.newest_step for place in places if place is not None]
        return max(steps) if steps and len(steps) == self._count else None

    @property
    def is_refused(self) -> bool:
        """True if Ray has not reserved the machines in time."""
        return self._reserving is not None and time.monotonic() >= self._refused_at_s

    def reserve(self, count: int) -> None:
        """Reserve machines for an attempt; `advance` does the rest."""
        self._count, self._has_started = count, False
        self._group = placement_group([self._needs] * count, strategy="STRICT_SPREAD")
        self._reserving = self._group.ready()
        self._refused_at_s = time.monotonic() + RESERVED_WITHIN_S

    def advance(self) -> None:
        """Take the answers that have come, and ask the next."""
        if self._group is not None and self._reserving is not None and _is_there(self._reserving):
            self._reserving = None
            self._members = [self._member(self._group, index) for index in range(self._count)]
        for member in self._members:
            self._advance_one(member)

    def start(self) -> None:
        """Start a node on each machine; all of them have said where they are."""
        places = [member.place for member in self._members if member.place is not None]
        order = in_former_order([place.machine for place in places], self._former)
        self._members = [self._members[index] for index in order]
        first = places[order[0]]
        host = f"[{first.host}]" if ":" in first.host else first.host
        for index, member in enumerate(self._members):
            job = self._job_for(Meeting(index, self._count, f"{host}:{first.port}"))
            member.call, member.asked_s = member.actor.start.remote(job), time.monotonic()
        self._former = {places[index].machine: node for node, index in enumerate(order)}
        self._has_started = True

    def stop(self) -> None:
        """Ask every node for a checkpoint and its end."""
        for member in self._members:
            if isinstance(member.state, NodeRunning):
                member.actor.stop.remote()

    def release(self) -> None:
        """Give the machines back. A guard whose actor is gone ends its node."""
        for member in self._members:
            ray.kill(member.actor)
        if self._group is not None:
            remove_placement_group(self._group)
        self._group = self._reserving = None
        self._members = []

    def _member(self, group: PlacementGroup, index: int) -> _Member:
        where = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)
        remote: Any = ray.remote(NodeActor)
        actor = remote.options(
            num_cpus=self._needs["CPU"],
            num_gpus=self._needs.get("GPU", 0),
            max_restarts=0,
            scheduling_strategy=where,
        ).remote()
        return _Member(actor, actor.place.remote(self._shared), time.monotonic())

    def _advance_one(self, member: _Member) -> None:
        """Take the answer of one actor. One that is dead or silent too long is lost; an error would come again."""
        if not isinstance(member.state, NodeRunning) or member.call is None:
            return
        if not _is_there(member.call):
            within_s = ANSWERS_WITHIN_S if member.place is not None else STARTS_WITHIN_S
            if time.monotonic() - member.asked_s > within_s:
                member.state = NodeGone()
            return
        try:
            answer = ray.get(member.call)
        except RayError as error:
            is_gone = isinstance(error, RayActorError) and _CREATION not in str(error)
            member.state = NodeGone() if is_gone else NodeEnded(NodeExit.FAILED)
            if not is_gone:
                self._heard(self._members.index(member), [f"Error: {str(error).splitlines()[-1]}"])
            return
        match answer:
            case ActorPlace():
                member.place, member.call = answer, None
            case NodeReport():
                self._heard(self._members.index(member), answer.lines)
                if answer.exit_code is not None:
                    member.state = NodeEnded(answer.exit_code)
        if self._has_started:
            member.call, member.asked_s = member.actor.report.remote(), time.monotonic()


def in_former_order(machines: Sequence[str], former: Mapping[str, int]) -> list[int]:
    """Indices of the machines by node, so that a machine is the node that it was before, where it can."""
    order: dict[int, int] = {}
    for index, machine in enumerate(machines):
        node = former.get(machine, -1)
        if 0 <= node < len(machines) and node not in order:
            order[node] = index
    others = (index for index in range(len(machines)) if index not in order.values())
    return [order[node] if node in order else next(others) for node in range(len(machines))]


def _is_there(call: Any) -> bool:
    return bool(ray.wait([call], timeout=0)[0])
