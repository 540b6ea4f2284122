"""Promises 2 and 3: a unit of which a part was trained, and whose files are damaged before the run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from runs import SMALL_STREAM, Processes, settings
from showers import EVENTS_PER_FILE, Showers

pytestmark = pytest.mark.slow

STOP_AT_STEP = 3
OPEN_UNIT = 1
"""Units have two batches: of this one, one was trained."""


def overwrite_data(path: Path) -> None:
    """Zeros in place of every column chunk. Footer, size and number of rows stay."""
    metadata = pq.read_metadata(path)
    with path.open("r+b") as file:
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                file.seek(column.dictionary_page_offset or column.data_page_offset)
                file.write(bytes(column.total_compressed_size))


def test_no_event_is_trained_twice_when_a_file_is_damaged_while_one_of_its_units_is_half_trained(
    processes: Processes, showers: Showers, tmp_path: Path
) -> None:
    paths = showers.write(tmp_path / "data")[:2]
    files = [argument for path in paths for argument in ("-i", str(path))]
    command = [*files, *settings(*SMALL_STREAM), "--epochs", "1"]
    processes.train(*command, *settings(f"trainer.max_steps={STOP_AT_STEP}"))
    before = processes.audit()
    events = {unit: 0 for unit in (0, OPEN_UNIT)}
    for line in map(json.loads, before):
        events[line["unit"]] += line["events"]
    assert 0 < events[OPEN_UNIT] < events[0], "it is half trained"

    overwrite_data(paths[1])
    summary = processes.train(*command, *settings("trainer.max_steps=0"))

    summary.assert_read(2 * EVENTS_PER_FILE)
    audit = processes.audit()
    assert audit[: len(before)] == before
    assert [line for line in map(json.loads, audit[len(before) :]) if line["unit"] <= OPEN_UNIT] == []
    assert sum(json.loads(line)["events"] for line in audit) == summary["events_trained"]
    (told,) = (line for line in summary["quarantined"] if line.startswith(f"unit {OPEN_UNIT} has changed"))
    assert f"{events[OPEN_UNIT]} of its events were trained, {events[0] - events[OPEN_UNIT]} are quarantined" in told
    assert told in processes.log("trainer")
    assert processes.fetcher.files_bad == 1
