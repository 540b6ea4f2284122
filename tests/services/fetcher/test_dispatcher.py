from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import pytest

from common import messages as m
from services.fetcher.dispatcher import (
    Action,
    Dispatcher,
    EndRun,
    Evict,
    Fence,
    Quarantine,
    Remember,
    Replan,
    Restage,
    Send,
    State,
)
from services.fetcher.dispatcher import dispatcher as dispatcher_module
from services.fetcher.dispatcher.decoder_pool import FENCE_GRACE_S

PLAN = "00" * 16
LAYOUT = m.Layout(5, 9, 1)
TALLY = m.Tally(rows_read=5)
START = m.Cursor()


def unit(k: int, block: int = 0, first: int = 0) -> m.Unit:
    part = m.Part(file=k, path="f", row_group=0, first_row=0, rows=5, particles=9, file_row=0)
    return m.Unit(k=k, epoch=0, block=block, block_first_unit=first, parts=(part,))


@pytest.fixture
def make() -> Iterator[Callable[..., Dispatcher]]:
    """Makes dispatchers with a plan and an attached trainer `t`; their invariants are checked at the end."""
    made: list[Dispatcher] = []

    def build(*, slots: int = 2, units: int = 8, deaths: int = 3, want: int = 1, attach: bool = True) -> Dispatcher:
        dispatcher = Dispatcher(slots=slots, plan_hash=PLAN, max_unit_deaths=deaths, stall_timeout_s=10.0)
        made.append(dispatcher)
        if attach:
            dispatcher.handle("t", m.Attach(0, 1, PLAN, (START,)), 0.0)
            dispatcher.add_units([unit(k) for k in range(units)])
            if want:
                dispatcher.handle("t", m.Want(0, want), 0.0)
        return dispatcher

    yield build
    for dispatcher in made:
        dispatcher.validate()


def leases(actions: list[Action]) -> list[tuple[str, int, int]]:
    """(decoder, unit, slot) of every lease that was given."""
    return [
        (a.peer, a.message.unit.k, a.message.slot)
        for a in actions
        if isinstance(a, Send) and isinstance(a.message, m.Lease)
    ]


def lease_of(actions: list[Action]) -> int:
    return next(a.message.lease for a in actions if isinstance(a, Send) and isinstance(a.message, m.Lease))


def delivered(actions: list[Action]) -> list[int]:
    return [a.message.k for a in actions if isinstance(a, Send) and isinstance(a.message, m.DeliveredUnit)]


def ticks(dispatcher: Dispatcher, until_s: float) -> list[Action]:
    """Tick as an awake fetcher does, up to a time; all actions."""
    actions: list[Action] = []
    while dispatcher._now_s < until_s:
        actions += dispatcher.tick(min(dispatcher._now_s + 0.5, until_s))
    return actions


def test_a_bad_file_that_many_epochs_met_since_the_lanes_last_unit_is_named_once() -> None:
    dispatcher = Dispatcher(slots=4, plan_hash=PLAN, max_unit_deaths=3, stall_timeout_s=10.0, lanes=4)
    dispatcher.handle("t", m.Attach(0, 1, PLAN, tuple(m.Cursor(unit=lane) for lane in range(4))), 0.0)
    bad = (m.Quarantined(9, -1, 0, "no Parquet"),)
    units = [dataclasses.replace(unit(k, block=k, first=k), epoch=k, quarantined=bad) for k in range(5)]
    dispatcher.add_units(units)
    dispatcher.handle("t", m.Want(3, 1), 0.0)
    leases = [action.message for action in dispatcher.handle("d", m.Hello(4), 0.0) if isinstance(action, Send)]
    (delivered,) = [
        action.message
        for lease in leases
        if isinstance(lease, m.Lease)
        for action in dispatcher.handle("d", m.Done(lease.unit.k, lease.lease, LAYOUT, TALLY), 0.0)
        if isinstance(action, Send) and isinstance(action.message, m.DeliveredUnit)
    ]
    assert delivered.k == 3
    assert delivered.bad_files == (9,)
    dispatcher.validate()


def test_leases_go_to_the_lowest_units_each_with_a_slot(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=3)
    assert leases(dispatcher.handle("a", m.Hello(2), 0.0)) == [("a", 0, 0), ("a", 1, 1)]
    assert leases(dispatcher.handle("b", m.Hello(5), 0.0)) == [("b", 2, 2)]


def test_a_unit_is_decoded_delivered_released_and_its_slot_is_used_again(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=1)
    lease = lease_of(dispatcher.handle("a", m.Hello(1), 0.0))
    assert delivered(dispatcher.handle("a", m.Done(0, lease, LAYOUT, TALLY), 1.0)) == [0]
    assert dispatcher.units.num(State.DELIVERED) == 1
    assert leases(dispatcher.handle("t", m.Release(0), 2.0)) == [("a", 1, 0)]


def test_units_are_delivered_in_order_whatever_order_they_are_done_in(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=3, want=3)
    dispatcher.handle("a", m.Hello(3), 0.0)
    assert delivered(dispatcher.handle("a", m.Done(2, 3, LAYOUT, TALLY), 1.0)) == []
    assert delivered(dispatcher.handle("a", m.Done(1, 2, LAYOUT, TALLY), 1.0)) == []
    assert delivered(dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 1.0)) == [0, 1, 2]


def test_the_trainer_gets_no_more_than_it_wants(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=2, want=1)
    dispatcher.handle("a", m.Hello(2), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    assert delivered(dispatcher.handle("a", m.Done(1, 2, LAYOUT, TALLY), 0.0)) == []
    assert delivered(dispatcher.handle("t", m.Want(0, 1), 0.0)) == [1]


def test_nothing_is_leased_before_a_trainer_says_where_to_begin(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(attach=False)
    dispatcher.add_units([unit(0)])
    assert dispatcher.handle("a", m.Hello(2), 0.0) == []


# ------------------------------------------------------------------ hung and dead decoders


def test_a_hung_decoder_is_fenced_once(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make()
    dispatcher.handle("a", m.Hello(1), 0.0)
    assert ticks(dispatcher, 10.0) == []
    assert ticks(dispatcher, 10.6) == [Fence("a")]
    dispatcher.lose("a")
    assert ticks(dispatcher, 30.0) == []


def test_a_beat_keeps_a_decoder_from_being_fenced(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make()
    dispatcher.handle("a", m.Hello(1), 0.0)
    ticks(dispatcher, 8.0)
    dispatcher.handle("a", m.Beat(), 8.0)
    assert ticks(dispatcher, 17.0) == []


def test_a_decoder_that_was_idle_for_long_is_not_late_when_it_gets_a_unit(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(units=0)
    dispatcher.handle("a", m.Hello(1), 0.0)
    assert ticks(dispatcher, 50.0) == []
    assert leases(dispatcher.add_units([unit(0)])) == [("a", 0, 0)]
    assert ticks(dispatcher, 50.5) == []
    assert ticks(dispatcher, 61.0) == [Fence("a")]


@pytest.mark.parametrize("slept_s", [11.0, 3600.0])
def test_a_fetcher_that_was_suspended_does_not_take_its_own_sleep_for_hung_decoders(
    make: Callable[..., Dispatcher], slept_s: float
) -> None:
    dispatcher = make()
    dispatcher.handle("a", m.Hello(1), 0.0)
    ticks(dispatcher, 5.0)
    assert dispatcher.tick(5.0 + slept_s) == []
    assert ticks(dispatcher, 8.0 + slept_s) == []
    assert Fence("a") in ticks(dispatcher, 11.0 + slept_s), "its own silence counts all the same"


def test_a_kill_that_is_accepted_and_does_not_end_the_decoder_is_not_trusted(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=2)
    dispatcher.handle("a", m.Hello(1), 0.0)
    assert ticks(dispatcher, 10.6) == [Fence("a")]
    dispatcher.handle("b", m.Hello(1), 10.6)  # unit 1, in slot 1
    dispatcher.handle("b", m.Done(1, 2, LAYOUT, TALLY), 11.0)
    actions = ticks(dispatcher, 10.6 + FENCE_GRACE_S + 1.0)
    assert leases(actions) == [("b", 0, 1)], "a waits for the machine; b makes the head of the line"
    assert delivered(dispatcher.handle("b", m.Done(0, 3, LAYOUT, TALLY), 20.0)) == [0]
    assert leases(dispatcher.handle("t", m.Release(0), 20.0)) == [("b", 1, 1)], "a's slot is out of service"
    dispatcher.lose("a")
    assert dispatcher.units.free == [0]


def test_a_suspended_decoders_unit_is_not_blamed(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(deaths=1)
    dispatcher.handle("a", m.Hello(1), 0.0)
    assert ticks(dispatcher, 10.6) == [Fence("a")]
    dispatcher.excuse("a")
    dispatcher.lose("a")
    assert leases(dispatcher.handle("b", m.Hello(1), 11.0)) == [("b", 0, 0)]


def test_a_fenced_decoders_unit_is_leased_again(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make()
    dispatcher.handle("a", m.Hello(1), 0.0)
    ticks(dispatcher, 11.0)
    dispatcher.handle("b", m.Hello(1), 11.0)
    assert leases(dispatcher.lose("a")) == []  # b is busy with unit 1
    assert leases(dispatcher.handle("b", m.Done(1, 2, LAYOUT, TALLY), 12.0)) == [("b", 0, 0)]


def test_a_decoder_that_can_not_be_killed_keeps_its_slot_out_of_service(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=2)
    dispatcher.handle("a", m.Hello(1), 0.0)
    ticks(dispatcher, 11.0)
    dispatcher.fence_failed("a")
    assert leases(dispatcher.handle("b", m.Hello(2), 11.0)) == [("b", 0, 1)], "in another slot"
    dispatcher.validate()
    assert leases(dispatcher.lose("a")) == [("b", 1, 0)], "with its end the slot is free"


def test_one_that_wakes_up_gives_its_slot_back_but_its_work_does_not_count(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=1)
    dispatcher.handle("a", m.Hello(1), 0.0)
    ticks(dispatcher, 11.0)
    dispatcher.fence_failed("a")
    actions = dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 12.0)
    assert delivered(actions) == []
    assert leases(actions) == [("a", 0, 0)]


def test_a_late_done_is_refused_by_its_lease(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=1)
    dispatcher.handle("a", m.Hello(1), 0.0)
    dispatcher.lose("a")
    assert leases(dispatcher.handle("b", m.Hello(1), 0.0)) == [("b", 0, 0)]
    assert delivered(dispatcher.handle("b", m.Done(0, 1, LAYOUT, TALLY), 0.0)) == [], "lease 1 was a's"
    assert dispatcher.counts["stale_messages"] == 1
    assert delivered(dispatcher.handle("b", m.Done(0, 2, LAYOUT, TALLY), 0.0)) == [0]
    assert delivered(dispatcher.handle("b", m.Done(0, 2, LAYOUT, TALLY), 0.0)) == [], "said twice"


def test_only_the_unit_in_work_is_blamed_for_a_death(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=2, deaths=1)
    dispatcher.handle("a", m.Hello(2), 0.0)
    dispatcher.handle("a", m.Decoding(1, 2), 0.0)
    dispatcher.lose("a")
    assert dispatcher.handle("b", m.Hello(1), 0.0)
    assert leases(dispatcher.handle("b", m.Done(0, 3, LAYOUT, TALLY), 0.0)) == [("b", 2, 1)], "unit 1 is skipped"


def test_a_unit_that_killed_three_decoders_is_skipped_and_told(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=1, units=1)
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


def test_a_decoder_that_leaves_blames_no_unit(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(deaths=1)
    dispatcher.handle("a", m.Hello(1), 0.0)
    dispatcher.handle("a", m.Decoding(0, 1), 0.0)
    dispatcher.handle("a", m.Bye(), 0.0)
    assert leases(dispatcher.handle("b", m.Hello(1), 0.0)) == [("b", 0, 0)]
    assert dispatcher.counts["decoders_lost"] == 0


def test_a_tally_that_does_not_add_up_is_not_delivered(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=1)
    dispatcher.handle("a", m.Hello(1), 0.0)
    for lease, tally in [(1, m.Tally(rows_read=6)), (2, m.Tally(rows_read=6, outliers=1))]:
        actions = dispatcher.handle("a", m.Done(0, lease, LAYOUT, tally), 0.0)
        assert delivered(actions) == []
        assert leases(actions) == [("a", 0, 0)], "it is decoded again"


def test_what_was_quarantined_in_decoding_is_told(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make()
    dispatcher.handle("a", m.Hello(1), 0.0)
    bad = m.Quarantined(0, 0, 5, "rotten")
    tally = m.Tally(rows_read=5, quarantined=5, bad=(bad,))
    actions = dispatcher.handle("a", m.Done(0, 1, m.Layout(0, 0, 0), tally), 0.0)
    assert Quarantine((bad,)) in actions
    assert delivered(actions) == [0]


# ------------------------------------------------------------------ no deadlock


def test_the_head_of_the_line_takes_a_slot_from_a_unit_behind_it(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=2)
    dispatcher.handle("a", m.Hello(1), 0.0)  # unit 0 in slot 0
    dispatcher.handle("b", m.Hello(1), 0.0)  # unit 1 in slot 1
    dispatcher.tick(11.0)
    dispatcher.fence_failed("a")  # slot 0 is out of service
    actions = dispatcher.handle("b", m.Done(1, 2, LAYOUT, TALLY), 11.0)
    assert leases(actions) == [("b", 0, 1)], "unit 1 was ready there, but nobody can use it before unit 0"
    actions = dispatcher.handle("b", m.Done(0, 3, LAYOUT, TALLY), 12.0)
    assert delivered(actions) == [0]


# ------------------------------------------------------------------ trainers


def test_a_trainer_with_another_plan_is_refused(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(attach=False)
    (action,) = dispatcher.handle("t", m.Attach(0, 1, "ff" * 16, (START,)), 0.0)
    assert isinstance(action, Send)
    assert isinstance(action.message, m.Refuse)
    assert "the checkpoint belongs to plan ffffffffffff, this run has plan 000000000000" in action.message.reason
    assert dispatcher.trainers == []


def test_a_second_trainer_is_refused_until_the_first_is_gone(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make()
    (action,) = dispatcher.handle("u", m.Attach(0, 1, PLAN, (START,)), 0.0)
    assert action == Send("u", m.Refuse("a trainer is already attached to this run"))
    dispatcher.lose("t")
    assert not any(isinstance(a, Send) for a in dispatcher.handle("u", m.Attach(0, 1, PLAN, (START,)), 0.0))
    assert dispatcher.trainers == ["u"]


def test_units_of_a_dead_trainer_are_delivered_to_the_next_one(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=2, want=2)
    dispatcher.handle("a", m.Hello(2), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    assert delivered(dispatcher.handle("a", m.Done(1, 2, LAYOUT, TALLY), 0.0)) == [1]
    dispatcher.lose("t")
    dispatcher.validate()
    assert dispatcher.handle("u", m.Attach(0, 1, PLAN, (m.Cursor(0, 0, 1, 1),)), 0.0) is not None
    assert delivered(dispatcher.handle("u", m.Want(0, 2), 0.0)) == [1], "unit 0 is behind its cursor"


def test_a_cursor_before_what_is_known_is_planned_again(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=1, units=0)
    dispatcher.add_units([unit(0), unit(1)])
    dispatcher.add_units([unit(2, block=1, first=2), unit(3, block=1, first=2)])
    dispatcher.handle("a", m.Hello(1), 0.0)
    for k in range(3):
        actions = dispatcher.handle("a", m.Done(k, k + 1, LAYOUT, TALLY), 0.0)
        assert delivered(actions) == [k]
        dispatcher.handle("t", m.Release(k), 0.0)
        dispatcher.handle("t", m.Want(0, 1), 0.0)
    assert Evict(1) in dispatcher.handle("t", m.Committed((m.Cursor(1, 2, 3, 0),)), 0.0)
    dispatcher.lose("t")
    cursor = m.Cursor(0, 0, 1, 0)
    assert Replan(cursor) in dispatcher.handle("u", m.Attach(0, 1, PLAN, (cursor,)), 0.0)
    dispatcher.validate()
    dispatcher.add_units([unit(0), unit(1)])
    dispatcher.handle("a", m.Bye(), 0.0)  # it held unit 3
    assert leases(dispatcher.handle("b", m.Hello(1), 0.0)) == [("b", 1, 0)]


def test_the_end_is_told_once_when_all_units_are_delivered(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(units=1, want=2)
    dispatcher.handle("a", m.Hello(1), 0.0)
    assert Send("t", m.End(0)) not in dispatcher.end_plan()
    assert dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)[-1] == Send("t", m.End(0))
    assert dispatcher.handle("t", m.Release(0), 0.0) == []
    assert dispatcher.handle("t", m.Finished(), 0.0) == [EndRun()]


def test_files_are_evicted_only_behind_a_commit(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make()
    dispatcher.handle("a", m.Hello(1), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    assert not any(isinstance(a, Evict) for a in dispatcher.handle("t", m.Release(0), 0.0))
    assert Evict(0) in dispatcher.handle("t", m.Committed((m.Cursor(0, 0, 1, 0),)), 0.0)


def test_the_files_of_the_last_planned_block_are_evicted_once_it_is_used_up(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(units=1)
    block = dispatcher.units.planned[0].block
    dispatcher.handle("a", m.Hello(1), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    dispatcher.handle("t", m.Release(0), 0.0)
    assert Evict(block) in dispatcher.handle("t", m.Committed((m.Cursor(block, 0, 0, 2),)), 0.0)
    assert Evict(block + 1) in dispatcher.handle("t", m.Committed((m.Cursor(block, 0, 1, 0),)), 0.0)


@pytest.mark.parametrize(
    "message",
    [m.Want(0, 1), m.Release(0), m.Committed((START,)), m.Finished(), m.Done(0, 1, LAYOUT, TALLY), m.Beat(), m.Bye()],
)
def test_a_message_from_a_stranger_is_counted_and_dropped(
    make: Callable[..., Dispatcher], message: m.TrainerMessage | m.DecoderMessage
) -> None:
    dispatcher = make()
    assert dispatcher.handle("stranger", message, 0.0) == []
    assert dispatcher.counts["unexpected_messages"] == 1


def test_units_that_do_not_follow_the_plan_are_an_error(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(units=2)
    with pytest.raises(ValueError, match="unit 5 doesn't follow the plan, which goes on with 2"):
        dispatcher.add_units([unit(5)])
    dispatcher.end_plan()
    with pytest.raises(ValueError, match="doesn't follow"):
        dispatcher.add_units([unit(2)])


# ------------------------------------------------------------------ stalls


def stalls(dispatcher: Dispatcher) -> dict[str, float]:
    dispatcher.tick(100.0)
    dispatcher.tick(107.0)
    return {reason: seconds for reason, seconds in dispatcher.stalled_s.items() if seconds}


def test_a_stall_without_decoders_is_the_decoders(make: Callable[..., Dispatcher]) -> None:
    assert stalls(make()) == {"no_credit": 7.0}


def test_a_stall_without_planned_units_is_the_staging(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(units=0)
    dispatcher.handle("a", m.Hello(1), 100.0)
    assert stalls(dispatcher) == {"not_staged": 7.0}


def test_a_stall_with_all_slots_ready_is_the_trainer(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=1, want=0)
    dispatcher.handle("a", m.Hello(1), 100.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 100.0)
    assert stalls(dispatcher) == {"no_free_slot": 7.0}


def test_nothing_stalls_before_a_trainer_or_after_the_plan(make: Callable[..., Dispatcher]) -> None:
    assert stalls(make(attach=False)) == {}
    dispatcher = make(units=0)
    dispatcher.end_plan()
    assert stalls(dispatcher) == {}


def test_a_stall_is_charged_to_what_held_since_the_last_tick(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(units=0)
    dispatcher.tick(100.0)
    dispatcher.add_units([unit(0)])  # nobody to lease it to
    dispatcher.tick(103.0)
    dispatcher.tick(104.0)
    assert (dispatcher.stalled_s["not_staged"], dispatcher.stalled_s["no_credit"]) == (3.0, 1.0)


def test_a_stall_with_all_slots_at_the_trainer_and_an_idle_decoder_is_the_trainer(
    make: Callable[..., Dispatcher],
) -> None:
    dispatcher = make(slots=1)
    dispatcher.handle("a", m.Hello(1), 100.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 100.0)
    assert (dispatcher.units.num(State.DELIVERED), dispatcher.units.num(State.READY)) == (1, 0)
    assert stalls(dispatcher) == {"no_free_slot": 7.0}


# ------------------------------------------------------------------ what the hops are read from


def test_busy_decoders_hold_a_lease(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=1)
    dispatcher.handle("a", m.Hello(2), 0.0)
    dispatcher.handle("b", m.Hello(2), 0.0)
    assert (dispatcher.decoders.num_busy, dispatcher.decoders.num_staying) == (1, 2)


def test_the_trainer_waits_for_a_unit_that_is_not_ready_but_not_for_one_after_the_last(
    make: Callable[..., Dispatcher],
) -> None:
    dispatcher = make(slots=2, units=1, want=2)
    assert dispatcher.trainer_waits
    dispatcher.handle("a", m.Hello(1), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    assert dispatcher.trainer_waits, "for the second"
    dispatcher.end_plan()
    assert not dispatcher.trainer_waits
    assert not make(want=0).trainer_waits


def test_what_is_prefetched_is_a_part_of_what_the_trainer_asked_for(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=3, want=2)
    assert dispatcher.prefetched == 0.0
    dispatcher.handle("a", m.Hello(3), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    assert dispatcher.prefetched == 0.5
    dispatcher.handle("a", m.Done(1, 2, LAYOUT, TALLY), 0.0)
    assert dispatcher.prefetched == 1.0


# ------------------------------------------------------------------ retiring


def test_the_newest_of_the_idle_decoders_is_told_to_leave(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=1)
    for name in ("a", "b", "c"):
        dispatcher.handle(name, m.Hello(1), 0.0)
    assert dispatcher.retire() == [Send("c", m.Retire())]
    assert dispatcher.retire() == [Send("b", m.Retire())]
    assert dispatcher.retire() == [Send("a", m.Retire())], "a is at work, but nobody else is left"
    assert dispatcher.retire() == []


def test_a_decoder_at_work_stays_before_an_older_idle_one(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=1)
    dispatcher.handle("z", m.Hello(1), 0.0)
    dispatcher.handle("b", m.Hello(1), 0.0)
    dispatcher.handle("z", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    assert leases(dispatcher.handle("t", m.Release(0), 0.0)) == [("b", 1, 0)]
    assert dispatcher.retire() == [Send("z", m.Retire())]


def test_a_retired_decoder_finishes_its_leases_and_gets_no_more(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=3)
    dispatcher.handle("a", m.Hello(2), 0.0)
    dispatcher.retire()
    assert (dispatcher.decoders.num_staying, dispatcher.decoders.num_busy) == (0, 0)
    actions = dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    assert (delivered(actions), leases(actions)) == ([0], [])
    assert leases(dispatcher.handle("a", m.Done(1, 2, LAYOUT, TALLY), 0.0)) == []
    assert dispatcher.handle("a", m.Bye(), 0.0) == []
    assert dispatcher.counts["decoders_lost"] == 0
    assert [k for _, k, _ in leases(dispatcher.handle("b", m.Hello(1), 0.0))] == [2]


def commit_with_unit_0_held(dispatcher: Dispatcher) -> m.Cursor:
    """Units 0 and 1 are trained, 0 is still being copied; the cursor of that checkpoint. A block is two units."""
    first = dispatcher.handle("a", m.Hello(2), 0.0)
    for k, action in enumerate(first):
        assert isinstance(action, Send)
        assert isinstance(action.message, m.Lease)
        dispatcher.handle("a", m.Done(k, action.message.lease, LAYOUT, TALLY), 0.0)
    dispatcher.handle("t", m.Release(1), 0.0)
    cursor = m.Cursor(0, 0, 2, 0)
    assert Evict(1) in dispatcher.handle("t", m.Committed((cursor,)), 0.0)
    return cursor


@pytest.fixture
def with_blocks(make: Callable[..., Dispatcher]) -> Dispatcher:
    dispatcher = make(attach=False)
    dispatcher.handle("t", m.Attach(0, 1, PLAN, (START,)), 0.0)
    dispatcher.add_units([unit(k, k // 2, k - k % 2) for k in range(6)])
    dispatcher.handle("t", m.Want(0, 2), 0.0)
    return dispatcher


def test_a_trainer_that_goes_back_behind_a_commit_has_its_files_staged_again(with_blocks: Dispatcher) -> None:
    commit_with_unit_0_held(with_blocks)
    with_blocks.lose("t")
    assert Replan(START) in with_blocks.handle("t2", m.Attach(0, 1, PLAN, (START,)), 0.0)


def test_a_unit_behind_a_commit_is_not_kept_for_the_next_trainer(with_blocks: Dispatcher) -> None:
    cursor = commit_with_unit_0_held(with_blocks)
    assert with_blocks.units.num(State.DELIVERED) == 1
    with_blocks.lose("t")
    assert with_blocks.units.num(State.READY) == 0
    assert not any(isinstance(a, Replan) for a in with_blocks.handle("t2", m.Attach(0, 1, PLAN, (cursor,)), 0.0))


def test_fewer_slots_than_lanes_are_refused() -> None:
    with pytest.raises(ValueError, match="1 slots can't serve 2 lanes"):
        Dispatcher(slots=1, plan_hash=PLAN, max_unit_deaths=3, stall_timeout_s=10.0, lanes=2)


# ------------------------------------------------------------------ well-formed messages that say what can't be


def test_a_unit_that_its_trainer_refuses_is_decoded_again_once_it_attaches(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=2, deaths=2)
    dispatcher.handle("a", m.Hello(1), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    dispatcher.handle("t", m.Reject(0, "unit 7"), 1.0)
    dispatcher.validate()
    dispatcher.lose("t")
    dispatcher.handle("a", m.Done(1, 2, LAYOUT, TALLY), 1.0)
    dispatcher.handle("t2", m.Attach(0, 1, PLAN, (START,)), 2.0)
    assert leases(dispatcher.handle("t2", m.Want(0, 1), 2.0)) == [], "a is busy with a later unit"
    actions = dispatcher.handle("a", m.Done(2, 3, LAYOUT, TALLY), 3.0)
    assert [k for _, k, _ in leases(actions)] == [0]
    assert delivered(dispatcher.handle("a", m.Done(0, 4, LAYOUT, TALLY), 4.0)) == [0]
    dispatcher.handle("t2", m.Reject(0, "unit 7"), 5.0)
    dispatcher.handle("t2", m.Attach(0, 1, PLAN, (START,)), 5.0)
    actions = dispatcher.handle("t2", m.Want(0, 1), 5.0)
    assert delivered(actions) == [0], "refused as often as a unit may fail, it is skipped"


@pytest.mark.parametrize("file", [1, 7, 2**62])
def test_a_decoder_can_only_call_files_of_its_unit_bad(make: Callable[..., Dispatcher], file: int) -> None:
    dispatcher = make()
    dispatcher.handle("a", m.Hello(1), 0.0)
    tally = m.Tally(rows_read=5, quarantined=5, bad=(m.Quarantined(file, -1, 5, "rotten"),))
    actions = dispatcher.handle("a", m.Done(0, 1, m.Layout(0, 0, 0), tally), 0.0)
    assert not any(isinstance(action, Quarantine) for action in actions)
    assert delivered(actions) == []


@pytest.mark.parametrize(
    "cursors",
    [
        (m.Cursor(0, 5, 6), m.Cursor(1, 1, 1)),  # the later block begins before the earlier one
        (m.Cursor(2, 4, 4), m.Cursor(2, 2, 5)),  # one block, two beginnings
        (m.Cursor(0, 0, 2), m.Cursor(3, 1, 3)),  # three blocks in one unit
        (m.Cursor(9, 5, 6), m.Cursor(9, 5, 7)),  # more blocks than units
    ],
)
def test_an_attach_with_cursors_that_contradict_each_other_is_refused(cursors: tuple[m.Cursor, ...]) -> None:
    dispatcher = Dispatcher(slots=2, plan_hash=PLAN, max_unit_deaths=3, stall_timeout_s=10.0, lanes=2)
    (refused,) = dispatcher.handle("t", m.Attach(0, 1, PLAN, cursors), 0.0)
    assert isinstance(refused, Send)
    assert isinstance(refused.message, m.Refuse)
    dispatcher.validate()


@pytest.mark.parametrize("cursor", [m.Cursor(unit=1), m.Cursor(3, 4, 50), m.Cursor(5, 2, 2**61)])
def test_a_trainer_can_not_commit_what_it_was_not_given(make: Callable[..., Dispatcher], cursor: m.Cursor) -> None:
    dispatcher = make()
    assert dispatcher.handle("t", m.Committed((cursor,)), 0.0) == []
    assert dispatcher.counts["unexpected_messages"] == 1


def test_an_invariant_that_fails_comes_with_the_story_of_its_unit(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=2)
    dispatcher.handle("a", m.Hello(1), 0.0)
    dispatcher.handle("b", m.Hello(1), 1.0)
    dispatcher.lose("a")
    story = dispatcher.story(0)
    assert [line.split(": ")[0] for line in story] == ["0.0 s a", "0.0 s a", "1.0 s a"]
    assert "Lease(lease=1" in story[1]
    assert story[2].endswith("lost")
    dispatcher.units.held[1].lease = 99
    with pytest.raises(AssertionError, match=r"(?s)unit 1: leases agree.*Lease\(lease=2"):
        dispatcher.validate()
    dispatcher.units.held[1].lease = 2


def test_a_whole_epoch_without_an_event_to_train_is_noticed(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=8, units=0, want=8)
    dispatcher.add_units([dataclasses.replace(unit(k), epoch=k // 2) for k in range(6)])
    dispatcher.handle("a", m.Hello(6), 0.0)
    for k, barren in enumerate((0, 0, 0, 0, 1, 1)):
        dispatcher.handle("a", m.Done(k, k + 1, m.Layout(0, 0, 0), m.Tally(rows_read=5, empty=5)), 0.0)
        assert dispatcher.lanes.barren_epochs == barren, k


def test_units_that_are_done_early_do_not_make_an_epoch_look_barren(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(slots=8, units=0, want=8)
    dispatcher.add_units([dataclasses.replace(unit(k), epoch=k // 2) for k in range(6)])
    dispatcher.handle("a", m.Hello(6), 0.0)
    for k in (0, 1, 3, 5, 2, 4):  # the second unit of each epoch has outliers only
        layout, tally = (m.Layout(0, 0, 0), m.Tally(5, outliers=5)) if k % 2 else (LAYOUT, TALLY)
        dispatcher.handle("a", m.Done(k, k + 1, layout, tally), 0.0)
        assert dispatcher.lanes.barren_epochs == 0


def test_the_journal_of_a_trainer_that_is_refused_says_nothing_of_the_run(make: Callable[..., Dispatcher]) -> None:
    dispatcher = make(attach=False)
    assert Remember((3,)) in dispatcher.handle("t", m.Attach(0, 1, PLAN, (START,), bad_files=(3,)), 0.0)
    actions = dispatcher.handle("second", m.Attach(0, 1, PLAN, (START,), bad_files=(1, 2)), 0.0)
    assert not any(isinstance(action, Remember) for action in actions)


def test_a_cursor_far_ahead_does_not_have_the_plan_made_without_end(
    make: Callable[..., Dispatcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher_module, "_MOST_PLANNED", 100)
    dispatcher = Dispatcher(slots=2, plan_hash=PLAN, max_unit_deaths=3, stall_timeout_s=10.0, lanes=2)
    dispatcher.handle("t", m.Attach(0, 2, PLAN, (START, m.Cursor(unit=2**61 + 1))), 0.0)
    while not dispatcher.plan_is_long:
        dispatcher.add_units([unit(dispatcher.units.next_k)])
    assert len(dispatcher.units.planned) == 100
    assert dispatcher.starved is False
    dispatcher.handle("a", m.Hello(1), 0.0)
    for k in (0, 2):
        dispatcher.handle("t", m.Want(0, 1), 0.0)
        assert delivered(dispatcher.handle("a", m.Done(k, k // 2 + 1, LAYOUT, TALLY), 0.0)) == [k], (
            "the other lane goes on"
        )
        dispatcher.handle("t", m.Release(k), 0.0)
    dispatcher.validate()


# ------------------------------------------------------------------ files that are gone from the disk


def staged_unit(k: int) -> m.Unit:
    parts = tuple(
        m.Part(file, f"/cache/{file}", 0, 0, 5, 9, 0, remote=f"https://h/{file}") for file in (2 * k, 2 * k + 1)
    )
    return m.Unit(k=k, epoch=0, block=0, block_first_unit=0, parts=parts)


def gone(lease: m.Lease) -> m.Failed:
    return m.Failed(lease.unit.k, lease.lease, "a file is gone", gone=True)


@pytest.fixture
def restaging() -> Iterator[Dispatcher]:
    dispatcher = Dispatcher(slots=2, plan_hash=PLAN, max_unit_deaths=2, stall_timeout_s=10.0)
    dispatcher.handle("t", m.Attach(0, 1, PLAN, (START,)), 0.0)
    dispatcher.add_units([staged_unit(0), staged_unit(1), staged_unit(2)])
    yield dispatcher
    dispatcher.validate()


def leases_in(actions: Sequence[Action]) -> list[m.Lease]:
    return [a.message for a in actions if isinstance(a, Send) and isinstance(a.message, m.Lease)]


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
    dispatcher.handle("t", m.Attach(0, 1, PLAN, (START,)), 0.0)
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


def test_what_waits_for_the_trainer_is_no_stall_of_the_staging() -> None:
    dispatcher = Dispatcher(slots=2, plan_hash=PLAN, max_unit_deaths=2, stall_timeout_s=10.0)
    dispatcher.handle("t", m.Attach(0, 1, PLAN, (START,)), 0.0)
    dispatcher.handle("t", m.Want(0, 3), 0.0)
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
