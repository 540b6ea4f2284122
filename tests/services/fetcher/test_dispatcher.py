"""The dispatcher's answers to messages, deaths and time, with one trainer and with several."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest
from invariants import check_invariants

from common import messages as m
from services.fetcher import dispatcher as dispatcher_module
from services.fetcher.dispatcher import Action, Dispatcher, Evict, Fence, Quarantine, Remember, Replan, Restage, Send
from services.fetcher.dispatcher_state import State

PLAN = "00" * 16
LAYOUT = m.Layout(5, 9, 1)
TALLY = m.Tally(rows_read=5)
START = m.Cursor()

Make = Callable[..., Dispatcher]


def unit(k: int, block: int = 0, first: int = 0) -> m.Unit:
    part = m.Part(file=k, path="f", row_group=0, first_row=0, rows=5, particles=9, file_row=0, remote="https://h/f")
    return m.Unit(k=k, epoch=0, block=block, block_first_unit=first, parts=(part,))


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


@pytest.fixture
def make_dispatcher() -> Iterator[Make]:
    """Makes dispatchers with a plan and an attached trainer `t`; their invariants are checked at the end."""
    made: list[Dispatcher] = []

    def build(*, slots: int = 2, units: int = 8, deaths: int = 3, want: int = 1, attach: bool = True) -> Dispatcher:
        dispatcher = Dispatcher(slots=slots, plan_hash=PLAN, max_unit_deaths=deaths, stall_timeout_s=10.0)
        made.append(dispatcher)
        if attach:
            dispatcher.handle("t", m.Attach(0, 1, PLAN, START))
            dispatcher.add_units([unit(k) for k in range(units)])
            if want:
                dispatcher.handle("t", m.Want(want))
        return dispatcher

    yield build
    for dispatcher in made:
        check_invariants(dispatcher)


def test_what_was_quarantined_in_decoding_is_told(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher()
    dispatcher.handle("a", m.Hello(1))
    bad = m.Quarantined(0, 0, 5, "rotten")
    tally = m.Tally(rows_read=5, quarantined=5, bad=(bad,))
    actions = dispatcher.handle("a", m.Done(0, 1, m.Layout(0, 0, 0), tally))
    assert Quarantine((bad,)) in actions
    assert delivered(actions) == [0]


@pytest.mark.parametrize("file", [1, 7, 2**62])
def test_a_decoder_can_only_call_files_of_its_unit_bad(make_dispatcher: Make, file: int) -> None:
    dispatcher = make_dispatcher()
    dispatcher.handle("a", m.Hello(1))
    tally = m.Tally(rows_read=5, quarantined=5, bad=(m.Quarantined(file, -1, 5, "rotten"),))
    actions = dispatcher.handle("a", m.Done(0, 1, m.Layout(0, 0, 0), tally))
    assert not any(isinstance(action, Quarantine) for action in actions)
    assert delivered(actions) == []


def test_only_the_unit_in_work_is_blamed_for_a_death(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(slots=2, deaths=1)
    dispatcher.handle("a", m.Hello(2))
    dispatcher.handle("a", m.Decoding(1, 2))
    dispatcher.lose("a")
    assert dispatcher.handle("b", m.Hello(1))
    assert leases(dispatcher.handle("b", m.Done(0, 3, LAYOUT, TALLY))) == [("b", 2, 1)], "unit 1 is skipped"


def test_a_unit_that_killed_three_decoders_is_skipped_and_told(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(slots=1, units=1)
    for name in ("a", "b"):
        dispatcher.handle(name, m.Hello(1))
        assert dispatcher.lose(name) == []
    dispatcher.handle("c", m.Hello(1))
    actions = dispatcher.lose("c")
    (bad,) = next(action.bad for action in actions if isinstance(action, Quarantine))
    assert (bad.file, bad.row_group, bad.rows) == (0, 0, 5)
    assert "unit 0 failed 3 times" in bad.reason
    (sent,) = [action.message for action in actions if isinstance(action, Send)]
    assert isinstance(sent, m.DeliveredUnit)
    assert (sent.k, sent.slot, sent.layout) == (0, -1, m.Layout(0, 0, 0))
    assert (sent.tally.rows_read, sent.tally.quarantined) == (5, 5)


def test_a_unit_whose_file_is_gone_again_and_again_is_skipped(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(deaths=2, units=0, want=0)
    parts = tuple(dataclasses.replace(unit(0).parts[0], file=file) for file in (0, 1))
    dispatcher.add_units([dataclasses.replace(unit(0), parts=parts)])
    dispatcher.handle("d", m.Hello(1))
    gone = m.Failed(0, 1, "a file is gone", gone=True)
    assert dispatcher.handle("d", gone) == [Restage((0, 1))]
    assert dispatcher.restaged(0) == []
    assert lease_of(dispatcher.restaged(1)) == 2
    assert lease_of(dispatcher.handle("d", dataclasses.replace(gone, lease=2))) == 3
    actions = dispatcher.handle("d", dataclasses.replace(gone, lease=3))
    assert [type(action) for action in actions] == [Quarantine]


def test_a_unit_that_a_machine_fails_on_is_given_out_again_for_ever_without_blame(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(want=0)
    dispatcher.handle("d", m.Hello(1))
    for lease in range(1, 51):
        failed = m.Failed(0, lease, f"/data/f: Input/output error {lease}", machine=True)
        assert [k for _, k, _ in leases(dispatcher.handle("d", failed))] == [0]
        assert dispatcher.problem == failed.reason
    dispatcher.handle("d", m.Done(0, 51, LAYOUT, TALLY))
    assert dispatcher.problem == ""
    assert dispatcher.units.num(State.READY) == 1


def ticks(dispatcher: Dispatcher, until_s: float) -> list[Action]:
    """Tick as an awake fetcher does, up to a time; all actions."""
    actions: list[Action] = []
    now_s = dispatcher._ticked_s or 0.0
    while now_s < until_s:
        now_s = min(now_s + 0.5, until_s)
        actions += dispatcher.tick(now_s)
    return actions


def test_a_hung_decoder_is_fenced_once_its_unit_takes_too_long_without_a_beat(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(units=0)
    dispatcher.handle("a", m.Hello(1))
    assert ticks(dispatcher, 50.0) == [], "it is idle"
    assert leases(dispatcher.add_units([unit(0)])) == [("a", 0, 0)]
    assert ticks(dispatcher, 58.0) == []
    dispatcher.handle("a", m.Beat())
    assert ticks(dispatcher, 68.0) == []
    assert ticks(dispatcher, 68.6) == [Fence("a")]
    dispatcher.lose("a")
    assert ticks(dispatcher, 90.0) == []


def test_a_decoder_that_leaves_blames_no_unit(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(deaths=1)
    dispatcher.handle("a", m.Hello(1))
    dispatcher.handle("a", m.Decoding(0, 1))
    dispatcher.handle("a", m.Bye())
    assert leases(dispatcher.handle("b", m.Hello(1))) == [("b", 0, 0)]
    assert dispatcher.counts["decoders_lost"] == 0


def test_the_newest_of_the_idle_decoders_is_told_to_leave(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(slots=1)
    for name in ("a", "b", "c"):
        dispatcher.handle(name, m.Hello(1))
    assert (dispatcher.decoders.num_busy, dispatcher.decoders.num_staying) == (1, 3)
    assert dispatcher.retire() == [Send("c", m.Retire())]
    assert dispatcher.retire() == [Send("b", m.Retire())]
    assert dispatcher.retire() == [Send("a", m.Retire())], "a is at work, but nobody else is left"
    assert (dispatcher.decoders.num_busy, dispatcher.decoders.num_staying) == (0, 0)
    assert dispatcher.retire() == []


def test_nothing_is_leased_before_a_trainer_says_where_to_begin(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(attach=False)
    dispatcher.add_units([unit(0)])
    assert dispatcher.handle("a", m.Hello(2)) == []


def stalls(dispatcher: Dispatcher) -> dict[str, float]:
    dispatcher.tick(100.0)
    dispatcher.tick(107.0)
    return {reason: seconds for reason, seconds in dispatcher.stalled_s.items() if seconds}


def test_nothing_stalls_before_a_trainer_or_after_the_plan(make_dispatcher: Make) -> None:
    assert stalls(make_dispatcher(attach=False)) == {}
    dispatcher = make_dispatcher(units=0)
    dispatcher.end_plan()
    assert stalls(dispatcher) == {}


def test_a_stall_is_charged_to_what_held_since_the_last_tick(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(units=0)
    dispatcher.tick(100.0)
    dispatcher.add_units([unit(0)])  # nobody to lease it to
    dispatcher.tick(103.0)
    dispatcher.tick(104.0)
    assert (dispatcher.stalled_s["not_staged"], dispatcher.stalled_s["no_credit"]) == (3.0, 1.0)


def test_the_trainer_waits_for_a_unit_that_is_not_ready_but_not_for_one_after_the_last(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(slots=2, units=1, want=2)
    assert (dispatcher.trainer_waits, dispatcher.prefetched) == (True, 0.0)
    dispatcher.handle("a", m.Hello(1))
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY))
    assert (dispatcher.trainer_waits, dispatcher.prefetched) == (True, 0.5), "for the second"
    dispatcher.end_plan()
    assert not dispatcher.trainer_waits
    assert not make_dispatcher(want=0).trainer_waits


def test_a_cursor_far_ahead_does_not_have_the_plan_made_without_end(
    make_dispatcher: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher_module, "_MOST_PLANNED", 100)
    dispatcher = make_dispatcher(attach=False)
    dispatcher.handle("t", m.Attach(0, 2, PLAN, START))
    dispatcher.handle("u", m.Attach(1, 2, PLAN, m.Cursor(unit=2**61 + 1)))
    while not dispatcher.plan_is_long:
        dispatcher.add_units([unit(dispatcher.units.next_k)])
    assert len(dispatcher.units.planned) == 100
    assert dispatcher.starved is False
    dispatcher.handle("u", m.Want(1))
    assert dispatcher.starved, "the service asks for a checkpoint then"
    dispatcher.handle("a", m.Hello(1))
    for k in (0, 1):
        dispatcher.handle("t", m.Want(1))
        assert delivered(dispatcher.handle("a", m.Done(k, k + 1, LAYOUT, TALLY))) == [k], "the other goes on"
        dispatcher.handle("t", m.Release(k))


def test_what_waits_for_the_trainer_is_no_stall_of_the_staging(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(units=1, want=3)
    dispatcher.handle("d", m.Hello(1))
    dispatcher.handle("d", m.Done(0, 1, LAYOUT, TALLY))
    dispatcher.tick(1.0)
    assert dispatcher.stall == "not_staged"
    dispatcher.tick(2.0, staging_full=True)
    assert dispatcher.stall == "no_free_slot"
    dispatcher.handle("t", m.Release(0))
    dispatcher.tick(3.0, staging_full=True)
    assert dispatcher.stall == "not_staged", "the trainer has nothing left"


@pytest.mark.parametrize(
    ("attach", "reason"),
    [
        (m.Attach(0, 1, "ff" * 16, START), "the checkpoint belongs to plan ffffffffffff, this run has plan 0000000"),
        (m.Attach(1, 1, PLAN, START), "rank 1 of 1 can't be"),
        (m.Attach(0, 1, PLAN, m.Cursor(9, 5, 6)), "no plan has the place"),
        (m.Attach(0, 1, PLAN, m.Cursor(1, 4, 3)), "no plan has the place"),
        (m.Attach(0, 1, PLAN, m.Cursor(0, 0, 2**62)), "no plan has the place"),
    ],
)
def test_a_trainer_of_another_plan_or_an_impossible_place_is_refused(
    make_dispatcher: Make, attach: m.Attach, reason: str
) -> None:
    dispatcher = make_dispatcher(attach=False)
    (action,) = dispatcher.handle("t", attach)
    assert isinstance(action, Send)
    assert isinstance(action.message, m.Refuse)
    assert action.message.reason.startswith(reason)
    assert dispatcher.trainers == []


def test_a_second_trainer_in_a_place_is_refused_until_the_first_is_gone(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher()
    (action,) = dispatcher.handle("u", m.Attach(0, 1, PLAN, START))
    assert action == Send("u", m.Refuse("a trainer is already attached to this run"))
    dispatcher.lose("t")
    assert not any(isinstance(a, Send) for a in dispatcher.handle("u", m.Attach(0, 1, PLAN, START)))
    assert dispatcher.trainers == ["u"]


def test_the_last_messages_of_a_trainer_that_left_may_come_after_the_first_ones_of_the_next(
    make_dispatcher: Make, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = make_dispatcher(slots=2, want=2)
    dispatcher.handle("a", m.Hello(2))
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY))
    dispatcher.supersede("t")
    assert dispatcher.trainers == []
    dispatcher.handle("u", m.Attach(0, 1, PLAN, START))
    assert delivered(dispatcher.handle("u", m.Want(2))) == [0]
    for late in (m.Release(0), m.Want(1), m.Committed(START), m.Bye()):
        assert dispatcher.handle("t", late) == []
    dispatcher.lose("t")
    assert dispatcher.trainers == ["u"]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert dispatcher.counts["unexpected_messages"] == 0
    dispatcher.handle("t", m.Release(0))
    assert dispatcher.counts["unexpected_messages"] == 1, "it has said its last"


def test_the_files_of_the_last_planned_block_are_evicted_once_it_is_used_up(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(units=1)
    block = dispatcher.units.planned[0].block
    dispatcher.handle("a", m.Hello(1))
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY))
    dispatcher.handle("t", m.Release(0))
    assert Evict(block) in dispatcher.handle("t", m.Committed(m.Cursor(block, 0, 0, 2)))
    assert Evict(block + 1) in dispatcher.handle("t", m.Committed(m.Cursor(block, 0, 1, 0)))


def test_a_trainer_that_goes_back_behind_a_commit_has_its_files_staged_again(make_dispatcher: Make) -> None:
    """Units 0 and 1 are trained, 0 is still being copied. A block is two units."""
    dispatcher = make_dispatcher(units=0, want=2)
    dispatcher.add_units([unit(k, k // 2, k - k % 2) for k in range(6)])
    dispatcher.handle("a", m.Hello(2))
    for k in (0, 1):
        dispatcher.handle("a", m.Done(k, k + 1, LAYOUT, TALLY))
    dispatcher.handle("t", m.Release(1))
    assert Evict(1) in dispatcher.handle("t", m.Committed(m.Cursor(0, 0, 2, 0)))
    dispatcher.lose("t")
    assert Replan(START) in dispatcher.handle("t2", m.Attach(0, 1, PLAN, START))


def test_a_unit_that_its_trainer_refuses_is_decoded_again_once_it_attaches(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(slots=2, deaths=2)
    dispatcher.handle("a", m.Hello(1))
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY))
    dispatcher.handle("t", m.Reject(0, "unit 7"))
    check_invariants(dispatcher)
    dispatcher.lose("t")
    dispatcher.handle("a", m.Done(1, 2, LAYOUT, TALLY))
    dispatcher.handle("t2", m.Attach(0, 1, PLAN, START))
    assert leases(dispatcher.handle("t2", m.Want(1))) == [], "a is busy with a later unit"
    actions = dispatcher.handle("a", m.Done(2, 3, LAYOUT, TALLY))
    assert [k for _, k, _ in leases(actions)] == [0]
    assert delivered(dispatcher.handle("a", m.Done(0, 4, LAYOUT, TALLY))) == [0]
    dispatcher.handle("t2", m.Reject(0, "unit 7"))
    dispatcher.handle("t2", m.Attach(0, 1, PLAN, START))
    actions = dispatcher.handle("t2", m.Want(1))
    assert delivered(actions) == [0], "refused as often as a unit may fail, it is skipped"


@pytest.mark.parametrize("cursor", [m.Cursor(unit=1), m.Cursor(3, 4, 50), m.Cursor(5, 2, 2**61)])
def test_a_trainer_can_not_commit_what_it_was_not_given(make_dispatcher: Make, cursor: m.Cursor) -> None:
    dispatcher = make_dispatcher()
    assert dispatcher.handle("t", m.Committed(cursor)) == []
    assert dispatcher.counts["unexpected_messages"] == 1


def test_a_whole_epoch_without_an_event_to_train_is_noticed(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(slots=8, units=0, want=8)
    dispatcher.add_units([dataclasses.replace(unit(k), epoch=k // 2) for k in range(6)])
    dispatcher.handle("a", m.Hello(6))
    for k, complete in enumerate(({}, {}, {}, {}, {1: 0}, {1: 0})):
        dispatcher.handle("a", m.Done(k, k + 1, m.Layout(0, 0, 0), m.Tally(rows_read=5, empty=5)))
        assert dispatcher.places.complete_epochs == complete, k


def test_the_journal_of_a_trainer_that_is_refused_says_nothing_of_the_run(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(attach=False)
    assert Remember((3,)) in dispatcher.handle("t", m.Attach(0, 1, PLAN, START, bad_files=(3,)))
    actions = dispatcher.handle("second", m.Attach(0, 1, PLAN, START, bad_files=(1, 2)))
    assert not any(isinstance(action, Remember) for action in actions)


# ------------------------------------------------------------------ several trainers


def test_another_number_of_trainers_is_refused_until_all_have_left(make_dispatcher: Make) -> None:
    dispatcher = make_dispatcher(attach=False)
    for rank in range(2):
        dispatcher.handle(f"t{rank}", m.Attach(rank, 2, PLAN, START))
    dispatcher.handle("t0", m.Bye())
    (refused,) = dispatcher.handle("u", m.Attach(0, 3, PLAN, START))
    assert refused == Send("u", m.Refuse("a trainer is already attached to this run: 2 are expected, not 3"))
    dispatcher.handle("t1", m.Bye())
    assert not any(isinstance(a, Send) for a in dispatcher.handle("u", m.Attach(2, 3, PLAN, START)))


@pytest.mark.parametrize(
    ("dispatcher_of", "hello", "done", "stalled"),
    [
        ({}, False, False, "no_credit"),
        ({"units": 0}, True, False, "not_staged"),
        ({"slots": 1, "want": 0}, True, True, "no_free_slot"),
        ({"slots": 1}, True, True, "no_free_slot"),
    ],
    ids=["no decoder", "no planned unit", "all slots ready", "all slots at the trainer"],
)
def test_a_stall_is_that_of_who_is_waited_for(
    make_dispatcher: Make, dispatcher_of: dict[str, int], hello: bool, done: bool, stalled: str
) -> None:
    dispatcher = make_dispatcher(**dispatcher_of)
    if hello:
        dispatcher.handle("a", m.Hello(1))
    if done:
        dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY))
    assert stalls(dispatcher) == {stalled: 7.0}


@pytest.fixture
def two_in_blocks(make_dispatcher: Make) -> Dispatcher:
    """Dispatcher with the trainers t0 and t1, which have the first units of blocks of two."""
    dispatcher = make_dispatcher(attach=False, slots=8)
    for rank in range(2):
        dispatcher.handle(f"t{rank}", m.Attach(rank, 2, PLAN, START))
    dispatcher.add_units([unit(k, k // 2, k - k % 2) for k in range(8)])
    dispatcher.handle("a", m.Hello(8))
    for k in range(8):
        dispatcher.handle("a", m.Done(k, k + 1, LAYOUT, TALLY))
    for rank in range(2):
        dispatcher.handle(f"t{rank}", m.Want(5))
    return dispatcher


def test_a_checkpoint_that_one_trainer_tells_of_lets_files_go(two_in_blocks: Dispatcher) -> None:
    assert Evict(2) in two_in_blocks.handle("t1", m.Committed(m.Cursor(2, 4, 4, 3)))
    older = two_in_blocks.handle("t0", m.Committed(m.Cursor(1, 2, 3, 0)))
    assert two_in_blocks.places.committed == m.Cursor(2, 4, 4, 3), "an older one changes nothing"
    assert [a for a in older if isinstance(a, Evict)] == [Evict(2)]
    assert two_in_blocks.counts["unexpected_messages"] == 0


def test_a_checkpoint_lets_no_file_go_that_a_trainer_behind_it_still_needs(two_in_blocks: Dispatcher) -> None:
    """Its units are not even planned again yet: without their files they never would be."""
    assert Evict(2) in two_in_blocks.handle("t0", m.Committed(m.Cursor(2, 4, 4, 0)))
    two_in_blocks.lose("t1")
    assert Replan(START) in two_in_blocks.handle("u", m.Attach(1, 2, PLAN, START))
    committed = two_in_blocks.handle("t0", m.Committed(m.Cursor(2, 4, 4, 1)))
    assert not any(isinstance(action, Evict) for action in committed)
