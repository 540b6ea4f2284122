"""Decisions of the driver of several nodes, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from icestream.commands.ray.driver import (
    DRIVER_RELEASES_S,
    MOST_FAILURES,
    MOST_LOSSES,
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
    ReserveMachines,
    StartNodes,
    StopNodes,
    largest_fitting,
)

RUNNING = NodeRunning()


def view(now_s: float, machines: int, nodes: Sequence[NodeState] = (), **more: Any) -> ClusterView:
    return ClusterView(now_s, machines, nodes, **more)


def divisors(shards: int) -> list[int]:
    return [count for count in range(1, shards + 1) if shards % count == 0]


def started(asked: int = 2, shards: int = 4, machines: int | None = None, wait_s: float = 10.0) -> NodesDriver:
    """Driver that has just started the nodes of its first attempt."""
    driver = NodesDriver(asked, divisors(shards), wait_s)
    machines = asked if machines is None else machines
    driver.decide(view(-wait_s, machines))
    if machines < asked:
        driver.decide(view(0, machines))
    count = largest_fitting(divisors(shards), machines)
    assert driver.decide(view(0, machines, [RUNNING] * count, resumes_at=0)) == [StartNodes()]
    assert driver.attempts == 1
    return driver


def kinds(orders: Sequence[Order]) -> list[type[Order]]:
    return [type(order) for order in orders]


@pytest.mark.parametrize(("shards", "machines", "count"), [(12, 5, 4), (12, 64, 12), (8, 7, 4), (5, 4, 1), (6, 0, 0)])
def test_as_many_nodes_as_divide_the_shards_and_have_a_machine(shards: int, machines: int, count: int) -> None:
    assert largest_fitting(divisors(shards), machines) == count


def test_all_machines_there_all_nodes_start_at_once() -> None:
    driver = NodesDriver(4, divisors(8), 60)
    (order,) = driver.decide(view(100, 5))
    assert isinstance(order, ReserveMachines)
    assert order.count == 4
    assert driver.decide(view(101, 5)) == []
    assert driver.decide(view(102, 5, [RUNNING] * 4)) == []
    assert driver.decide(view(103, 5, [RUNNING] * 4, resumes_at=70)) == [StartNodes("all go on from step 70")]


def test_missing_machines_are_waited_for_and_then_fewer_nodes_start() -> None:
    driver = NodesDriver(4, divisors(12), 60)
    assert driver.decide(view(100, 3)) == []
    assert driver.decide(view(159, 3)) == []
    (order,) = driver.decide(view(160, 3))
    assert isinstance(order, ReserveMachines)
    assert order.count == 3
    assert "of 4" in order.why


def test_a_first_start_without_any_machine_is_the_users_mistake() -> None:
    driver = NodesDriver(4, divisors(12), 60)
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
    assert isinstance(order, ReserveMachines)
    assert order.count == 2
    assert driver.attempts == 2


class Attempts:
    """A run of one node: each attempt lasts ``lasts_s``, and ends as ``end``; the next one goes on from ``step``."""

    def __init__(self, end: NodeState, lasts_s: float = 0.0) -> None:
        self.end = end
        self.lasts_s = lasts_s
        self.step = 0
        self.driver = NodesDriver(1, divisors(1), 0)
        self.starts: list[float] = []
        self.now_s = 0.0

    def make(self, count: int) -> list[Order]:
        """Orders of the last decision, after so many more attempts, or the end of the run."""
        most, is_started = len(self.starts) + count, False
        while self.now_s < 1e6:
            is_reserved = self.driver._phase == "reserving"
            is_over = is_started and self.now_s - self.starts[-1] >= self.lasts_s
            nodes = [self.end if is_over else RUNNING] if is_reserved or is_started else []
            orders = self.driver.decide(view(self.now_s, 1, nodes, resumes_at=self.step if is_reserved else None))
            if StartNodes in kinds(orders):
                self.starts.append(self.now_s)
            is_started = StartNodes in kinds(orders) or (is_started and ReleaseNodes not in kinds(orders))
            if EndDriver in kinds(orders) or (len(self.starts) == most and not is_started):
                return orders
            self.now_s += 0.5
        raise AssertionError(f"no end after {len(self.starts)} attempts")


def failed(orders: Sequence[Order]) -> str:
    """Reason of the run's end by failure."""
    (end,) = [order for order in orders if isinstance(order, EndDriver)]
    assert end.exit_code == NodeExit.FAILED
    return end.why


def test_pauses_grow_while_nodes_die_early() -> None:
    run = Attempts(NodeEnded(-9))
    run.make(5)
    gaps = [later - earlier for earlier, later in pairwise(run.starts)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 2 * gaps[0]


@pytest.mark.parametrize("code", [75, -9, 137])
@pytest.mark.parametrize("lasts_s", [0, 61, 600])
def test_attempts_that_fail_without_a_new_checkpoint_end_the_run_however_long_each_took(
    code: int, lasts_s: float
) -> None:
    run = Attempts(NodeEnded(code), lasts_s)
    assert failed(run.make(1000)) == "10 starts have failed before the first checkpoint: the nodes' logs say why"
    assert len(run.starts) == MOST_FAILURES


def test_a_new_checkpoint_is_progress_and_one_after_a_rollback_is_none() -> None:
    run = Attempts(NodeEnded(75), 61)
    for step in (0, 5, 6):
        run.step = step
        assert kinds(run.make(MOST_FAILURES - 1)) == [ReleaseNodes]
    run.step = 4
    assert "since the newest checkpoint (step 6)" in failed(run.make(1000))
    assert len(run.starts) == 3 * (MOST_FAILURES - 1) + 1


@pytest.mark.parametrize("loss", [NodeGone(), NodeEnded(130)])
def test_a_scheduler_may_take_many_machines_away_but_not_for_ever(loss: NodeState) -> None:
    run = Attempts(loss, 61)
    assert kinds(run.make(MOST_LOSSES - 1)) == [ReleaseNodes]
    run.step = 5
    assert kinds(run.make(MOST_LOSSES)) == [ReleaseNodes]
    run.end = NodeEnded(75)
    assert "100 starts have lost a machine, or were stopped, since the newest checkpoint (step 5)" in failed(
        run.make(1000)
    )
    assert len(run.starts) == 2 * MOST_LOSSES - 1


def test_losses_of_machines_do_not_hide_failures() -> None:
    run = Attempts(NodeGone(), 61)
    for _ in range(MOST_FAILURES - 1):
        run.end = NodeGone()
        run.make(5)
        run.end = NodeEnded(75)
        run.make(1)
    assert kinds(run.make(1)) == [ReleaseNodes]
    assert "10 starts have failed before" in failed(run.make(1))


@pytest.mark.parametrize(("end", "exit_code"), [(NodeGone(), None), (NodeEnded(1), 1)])
def test_a_machine_that_is_lost_before_its_node_starts(end: NodeState, exit_code: int | None) -> None:
    driver = NodesDriver(2, divisors(2), 0)
    driver.decide(view(0, 2))
    release, *others = driver.decide(view(1, 2, [RUNNING, end]))
    assert isinstance(release, ReleaseNodes)
    assert release.why.startswith("node 1 ")
    assert [order.exit_code for order in others if isinstance(order, EndDriver)] == ([exit_code] if exit_code else [])


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


def test_a_stop_before_the_nodes_have_started_ends_at_once() -> None:
    driver = NodesDriver(2, divisors(2), 60)
    driver.decide(view(0, 2))
    assert kinds(driver.decide(view(1, 2, [RUNNING] * 2, stop_asked=True))) == [ReleaseNodes, EndDriver]


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
    assert isinstance(order, ReserveMachines)
    assert order.count == 4


def test_machines_that_ray_cannot_reserve_are_not_asked_for_again_at_once() -> None:
    driver = NodesDriver(4, divisors(4), 10)
    driver.decide(view(0, 4))
    assert kinds(driver.decide(view(60, 4, is_refused=True))) == [ReleaseNodes]
    assert driver.decide(view(61, 4)) == []
    (order,) = driver.decide(view(71, 4))
    assert isinstance(order, ReserveMachines)
    assert order.count == 2
