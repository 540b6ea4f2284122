from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from decoded_files import decoded
from muon_files import make_events, write_events

from common.config import StreamConfig
from common.files.by_content import read_footer
from common.files.parquet.reader import ParquetReader
from common.locks import OutdatedAttemptError, begin_attempt
from common.messages import Part, Source, Unit
from common.plan import SlotCapacity
from common.status import OUTLIER_FOLDER
from services.decoder.decode import Decode
from workloads.muons.columns import MUONS

STREAM = StreamConfig(max_particles=100, max_particles_per_event=5, slot_mib=0.25)
EVENTS = make_events([2, 9, 0, 5, 7, 1])  # two outliers: rows 1 and 4


def outlier_path(run_dir: Path, k: int) -> Path:
    """Of unit k in the only plan there is; it may not exist."""
    found = list((run_dir / OUTLIER_FOLDER).glob(f"unit-{k:010d}-*.parquet"))
    assert len(found) <= 1
    return found[0] if found else run_dir / "none"


def num_outliers(run_dir: Path, unit: Unit) -> int:
    (found,) = decoded([unit], MUONS, STREAM, run_dir)
    return found.tally.outliers


def unit_of(folder: Path, *, epoch: int = 0, remote: str = "") -> Unit:
    path = write_events(folder / "f.parquet", EVENTS)
    part = Part(0, str(path), 0, 0, len(EVENTS), 1 << 10, file_row=50, remote=remote)
    return Unit(k=7, epoch=epoch, block=0, block_first_unit=0, parts=(part,))


def test_outliers_are_set_aside_whole_with_where_they_came_from(tmp_path: Path) -> None:
    unit = unit_of(tmp_path, remote="pelican://osg/f.parquet")
    assert num_outliers(tmp_path, unit) == 2
    rows = pq.read_table(outlier_path(tmp_path, 7)).to_pylist()
    assert [row["source_file"] for row in rows] == ["pelican://osg/f.parquet"] * 2
    assert [row["source_row"] for row in rows] == [51, 54]
    assert [row["num_particles"] for row in rows] == [9, 7]
    for row, event in zip(rows, [EVENTS[1], EVENTS[4]], strict=True):
        assert row["muons"] == [list(muon) for muon in event.muons]
        assert row["primary"] == list(event.primary)
        assert (row["primary_major_id"], row["primary_minor_id"]) == (event.major, event.minor)
    footer = read_footer(outlier_path(tmp_path, 7), MUONS, StreamConfig(), SlotCapacity(MUONS, StreamConfig()))
    assert [(group.rows, group.particles) for group in footer.row_groups] == [(2, 16)], "they can be an input again"


def test_a_decoder_of_an_older_attempt_publishes_none(tmp_path: Path) -> None:
    unit, older = unit_of(tmp_path), begin_attempt(tmp_path)
    with contextlib.closing(ParquetReader(MUONS)) as reader:
        decode = Decode(MUONS, STREAM, 0, tmp_path, reader, publishing=older.publishing)
        decode(unit, np.zeros(STREAM.slot_bytes, np.uint8))
        path = outlier_path(tmp_path, 7)
        path.unlink()
        begin_attempt(tmp_path)
        with pytest.raises(OutdatedAttemptError):
            decode(unit, np.zeros(STREAM.slot_bytes, np.uint8))
    assert list(path.parent.iterdir()) == []


def test_later_epochs_count_outliers_and_write_none(tmp_path: Path) -> None:
    assert num_outliers(tmp_path, unit_of(tmp_path, epoch=1)) == 2
    assert not outlier_path(tmp_path, 7).exists()


def test_another_plan_or_other_inputs_leave_the_outliers_of_the_first_alone(tmp_path: Path) -> None:
    unit = unit_of(tmp_path)
    reader = ParquetReader(MUONS)
    slot = np.zeros(STREAM.slot_bytes, np.uint8)
    for seed, digest in ((0, "a" * 32), (0, "b" * 32), (1, "b" * 32), (1, "b" * 32)):
        Decode(MUONS, STREAM, seed, tmp_path, reader)(replace(unit, source=Source(1, digest)), slot)
    reader.close()
    paths = list((tmp_path / OUTLIER_FOLDER).iterdir())
    assert len(paths) == 3, "decoding a unit of the same plan again replaces its file"
    assert all(pq.read_metadata(path).num_rows == 2 for path in paths)
