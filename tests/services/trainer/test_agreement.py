"""The ranks' agreement, with threads as ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import ThreadRanks, together

from common.config import StreamConfig
from common.errors import BadInputError
from common.messages import Cursor
from common.status import Counters
from services.trainer import agreement as agreeing
from services.trainer.position import StreamPosition, start_of

START = start_of(StreamConfig(shards=2))


SHARE = agreeing.Share(1, 10, 30)


NONE = agreeing.Share(0, 0, 0)


def moved(shard: int, events: int) -> StreamPosition:
    """One shard after ``events`` events, as its rank sees it."""
    of_shard = StreamPosition(
        cursor=Cursor(unit=shard, microbatch=1),
        open_unit_events=events,
        counters=Counters(events_read=events, events_trained=events),
    )
    return START.with_shards({shard: of_shard})


def shares(rank: int) -> list[agreeing.ShardShare]:
    """A shard for each of two ranks."""
    return [agreeing.ShardShare(rank % 2, rank // 2, 1)]


def never() -> bool:
    return False


def until_ready(
    agreement: agreeing.Agreement, share: agreeing.Share = SHARE, meanwhile: Callable[[], object] = lambda: None
) -> agreeing.Step | None:
    """Turns until all are ready or stop; ``meanwhile`` is called after each, as the loop commits after each."""
    while True:
        step = agreement.ready(START, START, START, share, shares(agreement._ranks.rank))
        meanwhile()
        if step is not None or agreement.stopped:
            return step


def test_a_step_is_made_of_the_shares_of_all_and_leads_to_one_position() -> None:
    def act(ranks: ThreadRanks) -> agreeing.Step | None:
        after = moved(ranks.rank, 10 * (ranks.rank + 1))
        return agreeing.Agreement(ranks, never).ready(
            START, START, after, agreeing.Share(1, 10 * (ranks.rank + 1), 7), shares(ranks.rank)
        )

    one, other = together(2, act)
    assert one == other is not None
    assert (one.microbatches, one.events, one.particles) == (2, 30, 14)
    assert one.position.counters.events_trained == 30
    assert [shard.open_unit_events for shard in one.position.shards] == [10, 20]


OPEN = StreamPosition(cursor=Cursor(unit=4, microbatch=1), content="of the first")


@pytest.mark.parametrize(
    "other",
    [
        StreamPosition(cursor=Cursor(unit=3)),
        StreamPosition(cursor=Cursor(unit=4)),
        OPEN.model_copy(update={"content": "of the other"}),
    ],
)
def test_trainers_of_one_shard_at_different_places_all_learn_it_in_the_same_turn(other: StreamPosition) -> None:
    def act(ranks: ThreadRanks) -> str:
        after = other if ranks.rank else OPEN
        with pytest.raises(agreeing.BatchesDiffer, match="different batches"):
            agreeing.Agreement(ranks, never).ready(
                StreamPosition(), StreamPosition(), after, SHARE, [agreeing.ShardShare(0, ranks.rank, 2)]
            )
        return "learned"

    assert together(2, act) == ["learned", "learned"]


def test_a_trainer_that_waits_beyond_the_end_of_anothers_batch_makes_all_begin_again() -> None:
    """It may wait for a slot that the other one holds, for ever."""

    def act(ranks: ThreadRanks) -> str:
        agreement, shards = agreeing.Agreement(ranks, never), [agreeing.ShardShare(0, ranks.rank, 2)]
        end = StreamPosition(cursor=Cursor(unit=3, microbatch=2))
        for taken in (Cursor(unit=3), Cursor(unit=3, microbatch=2)):
            if ranks.rank:
                agreement.waiting(StreamPosition(cursor=taken), shards)
            else:
                assert agreement.ready(StreamPosition(), StreamPosition(), end, SHARE, shards) is None
        beyond = StreamPosition(cursor=Cursor(unit=4))
        ahead = partial(agreement.waiting, beyond, shards)
        behind = partial(agreement.ready, StreamPosition(), StreamPosition(), end, SHARE, shards)
        with pytest.raises(agreeing.BatchesDiffer):
            (ahead if ranks.rank else behind)()
        return "learned"

    assert together(2, act) == ["learned", "learned"]


def test_a_rank_without_data_goes_along_until_all_are_used_up() -> None:
    def act(ranks: ThreadRanks) -> list[int]:
        agreement, microbatches = agreeing.Agreement(ranks, never), []
        for own in (1, 1, 0) if ranks.rank == 0 else (1, 0, 0):
            step = until_ready(agreement, SHARE if own else NONE)
            assert step is not None
            microbatches.append(step.microbatches)
        return microbatches

    assert together(2, act) == [[2, 1, 0], [2, 1, 0]]


def test_who_is_ready_waits_for_who_is_not() -> None:
    def act(ranks: ThreadRanks) -> int:
        agreement, meanwhile = agreeing.Agreement(ranks, never), []
        if ranks.rank == 1:
            for _ in range(3):
                agreement.waiting(START, shares(ranks.rank))
        assert until_ready(agreement, meanwhile=lambda: meanwhile.append(1)) is not None
        return len(meanwhile)

    assert together(2, act) == [4, 1]


@pytest.mark.parametrize("asked", [0, 1])
@pytest.mark.parametrize("waits", [True, False])
def test_when_one_is_asked_to_stop_all_stop_before_the_same_step(asked: int, waits: bool) -> None:
    def act(ranks: ThreadRanks) -> int:
        steps = 0
        agreement = agreeing.Agreement(ranks, lambda: ranks.rank == asked and steps == 2)
        while not agreement.stopped:
            if waits and ranks.rank == asked and steps == 2:
                agreement.leave()
            elif until_ready(agreement) is not None:
                steps += 1
        return steps

    assert together(2, act) == [2, 2]


@pytest.mark.parametrize("asked", [0, 1])
def test_a_checkpoint_that_one_needs_is_made_by_all_between_the_same_steps(asked: int) -> None:
    def act(ranks: ThreadRanks) -> list[int]:
        agreement, commits = agreeing.Agreement(ranks, never), []
        for step in range(4):
            if step == 2 and ranks.rank == asked:
                agreement.want_commit()
            due: list[bool] = []
            assert until_ready(agreement, meanwhile=lambda due=due: due.append(agreement.take_commit_request()))
            commits += [step] * sum(due)
        return commits

    assert together(2, act) == [[2], [2]]


def test_who_waits_for_data_makes_the_checkpoint_that_lets_its_data_come() -> None:
    def act(ranks: ThreadRanks) -> int:
        agreement, commits = agreeing.Agreement(ranks, never), []

        def save_if_due() -> None:
            commits.extend([1] * agreement.take_commit_request())

        if ranks.rank == 1:
            agreement.want_commit()
            while not commits:
                agreement.waiting(START, shares(ranks.rank))
                save_if_due()
        assert until_ready(agreement, meanwhile=save_if_due) is not None
        return len(commits)

    assert together(2, act) == [1, 1]


def test_the_others_are_told_that_the_first_ones_checkpoint_is_on_disk() -> None:
    def act(ranks: ThreadRanks) -> list[tuple[Cursor, ...]]:
        agreement, told = agreeing.Agreement(ranks, never), []
        if ranks.is_first:
            agreement.committed(START.cursors)
        for _ in range(2):
            until_ready(agreement)
            told.append(agreement.take_committed())
        return told

    assert together(2, act) == [[(), ()], [START.cursors, ()]]


def test_after_a_stop_no_rank_takes_another_turn() -> None:
    def act(ranks: ThreadRanks) -> list[agreeing.Step | None]:
        agreement = agreeing.Agreement(ranks, never)
        agreement.leave()
        return [agreement.ready(START, START, START, SHARE, shares(ranks.rank)) for _ in range(1 + 2 * ranks.rank)]

    assert together(2, act) == [[None], [None] * 3]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, [[(0, 0, 1), (1, 0, 1), (2, 0, 1), (3, 0, 1)]]),
        (2, [[(0, 0, 1), (1, 0, 1)], [(2, 0, 1), (3, 0, 1)]]),
        (4, [[(0, 0, 1)], [(1, 0, 1)], [(2, 0, 1)], [(3, 0, 1)]]),
        (8, [[(shard, rank, 2)] for shard in range(4) for rank in range(2)]),
    ],
)
def test_ranks_read_neighbouring_shards_or_share_one(ranks: int, expected: list[list[tuple[int, int, int]]]) -> None:
    shares = [agreeing.shares_of_rank(StreamConfig(shards=4), rank, ranks) for rank in range(ranks)]
    assert shares == [[agreeing.ShardShare(*one) for one in of_rank] for of_rank in expected]


@pytest.mark.parametrize(
    ("stream", "ranks", "match"),
    [
        ({"shards": 4}, 3, "3 trainers can't share stream.shards = 4 evenly"),
        ({"shards": 4}, 6, "6 trainers can't share stream.shards = 4 evenly"),
        ({}, 17, r"at most 16 share one; set stream\.shards=2 or more"),
        # Else one of them would wait for ever for a unit while the other one holds the only slot.
        ({"slots": 1}, 2, r"stream\.slots = 1: several trainers of a shard need 2 or more"),
    ],
)
def test_numbers_of_ranks_that_cannot_be_are_refused(stream: dict[str, int], ranks: int, match: str) -> None:
    with pytest.raises(BadInputError, match=match):
        agreeing.shares_of_rank(StreamConfig.model_validate(stream), 0, ranks)


COUNTS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 300)), max_size=60)


@settings(max_examples=100, deadline=None)
@given(COUNTS, st.integers(1, 16), st.integers(1, 400), st.data())
def test_a_batch_is_full_with_the_microbatch_that_reaches_its_events_however_they_come(
    counts: list[tuple[int, int]], ranks: int, most: int, data: st.DataObject
) -> None:
    """One after the other or in any groups, as units give them: each goes to the trainer with the least so far."""
    sums = list(accumulate(num_events for num_events, _ in counts))
    expected = sum(events < most for events in [0, *sums[:-1]]) if counts else 0
    whole = agreeing.Dealing(ranks, most)
    dealt = whole.deal(counts)
    assert (len(dealt), whole.num_dealt) == (expected, expected)
    assert whole.num_events == (sums[expected - 1] if expected else 0)
    assert whole.is_full == (whole.num_events >= most)
    work = [0] * ranks
    for rank, one in zip(dealt, counts, strict=False):
        assert rank == work.index(min(work)), "a function of the microbatches before it"
        work[rank] += sum(one)
    in_groups, left, found = agreeing.Dealing(ranks, most), counts, []
    while left:
        size = data.draw(st.integers(1, len(left)))
        found += in_groups.deal(left[:size])
        left = left[size:]
    assert found == dealt
    if whole.is_full:
        assert whole.deal([(3, 1)]) == [], "nothing fits a full batch"


@settings(max_examples=60, deadline=None)
@given(COUNTS, st.integers(1, 400))
def test_the_shares_of_any_number_of_trainers_are_the_same_batch(counts: list[tuple[int, int]], most: int) -> None:
    batches: set[Sequence[int]] = set()
    for ranks in (1, 2, 3, 8, 16):
        dealt = agreeing.Dealing(ranks, most).deal(counts)
        costs = [(*one, one[1] ** 2) for one in counts[: len(dealt)]]
        limits = (most, 1000, 500_000)
        shares = [
            [index for run in agreeing.runs_of(rank, dealt, costs, limits) for index in run] for rank in range(ranks)
        ]
        batches.add(tuple(sorted(index for share in shares for index in share)))
        assert all(share == sorted(share) for share in shares)
    assert batches == {tuple(range(len(dealt)))}


def test_neighbouring_microbatches_of_a_trainer_are_joined_within_the_limits() -> None:
    costs = [(4, 10), (4, 10), (4, 25), (4, 5), (4, 5)]
    assert agreeing.runs_of(0, [0, 0, 0, 0, 0], costs, (100, 30)) == [range(0, 2), range(2, 4), range(4, 5)]
    assert agreeing.runs_of(0, [0, 0, 0, 0, 0], costs, (8, 100)) == [range(0, 2), range(2, 4), range(4, 5)]
    assert agreeing.runs_of(1, [0, 1, 1, 0, 1], costs, (100, 100)) == [range(1, 3), range(4, 5)]
    assert agreeing.runs_of(2, [0, 1, 1, 0, 1], costs, (100, 100)) == []
