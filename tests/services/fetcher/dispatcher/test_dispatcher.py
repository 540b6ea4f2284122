from __future__ import annotations

from collections.abc import Callable

import pytest
from dispatchers import LAYOUT, START, TALLY, delivered, leases, unit

from common import messages as m
from services.fetcher.dispatcher import Dispatcher, Quarantine


def test_a_late_done_is_refused_by_its_lease(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=1)
    dispatcher.handle("a", m.Hello(1), 0.0)
    dispatcher.lose("a")
    assert leases(dispatcher.handle("b", m.Hello(1), 0.0)) == [("b", 0, 0)]
    assert delivered(dispatcher.handle("b", m.Done(0, 1, LAYOUT, TALLY), 0.0)) == [], "lease 1 was a's"
    assert dispatcher.counts["stale_messages"] == 1
    assert delivered(dispatcher.handle("b", m.Done(0, 2, LAYOUT, TALLY), 0.0)) == [0]
    assert delivered(dispatcher.handle("b", m.Done(0, 2, LAYOUT, TALLY), 0.0)) == [], "said twice"


def test_a_tally_that_does_not_add_up_is_not_delivered(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=1)
    dispatcher.handle("a", m.Hello(1), 0.0)
    for lease, tally in [(1, m.Tally(rows_read=5, held_out=1)), (2, m.Tally(rows_read=6, outliers=1))]:
        actions = dispatcher.handle("a", m.Done(0, lease, LAYOUT, tally), 0.0)
        assert delivered(actions) == []
        assert leases(actions) == [("a", 0, 0)], "it is decoded again"


def test_what_was_quarantined_in_decoding_is_told(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher()
    dispatcher.handle("a", m.Hello(1), 0.0)
    bad = m.Quarantined(0, 0, 5, "rotten")
    tally = m.Tally(rows_read=5, quarantined=5, bad=(bad,))
    actions = dispatcher.handle("a", m.Done(0, 1, m.Layout(0, 0, 0), tally), 0.0)
    assert Quarantine((bad,)) in actions
    assert delivered(actions) == [0]


@pytest.mark.parametrize(
    "message",
    [m.Want(1), m.Release(0), m.Committed(START), m.Finished(), m.Done(0, 1, LAYOUT, TALLY), m.Beat(), m.Bye()],
)
def test_a_message_from_a_stranger_is_counted_and_dropped(
    make_dispatcher: Callable[..., Dispatcher], message: m.TrainerMessage | m.DecoderMessage
) -> None:
    dispatcher = make_dispatcher()
    assert dispatcher.handle("stranger", message, 0.0) == []
    assert dispatcher.counts["unexpected_messages"] == 1


def test_units_that_do_not_follow_the_plan_are_an_error(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(units=2)
    with pytest.raises(ValueError, match="unit 5 doesn't follow the plan, which continues with 2"):
        dispatcher.add_units([unit(5)])
    dispatcher.end_plan()
    with pytest.raises(ValueError, match="doesn't follow"):
        dispatcher.add_units([unit(2)])


@pytest.mark.parametrize("file", [1, 7, 2**62])
def test_a_decoder_can_only_call_files_of_its_unit_bad(make_dispatcher: Callable[..., Dispatcher], file: int) -> None:
    dispatcher = make_dispatcher()
    dispatcher.handle("a", m.Hello(1), 0.0)
    tally = m.Tally(rows_read=5, quarantined=5, bad=(m.Quarantined(file, -1, 5, "rotten"),))
    actions = dispatcher.handle("a", m.Done(0, 1, m.Layout(0, 0, 0), tally), 0.0)
    assert not any(isinstance(action, Quarantine) for action in actions)
    assert delivered(actions) == []


def test_an_invariant_that_fails_comes_with_the_story_of_its_unit(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=2)
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
