from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from dispatchers import LAYOUT, PLAN, START, TALLY, leases, leases_in, staged_unit

from common import messages as m
from services.fetcher.dispatcher import Dispatcher, Quarantine, Restage, Send, State


def test_only_the_unit_in_work_is_blamed_for_a_death(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=2, deaths=1)
    dispatcher.handle("a", m.Hello(2), 0.0)
    dispatcher.handle("a", m.Decoding(1, 2), 0.0)
    dispatcher.lose("a")
    assert dispatcher.handle("b", m.Hello(1), 0.0)
    assert leases(dispatcher.handle("b", m.Done(0, 3, LAYOUT, TALLY), 0.0)) == [("b", 2, 1)], "unit 1 is skipped"


def test_a_unit_that_killed_three_decoders_is_skipped_and_told(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=1, units=1)
    for name in ("a", "b"):
        dispatcher.handle(name, m.Hello(1), 0.0)
        assert dispatcher.lose(name) == []
    dispatcher.handle("c", m.Hello(1), 0.0)
    actions = dispatcher.lose("c")
    (bad,) = next(action.bad for action in actions if isinstance(action, Quarantine))
    assert (bad.file, bad.row_group, bad.rows) == (0, 0, 5)
    assert "unit 0 failed 3 times" in bad.reason
    (sent,) = [action.message for action in actions if isinstance(action, Send)]
    assert isinstance(sent, m.DeliveredUnit)
    assert (sent.k, sent.slot, sent.layout) == (0, -1, m.Layout(0, 0, 0))
    assert (sent.tally.rows_read, sent.tally.quarantined) == (5, 5)


def gone(lease: m.Lease) -> m.Failed:
    return m.Failed(lease.unit.k, lease.lease, "a file is gone", gone=True)


@pytest.fixture
def restaging() -> Iterator[Dispatcher]:
    dispatcher = Dispatcher(slots=2, plan_hash=PLAN, max_unit_deaths=2, stall_timeout_s=10.0)
    dispatcher.handle("t", m.Attach(0, 1, PLAN, START), 0.0)
    dispatcher.add_units([staged_unit(0), staged_unit(1), staged_unit(2)])
    yield dispatcher
    dispatcher.validate()


def test_a_unit_whose_file_is_gone_waits_for_it_without_blame(restaging: Dispatcher) -> None:
    (lease,) = leases_in(restaging.handle("d", m.Hello(1), 0.0))
    actions = restaging.handle("d", gone(lease), 0.0)
    assert Restage((0, 1)) in actions
    assert [one.unit.k for one in leases_in(actions)] == [1], "others go on"
    assert restaging.restaged(0) == []
    restaging.lose("d")
    restaging.restaged(1)
    (again,) = leases_in(restaging.handle("e", m.Hello(1), 0.0))
    assert again.unit.k == 0


def test_a_unit_whose_file_is_gone_again_and_again_is_skipped() -> None:
    dispatcher = Dispatcher(slots=2, plan_hash=PLAN, max_unit_deaths=2, stall_timeout_s=10.0)
    dispatcher.handle("t", m.Attach(0, 1, PLAN, START), 0.0)
    dispatcher.add_units([staged_unit(0)])
    (lease,) = leases_in(dispatcher.handle("d", m.Hello(1), 0.0))
    assert Restage((0, 1)) in dispatcher.handle("d", gone(lease), 0.0)
    dispatcher.restaged(0)
    (lease,) = leases_in(dispatcher.restaged(1))
    (lease,) = leases_in(dispatcher.handle("d", gone(lease), 0.0))
    actions = dispatcher.handle("d", gone(lease), 0.0)
    assert [type(action) for action in actions] == [Quarantine]
    dispatcher.validate()


def test_a_file_that_two_units_miss_is_staged_once(restaging: Dispatcher) -> None:
    first, second = leases_in(restaging.handle("d", m.Hello(2), 0.0))
    assert Restage((0, 1)) in restaging.handle("d", gone(first), 0.0)
    assert Restage((2, 3)) in restaging.handle("d", gone(second), 0.0)


def test_a_unit_that_a_machine_fails_on_is_given_out_again_for_ever_without_blame(restaging: Dispatcher) -> None:
    (lease,) = leases_in(restaging.handle("d", m.Hello(1), 0.0))
    for again in range(50):
        failed = m.Failed(lease.unit.k, lease.lease, f"/data/f: Input/output error {again}", machine=True)
        (lease,) = leases_in(restaging.handle("d", failed, float(again)))
        assert lease.unit.k == 0
        assert restaging.problem == failed.reason
    restaging.handle("d", m.Done(0, lease.lease, m.Layout(10, 0, 1), m.Tally(rows_read=10)), 50.0)
    assert restaging.problem == ""
    assert restaging.units.num(State.READY) == 1
