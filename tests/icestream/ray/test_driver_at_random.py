"""Decisions of the driver of several nodes while machines and nodes are lost, hang, fail and come back at random."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from icestream.commands.ray.driver import (
    DRIVER_RELEASES_S,
    GUARD_KILLS_S,
    MOST_FAILURES,
    ClusterView,
    EndDriver,
    NodeEnded,
    NodeExit,
    NodeGone,
    NodeRunning,
    NodesDriver,
    NodeState,
    ReleaseNodes,
    ReserveMachines,
    StartNodes,
    StopNodes,
)

RUNNING = NodeRunning()


class Cluster:
    """Machines and nodes that live, die, hang and finish as the dice fall."""

    def __init__(self, dice: random.Random, machines: int) -> None:
        self.dice = dice
        self.machines = machines
        self.most = machines
        self.nodes: list[NodeState] = []
        self.hung: set[int] = set()
        self.stopping_since_s = 0.0
        self.is_stopping = self.has_started = self.is_failing = False
        self.pending = 0
        self.step = self.began_at = self.checkpoint = 0
        self.checkpoint_every = dice.randrange(1, 6)
        self.last_step = 12
        self.fatal_step = dice.choice([None, None, None, dice.randrange(1, 12)])
        """Step at which each attempt fails, after its last checkpoint before."""
        self.fails_after_s = dice.choice([0, 61, 200])
        self.fails_at_s = math.inf

    def mishap(self) -> None:
        """One random fault, or the return of a machine."""
        match self.dice.randrange(6):
            case 0 if self.nodes:
                self.nodes[self.dice.randrange(len(self.nodes))] = NodeGone()
                self.machines = max(0, self.machines - 1)
            case 1 if self.has_started and self.nodes:
                self.end(self.dice.randrange(len(self.nodes)), self.dice.choice([75, -9, 130, 137]))
            case 2 if self.has_started and self.nodes:
                self.hung.add(self.dice.randrange(len(self.nodes)))
            case 3:
                self.machines = max(0, self.machines - 1)
            case _:
                self.machines = min(self.most, self.machines + 1)

    def end(self, node: int, code: int) -> None:
        if self.nodes[node] == RUNNING:
            self.nodes[node] = NodeEnded(code)

    @property
    def resumes_at(self) -> int | None:
        return self.checkpoint if self.nodes and not self.has_started else None

    def reserve(self, count: int) -> None:
        self.pending, self.hung = count, set()
        self.is_stopping = self.has_started = self.is_failing = False

    def start(self) -> None:
        assert not self.has_started
        self.has_started, self.fails_at_s = True, math.inf
        self.step = self.began_at = self.checkpoint

    def stop(self, now_s: float) -> None:
        self.is_stopping, self.stopping_since_s = True, now_s
        self.is_failing = NodeEnded(130) not in self.nodes and any(node != RUNNING for node in self.nodes)

    def release(self) -> bool:
        """True if the attempt was in vain, and no machine was lost, and no node stopped from outside."""
        has_failed = self.is_failing and all(isinstance(node, NodeEnded) for node in self.nodes)
        has_failed &= self.checkpoint == self.began_at
        self.nodes, self.pending = [], 0
        return has_failed

    def pass_time(self, now_s: float) -> None:
        """What nodes do by themselves: work, notice a lost one, stop when asked."""
        is_well = not self.hung and all(state in (RUNNING, NodeEnded(0)) for state in self.nodes)
        if self.pending and self.pending <= self.machines:
            self.nodes, self.pending = [RUNNING] * self.pending, 0
        elif not self.has_started:
            return
        elif self.is_stopping:
            if is_well:
                self.checkpoint = self.step
            for node in range(len(self.nodes)):
                if node not in self.hung:
                    self.end(node, 130)
                elif now_s - self.stopping_since_s >= GUARD_KILLS_S:
                    self.end(node, -9)
        elif not is_well:
            for node in range(len(self.nodes)):
                if node not in self.hung:
                    self.end(node, 75)
        elif self.nodes:
            self.train(now_s)

    def train(self, now_s: float) -> None:
        """One step, or a part of the one that fails."""
        if self.step + 1 == self.fatal_step:
            self.fails_at_s = min(self.fails_at_s, now_s + self.fails_after_s)
            if now_s >= self.fails_at_s:
                self.end(self.dice.randrange(len(self.nodes)), self.dice.choice([75, -9, 137]))
            return
        self.step += 1
        if self.step % self.checkpoint_every == 0:
            self.checkpoint = self.step
        if self.step >= self.last_step:
            self.checkpoint = self.step
            self.nodes = [NodeEnded(0)] * len(self.nodes)


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_in_any_order_of_faults_a_run_ends_and_no_two_attempts_meet(first: int) -> None:
    ends = Counter(simulate(seed) for seed in range(first, first + 50))
    assert {0, NodeExit.FAILED, NodeExit.STOPPED} <= set(ends), "each end has been seen"


def simulate(seed: int) -> int:
    """Exit code of a run with random faults."""
    dice = random.Random(seed)
    possible = dice.choice([(1,), (1, 2, 4), (1, 2, 3, 6), (1, 3), (2, 4, 8), (12,)])
    asked = dice.choice(possible)
    cluster = Cluster(dice, asked + dice.randrange(2))
    driver = NodesDriver(asked, possible, wait_s=dice.choice([0, 5, 60]))
    stop_at = dice.choice([None, dice.randrange(200)])
    is_attempt, is_refused, ends, now_s = False, False, [], 0.0
    failures: Counter[int] = Counter()  # by the checkpoint from which they went on
    for turn in range(8000):
        now_s += 1
        if turn < 150 and dice.random() < 0.1:
            cluster.mishap()
        elif turn == 150:
            cluster.machines = max(min(possible), cluster.machines)
        cluster.pass_time(now_s)
        stop_asked = stop_at is not None and turn >= stop_at
        is_refused = bool(cluster.pending) and dice.random() < 0.02
        state = ClusterView(now_s, cluster.machines, cluster.nodes, cluster.resumes_at, is_refused, stop_asked)
        for order in driver.decide(state):
            match order:
                case ReserveMachines(count):
                    assert not is_attempt, "two attempts at once"
                    assert not ends
                    assert count in possible
                    assert count <= asked
                    assert not stop_asked
                    is_attempt = True
                    cluster.reserve(count)
                case StartNodes():
                    assert failures[cluster.checkpoint] < MOST_FAILURES, "it fails again and again"
                    cluster.start()
                case StopNodes():
                    cluster.stop(now_s)
                case ReleaseNodes():
                    assert is_attempt
                    is_attempt = False
                    failures[cluster.checkpoint] += cluster.release()
                case EndDriver(code):
                    ends.append(code)
        if stop_asked and stop_at is not None and turn > stop_at + DRIVER_RELEASES_S + 2:
            assert ends, "a stop takes too long"
        if ends:
            break
    assert ends, "the run does not end"
    assert not is_attempt
    if ends[0] == NodeExit.FAILED:
        assert failures[cluster.checkpoint] == MOST_FAILURES
    elif ends[0] == NodeExit.USER_ERROR:
        assert driver.attempts == 0
    elif ends[0] == NodeExit.STOPPED:
        assert stop_at is not None
    else:
        assert cluster.checkpoint == cluster.last_step
    exit_code: int = ends[0]
    return exit_code
