"""Decisions of the driver of several nodes, by hand and by random schedules."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from icestream.commands.ray.driver import (
    DRIVER_RELEASES_S,
    GUARD_KILLS_S,
    MOST_SHORT_ATTEMPTS,
    NODE_STOPS_S,
    ClusterView,
    EndDriver,
    NodeEnded,
    NodeExit,
    NodeGone,
    NodeRunning,
    NodesDriver,
    NodeState,
    Order,
    ReleaseNodes,
    StartNodes,
    StopNodes,
    largest_fitting,
)

RUNNING = NodeRunning()


def view(now_s: float, machines: int, nodes: Sequence[NodeState] = (), **more: bool) -> ClusterView:
    return ClusterView(now_s, machines, nodes, **more)


def started(asked: int = 2, shards: int = 4, machines: int | None = None, wait_s: float = 10.0) -> NodesDriver:
    """Driver that has just started its first attempt."""
    driver = NodesDriver(asked, shards, wait_s)
    machines = asked if machines is None else machines
    driver.decide(view(-wait_s, machines))
    if machines < asked:
        driver.decide(view(0, machines))
    assert driver.attempts == 1
    return driver


def kinds(orders: Sequence[Order]) -> list[type[Order]]:
    return [type(order) for order in orders]


def test_patience_nests() -> None:
    assert NODE_STOPS_S < GUARD_KILLS_S < DRIVER_RELEASES_S


@pytest.mark.parametrize(("shards", "machines", "count"), [(12, 5, 4), (12, 64, 12), (8, 7, 4), (5, 4, 1), (6, 0, 0)])
def test_as_many_nodes_as_divide_the_shards_and_have_a_machine(shards: int, machines: int, count: int) -> None:
    assert largest_fitting(shards, machines) == count


def test_all_machines_there_all_nodes_start_at_once() -> None:
    (order,) = NodesDriver(4, 8, 60).decide(view(100, 5))
    assert isinstance(order, StartNodes)
    assert order.count == 4


def test_missing_machines_are_waited_for_and_then_fewer_nodes_start() -> None:
    driver = NodesDriver(4, 12, 60)
    assert driver.decide(view(100, 3)) == []
    assert driver.decide(view(159, 3)) == []
    (order,) = driver.decide(view(160, 3))
    assert isinstance(order, StartNodes)
    assert order.count == 3
    assert "of 4" in order.why


def test_a_first_start_without_any_machine_is_the_users_mistake() -> None:
    driver = NodesDriver(4, 12, 60)
    driver.decide(view(0, 0))
    (order,) = driver.decide(view(60, 0))
    assert isinstance(order, EndDriver)
    assert order.exit_code == NodeExit.USER_ERROR
    assert "--gpus" in order.why


@pytest.mark.parametrize("loss", [NodeGone(), NodeEnded(75), NodeEnded(-9), NodeEnded(137), NodeEnded(130)])
def test_after_a_loss_all_stop_and_start_again(loss: NodeState) -> None:
    driver = started(machines=3)
    assert kinds(driver.decide(view(5, 3, [RUNNING, loss]))) == [StopNodes]
    assert driver.decide(view(6, 3, [RUNNING, loss])) == []
    assert kinds(driver.decide(view(7, 3, [NodeEnded(75), loss]))) == [ReleaseNodes]
    assert driver.decide(view(7.5, 3)) == [], "a pause"
    (order,) = driver.decide(view(9, 3))
    assert isinstance(order, StartNodes)
    assert order.count == 2
    assert driver.attempts == 2


def test_pauses_grow_while_nodes_die_early() -> None:
    driver, now_s, starts = NodesDriver(1, 1, 0), 0.0, []
    while len(starts) < 5:
        orders = driver.decide(view(now_s, 1, [NodeEnded(-9)] if is_under_way(driver) else []))
        starts += [now_s for order in orders if isinstance(order, StartNodes)]
        now_s += 0.25
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 2 * gaps[0]


def test_starts_that_all_end_early_end_the_run() -> None:
    driver, now_s, orders = NodesDriver(1, 1, 0), 0.0, []
    while not any(isinstance(order, EndDriver) for order in orders):
        orders = driver.decide(view(now_s, 1, [NodeEnded(75)] if is_under_way(driver) else []))
        now_s += 1
        assert now_s < 3600
    assert driver.attempts == MOST_SHORT_ATTEMPTS
    assert isinstance(orders[-1], EndDriver)
    assert orders[-1].exit_code == NodeExit.FAILED


def is_under_way(driver: NodesDriver) -> bool:
    """True while an attempt is under way."""
    return driver._phase in ("running", "stopping")


def test_a_node_that_hangs_does_not_keep_the_others_waiting_for_ever() -> None:
    driver = started()
    driver.decide(view(5, 2, [NodeEnded(75), RUNNING]))
    assert driver.decide(view(5 + DRIVER_RELEASES_S - 1, 2, [NodeEnded(75), RUNNING])) == []
    assert kinds(driver.decide(view(5 + DRIVER_RELEASES_S, 2, [NodeEnded(75), RUNNING]))) == [ReleaseNodes]


@pytest.mark.parametrize(("codes", "code"), [((1, 75), 1), ((75, 2), 2), ((1, 2), 2)])
def test_what_a_restart_cannot_mend_ends_the_run(codes: tuple[int, int], code: int) -> None:
    driver = started()
    assert kinds(driver.decide(view(5, 2, [RUNNING, NodeEnded(codes[1])]))) == [StopNodes]
    orders = driver.decide(view(6, 2, [NodeEnded(each) for each in codes]))
    assert kinds(orders) == [ReleaseNodes, EndDriver]
    assert isinstance(orders[1], EndDriver)
    assert orders[1].exit_code == code


def test_all_nodes_finished_is_the_end() -> None:
    driver = started()
    assert driver.decide(view(5, 2, [RUNNING, NodeEnded(0)])) == []
    assert driver.decide(view(6, 2, [NodeEnded(0)] * 2))[-1] == EndDriver(0, "all nodes have finished")


def test_a_stop_ends_with_130_once_all_have_stopped() -> None:
    driver = started()
    assert kinds(driver.decide(view(5, 2, [RUNNING] * 2, stop_asked=True))) == [StopNodes]
    assert driver.decide(view(6, 2, [RUNNING, NodeEnded(130)], stop_asked=True)) == []
    orders = driver.decide(view(7, 2, [NodeEnded(130)] * 2, stop_asked=True))
    assert [order.exit_code for order in orders if isinstance(order, EndDriver)] == [130]


def test_a_stop_that_comes_when_all_were_done_is_no_interruption() -> None:
    driver = started()
    driver.decide(view(5, 2, [RUNNING, NodeEnded(0)], stop_asked=True))
    assert driver.decide(view(6, 2, [NodeEnded(0)] * 2, stop_asked=True))[-1] == EndDriver(0, "all nodes have finished")


def test_a_stop_while_machines_are_missing_ends_at_once() -> None:
    driver = NodesDriver(4, 4, 60)
    (order,) = driver.decide(view(0, 1, stop_asked=True))
    assert isinstance(order, EndDriver)
    assert order.exit_code == NodeExit.STOPPED


def test_machines_that_come_back_are_used_after_the_wait() -> None:
    driver = started(asked=4, shards=4, machines=2)
    nodes = [RUNNING] * 2
    assert driver.decide(view(20, 4, nodes)) == []
    assert driver.decide(view(25, 3, nodes)) == [], "3 is no divisor: the wait begins anew"
    assert driver.decide(view(26, 4, nodes)) == []
    assert driver.decide(view(35, 4, nodes)) == []
    (order,) = driver.decide(view(36, 4, nodes))
    assert isinstance(order, StopNodes)
    driver.decide(view(38, 4, [NodeEnded(130)] * 2))
    (order,) = driver.decide(view(45, 4))
    assert isinstance(order, StartNodes)
    assert order.count == 4


def test_machines_that_ray_cannot_reserve_are_not_asked_for_again_at_once() -> None:
    driver = started(asked=4, shards=4)
    assert kinds(driver.decide(view(60, 4, is_refused=True))) == [ReleaseNodes]
    assert driver.decide(view(61, 4)) == []
    (order,) = driver.decide(view(71, 4))
    assert isinstance(order, StartNodes)
    assert order.count == 2


class Cluster:
    """Machines and nodes that live, die, hang and finish as the dice fall."""

    def __init__(self, dice: random.Random, machines: int) -> None:
        self.dice = dice
        self.machines = machines
        self.most = machines
        self.nodes: list[NodeState] = []
        self.hung: set[int] = set()
        self.stopping_since_s = 0.0
        self.is_stopping = False
        self.pending = 0
        self.work = 12
        """Units of time in which an attempt with nodes gets on, until all are done."""

    def mishap(self) -> None:
        """One random fault, or the return of a machine."""
        match self.dice.randrange(6):
            case 0 if self.nodes:
                self.nodes[self.dice.randrange(len(self.nodes))] = NodeGone()
                self.machines = max(0, self.machines - 1)
            case 1 if self.nodes:
                self.end(self.dice.randrange(len(self.nodes)), self.dice.choice([75, -9, 130, 137]))
            case 2 if self.nodes:
                self.hung.add(self.dice.randrange(len(self.nodes)))
            case 3:
                self.machines = max(0, self.machines - 1)
            case _:
                self.machines = min(self.most, self.machines + 1)

    def end(self, node: int, code: int) -> None:
        if self.nodes[node] == RUNNING:
            self.nodes[node] = NodeEnded(code)

    def pass_time(self, now_s: float) -> None:
        """What nodes do by themselves: work, notice a lost one, stop when asked."""
        if self.pending and self.pending <= self.machines:
            self.nodes, self.pending = [RUNNING] * self.pending, 0
        elif self.is_stopping:
            for node in range(len(self.nodes)):
                if node not in self.hung:
                    self.end(node, 130)
                elif now_s - self.stopping_since_s >= GUARD_KILLS_S:
                    self.end(node, -9)
        elif self.hung or any(state not in (RUNNING, NodeEnded(0)) for state in self.nodes):
            for node in range(len(self.nodes)):
                if node not in self.hung:
                    self.end(node, 75)
        elif self.nodes:
            self.work -= 1
            if self.work <= 0:
                self.nodes = [NodeEnded(0)] * len(self.nodes)


@pytest.mark.parametrize("seed", range(300))
def test_in_any_order_of_faults_a_run_ends_and_no_two_attempts_meet(seed: int) -> None:
    dice = random.Random(seed)
    shards = dice.choice([1, 4, 6, 8, 12])
    asked = dice.choice([count for count in range(1, shards + 1) if shards % count == 0])
    cluster = Cluster(dice, asked + dice.randrange(2))
    driver = NodesDriver(asked, shards, wait_s=dice.choice([0, 5, 60]))
    stop_at = dice.choice([None, dice.randrange(200)])
    is_attempt, ends, now_s = False, [], 0.0
    for turn in range(4000):
        now_s += 1
        if turn < 150 and dice.random() < 0.1:
            cluster.mishap()
        elif turn == 150:
            cluster.machines = max(1, cluster.machines)
        cluster.pass_time(now_s)
        stop_asked = stop_at is not None and turn >= stop_at
        is_refused = bool(cluster.pending) and dice.random() < 0.02
        for order in driver.decide(ClusterView(now_s, cluster.machines, cluster.nodes, is_refused, stop_asked)):
            match order:
                case StartNodes(count):
                    assert not is_attempt, "two attempts at once"
                    assert not ends
                    assert shards % count == 0
                    assert count <= asked
                    assert not stop_asked
                    is_attempt, cluster.pending, cluster.is_stopping, cluster.hung = True, count, False, set()
                case StopNodes():
                    cluster.is_stopping, cluster.stopping_since_s = True, now_s
                case ReleaseNodes():
                    assert is_attempt
                    is_attempt, cluster.nodes, cluster.pending = False, [], 0
                case EndDriver(code):
                    ends.append(code)
        if stop_asked and stop_at is not None and turn > stop_at + DRIVER_RELEASES_S + 2:
            assert ends, "a stop takes too long"
        if ends:
            break
    assert ends, "the run does not end"
    assert not is_attempt
    expected = {0, 130} if stop_at is not None else {0}
    if driver.attempts >= MOST_SHORT_ATTEMPTS:
        expected.add(NodeExit.FAILED)
    assert ends[0] in expected or (ends[0] == NodeExit.USER_ERROR and driver.attempts == 0)
