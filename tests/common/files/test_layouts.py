"""Every layout of lists that a Parquet file may have gives the same events."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decoded_files import decoded, planned
from muon_files import Event, make_event, make_events, make_table, write_events

from common.config import SourceConfig, StreamConfig
from common.files.parquet.reader import ParquetReader
from common.status import OUTLIER_FOLDER
from workloads.muons.columns import MUONS, slant_depth_m

STREAM = StreamConfig(batch_events=4, max_particles=64, max_particles_per_event=8, unit_events=64, slot_mib=0.25)


def test_slant_depths_are_vertical_in_the_slot_and_as_they_were_among_the_outliers(tmp_path: Path) -> None:
    depth_m, zenith = np.array([1500.0, 2000.0, 2500.0]), np.array([0.0, 0.7, 1.2])
    slant_m = slant_depth_m(np.cos(zenith), depth_m)
    events = [
        Event(i, 0, (1e5, float(zenith[i]), 4.0, float(slant_m[i])), make_event(i, count).muons)
        for i, count in enumerate([2, 3, 9])
    ]
    path = tmp_path / "f.parquet"
    pq.write_table(make_table(events, number=pa.float64()), path)
    workload, stream = MUONS.stored_as(SourceConfig(depth_kind="slant")), STREAM.model_copy(update={"shuffle": False})
    (one,) = decoded(planned([path], workload, stream), workload, stream, tmp_path)
    np.testing.assert_allclose(one.arrays.event_columns["primary"][:, 3], depth_m[:2], rtol=1e-6)
    (path,) = (tmp_path / OUTLIER_FOLDER).glob("unit-0000000000-*.parquet")
    (aside,) = pq.read_table(path)["primary"].to_pylist()
    assert aside[3] == slant_m[2], "an outlier file is an input like the one that it comes from"


def test_files_of_different_layouts_make_one_unit(tmp_path: Path) -> None:
    stream = STREAM.model_copy(update={"max_particles_per_event": 5})
    first, second, third = (make_events([1, 7, 2], first=10 * i) for i in range(3))
    fixed = pa.array([event.muons for event in first], pa.list_(pa.list_(pa.float32(), 3)))
    tables = [make_table(first).set_column(3, "muons", fixed), make_table(third)]
    tables.insert(1, make_table(second, number=pa.float64(), list_of=pa.large_list))
    paths = [tmp_path / f"{i}.parquet" for i in range(3)]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path, use_dictionary=False)
    (one,) = decoded(planned(paths, MUONS, stream), MUONS, stream, tmp_path)
    majors = one.arrays.event_columns["primary_id"][:, 0].tolist()
    assert sorted(majors) == [0, 2, 10, 12, 20, 22]
    assert one.tally.outliers == 3
    paths = list((tmp_path / OUTLIER_FOLDER).iterdir())
    assert len(paths) == 3, "each of its own types: no number changes"
    aside = [pq.read_table(path, columns=["primary_major_id", "num_particles"]).to_pylist() for path in paths]
    assert sorted([tuple(row.values()) for rows in aside for row in rows]) == [(1, 7), (11, 7), (21, 7)]


def test_spans_of_one_large_row_group_are_read_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_events(tmp_path / "f.parquet", make_events([3] * 400))
    scans = []
    iterate = ParquetReader._iterate
    monkeypatch.setattr(ParquetReader, "_iterate", lambda *args: scans.append(1) or iterate(*args))  # type: ignore[func-returns-value]
    stream = STREAM.model_copy(update={"unit_events": 30, "slot_mib": 4096 / 2**20})
    found = decoded(planned([path], MUONS, stream), MUONS, stream, tmp_path)
    assert len(found) > 5
    rows = [row for one in found for row in one.arrays.event_columns["source_row"][:, 0].tolist()]
    assert sorted(rows) == list(range(400)), "an event comes once"
    assert len(scans) == 1
