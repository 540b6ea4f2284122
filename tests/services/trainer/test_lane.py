from __future__ import annotations

import pytest
from services.trainer.stream.lane import ShardShare, lanes_of_share, shares_of_rank, units_in_advance

from common.config import StreamConfig
from common.errors import BadInputError


@pytest.mark.parametrize(
    ("rank", "ranks", "expected"), [(0, 1, [0, 1, 2, 3]), (0, 2, [0, 2]), (1, 2, [1, 3]), (3, 4, [3])]
)
def test_ranks_share_the_lanes(rank: int, ranks: int, expected: list[int]) -> None:
    stream = StreamConfig(lanes=4)
    (share,) = shares_of_rank(stream, rank, ranks)
    assert [lane.number for lane in lanes_of_share(stream, share)] == expected


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
    stream = StreamConfig(lanes=16, shards=4, slots=16)
    shares = [shares_of_rank(stream, rank, ranks) for rank in range(ranks)]
    assert shares == [[ShardShare(*one) for one in of_rank] for of_rank in expected]
    lanes = [(share.shard, lane.number) for of in shares for share in of for lane in lanes_of_share(stream, share)]
    assert sorted(lanes) == [(shard, lane) for shard in range(4) for lane in range(4)]


@pytest.mark.parametrize(("lanes", "shards", "ranks"), [(12, 4, 3), (12, 4, 6), (6, 2, 4)])
def test_ranks_that_do_not_divide_the_shards_are_refused(lanes: int, shards: int, ranks: int) -> None:
    with pytest.raises(BadInputError, match="trainers"):
        shares_of_rank(StreamConfig(lanes=lanes, shards=shards, slots=16), 0, ranks)


@pytest.mark.parametrize(
    ("slots", "lanes", "wanted", "expected"), [(8, 1, 2, 2), (8, 4, 3, 2), (4, 4, 3, 1), (1, 1, 2, 1)]
)
def test_all_lanes_together_ask_for_no_more_units_than_there_are_slots(
    slots: int, lanes: int, wanted: int, expected: int
) -> None:
    stream = StreamConfig(slots=slots, lanes=lanes)
    assert units_in_advance(stream, wanted) == expected


def test_fewer_slots_than_lanes_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"stream\.slots = 3 is fewer than stream\.lanes = 4.*set stream\.slots=4"):
        StreamConfig(slots=3, lanes=4)
