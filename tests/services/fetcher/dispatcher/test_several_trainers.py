from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from dispatchers import LAYOUT, PLAN, START, TALLY, delivered, leases, unit

from common import messages as m
from services.fetcher.dispatcher import Action, Dispatcher, EndRun, Evict, Remember, Replan, Send, State


def test_a_trainer_with_another_plan_is_refused(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(attach=False)
    (action,) = dispatcher.handle("t", m.Attach(0, 1, "ff" * 16, START), 0.0)
    assert isinstance(action, Send)
    assert isinstance(action.message, m.Refuse)
    assert "the checkpoint belongs to plan ffffffffffff, this run has plan 000000000000" in action.message.reason
    assert dispatcher.trainers == []


def test_a_second_trainer_in_a_place_is_refused_until_the_first_is_gone(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    dispatcher = make_dispatcher()
    (action,) = dispatcher.handle("u", m.Attach(0, 1, PLAN, START), 0.0)
    assert action == Send("u", m.Refuse("a trainer is already attached to this run"))
    dispatcher.lose("t")
    assert not any(isinstance(a, Send) for a in dispatcher.handle("u", m.Attach(0, 1, PLAN, START), 0.0))
    assert dispatcher.trainers == ["u"]


def test_units_of_a_dead_trainer_are_delivered_to_the_next_one(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=2, want=2)
    dispatcher.handle("a", m.Hello(2), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    assert delivered(dispatcher.handle("a", m.Done(1, 2, LAYOUT, TALLY), 0.0)) == [1]
    dispatcher.lose("t")
    dispatcher.validate()
    assert dispatcher.handle("u", m.Attach(0, 1, PLAN, m.Cursor(0, 0, 1, 1)), 0.0) is not None
    assert delivered(dispatcher.handle("u", m.Want(2), 0.0)) == [1], "unit 0 is behind its cursor"


def test_a_trainer_that_takes_its_leave_makes_room_for_the_next_one_without_a_warning(
    make_dispatcher: Callable[..., Dispatcher], caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = make_dispatcher(slots=2, want=2)
    dispatcher.handle("a", m.Hello(2), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    dispatcher.handle("t", m.Bye(), 0.0)
    dispatcher.validate()
    assert dispatcher.trainers == []
    dispatcher.handle("u", m.Attach(0, 1, PLAN, START), 0.0)
    assert delivered(dispatcher.handle("u", m.Want(2), 0.0)) == [0]
    dispatcher.lose("t")  # its lifeline ends later
    assert dispatcher.trainers == ["u"]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def superseded(make_dispatcher: Callable[..., Dispatcher]) -> Dispatcher:
    """A dispatcher whose trainer `u` attached after `t`'s connection ended, and before `t`'s last messages came."""
    dispatcher = make_dispatcher(slots=2, want=2)
    dispatcher.handle("a", m.Hello(2), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    dispatcher.supersede("t")
    assert dispatcher.trainers == []
    dispatcher.handle("u", m.Attach(0, 1, PLAN, START), 0.0)
    assert delivered(dispatcher.handle("u", m.Want(2), 0.0)) == [0]
    return dispatcher


def test_the_last_messages_of_a_trainer_that_left_may_come_after_the_first_ones_of_the_next(
    make_dispatcher: Callable[..., Dispatcher], caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = superseded(make_dispatcher)
    for late in (m.Release(0), m.Want(1), m.Committed(START), m.Bye()):
        assert dispatcher.handle("t", late, 0.0) == []
    dispatcher.lose("t")
    assert dispatcher.trainers == ["u"]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert dispatcher.counts["trainers_lost"] == dispatcher.counts["unexpected_messages"] == 0
    dispatcher.handle("t", m.Release(0), 0.0)
    assert dispatcher.counts["unexpected_messages"] == 1, "it has said its last"


def test_a_trainer_that_died_before_the_next_one_attached_is_told_once(
    make_dispatcher: Callable[..., Dispatcher], caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = superseded(make_dispatcher)
    for _ in range(2):
        dispatcher.lose("t")
    assert dispatcher.trainers == ["u"]
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == ["trainer t is gone"]
    assert dispatcher.counts["trainers_lost"] == 1


def test_a_cursor_before_what_is_known_is_planned_again(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=1, units=0)
    dispatcher.add_units([unit(0), unit(1)])
    dispatcher.add_units([unit(2, block=1, first=2), unit(3, block=1, first=2)])
    dispatcher.handle("a", m.Hello(1), 0.0)
    for k in range(3):
        actions = dispatcher.handle("a", m.Done(k, k + 1, LAYOUT, TALLY), 0.0)
        assert delivered(actions) == [k]
        dispatcher.handle("t", m.Release(k), 0.0)
        dispatcher.handle("t", m.Want(1), 0.0)
    assert Evict(1) in dispatcher.handle("t", m.Committed(m.Cursor(1, 2, 3, 0)), 0.0)
    dispatcher.lose("t")
    cursor = m.Cursor(0, 0, 1, 0)
    assert Replan(cursor) in dispatcher.handle("u", m.Attach(0, 1, PLAN, cursor), 0.0)
    dispatcher.validate()
    dispatcher.add_units([unit(0), unit(1)])
    dispatcher.handle("a", m.Bye(), 0.0)  # it held unit 3
    assert leases(dispatcher.handle("b", m.Hello(1), 0.0)) == [("b", 1, 0)]


def test_the_end_is_told_once_when_all_units_are_delivered(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(units=1, want=2)
    dispatcher.handle("a", m.Hello(1), 0.0)
    assert Send("t", m.End()) not in dispatcher.end_plan()
    assert dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)[-1] == Send("t", m.End())
    assert dispatcher.handle("t", m.Release(0), 0.0) == []
    assert dispatcher.handle("t", m.Finished(), 0.0) == [EndRun()]


def test_files_are_evicted_only_behind_a_commit(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher()
    dispatcher.handle("a", m.Hello(1), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    assert not any(isinstance(a, Evict) for a in dispatcher.handle("t", m.Release(0), 0.0))
    assert Evict(0) in dispatcher.handle("t", m.Committed(m.Cursor(0, 0, 1, 0)), 0.0)


def test_the_files_of_the_last_planned_block_are_evicted_once_it_is_used_up(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    dispatcher = make_dispatcher(units=1)
    block = dispatcher.units.planned[0].block
    dispatcher.handle("a", m.Hello(1), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    dispatcher.handle("t", m.Release(0), 0.0)
    assert Evict(block) in dispatcher.handle("t", m.Committed(m.Cursor(block, 0, 0, 2)), 0.0)
    assert Evict(block + 1) in dispatcher.handle("t", m.Committed(m.Cursor(block, 0, 1, 0)), 0.0)


def commit_with_unit_0_held(dispatcher: Dispatcher) -> m.Cursor:
    """Units 0 and 1 are trained, 0 is still being copied; the cursor of that checkpoint. A block is two units."""
    first = dispatcher.handle("a", m.Hello(2), 0.0)
    for k, action in enumerate(first):
        assert isinstance(action, Send)
        assert isinstance(action.message, m.Lease)
        dispatcher.handle("a", m.Done(k, action.message.lease, LAYOUT, TALLY), 0.0)
    dispatcher.handle("t", m.Release(1), 0.0)
    cursor = m.Cursor(0, 0, 2, 0)
    assert Evict(1) in dispatcher.handle("t", m.Committed(cursor), 0.0)
    return cursor


@pytest.fixture
def with_blocks(make_dispatcher: Callable[..., Dispatcher]) -> Dispatcher:
    dispatcher = make_dispatcher(attach=False)
    dispatcher.handle("t", m.Attach(0, 1, PLAN, START), 0.0)
    dispatcher.add_units([unit(k, k // 2, k - k % 2) for k in range(6)])
    dispatcher.handle("t", m.Want(2), 0.0)
    return dispatcher


def test_a_trainer_that_goes_back_behind_a_commit_has_its_files_staged_again(with_blocks: Dispatcher) -> None:
    commit_with_unit_0_held(with_blocks)
    with_blocks.lose("t")
    assert Replan(START) in with_blocks.handle("t2", m.Attach(0, 1, PLAN, START), 0.0)


def test_a_unit_behind_a_commit_is_not_kept_for_the_next_trainer(with_blocks: Dispatcher) -> None:
    cursor = commit_with_unit_0_held(with_blocks)
    assert with_blocks.units.num(State.DELIVERED) == 1
    with_blocks.lose("t")
    assert with_blocks.units.num(State.READY) == 0
    assert not any(isinstance(a, Replan) for a in with_blocks.handle("t2", m.Attach(0, 1, PLAN, cursor), 0.0))


def test_a_unit_that_its_trainer_refuses_is_decoded_again_once_it_attaches(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    dispatcher = make_dispatcher(slots=2, deaths=2)
    dispatcher.handle("a", m.Hello(1), 0.0)
    dispatcher.handle("a", m.Done(0, 1, LAYOUT, TALLY), 0.0)
    dispatcher.handle("t", m.Reject(0, "unit 7"), 1.0)
    dispatcher.validate()
    dispatcher.lose("t")
    dispatcher.handle("a", m.Done(1, 2, LAYOUT, TALLY), 1.0)
    dispatcher.handle("t2", m.Attach(0, 1, PLAN, START), 2.0)
    assert leases(dispatcher.handle("t2", m.Want(1), 2.0)) == [], "a is busy with a later unit"
    actions = dispatcher.handle("a", m.Done(2, 3, LAYOUT, TALLY), 3.0)
    assert [k for _, k, _ in leases(actions)] == [0]
    assert delivered(dispatcher.handle("a", m.Done(0, 4, LAYOUT, TALLY), 4.0)) == [0]
    dispatcher.handle("t2", m.Reject(0, "unit 7"), 5.0)
    dispatcher.handle("t2", m.Attach(0, 1, PLAN, START), 5.0)
    actions = dispatcher.handle("t2", m.Want(1), 5.0)
    assert delivered(actions) == [0], "refused as often as a unit may fail, it is skipped"


@pytest.mark.parametrize("cursor", [m.Cursor(9, 5, 6), m.Cursor(1, 4, 3), m.Cursor(0, 0, 2**62)])
def test_an_attach_with_a_cursor_that_no_plan_has_is_refused(
    make_dispatcher: Callable[..., Dispatcher], cursor: m.Cursor
) -> None:
    (refused,) = make_dispatcher(attach=False).handle("t", m.Attach(0, 1, PLAN, cursor), 0.0)
    assert isinstance(refused, Send)
    assert isinstance(refused.message, m.Refuse)


@pytest.mark.parametrize("cursor", [m.Cursor(unit=1), m.Cursor(3, 4, 50), m.Cursor(5, 2, 2**61)])
def test_a_trainer_can_not_commit_what_it_was_not_given(
    make_dispatcher: Callable[..., Dispatcher], cursor: m.Cursor
) -> None:
    dispatcher = make_dispatcher()
    assert dispatcher.handle("t", m.Committed(cursor), 0.0) == []
    assert dispatcher.counts["unexpected_messages"] == 1


def test_a_whole_epoch_without_an_event_to_train_is_noticed(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=8, units=0, want=8)
    dispatcher.add_units([dataclasses.replace(unit(k), epoch=k // 2) for k in range(6)])
    dispatcher.handle("a", m.Hello(6), 0.0)
    for k, barren in enumerate((0, 0, 0, 0, 1, 1)):
        dispatcher.handle("a", m.Done(k, k + 1, m.Layout(0, 0, 0), m.Tally(rows_read=5, empty=5)), 0.0)
        assert dispatcher.places.barren_epochs == barren, k


def test_units_that_are_done_early_do_not_make_an_epoch_look_barren(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(slots=8, units=0, want=8)
    dispatcher.add_units([dataclasses.replace(unit(k), epoch=k // 2) for k in range(6)])
    dispatcher.handle("a", m.Hello(6), 0.0)
    for k in (0, 1, 3, 5, 2, 4):  # the second unit of each epoch has outliers only
        layout, tally = (m.Layout(0, 0, 0), m.Tally(5, outliers=5)) if k % 2 else (LAYOUT, TALLY)
        dispatcher.handle("a", m.Done(k, k + 1, layout, tally), 0.0)
        assert dispatcher.places.barren_epochs == 0


def test_the_journal_of_a_trainer_that_is_refused_says_nothing_of_the_run(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    dispatcher = make_dispatcher(attach=False)
    assert Remember((3,)) in dispatcher.handle("t", m.Attach(0, 1, PLAN, START, bad_files=(3,)), 0.0)
    actions = dispatcher.handle("second", m.Attach(0, 1, PLAN, START, bad_files=(1, 2)), 0.0)
    assert not any(isinstance(action, Remember) for action in actions)


# ------------------------------------------------------------------ several trainers


def together(make_dispatcher: Callable[..., Dispatcher], num: int, *, slots: int = 4, want: int = 2) -> Dispatcher:
    """Dispatcher with trainers t0, t1, …, and a decoder `a` that is done with whatever it gets."""
    dispatcher = make_dispatcher(attach=False, slots=slots)
    for rank in range(num):
        dispatcher.handle(f"t{rank}", m.Attach(rank, num, PLAN, START), 0.0)
    dispatcher.add_units([unit(k) for k in range(8)])
    for rank in range(num):
        dispatcher.handle(f"t{rank}", m.Want(want), 0.0)
    return dispatcher


def decode(dispatcher: Dispatcher, actions: list[Action]) -> list[tuple[str, int]]:
    """All leases of the actions, and those that follow, are done; the (trainer, unit) that were delivered."""
    found = []
    while actions:
        action = actions.pop(0)
        if isinstance(action, Send) and isinstance(action.message, m.Lease):
            lease = action.message
            actions += dispatcher.handle(action.peer, m.Done(lease.unit.k, lease.lease, LAYOUT, TALLY), 0.0)
        elif isinstance(action, Send) and isinstance(action.message, m.DeliveredUnit):
            found.append((action.peer, action.message.k))
        dispatcher.validate()
    return found


def test_each_unit_goes_to_every_trainer_and_its_slot_is_free_once_all_have_released_it(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    dispatcher = together(make_dispatcher, 3, slots=2, want=1)
    assert sorted(decode(dispatcher, dispatcher.handle("a", m.Hello(4), 0.0))) == [(f"t{rank}", 0) for rank in range(3)]
    for rank in (2, 0):
        dispatcher.handle(f"t{rank}", m.Release(0), 0.0)
        assert 0 in dispatcher.units.held
    decode(dispatcher, dispatcher.handle("t1", m.Release(0), 0.0))
    assert 0 not in dispatcher.units.held


def test_trainers_that_are_faster_leave_a_slot_for_the_slowest(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = together(make_dispatcher, 2, slots=3, want=8)
    found = decode(dispatcher, dispatcher.handle("a", m.Hello(8), 0.0))
    assert sorted(found) == [(trainer, k) for trainer in ("t0", "t1") for k in (0, 1)]
    for k in (0, 1):
        assert decode(dispatcher, dispatcher.handle("t0", m.Release(k), 0.0)) == [], "t1 holds it"
    assert sorted(decode(dispatcher, dispatcher.handle("t1", m.Release(0), 0.0))) == [("t0", 2), ("t1", 2)]


def test_the_place_of_a_dead_trainer_keeps_its_units_for_the_next_one(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    dispatcher = together(make_dispatcher, 2)
    decode(dispatcher, dispatcher.handle("a", m.Hello(8), 0.0))
    dispatcher.handle("t0", m.Release(0), 0.0)
    dispatcher.lose("t1")
    dispatcher.validate()
    assert not any(isinstance(a, Replan) for a in dispatcher.handle("u", m.Attach(1, 2, PLAN, START), 0.0))
    assert decode(dispatcher, dispatcher.handle("u", m.Want(2), 0.0)) == [("u", 0), ("u", 1)]


def test_another_number_of_trainers_is_refused_until_all_have_left(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = together(make_dispatcher, 2)
    dispatcher.handle("t0", m.Bye(), 0.0)
    (refused,) = dispatcher.handle("u", m.Attach(0, 3, PLAN, START), 0.0)
    assert refused == Send("u", m.Refuse("a trainer is already attached to this run: 2 are expected, not 3"))
    dispatcher.handle("t1", m.Bye(), 0.0)
    assert not any(isinstance(a, Send) for a in dispatcher.handle("u", m.Attach(2, 3, PLAN, START), 0.0))


def test_a_slot_that_one_trainer_refuses_is_decoded_again_once_no_other_one_reads_it(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    dispatcher = together(make_dispatcher, 2, want=1)
    decode(dispatcher, dispatcher.handle("a", m.Hello(1), 0.0))
    dispatcher.handle("t1", m.Reject(0, "another unit"), 0.0)
    dispatcher.handle("t1", m.Bye(), 0.0)
    dispatcher.handle("u", m.Attach(1, 2, PLAN, START), 0.0)
    assert decode(dispatcher, dispatcher.handle("u", m.Want(1), 0.0)) == [], "t0 reads the slot"
    assert decode(dispatcher, dispatcher.handle("t0", m.Release(0), 0.0)) == [("u", 0)]


def test_a_checkpoint_that_one_trainer_tells_of_lets_files_go(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = make_dispatcher(attach=False, slots=8)
    for rank in range(2):
        dispatcher.handle(f"t{rank}", m.Attach(rank, 2, PLAN, START), 0.0)
    dispatcher.add_units([unit(k, k // 2, k - k % 2) for k in range(8)])
    for rank in range(2):
        dispatcher.handle(f"t{rank}", m.Want(5), 0.0)
    decode(dispatcher, dispatcher.handle("a", m.Hello(8), 0.0))
    assert Evict(2) in dispatcher.handle("t1", m.Committed(m.Cursor(2, 4, 4, 3)), 0.0)
    older = dispatcher.handle("t0", m.Committed(m.Cursor(1, 2, 3, 0)), 0.0)
    assert dispatcher.places.committed == m.Cursor(2, 4, 4, 3), "an older one changes nothing"
    assert [a for a in older if isinstance(a, Evict)] == [Evict(2)]
    assert dispatcher.counts["unexpected_messages"] == 0


def test_a_checkpoint_lets_no_file_go_that_a_trainer_behind_it_still_needs(
    make_dispatcher: Callable[..., Dispatcher],
) -> None:
    """Its units are not even planned again yet: without their files they never would be."""
    dispatcher = make_dispatcher(attach=False, slots=8)
    for rank in range(2):
        dispatcher.handle(f"t{rank}", m.Attach(rank, 2, PLAN, START), 0.0)
    dispatcher.add_units([unit(k, k // 2, k - k % 2) for k in range(8)])
    for rank in range(2):
        dispatcher.handle(f"t{rank}", m.Want(5), 0.0)
    decode(dispatcher, dispatcher.handle("a", m.Hello(8), 0.0))
    assert Evict(2) in dispatcher.handle("t0", m.Committed(m.Cursor(2, 4, 4, 0)), 0.0)
    dispatcher.lose("t1")
    assert Replan(START) in dispatcher.handle("u", m.Attach(1, 2, PLAN, START), 0.0)
    committed = dispatcher.handle("t0", m.Committed(m.Cursor(2, 4, 4, 1)), 0.0)
    assert not any(isinstance(action, Evict) for action in committed)


def test_the_run_is_over_once_every_trainer_says_so(make_dispatcher: Callable[..., Dispatcher]) -> None:
    dispatcher = together(make_dispatcher, 2, slots=8, want=8)
    found = decode(dispatcher, dispatcher.handle("a", m.Hello(8), 0.0))
    assert len(found) == 14, "all but the slot that is left"
    for k in range(8):
        for rank in range(2):
            decode(dispatcher, dispatcher.handle(f"t{rank}", m.Release(k), 0.0))
    actions = [
        *dispatcher.end_plan(),
        *dispatcher.handle("t0", m.Want(1), 0.0),
        *dispatcher.handle("t1", m.Want(1), 0.0),
    ]
    assert [a.peer for a in actions if isinstance(a, Send) and isinstance(a.message, m.End)] == ["t0", "t1"]
    assert dispatcher.handle("t1", m.Finished(), 0.0) == []
    assert dispatcher.handle("t0", m.Finished(), 0.0) == [EndRun()]
