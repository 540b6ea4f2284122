from __future__ import annotations

from collections.abc import Callable

import pytest
from dispatchers import LAYOUT, PLAN, START, TALLY, delivered, lease_of, leases, leases_in, staged_unit, unit

from common import messages as m
from services.fetcher.dispatcher import Dispatcher, State
from services.fetcher.dispatcher import dispatcher as dispatcher_module


def test_leases_go_to_the_lowest_units_each_with_a_slot(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=3)
    assert leases(dispatcher.handle("a", m.Hello(2), 0.0)) == [("a", 0, 0), ("a", 1, 1)]
    assert leases(dispatcher.handle("b", m.Hello(5), 0.0)) == [("b", 2, 2)]


def test_a_unit_is_decoded_delivered_released_and_its_slot_is_used_again(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    dispatcher = make_dispatcher(slots=1)
    lease = lease_of(dispatcher.handle("a", m.Hello(1), 0.0))
    assert delivered(dispatcher.handle("a", m.Done(0, lease, LAYOUT, TALLY), 1.0)) == [0]
    assert dispatcher.units.num(State.DELIVERED) == 1
    assert leases(dispatcher.handle("t", m.Release(0), 2.0)) == [("a", 1, 0)]


def test_units_are_delivered_in_order_whatever_order_they_are_done_in(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    dispatcher = make_dispatcher(slots=3, want=3)
    dispatcher.handle("a", m.Hello(3), 0.0)
    assert delivered(dispatcher.handle("a", m.Done(2, 3, LAYOUT, TALLY), 1.0)) == []
    assert delivered(dispatcher.handle("a", m.Done(1, 2, LAYOUT, TALLY), 1.0)) == []
    assert delivered(dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 1.0)) == [0, 1, 2]


def test_the_trainer_gets_no_more_than_it_wants(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=2, want=1)
    dispatcher.handle("a", m.Hello(2), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    assert delivered(dispatcher.handle("a", m.Done(1, 2, LAYOUT, TALLY), 0.0)) == []
    assert delivered(dispatcher.handle("t", m.Want(1), 0.0)) == [1]


def test_nothing_is_leased_before_a_trainer_says_where_to_begin(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(attach=False)
    dispatcher.add_units([unit(0)])
    assert dispatcher.handle("a", m.Hello(2), 0.0) == []


def test_the_head_of_the_line_takes_a_slot_from_a_unit_behind_it(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=2)
    dispatcher.handle("a", m.Hello(1), 0.0)  # unit 0 in slot 0
    dispatcher.handle("b", m.Hello(1), 0.0)  # unit 1 in slot 1
    dispatcher.tick(11.0)
    dispatcher.fence_failed("a")  # slot 0 is out of service
    actions = dispatcher.handle("b", m.Done(1, 2, LAYOUT, TALLY), 11.0)
    assert leases(actions) == [("b", 0, 1)], "unit 1 was ready there, but nobody can use it before unit 0"
    actions = dispatcher.handle("b", m.Done(0, 3, LAYOUT, TALLY), 12.0)
    assert delivered(actions) == [0]


def stalls(dispatcher: Dispatcher) -> dict[str, float]:
    dispatcher.tick(100.0)
    dispatcher.tick(107.0)
    return {reason: seconds for reason, seconds in dispatcher.stalled_s.items() if seconds}


def test_a_stall_without_decoders_is_the_decoders(make_dispatcher: Callable[..., Dispatcher]) -> None:
    assert stalls(make_dispatcher()) == {"no_credit": 7.0}


def test_a_stall_without_planned_units_is_the_staging(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(units=0)
    dispatcher.handle("a", m.Hello(1), 100.0)
    assert stalls(dispatcher) == {"not_staged": 7.0}


def test_a_stall_with_all_slots_ready_is_the_trainer(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=1, want=0)
    dispatcher.handle("a", m.Hello(1), 100.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 100.0)
    assert stalls(dispatcher) == {"no_free_slot": 7.0}


def test_nothing_stalls_before_a_trainer_or_after_the_plan(make_dispatcher: Callable[..., Dispatcher]) -> None:
    assert stalls(make_dispatcher(attach=False)) == {}
    dispatcher = make_dispatcher(units=0)
    dispatcher.end_plan()
    assert stalls(dispatcher) == {}


def test_a_stall_is_charged_to_what_held_since_the_last_tick(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(units=0)
    dispatcher.tick(100.0)
    dispatcher.add_units([unit(0)])  # nobody to lease it to
    dispatcher.tick(103.0)
    dispatcher.tick(104.0)
    assert (dispatcher.stalled_s["not_staged"], dispatcher.stalled_s["no_credit"]) == (3.0, 1.0)


def test_a_stall_with_all_slots_at_the_trainer_and_an_idle_decoder_is_the_trainer(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    dispatcher = make_dispatcher(slots=1)
    dispatcher.handle("a", m.Hello(1), 100.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 100.0)
    assert (dispatcher.units.num(State.DELIVERED), dispatcher.units.num(State.READY)) == (1, 0)
    assert stalls(dispatcher) == {"no_free_slot": 7.0}


def test_the_trainer_waits_for_a_unit_that_is_not_ready_but_not_for_one_after_the_last(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    dispatcher = make_dispatcher(slots=2, units=1, want=2)
    assert dispatcher.trainer_waits
    dispatcher.handle("a", m.Hello(1), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    assert dispatcher.trainer_waits, "for the second"
    dispatcher.end_plan()
    assert not dispatcher.trainer_waits
    assert not make_dispatcher(want=0).trainer_waits


def test_what_is_prefetched_is_a_part_of_what_the_trainer_asked_for(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=3, want=2)
    assert dispatcher.prefetched == 0.0
    dispatcher.handle("a", m.Hello(3), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    assert dispatcher.prefetched == 0.5
    dispatcher.handle("a", m.Done(1, 2, LAYOUT, TALLY), 0.0)
    assert dispatcher.prefetched == 1.0


def test_a_cursor_far_ahead_does_not_have_the_plan_made_without_end(
    make_dispatcher: Callable[..., Dispatcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher_module, "_MOST_PLANNED", 100)
    dispatcher = make_dispatcher(attach=False)
    dispatcher.handle("t", m.Attach(0, 2, PLAN, START), 0.0)
    dispatcher.handle("u", m.Attach(1, 2, PLAN, m.Cursor(unit=2**61 + 1)), 0.0)
    while not dispatcher.plan_is_long:
        dispatcher.add_units([unit(dispatcher.units.next_k)])
    assert len(dispatcher.units.planned) == 100
    assert dispatcher.starved is False
    dispatcher.handle("u", m.Want(1), 0.0)
    assert dispatcher.starved, "the service asks for a checkpoint then"
    dispatcher.handle("a", m.Hello(1), 0.0)
    for k in (0, 1):
        dispatcher.handle("t", m.Want(1), 0.0)
        assert delivered(dispatcher.handle("a", m.Done(k, k + 1, LAYOUT, TALLY), 0.0)) == [k], "the other goes on"
        dispatcher.handle("t", m.Release(k), 0.0)


def test_what_waits_for_the_trainer_is_no_stall_of_the_staging() -> None:
    dispatcher = Dispatcher(slots=2, plan_hash=PLAN, max_unit_deaths=2, stall_timeout_s=10.0)
    dispatcher.handle("t", m.Attach(0, 1, PLAN, START), 0.0)
    dispatcher.handle("t", m.Want(3), 0.0)
    dispatcher.add_units([staged_unit(0)])
    (lease,) = leases_in(dispatcher.handle("d", m.Hello(1), 0.0))
    dispatcher.handle("d", m.Done(0, lease.lease, m.Layout(5, 9, 1), m.Tally(10, empty=5)), 0.0)
    dispatcher.tick(1.0)
    assert dispatcher.stall == "not_staged"
    dispatcher.tick(2.0, staging_full=True)
    assert dispatcher.stall == "no_free_slot"
    dispatcher.handle("t", m.Release(0), 0.0)
    dispatcher.tick(3.0, staging_full=True)
    assert dispatcher.stall == "not_staged", "the trainer has nothing left"
    dispatcher.validate()
