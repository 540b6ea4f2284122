"""Decisions about the nodes of a run: start with how many, stop, start again, end. Pure: the time is passed in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from common.errors import TRY_AGAIN_EXIT_CODE, USER_ERROR_EXIT_CODE
from services.supervisor.child import RestartPolicy


class NodeExit(IntEnum):
    """Exit codes of `icestream node`. After any other one (a signal's) all nodes start again, as after LOST_ANOTHER."""

    DONE = 0
    FAILED = 1
    """A restart would fail again."""
    USER_ERROR = USER_ERROR_EXIT_CODE
    LOST_ANOTHER = TRY_AGAIN_EXIT_CODE
    """Another node or one of its ranks is gone: all have to start again."""
    STOPPED = 130
    """A signal asked for a checkpoint and the end."""


NODE_STOPS_S = 10.0
"""Longest time in which a node that works writes its checkpoint and ends after SIGTERM."""
GUARD_KILLS_S = 20.0
"""Time after which the guard beside a node kills one that has not ended."""
DRIVER_RELEASES_S = 30.0
"""Time after which the driver gives up a machine whose guard reports nothing."""
PAUSES_S = (1.0, 300.0)
"""Shortest and longest pause before all nodes start again."""
MOST_FAILURES = 10
"""Failed attempts since the newest checkpoint, after which another one can't help, however long each took."""
MOST_LOSSES = 100
"""The same for attempts that lost a machine, or were stopped from outside. A scheduler takes machines away in series,
and that passes; but a machine may also be lost because of what the node does there, each time."""
RESERVED_WITHIN_S = 60.0
"""Time for Ray to reserve machines that are alive; others may use them."""
_LONGEST_GROWTH_WAIT_S = 3600.0


@dataclass(frozen=True)
class NodeRunning:
    """State of a node: started, or about to be."""


@dataclass(frozen=True)
class NodeEnded:
    """State of a node whose process has ended."""

    exit_code: int
    """Exit code as the process gave it; below 0: minus the signal that killed it."""


@dataclass(frozen=True)
class NodeGone:
    """State of a node whose machine does not answer, or whose actor is dead."""


NodeState = NodeRunning | NodeEnded | NodeGone


@dataclass(frozen=True)
class ClusterView:
    """State of the cluster at one moment."""

    now_s: float
    machines: int
    """Machines that are alive and large enough for a node, with those in use."""
    nodes: Sequence[NodeState] = ()
    """Nodes of the current attempt; none before it has its machines, and after it was released."""
    resumes_at: int | None = None
    """Step of the newest checkpoint, by the machines of the current attempt; None until all have said so."""
    is_refused: bool = False
    """True if Ray could not reserve the machines of the current attempt in time."""
    stop_asked: bool = False
    """True from the first signal that asks to stop."""


@dataclass(frozen=True)
class ReserveMachines:
    """Order: reserve this many machines for an attempt, and ask them where it goes on."""

    count: int
    why: str


@dataclass(frozen=True)
class StartNodes:
    """Order: start a node on each reserved machine."""

    why: str = ""
    """Text on where they go on; empty at the beginning of the run."""


@dataclass(frozen=True)
class StopNodes:
    """Order: ask every node for a checkpoint and its end."""

    why: str


@dataclass(frozen=True)
class ReleaseNodes:
    """Order: give the machines of the attempt back; a node that still runs there is ended by its guard."""

    why: str = ""
    """Text if nobody knows it from an order before."""


@dataclass(frozen=True)
class EndDriver:
    """Order: end the command with this exit code."""

    exit_code: int
    why: str


Order = ReserveMachines | StartNodes | StopNodes | ReleaseNodes | EndDriver


def largest_fitting(possible: Sequence[int], machines: int) -> int:
    """Largest of the possible numbers of nodes that has a machine for each; 0 if there is none."""
    return max((count for count in possible if count <= machines), default=0)


class AttemptsInVain:
    """Attempts since the newest checkpoint."""

    def __init__(self) -> None:
        self._furthest_step = -1
        self._failures = self._losses = 0

    def resumes_at(self, step: int) -> None:
        """Take the step from which the next attempt goes on. A lower one, after a rollback, is no progress."""
        if step > self._furthest_step:
            self._furthest_step, self._failures, self._losses = step, 0, 0

    def ended(self, *, by_loss: bool) -> None:
        """Record the end of an attempt that has not finished. ``by_loss``: of a machine, or by a stop from outside."""
        if by_loss:
            self._losses += 1
        else:
            self._failures += 1

    @property
    def why_no_more(self) -> str:
        """Reason to try no more; empty while there is none."""
        step = self._furthest_step
        since = f"since the newest checkpoint (step {step})" if step else "before the first checkpoint"
        if self._failures >= MOST_FAILURES:
            return f"{self._failures} starts have failed {since}: the nodes' logs say why"
        if self._losses >= MOST_LOSSES:
            return (
                f"{self._losses} starts have lost a machine, or were stopped, {since}: see why in the logs, or write"
                " checkpoints more often (trainer.checkpoint_every)"
            )
        return ""


class NodesDriver:
    """State machine of a run on several nodes: waiting for machines, reserving them, running, stopping.

    ``asked``: wanted number of nodes, one of the ``possible`` ones. ``wait_s``: time to wait for missing machines
    before a start with fewer, and for which returned ones must be there before a restart with more.
    """

    def __init__(self, asked: int, possible: Sequence[int], wait_s: float) -> None:
        self._asked = asked
        self._possible = possible
        self._wait_s = wait_s
        self._phase: Literal["waiting", "reserving", "running", "stopping", "ended"] = "waiting"
        self._since_s: float | None = None
        """Begin of the wait for machines, or of the stop."""
        self._pause_ends_s = -math.inf
        self._count = 0
        """Nodes of the current attempt."""
        self._most = asked
        """Limit for the next start, after Ray could not reserve more."""
        self._growth_wait_s = wait_s
        self._more_since_s: float | None = None
        """Time since when there are machines for more nodes."""
        self._restarts = RestartPolicy(*PAUSES_S)
        self._in_vain = AttemptsInVain()
        self._is_stopped = False
        """True if no node of the attempt had failed when its end began: a signal from outside, or more machines."""
        self.attempts = 0
        """Number of attempts that have asked for machines."""

    def decide(self, view: ClusterView) -> list[Order]:
        """Orders that follow from the state of the cluster, to be carried out one after the other."""
        if self._since_s is None:
            self._since_s = view.now_s
        match self._phase:
            case "waiting":
                return self._waiting(view)
            case "reserving":
                return self._reserving(view)
            case "running":
                return self._running(view)
            case "stopping":
                return self._stopping(view)
            case "ended":
                return []

    def _waiting(self, view: ClusterView) -> list[Order]:
        assert self._since_s is not None
        if view.stop_asked:
            return [self._end(NodeExit.STOPPED, "stopped before the nodes were started again")]
        waited_s = view.now_s - self._since_s
        count = largest_fitting(self._possible, min(view.machines, self._most))
        if view.now_s < self._pause_ends_s or (count < self._asked and waited_s < self._wait_s):
            return []
        if count == 0:
            if self.attempts:
                return []
            return [self._end(NodeExit.USER_ERROR, self._too_few(view.machines))]
        self._phase, self._count, self._more_since_s, self._is_stopped = "reserving", count, None, False
        self._most = self._asked
        self.attempts += 1
        self._restarts.started(view.now_s)
        fewer = f" of {self._asked}, as {view.machines} machines are there" if count < self._asked else ""
        return [ReserveMachines(count, f"start {self.attempts}: {count} nodes{fewer}")]

    def _too_few(self, machines: int) -> str:
        """Text on a first start for which there are not enough machines."""
        none = f"no machine of the cluster is large enough for a node, after {self._wait_s:g} s"
        few = (
            f"{machines} machines of the cluster are large enough for a node, after {self._wait_s:g} s, but possible"
            f" numbers of nodes are {', '.join(map(str, self._possible))}"
        )
        advice = "compare --cpus and --gpus with `ray status`, or wait longer with --wait-for-nodes"
        return f"{few if machines else none}: {advice}"

    def _reserving(self, view: ClusterView) -> list[Order]:
        if view.is_refused:
            return self._after_refusal(view)
        if view.stop_asked:
            return [ReleaseNodes(), self._end(NodeExit.STOPPED, "stopped before the nodes were started")]
        if words := losses_words(view.nodes):
            return self._after_end(view, words)
        if view.resumes_at is None:
            return []
        self._in_vain.resumes_at(view.resumes_at)
        if why := self._in_vain.why_no_more:
            return [ReleaseNodes(), self._end(NodeExit.FAILED, why)]
        self._phase = "running"
        return [StartNodes(f"all go on from step {view.resumes_at}" if view.resumes_at else "")]

    def _running(self, view: ClusterView) -> list[Order]:
        if all_ended_well(view.nodes):
            return [ReleaseNodes(), self._end(0, "all nodes have finished")]
        if view.stop_asked:
            return [self._stop(view, "asked to stop: every node writes its checkpoint")]
        if words := losses_words(view.nodes):
            self._is_stopped = NodeEnded(NodeExit.STOPPED) in view.nodes
            return [self._stop(view, words)]
        more = largest_fitting(self._possible, min(view.machines, self._asked))
        if more <= self._count:
            self._more_since_s = None
        elif self._more_since_s is None:
            self._more_since_s = view.now_s
        elif view.now_s - self._more_since_s >= self._growth_wait_s:
            self._is_stopped = True
            return [self._stop(view, f"{view.machines} machines are there: all start again as {more} nodes")]
        return []

    def _after_refusal(self, view: ClusterView) -> list[Order]:
        """Release what was asked for; next time fewer machines, if fewer are possible."""
        self._growth_wait_s = min(2 * self._growth_wait_s, max(self._wait_s, _LONGEST_GROWTH_WAIT_S))
        self._most = largest_fitting(self._possible, self._count - 1) or self._asked
        self._wait(view)
        return [ReleaseNodes()]

    def _stopping(self, view: ClusterView) -> list[Order]:
        assert self._since_s is not None
        is_over = not any(isinstance(node, NodeRunning) for node in view.nodes)
        if not is_over and view.now_s - self._since_s < DRIVER_RELEASES_S:
            return []
        if all_ended_well(view.nodes):
            return [ReleaseNodes(), self._end(0, "all nodes have finished")]
        return self._after_end(view)

    def _after_end(self, view: ClusterView, why: str = "") -> list[Order]:
        """Orders at the end of an attempt that has not finished."""
        codes = {node.exit_code for node in view.nodes if isinstance(node, NodeEnded)}
        if NodeExit.USER_ERROR in codes:
            return [ReleaseNodes(why), self._end(NodeExit.USER_ERROR, "a node refuses its input or a setting")]
        if NodeExit.FAILED in codes:
            return [ReleaseNodes(why), self._end(NodeExit.FAILED, "a node failed, and would fail again")]
        if view.stop_asked:
            return [ReleaseNodes(why), self._end(NodeExit.STOPPED, "stopped; the same command resumes")]
        is_lost = not all(isinstance(node, NodeEnded) for node in view.nodes)
        self._in_vain.ended(by_loss=is_lost or self._is_stopped)
        self._pause_ends_s = view.now_s + self._restarts.died(view.now_s)
        self._wait(view)
        return [ReleaseNodes(why)]

    def _wait(self, view: ClusterView) -> None:
        self._phase, self._since_s = "waiting", view.now_s

    def _stop(self, view: ClusterView, why: str) -> StopNodes:
        self._phase, self._since_s = "stopping", view.now_s
        return StopNodes(why)

    def _end(self, exit_code: int, why: str) -> EndDriver:
        self._phase = "ended"
        return EndDriver(exit_code, why)


def all_ended_well(nodes: Sequence[NodeState]) -> bool:
    """True if there are nodes and each has ended with exit code 0."""
    return bool(nodes) and all(node == NodeEnded(0) for node in nodes)


def losses_words(nodes: Sequence[NodeState]) -> str:
    """Text about all nodes whose states end the attempt; empty without any."""
    return "; ".join(words for words in map(loss_words, range(len(nodes)), nodes) if words)


def loss_words(index: int, node: NodeState) -> str:
    """Text about a node whose state ends the attempt; empty for one that runs or has finished."""
    match node:
        case NodeGone():
            return f"node {index} is lost"
        case NodeEnded(code) if code:
            return f"node {index} {exit_words(code)}"
    return ""


def exit_words(exit_code: int) -> str:
    """Text on the end of a node, to follow its name."""
    match exit_code:
        case NodeExit.FAILED:
            return "failed"
        case NodeExit.USER_ERROR:
            return "refuses its input or a setting"
        case NodeExit.LOST_ANOTHER:
            return "lost another node"
        case NodeExit.STOPPED:
            return "was stopped from outside"
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"
