from __future__ import annotations

import pytest

from common.config import StreamConfig
from services.trainer.stream.lane import lanes_of_rank, units_in_advance


@pytest.mark.parametrize(
    ("rank", "ranks", "expected"), [(0, 1, [0, 1, 2, 3]), (0, 2, [0, 2]), (1, 2, [1, 3]), (3, 4, [3])]
)
def test_ranks_share_the_lanes(rank: int, ranks: int, expected: list[int]) -> None:
    assert [lane.number for lane in lanes_of_rank(StreamConfig(lanes=4), rank, ranks)] == expected


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
