from __future__ import annotations

from collections.abc import Callable

import pytest
from dispatchers import LAYOUT, TALLY, delivered, leases, unit

from common import messages as m
from services.fetcher.dispatcher import Action, Dispatcher, Fence, Send
from services.fetcher.dispatcher.decoder_pool import FENCE_GRACE_S


def ticks(dispatcher: Dispatcher, until_s: float) -> list[Action]:
    """Tick as an awake fetcher does, up to a time; all actions."""
    actions: list[Action] = []
    while dispatcher._now_s < until_s:
        actions += dispatcher.tick(min(dispatcher._now_s + 0.5, until_s))
    return actions


def test_a_hung_decoder_is_fenced_once(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher()
    dispatcher.handle("a", m.Hello(1), 0.0)
    assert ticks(dispatcher, 10.0) == []
    assert ticks(dispatcher, 10.6) == [Fence("a")]
    dispatcher.lose("a")
    assert ticks(dispatcher, 30.0) == []


def test_a_beat_keeps_a_decoder_from_being_fenced(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher()
    dispatcher.handle("a", m.Hello(1), 0.0)
    ticks(dispatcher, 8.0)
    dispatcher.handle("a", m.Beat(), 8.0)
    assert ticks(dispatcher, 17.0) == []


def test_a_decoder_that_was_idle_for_long_is_not_late_when_it_gets_a_unit(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    dispatcher = make_dispatcher(units=0)
    dispatcher.handle("a", m.Hello(1), 0.0)
    assert ticks(dispatcher, 50.0) == []
    assert leases(dispatcher.add_units([unit(0)])) == [("a", 0, 0)]
    assert ticks(dispatcher, 50.5) == []
    assert ticks(dispatcher, 61.0) == [Fence("a")]


@pytest.mark.parametrize("slept_s", [11.0, 3600.0])
def test_a_fetcher_that_was_suspended_does_not_take_its_own_sleep_for_hung_decoders(
    make_dispatcher: Callable[..., Dispatcher], slept_s: float
) -> None:
    dispatcher = make_dispatcher()
    dispatcher.handle("a", m.Hello(1), 0.0)
    ticks(dispatcher, 5.0)
    assert dispatcher.tick(5.0 + slept_s) == []
    assert ticks(dispatcher, 8.0 + slept_s) == []
    assert Fence("a") in ticks(dispatcher, 11.0 + slept_s), "its own silence counts all the same"


def test_a_kill_that_is_accepted_and_does_not_end_the_decoder_is_not_trusted(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    dispatcher = make_dispatcher(slots=2)
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


def test_a_suspended_decoders_unit_is_not_blamed(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(deaths=1)
    dispatcher.handle("a", m.Hello(1), 0.0)
    assert ticks(dispatcher, 10.6) == [Fence("a")]
    dispatcher.excuse("a")
    dispatcher.lose("a")
    assert leases(dispatcher.handle("b", m.Hello(1), 11.0)) == [("b", 0, 0)]


def test_a_fenced_decoders_unit_is_leased_again(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher()
    dispatcher.handle("a", m.Hello(1), 0.0)
    ticks(dispatcher, 11.0)
    dispatcher.handle("b", m.Hello(1), 11.0)
    assert leases(dispatcher.lose("a")) == []  # b is busy with unit 1
    assert leases(dispatcher.handle("b", m.Done(1, 2, LAYOUT, TALLY), 12.0)) == [("b", 0, 0)]


def test_a_decoder_that_can_not_be_killed_keeps_its_slot_out_of_service(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    dispatcher = make_dispatcher(slots=2)
    dispatcher.handle("a", m.Hello(1), 0.0)
    ticks(dispatcher, 11.0)
    dispatcher.fence_failed("a")
    assert leases(dispatcher.handle("b", m.Hello(2), 11.0)) == [("b", 0, 1)], "in another slot"
    dispatcher.validate()
    assert leases(dispatcher.lose("a")) == [("b", 1, 0)], "with its end the slot is free"


def test_one_that_wakes_up_gives_its_slot_back_but_its_work_does_not_count(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    dispatcher = make_dispatcher(slots=1)
    dispatcher.handle("a", m.Hello(1), 0.0)
    ticks(dispatcher, 11.0)
    dispatcher.fence_failed("a")
    actions = dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 12.0)
    assert delivered(actions) == []
    assert leases(actions) == [("a", 0, 0)]


def test_a_decoder_that_leaves_blames_no_unit(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(deaths=1)
    dispatcher.handle("a", m.Hello(1), 0.0)
    dispatcher.handle("a", m.Decoding(0, 1), 0.0)
    dispatcher.handle("a", m.Bye(), 0.0)
    assert leases(dispatcher.handle("b", m.Hello(1), 0.0)) == [("b", 0, 0)]
    assert dispatcher.counts["decoders_lost"] == 0


def test_busy_decoders_hold_a_lease(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=1)
    dispatcher.handle("a", m.Hello(2), 0.0)
    dispatcher.handle("b", m.Hello(2), 0.0)
    assert (dispatcher.decoders.num_busy, dispatcher.decoders.num_staying) == (1, 2)


def test_the_newest_of_the_idle_decoders_is_told_to_leave(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=1)
    for name in ("a", "b", "c"):
        dispatcher.handle(name, m.Hello(1), 0.0)
    assert dispatcher.retire() == [Send("c", m.Retire())]
    assert dispatcher.retire() == [Send("b", m.Retire())]
    assert dispatcher.retire() == [Send("a", m.Retire())], "a is at work, but nobody else is left"
    assert dispatcher.retire() == []


def test_a_decoder_at_work_stays_before_an_older_idle_one(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=1)
    dispatcher.handle("z", m.Hello(1), 0.0)
    dispatcher.handle("b", m.Hello(1), 0.0)
    dispatcher.handle("z", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    assert leases(dispatcher.handle("t", m.Release(0), 0.0)) == [("b", 1, 0)]
    assert dispatcher.retire() == [Send("z", m.Retire())]


def test_a_retired_decoder_finishes_its_leases_and_gets_no_more(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=3)
    dispatcher.handle("a", m.Hello(2), 0.0)
    dispatcher.retire()
    assert (dispatcher.decoders.num_staying, dispatcher.decoders.num_busy) == (0, 0)
    actions = dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    assert (delivered(actions), leases(actions)) == ([0], [])
    assert leases(dispatcher.handle("a", m.Done(1, 2, LAYOUT, TALLY), 0.0)) == []
    assert dispatcher.handle("a", m.Bye(), 0.0) == []
    assert dispatcher.counts["decoders_lost"] == 0
    assert [k for _, k, _ in leases(dispatcher.handle("b", m.Hello(1), 0.0))] == [2]
