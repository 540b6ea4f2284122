"""Shares of the trainers: pure functions."""

from __future__ import annotations

import random

import pytest

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


def test_microbatches_are_dealt_as_they_come() -> None:
    counts = [(3, n) for n in (4, 9, 1, 1, 30, 2, 2, 5)]
    whole = Dealing(3, 24)
    bit_by_bit = Dealing(3, 24)
    assert whole.deal(counts) == [bit_by_bit.deal([one])[0] for one in counts]
    assert bit_by_bit.deal([(3, 1)]) == [], "nothing fits a full batch"


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
