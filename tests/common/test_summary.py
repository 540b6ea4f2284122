"""The summary's sums, its file, and its table; the sums over shards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.status import Counters, TrainerStatus
from common.summary import (
    PlannedShard,
    ShardEvents,
    Summary,
    build_summary,
    imbalance,
    planned_line,
    planned_shard,
    summary_lines,
    write_summary,
)

COUNTERS = Counters(
    events_read=1000,
    events_trained=900,
    events_outlier=40,
    events_empty=50,
    events_quarantined=10,
    particles_trained=18_000,
    particles_dropped=50,
)
STATUS = TrainerStatus(
    state="finished",
    step=7,
    epoch=1,
    epochs=2,
    seconds=20.0,
    counters=COUNTERS,
    checkpoint="checkpoints/7.pt",
    quarantined=["a.parquet: row group 3: truncated"],
)


def finished(status: TrainerStatus | None) -> Summary:
    return build_summary(status, exit_status="finished", exit_code=0, seconds=5.0, restarts={"decoder": 2})


@pytest.mark.parametrize(("exit_code", "expected"), [(0, 1), (130, 1), (1, 1), (2, 2)])
def test_sums_that_do_not_add_up_fail_the_run_loudly(exit_code: int, expected: int) -> None:
    broken = STATUS.model_copy(update={"counters": COUNTERS.model_copy(update={"events_trained": 899})})
    summary = build_summary(
        broken, exit_status="interrupted", exit_code=exit_code, seconds=5.0, error="fetcher: no such file"
    )
    assert (summary.adds_up, summary.exit_status, summary.exit_code) == (False, "failed", expected)
    assert summary.error is not None
    assert summary.error.startswith("fetcher: no such file; events do not add up: 1000 read, but 899 trained")
    assert "  SUM IS WRONG: 1,000 read ≠ 999 accounted for" in summary_lines(summary)


def test_a_run_that_never_trained_has_a_summary_of_zeros() -> None:
    summary = build_summary(None, exit_status="failed", exit_code=2, seconds=0.5, error="fetcher: no input")
    assert summary.adds_up
    assert (summary.events_read, summary.events_per_s, summary.steps, summary.epochs) == (0, 0.0, 0, 0)
    assert summary.restarts == {"fetcher": 0, "decoder": 0, "trainer": 0}


def test_the_file_holds_every_key_and_its_sum(tmp_path: Path) -> None:
    write_summary(tmp_path, finished(STATUS))
    stored = json.loads((tmp_path / "summary.json").read_text())
    assert stored["events_read"] == (
        stored["events_trained"] + stored["events_outlier"] + stored["events_empty"] + stored["events_quarantined"]
    )
    assert stored["events_held_out"] == 0
    assert list(stored) == [
        *("events_read", "events_trained", "events_outlier", "events_empty", "events_quarantined"),
        *("events_held_out", "events_filtered", "events_invalid", "particles_trained", "particles_dropped"),
        *("exit_status", "exit_code", "adds_up", "steps", "epochs", "seconds", "seconds_total"),
        *("events_per_s", "particles_per_s", "session_events_per_s"),
        *("restarts", "checkpoint", "sets", "quarantined", "num_quarantined", "invalid", "warnings", "error"),
    ]
    assert stored["restarts"] == {"fetcher": 0, "decoder": 2, "trainer": 0}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_the_table_shows_every_fate_and_every_quarantined_line() -> None:
    text = "\n".join(summary_lines(finished(STATUS)))
    for number in ("1,000", "900", "40", "50", "10"):
        assert f" {number}" in text
    assert "= the sum of these four" in text
    assert "quarantined: a.parquet: row group 3: truncated" in text
    assert "restarts: decoder 2" in text


@pytest.mark.parametrize("fate", ["held_out", "filtered", "invalid"])
def test_events_held_out_filtered_or_invalid_are_a_fifth_fate_where_there_are_any(fate: str) -> None:
    words = ["events", *fate.split("_")]
    assert " ".join(words[1:]) not in "\n".join(summary_lines(finished(STATUS)))
    counters = COUNTERS.model_copy(update={"events_read": 1070, f"events_{fate}": 70})
    summary = finished(STATUS.model_copy(update={"counters": counters, "invalid": ["3 events: column 'muons'"]}))
    assert summary.adds_up
    lines = [line.split() for line in summary_lines(summary)]
    assert [*words, "70"] in lines
    assert ["events", "read", "1,070", "=", "the", "sum", "of", "these", "five"] in lines
    assert "  invalid: 3 events: column 'muons'" in summary_lines(summary)
    lost = finished(STATUS.model_copy(update={"counters": counters.model_copy(update={f"events_{fate}": 69})}))
    assert (lost.adds_up, lost.exit_status) == (False, "failed")
    assert f"+ 69 {' '.join(words[1:])}" in str(lost.error)


def read(events: int, **fates: int) -> Counters:
    others = sum(fates.values())
    return Counters(events_read=events, events_trained=events - others, **fates)


WHOLE = [
    ShardEvents(0, PlannedShard(2, 8, 100), read(100, events_outlier=3, events_empty=2)),
    ShardEvents(1, PlannedShard(1, 4, 50), read(50, events_quarantined=7, events_held_out=5)),
]


@pytest.mark.parametrize(
    ("events", "files", "is_complete", "message"),
    [
        (50, 12, True, ""),
        (50, None, True, ""),  # without end, the number of files is unknown
        (49, 12, True, "shard 1: 50 planned, but 49 read by the trainers (1 missing)"),
        (51, 12, True, "shard 1: 50 planned, but 51 read by the trainers (1 too many)"),
        (51, 12, False, "shard 1: 50 planned, but 51 read by the trainers (1 too many)"),
        (49, 12, False, ""),
        (50, 13, True, "13 files in all epochs, but 12 planned (shard 0 8, shard 1 4)"),
        (50, 13, False, ""),
    ],
)
def test_shards_that_read_other_events_or_files_than_planned_are_named_with_the_difference(
    events: int, files: int | None, is_complete: bool, message: str
) -> None:
    shards = [WHOLE[0], ShardEvents(1, WHOLE[1].planned, read(events, events_quarantined=7, events_held_out=5))]
    assert imbalance(shards, files=files, is_complete=is_complete) == message


def test_a_block_that_was_planned_again_counts_once_and_what_a_killed_process_left_of_a_line_not_at_all() -> None:
    blocks = [(0, 2, 10), (1, 2, 20), (1, 2, 21), (2, 1, 5)]
    lines = [*(planned_line(*block) for block in blocks), "[1, 2, 2"]
    assert planned_shard(lines) == PlannedShard(3, 5, 36)
    assert planned_shard([]) == PlannedShard()
