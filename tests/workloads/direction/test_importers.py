"""Import of public data sets, in each of their layouts, and of Kaggle's files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from neutrino_files import (
    Neutrino,
    assert_imported,
    database_of,
    events_in,
    expected,
    import_with,
    neutrinos,
    sensors,
    write_batch,
    write_flat,
    write_kaggle,
    write_nested,
)

from common.errors import BadInputError
from common.files.layout import schema_of
from icestream.commands.plan import plan
from workloads.direction import foreign_tables, importers
from workloads.direction.columns import DIRECTION
from workloads.direction.geometry import GEOMETRY_FILE, read_geometry, write_geometry
from workloads.direction.grouping import order_by_sensor_and_time


def two_batches(folder: Path, events: Sequence[Neutrino]) -> None:
    batches = {number: some for number, some in ((1, events[:1]), (20, events[1:])) if some}
    write_kaggle(folder, batches, meta_options={"row_group_size": 3}, number=np.float32)


def shuffled_truth(folder: Path, events: Sequence[Neutrino]) -> None:
    path = write_flat(folder, events) / "truth" / "truth_0.parquet"
    pq.write_table(pq.read_table(path)[::-1], path)


LAYOUTS: dict[str, Callable[[Path, Sequence[Neutrino]], object]] = {
    "kaggle": two_batches,
    "flat": shuffled_truth,
    "nested": lambda folder, events: write_nested(folder / "photons.parquet", events, ids=True),
    "database": lambda folder, events: database_of(write_flat(folder, events)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(deadline=None, max_examples=10)
@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=12), rows_at_a_time=st.integers(1, 40))
def test_a_data_set_is_imported_event_by_event(
    tmp_path_factory: pytest.TempPathFactory, layout: str, counts: list[int], rows_at_a_time: int
) -> None:
    folder, events = tmp_path_factory.mktemp(layout), neutrinos(counts)
    write_geometry(folder / GEOMETRY_FILE, sensors())
    LAYOUTS[layout](folder, events)
    with pytest.MonkeyPatch.context() as patch:
        for module in (foreign_tables, importers):
            patch.setattr(module, "ROWS_AT_A_TIME", rows_at_a_time)
        import_with(folder, folder / "out", "--rows-per-group", "5")
    assert_imported(folder / "out", "*.parquet", events)
    for path in (folder / "out").glob("*.parquet"):
        assert pq.read_schema(path).equals(schema_of(DIRECTION.with_all_stored()))
    assert np.array_equal(read_geometry(folder / "out" / GEOMETRY_FILE).position_S3, sensors().position_S3)


META, BATCH, TRUTH, PULSES = (
    *("kaggle/train_meta.parquet", "kaggle/train/batch_1.parquet"),
    *("graphnet/truth/truth_0.parquet", "graphnet/pulses/pulses_0.parquet"),
)
ERRORS: dict[str, tuple[str, str, Any, str]] = {
    "zenith above pi": (META, "zenith", [1, 3.5], "batch 1, event 7: its zenith is 3.5; expected 0 to π radians"),
    "angle not a number": (META, "azimuth", [1, np.nan], "event 7: its azimuth is nan; expected 0 to 2π radians"),
    "more pulses": (META, "last_pulse_index", [2, 30], "row 3, event 7: it has 3 pulses, but 28 by"),
    "another id": (META, "event_id", [0, 8], "batch_1.parquet, row 3, event 7: it is not in"),
    "an id twice": (META, "event_id", [0, 0], "batch 1: event 0 occurs twice; each event may occur once"),
    "another batch": (META, "batch_id", [2, 2], "no event with batch_id 1; use the table that"),
    "not sorted": (META, "batch_id", [1, 2, 1], "train_meta.parquet, row 2: batch 1 again; sort the table by batch_id"),
    "no column": (META, "zenith", None, "train_meta.parquet: it has no column 'zenith', but batch_id, event_id"),
    "no such sensor": (BATCH, "sensor_id", [0, 1, 2, 3, 4, 50], "row 5, event 7: its sensor is 50; expected 0 to 49"),
    "no charge": (BATCH, "charge", [1, 1, -0.5, 1, 1, 1], "row 2, event 0: its charge is -0.5; expected a"),
    "time beyond 2⁶²": (BATCH, "time", [1, 2, 3, 4, 2**62 + 2**60, 1], "row 4, event 7: its time is 576460752303423"),
    "a type": (BATCH, "auxiliary", ["0"] * 6, "column 'auxiliary' is of string; expected bool or numbers"),
    "null": (BATCH, "time", [1, 2, None, 4, 5, 6], "column 'time', row 2: the value is null, or of another type"),
    "not together": (PULSES, "event_no", [0, 7, 0, 7, 7, 7], "row 2, event 0: it has pulses in other rows before"),
    "an id beyond int64": (TRUTH, "event_no", np.array([0, 2**63], np.uint64), "9223372036854775808 is too large"),
    "an energy": (TRUTH, "energy", [5.0, 1e300], "event 7: its energy is 1e+300; expected at most"),
    "near a sensor": (PULSES, "dom_z", [-4.4e2] * 6, "row 0, event 0: no sensor is at ["),
}


@pytest.mark.parametrize(("path", "name", "values", "told"), ERRORS.values(), ids=ERRORS.keys())
def test_a_wrong_column_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, name: str, values: Any, told: str
) -> None:
    monkeypatch.setattr(foreign_tables, "ROWS_AT_A_TIME", 2)
    layout = path.split("/")[0]
    events = neutrinos([3, 3, 1] if values is not None and len(values) == 3 else [3, 3])
    write_kaggle(tmp_path / "kaggle", {1: events})
    write_flat(tmp_path / "graphnet", events, energy=np.ones(len(events)))
    write_geometry(tmp_path / "graphnet" / GEOMETRY_FILE, sensors())
    table = pq.read_table(tmp_path / path)
    columns = {column: table[column] for column in table.column_names} | {name: values}
    kept = {column: one for column, one in columns.items() if one is not None}
    pq.write_table(pa.table(kept), tmp_path / path)
    with pytest.raises(BadInputError, match=re.escape(told)) as error:
        import_with(tmp_path / layout, tmp_path / "out", "--from", layout)
    assert "\n" not in str(error.value)
    assert list((tmp_path / "out").glob("*.parquet")) == []


def test_times_far_apart_keep_their_order(tmp_path: Path) -> None:
    events = neutrinos([3])
    write_kaggle(tmp_path, {1: events})
    times = np.array([-(2**31), 2**31 - 1, 0], np.int32)
    write_batch(tmp_path / "train" / "batch_1.parquet", events, time=times, sensor_id=np.zeros(3, np.int16))
    import_with(tmp_path, tmp_path / "out")
    found = [pulse["time_ns"] for pulse in events_in(tmp_path / "out" / "batch_1.parquet")[0]["pulses"]]
    assert found == pytest.approx([0, 2**31, 2**32])


PARTS = {
    GEOMETRY_FILE: f"batch_1.parquet: no {GEOMETRY_FILE} in its folder or the one above; put it there",
    "train_meta.parquet": "no train_meta.parquet or test_meta.parquet in its folder or the one above",
    "train/batch_1.parquet": "no batch_N.parquet in it, nor in its folder train or test",
}


@pytest.mark.parametrize(("missing", "told"), PARTS.items())
def test_a_missing_part_of_the_data_set_is_named(tmp_path: Path, missing: str, told: str) -> None:
    write_kaggle(tmp_path, {1: neutrinos([3])})
    (tmp_path / missing).rename(tmp_path / "elsewhere")
    with pytest.raises(BadInputError, match=re.escape(told)):
        import_with(tmp_path, tmp_path / "out")


@pytest.mark.process
def test_events_to_be_predicted_get_no_direction(tmp_path: Path) -> None:
    events = neutrinos([3, 5])
    write_kaggle(tmp_path, {661: events}, name="test", angles=False)
    output = import_with(tmp_path / "test", tmp_path / "out")
    assert "test_meta.parquet has no angles: the events can only be predicted" in output
    path = tmp_path / "out" / "batch_661.parquet"
    assert {"azimuth", "zenith"}.isdisjoint(pq.read_schema(path).names)
    found = pq.read_table(path, columns=["event_id", "pulses"]).to_pylist()
    assert found == [{k: v for k, v in expected(event).items() if k in ("event_id", "pulses")} for event in events]
    arguments = ["-i", str(path), "--set", "workload=direction"]
    with pytest.raises(BadInputError, match="azimuth"):
        CliRunner().invoke(plan, arguments, catch_exceptions=False, standalone_mode=False)


def test_test_data_belong_to_their_own_table_in_a_folder_with_both(tmp_path: Path) -> None:
    write_kaggle(tmp_path, {1: neutrinos([3])})
    write_kaggle(tmp_path, {661: neutrinos([2])}, name="test", angles=False)
    for place, name in ((tmp_path, "batch_1"), (tmp_path / "test", "batch_661")):
        import_with(place, tmp_path / name)
        assert [path.stem for path in (tmp_path / name).glob("*.parquet")] == [name]


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    write_kaggle(tmp_path, {661: neutrinos([2])}, name="test", angles=False)
    batch = write_kaggle(tmp_path, {1: neutrinos([3])}) / "train" / "batch_1.parquet"
    with pytest.raises(BadInputError, match="belong to two tables"):
        import_with(tmp_path / "train", tmp_path / "test", tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / GEOMETRY_FILE).write_text("sensor_id,x,y,z\n0,1,2,3\n")
    with pytest.raises(BadInputError, match=f"out/{GEOMETRY_FILE}: it has other sensors, or another medium, than"):
        import_with(tmp_path, tmp_path / "out")
    batch.with_name("batch_01.parquet").symlink_to(batch)
    with pytest.raises(BadInputError, match="are both batch 1; give one of them"):
        import_with(tmp_path, tmp_path / "out")


def test_large_events_keep_their_clean_and_earliest_pulses_and_the_rest_is_counted(tmp_path: Path) -> None:
    events = neutrinos([3, 40, 8])
    write_kaggle(tmp_path, {1: events})
    output = import_with(tmp_path, tmp_path / "out", "--max-particles", "10")
    assert "3 events, 21 particles, 30 particles above 10 an event cut; " in output
    found = events_in(tmp_path / "out" / "batch_1.parquet")
    assert [found[0], found[2]] == [expected(events[0]), expected(events[2])]
    best = sorted((p["is_auxiliary"], p["time_ns"]) for p in expected(events[1])["pulses"])[:10]
    assert sorted((p["is_auxiliary"], p["time_ns"]) for p in found[1]["pulses"]) == best


TIMES = st.floats(-(2.0**20), 2.0**20, width=32)
EVENT = st.lists(st.tuples(st.integers(0, 2**15 - 1) | st.integers(0, 3), TIMES | st.sampled_from([0.0, -0.0, 1.0])))


@settings(max_examples=40)
@given(st.lists(EVENT | EVENT.map(lambda event: sorted(event, key=lambda pulse: pulse[1])), max_size=6))
def test_the_order_is_that_of_event_sensor_time_and_place(events: list[list[tuple[int, float]]]) -> None:
    counts_E = np.array([len(event) for event in events], np.int64)
    sensor_P = np.array([sensor for event in events for sensor, _ in event], np.int16)
    time_P = np.array([time for event in events for _, time in event], np.float32)
    event_P = np.repeat(np.arange(len(events)), counts_E)
    found = order_by_sensor_and_time(counts_E, sensor_P, time_P)
    assert found.tolist() == np.lexsort((time_P, sensor_P, event_P)).tolist()
