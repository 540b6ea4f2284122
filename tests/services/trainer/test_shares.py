"""Shares of the trainers: pure functions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.config import StreamConfig
from common.errors import BadInputError
from services.trainer.stream.shares import Dealing, ShardShare, runs_of, shares_of_rank


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
    shares = [shares_of_rank(StreamConfig(shards=4), rank, ranks) for rank in range(ranks)]
    assert shares == [[ShardShare(*one) for one in of_rank] for of_rank in expected]


def test_any_number_of_ranks_shares_one_stream() -> None:
    for ranks in range(1, 17):
        assert [shares_of_rank(StreamConfig(), rank, ranks) for rank in range(ranks)] == [
            [ShardShare(0, rank, ranks)] for rank in range(ranks)
        ]


@pytest.mark.parametrize(
    ("stream", "ranks", "match"),
    [
        ({"shards": 4}, 3, "3 trainers can't share stream.shards = 4 evenly"),
        ({"shards": 4}, 6, "6 trainers can't share stream.shards = 4 evenly"),
        ({}, 17, r"at most 16 share one; set stream\.shards=2 or more"),
        ({"slots": 1}, 2, r"stream\.slots = 1: several trainers of a shard need 2 or more"),
    ],
)
def test_numbers_of_ranks_that_cannot_be_are_refused(stream: dict[str, int], ranks: int, match: str) -> None:
    with pytest.raises(BadInputError, match=match):
        shares_of_rank(StreamConfig.model_validate(stream), 0, ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_a_batch_is_dealt_whole_and_evenly_whatever_the_number_of_trainers(ranks: int) -> None:
    rng = random.Random(ranks)
    counts = [(32, rng.randint(60, 240)) for _ in range(40)]
    dealing = Dealing(ranks, 512)
    dealt = dealing.deal(counts)
    assert len(dealt) == dealing.num_dealt == 16, "the batch is full with the first microbatch that reaches its events"
    assert dealing.is_full
    work = [sum(sum(one) for one, of_rank in zip(counts, dealt, strict=False) if of_rank == r) for r in range(ranks)]
    assert max(work) - min(work) <= 272, "no trainer has more than one microbatch more than another"
    assert set(dealt) == set(range(ranks))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 16])
def test_equal_microbatches_are_dealt_to_each_trainer_in_turn(ranks: int) -> None:
    dealt = Dealing(ranks, 5 * 48).deal([(5, 70)] * 60)
    assert dealt == [number % ranks for number in range(48)]


COUNTS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 300)), max_size=60)


@settings(max_examples=300, deadline=None)
@given(COUNTS, st.integers(1, 16), st.integers(1, 400), st.data())
def test_a_batch_is_full_with_the_microbatch_that_reaches_its_events_however_they_come(
    counts: list[tuple[int, int]], ranks: int, most: int, data: st.DataObject
) -> None:
    """One after the other or in any groups, as units give them: each goes to the trainer with the least so far."""
    sums = list(accumulate(num_events for num_events, _ in counts))
    expected = sum(events < most for events in [0, *sums[:-1]]) if counts else 0
    whole = Dealing(ranks, most)
    dealt = whole.deal(counts)
    assert (len(dealt), whole.num_dealt) == (expected, expected)
    assert whole.num_events == (sums[expected - 1] if expected else 0)
    assert whole.is_full == (whole.num_events >= most)
    work = [0] * ranks
    for rank, one in zip(dealt, counts, strict=False):
        assert rank == work.index(min(work)), "a function of the microbatches before it"
        work[rank] += sum(one)
    in_groups, left, found = Dealing(ranks, most), counts, []
    while left:
        size = data.draw(st.integers(1, len(left)))
        found += in_groups.deal(left[:size])
        left = left[size:]
    assert found == dealt
    if whole.is_full:
        assert whole.deal([(3, 1)]) == [], "nothing fits a full batch"


@settings(max_examples=200, deadline=None)
@given(COUNTS, st.integers(1, 400))
def test_the_shares_of_any_number_of_trainers_are_the_same_batch(counts: list[tuple[int, int]], most: int) -> None:
    batches: set[Sequence[int]] = set()
    for ranks in (1, 2, 3, 8, 16):
        dealt = Dealing(ranks, most).deal(counts)
        costs = [(*one, one[1] ** 2) for one in counts[: len(dealt)]]
        limits = (most, 1000, 500_000)
        shares = [[index for run in runs_of(rank, dealt, costs, limits) for index in run] for rank in range(ranks)]
        batches.add(tuple(sorted(index for share in shares for index in share)))
        assert all(share == sorted(share) for share in shares)
    assert batches == {tuple(range(len(dealt)))}


def test_neighbouring_microbatches_of_a_trainer_are_joined_within_the_limits() -> None:
    costs = [(4, 10), (4, 10), (4, 25), (4, 5), (4, 5)]
    assert runs_of(0, [0, 0, 0, 0, 0], costs, (100, 30)) == [range(0, 2), range(2, 4), range(4, 5)]
    assert runs_of(0, [0, 0, 0, 0, 0], costs, (8, 100)) == [range(0, 2), range(2, 4), range(4, 5)]
    assert runs_of(1, [0, 1, 1, 0, 1], costs, (100, 100)) == [range(1, 3), range(4, 5)]
    assert runs_of(2, [0, 1, 1, 0, 1], costs, (100, 100)) == []


@pytest.mark.parametrize("seed", range(20))
def test_runs_hold_each_microbatch_of_the_trainer_once_in_order(seed: int) -> None:
    rng = random.Random(seed)
    ranks = [rng.randrange(3) for _ in range(30)]
    costs = [(rng.randint(1, 9), rng.randint(0, 40)) for _ in ranks]
    for rank in range(3):
        runs = runs_of(rank, ranks, costs, (20, 60))
        assert [index for run in runs for index in run] == [index for index, one in enumerate(ranks) if one == rank]
        for run in runs:
            assert len(run) == 1 or all(sum(costs[i][place] for i in run) <= (20, 60)[place] for place in (0, 1))
