"""Import of GraphNeT's and Prometheus' files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neutrino_files import Neutrino, events_in, expected, import_with, neutrinos, sensors, write_flat, write_nested

from common.errors import BadInputError
from workloads.direction import foreign_tables as tables
from workloads.direction import importers
from workloads.direction.columns import CASCADE, TRACK, UNKNOWN
from workloads.direction.foreign_events import topology
from workloads.direction.geometry import GEOMETRY_FILE, read_geometry, write_geometry

COUNTS = st.lists(st.integers(1, 20), min_size=1, max_size=12)


def place_sensors(folder: Path) -> Path:
    """Table of all sensors, beside files in which not all of them have pulses."""
    folder.mkdir(exist_ok=True)
    write_geometry(folder / GEOMETRY_FILE, sensors())
    return folder


@settings(deadline=None, max_examples=10)
@given(counts=COUNTS, rows_at_a_time=st.integers(1, 40), seed=st.integers(0, 99))
def test_flat_tables_are_joined_in_any_order_of_their_events(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], rows_at_a_time: int, seed: int
) -> None:
    folder = place_sensors(tmp_path_factory.mktemp("flat"))
    events = neutrinos(counts)
    write_flat(folder, events)
    truth = pq.read_table(folder / "truth" / "truth_0.parquet")
    shuffled = truth.take(np.random.default_rng(seed).permutation(len(events)))
    pq.write_table(shuffled, folder / "truth" / "truth_0.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "ROWS_AT_A_TIME", rows_at_a_time)
        import_with(folder, folder / "out", "--rows-per-group", "5")
    assert events_in(folder / "out" / "pulses_0.parquet") == [expected(event) for event in events]


@settings(deadline=None, max_examples=10)
@given(counts=COUNTS, rows_at_a_time=st.integers(1, 5))
def test_nested_events_of_prometheus_are_turned_to_their_source(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], rows_at_a_time: int
) -> None:
    folder = place_sensors(tmp_path_factory.mktemp("nested"))
    events = [with_charge_one(event) for event in neutrinos(counts)]
    path = write_nested(folder / "photons.parquet", events, ids=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importers, "ROWS_AT_A_TIME", rows_at_a_time)
        import_with(path, folder / "out")
    for found, event in zip(events_in(folder / "out" / "photons.parquet"), events, strict=True):
        wanted = expected(event)
        assert [found.pop(angle) for angle in ("azimuth", "zenith")] == pytest.approx(
            [wanted.pop(angle) for angle in ("azimuth", "zenith")], abs=1e-6
        )
        assert found == wanted
    table = pq.read_table(folder / "out" / "photons.parquet")
    assert table["true_energy"].to_pylist() == [100.0] * len(events)
    assert table["topology"].to_pylist() == [TRACK] * len(events)


def with_charge_one(event: Neutrino) -> Neutrino:
    """Same event as a simulation of photons gives it."""
    pulses = event.pulses.copy()
    pulses["charge"], pulses["auxiliary"] = 1.0, False
    return replace(event, pulses=pulses)


def test_sensors_are_those_of_all_files_if_there_is_no_table_of_them(tmp_path: Path) -> None:
    first, second = neutrinos([30, 30]), neutrinos([40], 1, first_id=100)
    write_flat(tmp_path, first, part=0)
    write_flat(tmp_path, second, part=1)
    import_with(tmp_path, tmp_path / "out")
    position_S3 = read_geometry(tmp_path / "out" / GEOMETRY_FILE).position_S3
    used = {sensor for event in [*first, *second] for sensor in event.pulses["sensor_id"].tolist()}
    assert len(position_S3) == len(used)
    assert position_S3[:, 0].tolist() == sorted(position_S3[:, 0].tolist())
    for part, events in enumerate((first, second)):
        found = events_in(tmp_path / "out" / f"pulses_{part}.parquet")
        for row, event in zip(found, events, strict=True):
            places = sorted(position_S3[pulse["sensor_id"]].tolist() for pulse in row["pulses"])
            assert places == sorted(sensors().position_S3[event.pulses["sensor_id"]].tolist())


def test_chunks_that_were_merged_are_preferred_and_names_may_end_with_the_table(tmp_path: Path) -> None:
    write_flat(tmp_path / "set", neutrinos([3]))
    write_flat(tmp_path / "set" / "merged", neutrinos([4]))
    assert "merged/pulses/pulses_0.parquet -> " in import_with(tmp_path / "set", tmp_path / "out")
    for name in ("pulses", "truth"):
        (tmp_path / "set" / name / f"{name}_0.parquet").rename(tmp_path / "set" / name / f"run7_{name}.parquet")
    import_with(tmp_path / "set" / "pulses", tmp_path / "unmerged")
    assert len(events_in(tmp_path / "unmerged" / "run7_pulses.parquet")[0]["pulses"]) == 3


def test_events_without_pulses_are_left_out_and_counted(tmp_path: Path) -> None:
    events = neutrinos([3, 5])
    silent = Neutrino(9, 1.0, 1.0, events[0].pulses[:0])
    write_flat(tmp_path / "flat", [events[0], silent, events[1]])
    output = import_with(tmp_path / "flat", tmp_path / "out")
    assert "2 events, 8 particles, 1 events without particles left out; " in output
    write_nested(tmp_path / "nested.parquet", [events[0], silent, events[1]], ids=True)
    output = import_with(tmp_path / "nested.parquet", tmp_path / "nested-out")
    assert "2 events, 8 particles, 1 events without particles left out; " in output
    assert [row["event_id"] for row in events_in(tmp_path / "nested-out" / "nested.parquet")] == [0, 7]


def test_nested_events_without_ids_get_the_same_ones_at_every_import(tmp_path: Path) -> None:
    ids = []
    for name in ("a", "b"):
        path = write_nested(tmp_path / f"{name}.parquet", neutrinos([3, 2, 4]))
        for out in ("one", "two"):
            import_with(path, tmp_path / f"{out}-{name}")
            ids.append([row["event_id"] for row in events_in(tmp_path / f"{out}-{name}" / f"{name}.parquet")])
    assert ids[0] == ids[1]
    assert ids[2] == ids[3]
    assert len({*ids[0], *ids[2]}) == 6
    assert all(0 <= one < 2**63 for one in ids[0])


def test_the_kind_of_an_event_follows_from_particle_and_interaction() -> None:
    particle = np.array([14, -14, 14, 12, -12, 16, 16, 13, 14, 0])
    interaction = np.array([1, 1, 2, 1, 2, 1, 2, 0, np.nan, 1])
    wanted = [TRACK, TRACK, CASCADE, CASCADE, CASCADE, UNKNOWN, CASCADE, TRACK, UNKNOWN, UNKNOWN]
    assert topology(particle, interaction, len(particle)).tolist() == wanted
    assert topology(None, None, 2).tolist() == [UNKNOWN, UNKNOWN]


def test_an_energy_that_is_not_known_is_zero_and_one_beyond_float32_is_named(tmp_path: Path) -> None:
    write_flat(tmp_path, neutrinos([1] * 3), energy=np.array([5.0, -1.0, np.nan]))
    import_with(tmp_path, tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / "pulses_0.parquet")["true_energy"].to_pylist() == [5.0, 0.0, 0.0]
    write_flat(tmp_path, neutrinos([1] * 2), energy=np.array([5.0, 1e300]))
    with pytest.raises(BadInputError, match=r"event 7: its energy is 1e\+300; expected at most"):
        import_with(tmp_path, tmp_path / "other-out")


def test_the_angles_of_injection_point_to_the_source(tmp_path: Path) -> None:
    events = neutrinos([2, 2])
    angles = {f"injection_{name}": [getattr(event, name) for event in events] for name in ("azimuth", "zenith")}
    write_flat(place_sensors(tmp_path / "set"), events, azimuth=None, zenith=None, **angles)
    import_with(tmp_path / "set", tmp_path / "out")
    assert events_in(tmp_path / "out" / "pulses_0.parquet") == [expected(event) for event in events]


def rewrite(path: Path, name: str, values: Any) -> None:
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(values)), path)


FLAT_ERRORS = {
    "not together": ("pulses", "event_no", [0, 7, 0, 7, 7], "row 2, event 0: it has pulses in other rows before; sort"),
    "not in the truth": ("pulses", "event_no", [0, 0, 7, 7, 8], "row 4, event 8: it is not in"),
    "twice in the truth": ("truth", "event_no", [7, 7], "truth_0.parquet: event 7 occurs twice; each event may occur"),
    "azimuth": ("truth", "azimuth", [-1.0, 4.0], "event 0: its azimuth is -1.0; expected 0 to 2π radians"),
    "an id beyond int64": ("truth", "event_no", np.array([0, 2**63], np.uint64), "9223372036854775808 is too large"),
    "position": ("pulses", "dom_x", [0, 0, np.inf, 0, 0], "row 2: its position is [inf,"),
    "null": ("pulses", "dom_time", [0.0, 0.0, 0.0, None, 0.0], "column 'dom_time', row 3: the value is null"),
}


@pytest.mark.parametrize(("folder", "name", "values", "told"), FLAT_ERRORS.values(), ids=FLAT_ERRORS.keys())
def test_wrong_flat_tables_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, name: str, values: Any, told: str
) -> None:
    monkeypatch.setattr(tables, "ROWS_AT_A_TIME", 2)
    write_flat(tmp_path, neutrinos([2, 3]))
    rewrite(tmp_path / folder / f"{folder}_0.parquet", name, values)
    with pytest.raises(BadInputError, match=re.escape(told)) as error:
        import_with(tmp_path, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert [path.name for path in (tmp_path / "out").glob("*.parquet")] == []


def test_a_position_without_sensor_is_named(tmp_path: Path) -> None:
    write_flat(place_sensors(tmp_path / "set"), neutrinos([2, 3]))
    path = tmp_path / "set" / "pulses" / "pulses_0.parquet"
    z = pq.read_table(path)["dom_z"].to_pylist()
    rewrite(path, "dom_z", [z[0], z[1], z[2] + 0.005, z[3] + 0.5, z[4]])
    with pytest.raises(BadInputError, match=r"pulses_0\.parquet, row 3, event 7: no sensor is at \[.*\] m; use the ta"):
        import_with(tmp_path / "set", tmp_path / "out")


NESTED_ERRORS = {
    "lengths": ({"t": [1.0]}, "column 'photons', 't', row 0: 1 values, but 'sensor_pos_x' has 2; expected one a pulse"),
    "no list": ({"t": 1.0}, "structs with a direction: mc_truth; with lists of pulses: none; expected one of each"),
    "position": ({"sensor_pos_z": [0.0, float("nan")]}, "row 1: its position is ["),
}


@pytest.mark.parametrize(("lists", "told"), NESTED_ERRORS.values(), ids=NESTED_ERRORS.keys())
def test_wrong_nested_files_are_named(tmp_path: Path, lists: dict[str, Any], told: str) -> None:
    path = write_nested(tmp_path / "photons.parquet", neutrinos([2, 2]), **lists)
    with pytest.raises(BadInputError, match=re.escape(told)):
        import_with(path, tmp_path / "out", "--from", "graphnet")


def test_an_id_twice_in_a_nested_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importers, "ROWS_AT_A_TIME", 1)
    path = write_nested(tmp_path / "p.parquet", [neutrinos([2])[0], neutrinos([3])[0]], ids=True)
    with pytest.raises(BadInputError, match="event 0 occurs twice"):
        import_with(path, tmp_path / "out")


def test_a_choice_between_folders_of_pulses_is_the_users(tmp_path: Path) -> None:
    write_flat(tmp_path, neutrinos([2]))
    (tmp_path / "pulses").rename(tmp_path / "all")
    write_flat(tmp_path, neutrinos([3]))
    with pytest.raises(BadInputError, match=r"it has pulses in all, pulses; name one of these folders, such as .*/all"):
        import_with(tmp_path, tmp_path / "out")
    with pytest.raises(BadInputError, match=r"there is no table of its events; expected one, .*truth_pulses_0"):
        import_with(tmp_path / "all", tmp_path / "out")
    import_with(tmp_path / "pulses", tmp_path / "out")
    with pytest.raises(BadInputError, match="it is a table of events; name the folder of their pulses"):
        import_with(tmp_path / "truth", tmp_path / "out")
