"""Audits of several nodes: a file for each lane, continued at the checkpoint by whichever rank reads the lane."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from common.attempt import OutdatedAttemptError, RunAttempt, begin_attempt
from common.config import StreamConfig
from services.trainer.ranks.rank_group import SingleRank
from services.trainer.stream.lane_audit import LaneAudit, lane_files


class OneOfSeveral(SingleRank):
    """A rank whose peers have these sizes."""

    def __init__(self, others: dict[int, int]) -> None:
        self._others = others

    def gather(self, text: str) -> list[str]:
        return [text, json.dumps(self._others)]


def line(lane: int, unit: int) -> str:
    return json.dumps({"lane": lane, "unit": unit})


def audit_of(attempt: RunAttempt, lanes: Sequence[int], sizes: Sequence[int], others: dict[int, int]) -> LaneAudit:
    paths = {lane: attempt.shared / "shards" / f"{lane // 2:03d}" / f"lane-{lane}" for lane in lanes}
    return LaneAudit(paths, sizes, OneOfSeveral(others), attempt)


def units(shared: Path, lane: int) -> list[int]:
    text = (shared / "shards" / f"{lane // 2:03d}" / f"lane-{lane}").read_text()
    return [json.loads(one)["unit"] for one in text.splitlines()]


def test_lines_reach_the_files_with_the_checkpoint_and_not_before(tmp_path: Path) -> None:
    audit = audit_of(begin_attempt(tmp_path), (0, 1), (), {})
    audit.write([line(0, 1), line(1, 2)])
    audit.write([line(0, 3)])
    assert units(tmp_path, 0) == []
    sizes = audit.commit()
    assert (units(tmp_path, 0), units(tmp_path, 1)) == ([1, 3], [2])
    assert sizes == (2 * len(line(0, 1)) + 2, len(line(1, 2)) + 1)
    assert audit.commit() == sizes
    audit.write([line(0, 4)])
    audit.close()
    assert units(tmp_path, 0) == [1, 3]


def test_a_checkpoint_holds_the_sizes_of_the_lanes_of_all_ranks(tmp_path: Path) -> None:
    audit = audit_of(begin_attempt(tmp_path), (1, 3), (), {0: 7, 2: 9})
    audit.write([line(3, 1)])
    assert audit.commit() == (7, 0, 9, len(line(3, 1)) + 1)


def test_the_lanes_go_on_on_other_ranks_where_the_checkpoint_is(tmp_path: Path) -> None:
    first = audit_of(begin_attempt(tmp_path), (0, 1), (), {})
    first.write([line(0, 1), line(1, 1)])
    sizes = first.commit()
    first.write([line(0, 2)])
    first.commit()  # but the checkpoint of these sizes never came to disk
    attempt = begin_attempt(tmp_path)
    for lane in (0, 1):  # two nodes now
        audit = audit_of(attempt, (lane,), sizes, {1 - lane: sizes[1 - lane]})
        audit.write([line(lane, 5)])
        audit.commit()
    assert (units(tmp_path, 0), units(tmp_path, 1)) == ([1, 5], [1, 5])


def test_a_rollback_cuts_the_files_and_what_was_not_written_yet(tmp_path: Path) -> None:
    audit = audit_of(begin_attempt(tmp_path), (0,), (), {})
    audit.write([line(0, 1)])
    sizes = audit.commit()
    audit.write([line(0, 2)])
    audit.commit()
    audit.write([line(0, 3)])
    audit.cut(sizes)
    assert units(tmp_path, 0) == [1]
    audit.write([line(0, 4)])
    audit.commit()
    assert units(tmp_path, 0) == [1, 4]


def test_a_rank_of_an_older_attempt_writes_nothing(tmp_path: Path) -> None:
    older = audit_of(begin_attempt(tmp_path), (0,), (), {})
    older.write([line(0, 1)])
    sizes = older.commit()
    older.write([line(0, 2)])
    newer = audit_of(begin_attempt(tmp_path), (0,), sizes, {})
    newer.write([line(0, 7)])
    newer.commit()
    with pytest.raises(OutdatedAttemptError):
        older.commit()
    with pytest.raises(OutdatedAttemptError):
        older.cut((0,))
    assert units(tmp_path, 0) == [1, 7]


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_each_lane_has_one_file_in_the_folder_of_its_shard_for_any_number_of_ranks(tmp_path: Path, ranks: int) -> None:
    stream = StreamConfig(lanes=8, shards=4)
    files: dict[int, Path] = {}
    for rank in range(ranks):
        mine = lane_files(tmp_path, stream, rank, ranks)
        assert not files.keys() & mine.keys()
        files |= mine
    expected = [f"shards/{lane // 2:03d}/audit-lane{lane:03d}.jsonl" for lane in range(8)]
    assert [str(files[lane].relative_to(tmp_path)) for lane in range(8)] == expected


def test_a_run_without_shards_has_its_audits_in_the_folder_itself(tmp_path: Path) -> None:
    files = lane_files(tmp_path, StreamConfig(lanes=2), 1, 2)
    assert files == {1: tmp_path / "audit-lane001.jsonl"}
