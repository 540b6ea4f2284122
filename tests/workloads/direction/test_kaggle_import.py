"""Import of the files of Kaggle's contest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from neutrino_files import NUM_SENSORS, events_in, expected, import_with, neutrinos, sensors, write_batch, write_kaggle

from common.errors import BadInputError
from common.files.layout import schema_of
from icestream.commands.inspect import inspect
from icestream.commands.plan import plan
from workloads.direction import foreign_tables as tables
from workloads.direction.columns import DIRECTION
from workloads.direction.geometry import GEOMETRY_FILE, read_geometry
from workloads.direction.grouping import order_by_sensor_and_time

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "prometheus_kaggle"


@settings(deadline=None, max_examples=10)
@given(
    batches=st.dictionaries(
        st.integers(1, 700), st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=1, max_size=2
    ),
    rows_at_a_time=st.integers(1, 40),
    groups=st.integers(1, 30),
    statistics=st.booleans(),
    number=st.sampled_from([np.float32, np.float64]),
)
def test_a_data_set_is_imported_event_by_event(
    tmp_path_factory: pytest.TempPathFactory,
    batches: dict[int, list[int]],
    rows_at_a_time: int,
    groups: int,
    statistics: bool,
    number: Any,
) -> None:
    folder = tmp_path_factory.mktemp("kaggle")
    events = {batch: neutrinos(counts, batch, first_id=1000 * batch) for batch, counts in batches.items()}
    options = {"row_group_size": groups, "write_statistics": statistics}
    write_kaggle(folder, events, meta_options=options, number=number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "ROWS_AT_A_TIME", rows_at_a_time)
        import_with(folder, folder / "out", "--rows-per-group", "5")
    for batch, wanted in events.items():
        assert events_in(folder / "out" / f"batch_{batch}.parquet") == [expected(event) for event in wanted]
    assert np.array_equal(read_geometry(folder / "out" / GEOMETRY_FILE).position_S3, sensors().position_S3)


@pytest.mark.process
def test_the_simulated_events_of_the_sample_are_imported_inspected_and_planned(tmp_path: Path) -> None:
    out = tmp_path / "out"
    output = import_with(SAMPLE, out)
    assert "batch_1.parquet: 15 events, 503 particles; " in output
    meta = pq.read_table(SAMPLE / "train_meta.parquet").to_pylist()
    for batch in (1, 2):
        pulses = pq.read_table(SAMPLE / f"batch_{batch}.parquet").to_pylist()
        found = events_in(out / f"batch_{batch}.parquet")
        wanted = [row for row in meta if row["batch_id"] == batch]
        assert [row["event_id"] for row in found] == [row["event_id"] for row in wanted]
        for row, of_meta in zip(found, wanted, strict=True):
            own = [pulse for pulse in pulses if pulse["event_id"] == of_meta["event_id"]]
            wanted_pulses = sorted((p["sensor_id"], p["time"], p["charge"], p["auxiliary"]) for p in own)
            assert [tuple(pulse.values()) for pulse in row["pulses"]] == wanted_pulses
            assert (row["azimuth"], row["zenith"]) == pytest.approx((of_meta["azimuth"], of_meta["zenith"]))
        assert pq.read_schema(out / f"batch_{batch}.parquet").equals(schema_of(DIRECTION.with_all_stored()))
    shown = CliRunner().invoke(inspect, [str(out)], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "15 events, 0 of them empty" in shown.output
    planned = CliRunner().invoke(plan, ["-i", str(out)], catch_exceptions=False)
    assert planned.exit_code == 0
    assert "2 files, 30 events, at most 1,079 particles" in planned.output


def changed(place: int, value: object) -> Any:
    """Column with a value replaced."""

    def change(column: list[Any]) -> list[Any]:
        return [*column[:place], value, *column[place + 1 :]]

    return change


META_ERRORS = {
    "zenith above pi": ("zenith", changed(1, 3.5), "batch 1, event 7: its zenith is 3.5; expected 0 to π radians"),
    "angle not a number": ("azimuth", changed(2, float("nan")), "event 14: its azimuth is nan; expected 0 to 2π"),
    "more pulses": ("last_pulse_index", changed(2, 30), "row 9, event 14: it has 6 pulses, but 22 by"),
    "less pulses": ("first_pulse_index", changed(1, 5), "row 4, event 7: it has 5 pulses, but 4 by"),
    "another id": ("event_id", changed(1, 8), "batch_1.parquet, row 4, event 7: it is not in"),
    "an id twice": ("event_id", changed(1, 0), "batch 1: event 0 occurs twice; each event may occur once"),
    "another batch": ("batch_id", lambda column: [2] * len(column), "no event with batch_id 1; use the table that"),
    "not sorted": ("batch_id", changed(1, 2), "train_meta.parquet, row 2: batch 1 again; sort the table by batch_id"),
    "no column": ("zenith", None, "train_meta.parquet: it has no column 'zenith', but batch_id, event_id"),
}


@pytest.mark.parametrize(("name", "change", "told"), META_ERRORS.values(), ids=META_ERRORS.keys())
def test_a_wrong_table_of_events_is_named(tmp_path: Path, name: str, change: Any, told: str) -> None:
    write_kaggle(tmp_path, {1: neutrinos([4, 5, 6])})
    table = pq.read_table(tmp_path / "train_meta.parquet")
    place = table.column_names.index(name)
    wrong = (
        table.remove_column(place)
        if change is None
        else table.set_column(place, name, [change(table[name].to_pylist())])
    )
    pq.write_table(wrong, tmp_path / "train_meta.parquet")
    with pytest.raises(BadInputError, match=re.escape(told)) as error:
        import_with(tmp_path, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert [path.name for path in (tmp_path / "out").glob("*.parquet")] == []


PULSE_ERRORS = {
    "sensor without position": (
        {"sensor_id": np.array([0, 1, 2, 3, 4, NUM_SENSORS], np.int16)},
        f"batch_1.parquet, row 5, event 7: its sensor is {NUM_SENSORS}; expected 0 to {NUM_SENSORS - 1}: use the table",
    ),
    "negative sensor": (
        {"sensor_id": np.array([0, -1, 2, 3, 4, 5])},
        "row 1, event 0: its sensor is -1; expected",
    ),
    "negative charge": ({"charge": [1, 1, -0.5, 1, 1, 1]}, "row 2, event 0: its charge is -0.5; expected a finite"),
    "charge not a number": ({"charge": [1, 1, 1, float("nan"), 1, 1]}, "row 3, event 7: its charge is nan; expected a"),
    "charge beyond float32": ({"charge": [1, 1, 1e300, 1, 1, 1]}, "row 2, event 0: its charge is 1e+300; expected a"),
    "time beyond 2⁶²": ({"time": [1, 2, 3, 4, 2**62 + 2**60, -(2**62)]}, "row 4, event 7: its time is 576460752303423"),
    "null": ({"time": [1, 2, None, 4, 5, 6]}, "column 'time', row 2: the value is null, or of another"),
    "a type": ({"auxiliary": ["0"] * 6}, "column 'auxiliary' is of string; expected bool or numbers"),
    "another event": ({"event_id": [0, 0, 0, 7, 7, 0]}, "row 3, event 7: it has 2 pulses, but 3 by"),
}


@pytest.mark.parametrize(("columns", "told"), PULSE_ERRORS.values(), ids=PULSE_ERRORS.keys())
def test_a_wrong_file_of_pulses_is_named(tmp_path: Path, columns: dict[str, Any], told: str) -> None:
    events = neutrinos([3, 3])
    write_kaggle(tmp_path, {1: events})
    write_batch(tmp_path / "train" / "batch_1.parquet", events, **columns)
    with pytest.raises(BadInputError, match=re.escape(told)) as error:
        import_with(tmp_path, tmp_path / "out", "--from", "kaggle")
    assert "\n" not in str(error.value)
    assert [path.name for path in (tmp_path / "out").glob("*.parquet")] == []


@pytest.mark.parametrize(("name", "dtype"), [("sensor_id", np.uint16), ("time", np.uint64), ("event_id", np.uint64)])
def test_numbers_may_be_of_any_type_of_integers(tmp_path: Path, name: str, dtype: Any) -> None:
    events = neutrinos([3, 4])
    write_kaggle(tmp_path, {1: events})
    path = tmp_path / "train" / "batch_1.parquet"
    table = pq.read_table(path)
    place = table.column_names.index(name)
    pq.write_table(table.set_column(place, name, pa.array(table[name].to_numpy().astype(dtype))), path)
    import_with(tmp_path, tmp_path / "out")
    assert events_in(tmp_path / "out" / "batch_1.parquet") == [expected(event) for event in events]


def test_times_far_apart_keep_their_order(tmp_path: Path) -> None:
    events = neutrinos([3])
    write_kaggle(tmp_path, {1: events})
    times = np.array([-(2**31), 2**31 - 1, 0], np.int32)
    write_batch(tmp_path / "train" / "batch_1.parquet", events, time=times, sensor_id=np.zeros(3, np.int16))
    import_with(tmp_path, tmp_path / "out")
    found = [pulse["time_ns"] for pulse in events_in(tmp_path / "out" / "batch_1.parquet")[0]["pulses"]]
    assert found == pytest.approx([0, 2**31, 2**32])


def test_two_files_of_one_batch_are_refused(tmp_path: Path) -> None:
    write_kaggle(tmp_path, {1: neutrinos([3])})
    batch = tmp_path / "train" / "batch_1.parquet"
    batch.with_name("batch_01.parquet").write_bytes(batch.read_bytes())
    with pytest.raises(BadInputError, match="are both batch 1; give one of them"):
        import_with(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (GEOMETRY_FILE, f"batch_1.parquet: no {GEOMETRY_FILE} in its folder or the one above; put it there"),
        ("train_meta.parquet", "no train_meta.parquet or test_meta.parquet in its folder or the one above"),
        ("train/batch_1.parquet", "no batch_N.parquet in it, nor in its folder train or test"),
    ],
)
def test_a_missing_part_of_the_data_set_is_named(tmp_path: Path, missing: str, told: str) -> None:
    write_kaggle(tmp_path, {1: neutrinos([3])})
    (tmp_path / missing).unlink()
    with pytest.raises(BadInputError, match=re.escape(told)):
        import_with(tmp_path, tmp_path / "out")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write_kaggle(tmp_path, {1: neutrinos([3])})
    path = tmp_path / "train" / "batch_1.parquet"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(BadInputError, match=r"batch_1\.parquet: can't be read as Parquet \(.*\); get the file again"):
        import_with(path, tmp_path / "out", "--from", "kaggle")


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
    with pytest.raises(BadInputError, match="azimuth"):
        CliRunner().invoke(
            plan, ["-i", str(path), "--set", "workload=direction"], catch_exceptions=False, standalone_mode=False
        )


def test_test_data_belong_to_their_own_table_in_a_folder_with_both(tmp_path: Path) -> None:
    write_kaggle(tmp_path, {1: neutrinos([3])})
    write_kaggle(tmp_path, {661: neutrinos([2])}, name="test", angles=False)
    import_with(tmp_path, tmp_path / "train-out")
    assert [path.name for path in (tmp_path / "train-out").glob("*.parquet")] == ["batch_1.parquet"]
    import_with(tmp_path / "test", tmp_path / "test-out")
    assert [path.name for path in (tmp_path / "test-out").glob("*.parquet")] == ["batch_661.parquet"]
    with pytest.raises(BadInputError, match="belong to two tables"):
        import_with(tmp_path / "train", tmp_path / "test", tmp_path / "both")


def test_large_events_keep_their_clean_and_earliest_pulses_and_the_rest_is_counted(tmp_path: Path) -> None:
    events = neutrinos([3, 40, 8])
    write_kaggle(tmp_path, {1: events})
    output = import_with(tmp_path, tmp_path / "out", "--max-particles", "10")
    assert "3 events, 21 particles, 30 particles above 10 an event cut; " in output
    found = events_in(tmp_path / "out" / "batch_1.parquet")
    assert [found[0], found[2]] == [expected(events[0]), expected(events[2])]
    best = sorted((p["is_auxiliary"], p["time_ns"]) for p in expected(events[1])["pulses"])[:10]
    assert sorted((p["is_auxiliary"], p["time_ns"]) for p in found[1]["pulses"]) == best
    order = [(p["sensor_id"], p["time_ns"]) for p in found[1]["pulses"]]
    assert order == sorted(order)


def test_a_folder_of_another_detector_is_not_imported_into(tmp_path: Path) -> None:
    write_kaggle(tmp_path, {1: neutrinos([3])})
    import_with(SAMPLE, tmp_path / "out")
    with pytest.raises(BadInputError, match=f"out/{GEOMETRY_FILE}: it has other sensors than the files to import"):
        import_with(tmp_path, tmp_path / "out")


TIMES = st.floats(-(2.0**20), 2.0**20, width=32)
EVENT = st.lists(st.tuples(st.integers(0, 2**15 - 1) | st.integers(0, 3), TIMES | st.sampled_from([0.0, -0.0, 1.0])))


@settings(max_examples=40)
@given(st.lists(EVENT, max_size=6), st.booleans())
def test_the_order_is_that_of_event_sensor_time_and_place(events: list[list[tuple[int, float]]], by_time: bool) -> None:
    ordered = [sorted(event, key=lambda pulse: pulse[1]) if by_time else event for event in events]
    counts_E = np.array([len(event) for event in events], np.int64)
    sensor_P = np.array([sensor for event in ordered for sensor, _ in event], np.int16)
    time_P = np.array([time for event in ordered for _, time in event], np.float32)
    event_P = np.repeat(np.arange(len(events)), counts_E)
    found = order_by_sensor_and_time(counts_E, sensor_P, time_P)
    assert found.tolist() == np.lexsort((time_P, sensor_P, event_P)).tolist()
