"""Sum over shards: what is planned, read and set aside, and the shard that is named if it does not add up."""

from __future__ import annotations

import pytest

from common.conservation import ShardEvents, imbalance
from common.planned import PlannedBlock, PlannedShard, planned_line, planned_shard
from common.status import Counters


def read(events: int, **fates: int) -> Counters:
    others = sum(fates.values())
    return Counters(events_read=events, events_trained=events - others, **fates)


WHOLE = [
    ShardEvents(0, PlannedShard(2, 8, 100), read(100, events_outlier=3, events_empty=2)),
    ShardEvents(1, PlannedShard(1, 4, 50), read(50, events_quarantined=7, events_held_out=5)),
]


def test_shards_that_read_what_was_planned_add_up() -> None:
    assert imbalance(WHOLE, files=12, is_complete=True) == ""
    assert imbalance(WHOLE, files=None, is_complete=True) == "", "without end, the number of files is unknown"


@pytest.mark.parametrize(
    ("events", "is_complete", "message"),
    [
        (49, True, "shard 1: 50 planned, but 49 read by the trainers (1 missing)"),
        (51, True, "shard 1: 50 planned, but 51 read by the trainers (1 too many)"),
        (51, False, "shard 1: 50 planned, but 51 read by the trainers (1 too many)"),
        (49, False, ""),
    ],
)
def test_a_shard_that_read_other_events_is_named_with_the_difference(
    events: int, is_complete: bool, message: str
) -> None:
    shards = [WHOLE[0], ShardEvents(1, WHOLE[1].planned, read(events))]
    assert imbalance(shards, files=12, is_complete=is_complete) == message


def test_a_shard_whose_events_have_no_fate_is_named() -> None:
    lost = Counters(events_read=50, events_trained=49)
    shards = [WHOLE[0], ShardEvents(1, WHOLE[1].planned, lost)]
    assert imbalance(shards, files=12, is_complete=True).startswith("shard 1: 50 read, but 49 trained + 0 outlier")


def test_a_file_that_no_shard_planned_is_missed() -> None:
    assert imbalance(WHOLE, files=13, is_complete=True) == (
        "13 files in all epochs, but 12 planned (shard 0 8, shard 1 4)"
    )
    assert imbalance(WHOLE, files=13, is_complete=False) == ""


def test_a_block_that_was_planned_again_counts_once_as_planned_last() -> None:
    blocks = [PlannedBlock(0, 2, 10), PlannedBlock(1, 2, 20), PlannedBlock(1, 2, 21), PlannedBlock(2, 1, 5)]
    text = "\n".join(map(planned_line, blocks))
    assert planned_shard(text.splitlines()) == PlannedShard(3, 5, 36)


def test_what_a_killed_process_left_of_a_line_is_skipped() -> None:
    text = planned_line(PlannedBlock(0, 2, 10)) + "\n[1, 2, 2\n" + planned_line(PlannedBlock(1, 2, 20))
    assert planned_shard(text.splitlines()) == PlannedShard(2, 4, 30)
    assert planned_shard([]) == PlannedShard()
