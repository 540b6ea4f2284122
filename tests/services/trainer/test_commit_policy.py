"""When a trainer saves and what it reports: every moment of the policy, then the owner under random schedules."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import closing

import pytest
from committing import EVERY, Trainer, at

from services.trainer.checkpoints.commit_policy import Act, Moment, Write, decide
from services.trainer.health.unhealthy import NotFinite, Unhealthy
from services.trainer.ranks.agreement import Turn, agree
from services.trainer.stream.position import StreamPosition

# ------------------------------------------------------------------ the policy, every moment of it


def moments() -> Iterator[Moment]:
    """Every state that a trainer at step 5 or 6 can be in, with checkpoints at or behind that step."""
    marks = (None, at(3), at(5), at(6))
    flags = (False, True)
    for now, on_disk, writing in itertools.product((at(5), at(6)), marks, marks):
        if any(mark is not None and mark.step > now.step for mark in (on_disk, writing)):
            continue
        writes = [Write.NONE] if writing is None else [Write.RUNNING, Write.ENDED, Write.REFUSED]
        for write, stepped, asked, ending in itertools.product(writes, flags, flags, flags):
            yield Moment(now, on_disk, writing, write, stepped, asked, ending)


def is_due(moment: Moment) -> bool:
    return moment.asked or moment.ending or (moment.stepped and moment.now.step % EVERY == 0)


ALL = tuple(moments())


def test_the_moments_are_all_there() -> None:
    assert len(ALL) > 200
    assert len({decide(moment, EVERY) for moment in ALL}) == 10, "each way that a decision can be"


def test_every_decision_keeps_the_rules() -> None:
    for moment in ALL:
        check(moment)


def check(moment: Moment) -> None:
    """The three rules of the module, and that what is due is done."""
    acts = decide(moment, EVERY)
    writing, on_disk = moment.writing, moment.on_disk
    begun = False
    for act in acts:
        match act:
            case Act.SAVE:
                assert is_due(moment)
                assert writing is None, "one at a time"
                writing, begun = moment.now, True
            case Act.SETTLE:
                assert writing is not None, "there is something to wait for"
                writing, on_disk = None, writing
            case Act.REPORT:
                assert on_disk is not None, "only what is on disk is reported"
                assert not moment.asked or on_disk == moment.now, "a request is not answered by an older checkpoint"
            case Act.ASK:
                assert moment.write is Write.REFUSED
                assert acts == (Act.ASK,)
    if is_due(moment):
        assert moment.now in (writing, on_disk), "what is trained is on disk, or on its way"
        assert begun == (moment.now not in (moment.writing, moment.on_disk if moment.writing is None else None))
    if moment.ending:
        assert acts[-1] is Act.REPORT
        assert on_disk == moment.now
    if not is_due(moment) and moment.write is Write.RUNNING:
        assert acts == (), "the loop does not wait for the disk"


@pytest.mark.parametrize(
    ("moment", "acts"),
    [
        (Moment(at(5), stepped=True), ()),
        (Moment(at(6), stepped=True), (Act.SAVE,)),
        (Moment(at(6)), ()),
        (Moment(at(5), asked=True), (Act.SAVE,)),
        (Moment(at(5), on_disk=at(5), asked=True), (Act.REPORT,)),
        (Moment(at(5), on_disk=at(3), writing=at(5), write=Write.RUNNING, asked=True), (Act.SETTLE, Act.REPORT)),
        (Moment(at(5), on_disk=at(3), writing=at(3), write=Write.RUNNING, asked=True), (Act.SETTLE, Act.SAVE)),
        (Moment(at(5), writing=at(3), write=Write.ENDED, stepped=True), (Act.SETTLE, Act.REPORT)),
        (Moment(at(6), writing=at(3), write=Write.ENDED, stepped=True), (Act.SETTLE, Act.REPORT, Act.SAVE)),
        (Moment(at(5), writing=at(3), write=Write.REFUSED, stepped=True), ()),
        (Moment(at(5), writing=at(3), write=Write.REFUSED), (Act.ASK,)),
        (Moment(at(5), ending=True), (Act.SAVE, Act.SETTLE, Act.REPORT)),
        (Moment(at(5), on_disk=at(5), ending=True), (Act.REPORT,)),
    ],
)
def test_a_decision_by_example(moment: Moment, acts: tuple[Act, ...]) -> None:
    assert decide(moment, EVERY) == acts


# ------------------------------------------------------------------ the owner, one trainer


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    with closing(Trainer()) as trainer:
        yield trainer


def steps(positions: list[StreamPosition]) -> list[int]:
    return [position.cursor.unit for position in positions]


def test_the_loop_goes_on_while_it_is_written_and_reports_it_afterwards(trainer: Trainer) -> None:
    for _ in range(5):
        trainer.step()
    assert [mark.step for mark in trainer.disk.begun] == [3]
    assert trainer.fetcher.reported == []
    trainer.disk.gate.set()
    trainer.wait_for_disk()
    trainer.commits.turn()
    assert steps(trainer.fetcher.reported) == [3]
    assert [mark.step for mark in trainer.disk.arrived] == [3]


def test_a_request_during_a_save_is_answered_by_a_later_checkpoint(trainer: Trainer) -> None:
    for _ in range(4):
        trainer.step()
    trainer.fetcher.requested = True
    trainer.disk.gate.set()
    trainer.commits.turn()
    trainer.wait_for_disk()
    trainer.commits.turn()
    assert steps(trainer.fetcher.reported) == [4], "that of step 3 was older than the request"
    trainer.fetcher.requested = True
    trainer.commits.turn()
    assert steps(trainer.fetcher.reported) == [4, 4], "nothing is new: it is reported again"
    assert [mark.step for mark in trainer.disk.files] == [3, 4]


def test_a_stop_during_a_save_waits_for_both_checkpoints(trainer: Trainer) -> None:
    for _ in range(4):
        trainer.step()
    trainer.disk.gate.set()
    trainer.commits.turn(ending=True)
    assert [mark.step for mark in trainer.disk.files] == [3, 4]
    assert steps(trainer.fetcher.reported)[-1] == 4


def test_a_disk_that_fails_is_heard_of_in_the_next_turn(trainer: Trainer) -> None:
    trainer.disk.fails[1] = OSError(28, "No space left on device")
    for _ in range(3):
        trainer.step()
    trainer.disk.gate.set()
    trainer.wait_for_disk()
    with pytest.raises(OSError, match="No space"):
        trainer.commits.turn()
    assert trainer.fetcher.reported == []


@pytest.mark.parametrize("has_data", [True, False])
def test_refused_weights_are_raised_by_the_next_commit_of_all_ranks(trainer: Trainer, has_data: bool) -> None:
    trainer.disk.fails[1] = NotFinite("by the test")
    for _ in range(3):
        trainer.step()
    trainer.disk.gate.set()
    trainer.wait_for_disk()
    if has_data:
        trainer.step()
        trainer.step()
        assert not trainer.fetcher.requested
        with pytest.raises(NotFinite):
            trainer.step()
    else:
        trainer.commits.turn()
        assert trainer.fetcher.requested, "it has all ranks meet it"
        with pytest.raises(NotFinite):
            trainer.commits.turn()
    trainer.commits.replace(trainer.disk.take())
    assert steps(trainer.fetcher.reported) == [trainer.progress.step]


def test_nothing_is_saved_that_was_judged_unhealthy(trainer: Trainer) -> None:
    trainer.disk.unhealthy_at = 3
    trainer.disk.gate.set()
    trainer.step()
    trainer.step()
    with pytest.raises(Unhealthy):
        trainer.step()
    assert trainer.disk.begun == []


@pytest.mark.parametrize("seed", range(60))
def test_random_schedules_keep_every_promise(seed: int) -> None:
    """Steps, requests, waits, slow disks, refused weights and a stop, in any order."""
    rng = random.Random(seed)
    with closing(Trainer(every=rng.choice([1, 2, 5, 1000]))) as trainer:
        trainer.disk.fails = {number: NotFinite("by the test") for number in range(1, 200) if rng.random() < 0.1}

        def go_back() -> None:
            trainer.disk.fails.pop(len(trainer.disk.begun) + 1, None)
            trainer.disk.judge()
            trainer.commits.replace(trainer.disk.take())

        for _ in range(60):
            event = rng.choice(["step", "step", "idle", "request", "open", "shut"])
            trainer.fetcher.requested |= event == "request"
            if event == "shut" and trainer.commits._writing is None:
                trainer.disk.gate.clear()
            if event == "open" or rng.random() < 0.3:
                trainer.disk.gate.set()
            blocks = trainer.commits._writing is not None and not trainer.disk.gate.is_set()
            if blocks:  # a due save waits for the one before: a disk that never answers is no schedule
                trainer.disk.gate.set()
            try:
                if event == "step":
                    trainer.step()
                else:
                    trainer.commits.turn()
            except NotFinite:
                trainer.disk.gate.set()
                go_back()
        trainer.disk.gate.set()
        for _ in range(3):
            try:
                trainer.commits.turn(ending=True)
                break
            except NotFinite:
                go_back()
        assert steps(trainer.fetcher.reported)[-1] == trainer.progress.step == trainer.disk.files[-1].step
        assert trainer.fetcher.pending_since == -1, "every request was answered by a checkpoint that is new enough"
        written = [mark.step for mark in trainer.disk.files]
        assert written == sorted(written)


# ------------------------------------------------------------------ the owners, two ranks


@pytest.mark.parametrize("seed", range(60))
def test_two_ranks_save_at_the_same_moments_whichever_is_asked_and_however_slow_their_disks(seed: int) -> None:
    """Ranks as data: each turn of theirs is agree(), of what both have brought."""
    rng = random.Random(seed)
    with closing(Trainer(every=4)) as first, closing(Trainer(every=4)) as second:
        ranks, wants = (first, second), [False, False]
        failing = rng.randrange(1, 6) if rng.random() < 0.5 else 0
        for rank in ranks:
            rank.disk.fails = {failing: NotFinite("by the test")}
            rank.disk.gate.set()
            rank.fetcher.alone = False
        raised: list[tuple[int, ...]] = []
        for turn in range(80):
            wants = [want or rng.random() < 0.1 for want in wants]
            ready = rng.random() < 0.6
            agreed = agree([Turn(ready=ready, commit=want, stop=turn == 79) for want in wants])
            for number, rank in enumerate(ranks):
                if agreed.commit:
                    wants[number], rank.fetcher.requested = False, True
            failed = []
            for number, rank in enumerate(ranks):
                if rng.random() < 0.5 and rank.commits._writing is not None:
                    rank.wait_for_disk()
                try:
                    rank.commits.turn()
                    if agreed.ready:
                        rank.step()
                except NotFinite:
                    failed.append(number)
                wants[number] |= rank.fetcher.wants
                rank.fetcher.wants = rank.fetcher.requested = False
            if failed:
                raised.append(tuple(failed))
                for rank in ranks:
                    rank.disk.judge()
                    rank.commits.replace(rank.disk.take())
        assert all(failed == (0, 1) for failed in raised), "both go back between the same two steps"
        for rank in ranks:
            rank.commits.turn(ending=True)
        assert first.disk.begun == second.disk.begun
        assert first.progress.step == second.progress.step == first.disk.files[-1].step
