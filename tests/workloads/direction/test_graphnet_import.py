"""Import of GraphNeT's, NuBench's and Prometheus' files: Parquet, and SQLite databases."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from direction_files import read_arrays
from neutrino_files import (
    Neutrino,
    assert_imported,
    database_of,
    events_in,
    import_with,
    neutrinos,
    sensors,
    write_database,
    write_flat,
    write_nested,
)

from common.errors import BadInputError
from icestream.verbs import FrontDoor
from tests.workloads.direction.fake_predictor import task_of, write_checkpoint
from workloads.base.batch import Batch
from workloads.direction import importers
from workloads.direction.columns import CASCADE, TRACK, UNKNOWN
from workloads.direction.commands import evaluate, predict
from workloads.direction.foreign_events import topology
from workloads.direction.geometry import GEOMETRY_FILE, WATER, read_geometry, write_geometry
from workloads.direction.grouping import unit_vectors
from workloads.direction.prediction import microbatch_of
from workloads.direction.seeds import run_seeds


def test_sensors_are_those_of_all_files_if_there_is_no_table_of_them(tmp_path: Path) -> None:
    parts = [neutrinos([30, 30]), neutrinos([40], 1, first_id=100)]
    for part, events in enumerate(parts):
        write_flat(tmp_path, events, part=part)
    import_with(tmp_path, tmp_path / "out")
    position_S3 = read_geometry(tmp_path / "out" / GEOMETRY_FILE).position_S3
    assert len(position_S3) == len(
        {sensor for events in parts for event in events for sensor in event.pulses["sensor_id"]}
    )
    assert position_S3[:, 0].tolist() == sorted(position_S3[:, 0].tolist())
    for part, events in enumerate(parts):
        for row, event in zip(events_in(tmp_path / "out" / f"pulses_{part}.parquet"), events, strict=True):
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


def test_events_without_pulses_are_left_out_and_energies_that_are_not_known_are_zero(tmp_path: Path) -> None:
    events = neutrinos([3, 5])
    events.insert(1, Neutrino(9, 1.0, 1.0, events[0].pulses[:0]))
    write_flat(tmp_path / "flat", events, energy=np.array([-1.0, 5.0, np.nan]))
    write_nested(tmp_path / "nested.parquet", events, ids=True)
    for place, name, energies in (("flat", "pulses_0", [0.0, 0.0]), ("nested.parquet", "nested", [100.0, 100.0])):
        output = import_with(tmp_path / place, tmp_path / "out" / name)
        assert "2 events, 8 particles, 1 events without particles left out; " in output
        table = pq.read_table(tmp_path / "out" / name / f"{name}.parquet")
        assert (table["event_id"].to_pylist(), table["true_energy"].to_pylist()) == ([0, 7], energies)


def test_nested_events_without_ids_get_the_same_ones_at_every_import(tmp_path: Path) -> None:
    ids = []
    for out in ("one", "two"):
        for name in ("a", "b"):
            import_with(write_nested(tmp_path / f"{name}.parquet", neutrinos([3, 2, 4])), tmp_path / out / name)
            ids += [row["event_id"] for row in events_in(tmp_path / out / name / f"{name}.parquet")]
    assert ids[:6] == ids[6:]
    assert len(set(ids)) == 6


def test_the_kind_of_an_event_follows_from_particle_and_interaction() -> None:
    particle = np.array([14, -14, 14, 12, -12, 16, 16, 13, 14, 0])
    interaction = np.array([1, 1, 2, 1, 2, 1, 2, 0, np.nan, 1])
    wanted = [TRACK, TRACK, CASCADE, CASCADE, CASCADE, UNKNOWN, CASCADE, TRACK, UNKNOWN, UNKNOWN]
    assert topology(particle, interaction, len(particle)).tolist() == wanted
    assert topology(None, None, 2).tolist() == [UNKNOWN, UNKNOWN]


NESTED_ERRORS = {
    "lengths": ({"t": [1.0]}, "column 'photons', 't', row 0: 1 values, but 'sensor_pos_x' has 2; expected one a pulse"),
    "no list": ({"t": 1.0}, "structs with a direction: mc_truth; with lists of pulses: none; expected one of each"),
}


@pytest.mark.parametrize(("lists", "told"), NESTED_ERRORS.values(), ids=NESTED_ERRORS.keys())
def test_wrong_nested_files_are_named(tmp_path: Path, lists: dict[str, Any], told: str) -> None:
    path = write_nested(tmp_path / "photons.parquet", neutrinos([2, 2]), **lists)
    with pytest.raises(BadInputError, match=re.escape(told)):
        import_with(path, tmp_path / "out", "--from", "graphnet")


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


SAMPLE = Path(__file__).resolve().parents[2] / "data" / "graphnet"


def offsets_of_light(out: Path, vertex_E3: np.ndarray) -> np.ndarray:
    """Mean place of each event's pulses as seen from the vertex, along its imported direction. (E,)."""
    position_S3 = read_geometry(out.parent / GEOMETRY_FILE).position_S3
    rows = events_in(out)
    direction_E3 = unit_vectors(np.array([(row["azimuth"], row["zenith"]) for row in rows]))
    light_E3 = [position_S3[[pulse["sensor_id"] for pulse in row["pulses"]]].mean(0) for row in rows]
    from_vertex_E3 = np.array(light_E3) - vertex_E3
    return (from_vertex_E3 * direction_E3).sum(1) / np.linalg.norm(from_vertex_E3, axis=1)


def test_graphnets_own_database_is_imported_and_its_neutrinos_fly_away_from_their_source(tmp_path: Path) -> None:
    assert "50 events, 1,872 particles; " in import_with(SAMPLE / "prometheus-events.db", tmp_path)
    out = tmp_path / "prometheus-events-total-00000.parquet"
    position = "sensor_pos_x, sensor_pos_y, sensor_pos_z"
    truth = "injection_energy, injection_azimuth, injection_zenith, injection_position_x, injection_position_y"
    with closing(sqlite3.connect(SAMPLE / "prometheus-events.db")) as database:
        query = f"SELECT event_no, {truth}, injection_position_z FROM mc_truth ORDER BY event_no"
        truth_E7 = np.array(database.execute(query).fetchall())
        query = f"SELECT event_no, {position}, t, 1, 0 FROM total ORDER BY event_no, t"
        pulses_P7 = np.array(database.execute(query).fetchall())
    rows = events_in(out)
    position_S3 = read_geometry(tmp_path / GEOMETRY_FILE).position_S3
    found = [
        (row["event_id"], *position_S3[pulse["sensor_id"]], *list(pulse.values())[1:])
        for row in rows
        for pulse in sorted(row["pulses"], key=lambda pulse: pulse["time_ns"])
    ]
    assert np.array(found) == pytest.approx(pulses_P7, abs=0.01)
    table = pq.read_table(out)
    columns = [table[name].to_numpy() for name in ("event_id", "true_energy", "azimuth", "zenith")]
    assert np.stack(columns, 1) == pytest.approx(truth_E7[:, :4])
    assert set(table["topology"].to_pylist()) == {TRACK}
    assert offsets_of_light(out, truth_E7[:, 4:]).mean() < -0.2


def test_the_angles_of_newer_prometheus_are_those_of_travel_and_are_turned(tmp_path: Path) -> None:
    with suppress(KeyError):  # a type of the file's, if another test has imported awkward; no command does
        pa.unregister_extension_type("awkward")
    import_with(SAMPLE / "22980001_photons.parquet", tmp_path)
    rows = pq.read_table(SAMPLE / "22980001_photons.parquet").to_pylist()
    truth = [row["mc_truth"] for row in rows if row["photons"]["t"]]
    vertex_E3 = np.array([[event[f"initial_state_{axis}"] for axis in "xyz"] for event in truth])
    assert offsets_of_light(tmp_path / "22980001_photons.parquet", vertex_E3).mean() < -0.4


EXAMPLES = [["prometheus-events.db"], ["22980001_photons.parquet", "../geometries/flower_l.parquet"]]
"""Files in SAMPLE, the second with the table of all its sensors."""


@pytest.mark.slow
@pytest.mark.parametrize("names", EXAMPLES, ids=["sqlite", "nested"])
def test_graphnets_own_events_go_all_the_way_from_their_files_to_the_page_of_an_evaluation(
    tmp_path: Path, names: Sequence[str]
) -> None:
    """Both are of water, which their files don't tell: the column is added to the table of sensors."""
    with suppress(KeyError):
        pa.unregister_extension_type("awkward")
    import_with(*(SAMPLE / name for name in names), tmp_path / "events")
    imported = read_geometry(tmp_path / "events" / GEOMETRY_FILE)
    write_geometry(tmp_path / "events" / GEOMETRY_FILE, replace(imported, medium=WATER))
    files = sorted((tmp_path / "events").glob("*.parquet"))
    run_seeds(files, tmp_path / "seeds", None, 1, force=False)
    arrays = read_arrays(tmp_path / "seeds" / files[0].name)
    task = task_of(tmp_path / "seeds", warmup_steps=0)
    for _ in range(3):
        assert task.step(Batch((microbatch_of(arrays, torch.device("cpu")),)))["skipped_updates"] == 0
    checkpoint = str(write_checkpoint(tmp_path / "step-3.pt", task))

    inputs = ["-i", str(tmp_path / "seeds")]
    for verb, *options in ((predict, "-o", str(tmp_path / "out.csv")), (evaluate, "--bootstraps", "3")):
        answer = CliRunner().invoke(verb, [checkpoint, *inputs, *options], obj=FrontDoor(), catch_exceptions=False)
        assert answer.exit_code == 0, answer.output

    num_events = len(arrays.offsets) - 1
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 1 + num_events
    (page,) = tmp_path.rglob("report.html")
    report = json.loads(page.with_name("report.json").read_text())
    assert report["events"] == num_events
    assert 0 < report["metrics"]["angle_median_deg"]["value"] < 180
    write_geometry(tmp_path / "seeds" / GEOMETRY_FILE, imported)
    with pytest.raises(BadInputError, match="by number, place and medium: use events of its detector"):
        CliRunner().invoke(predict, [checkpoint, *inputs, "-o", "x.csv"], obj=FrontDoor(), catch_exceptions=False)


def nubench(folder: Path, train: Sequence[Neutrino], test: Sequence[Neutrino]) -> Path:
    """A data set of NuBench: a table of pulses for training, another one for testing, and both selections."""
    tables, truths = {}, []
    (folder / "selections").mkdir(parents=True)
    for split, name, events in (("train", "merged_photons", train), ("test", "pulses_no_noise", test)):
        travel = {
            "initial_state_zenith": [np.pi - event.zenith for event in events],
            "initial_state_azimuth": [event.azimuth - np.pi for event in events],
            "initial_state_energy": pa.nulls(len(events), pa.float64()),
        }
        made = write_flat(folder / "made" / split, events, azimuth=None, zenith=None, **travel)
        tables[name] = pq.read_table(made / "pulses" / "pulses_0.parquet")
        truths.append(pq.read_table(made / "truth" / "truth_0.parquet"))
        selection = pa.table({"event_no": truths[-1]["event_no"][::-1]})
        pq.write_table(selection, folder / "selections" / f"{split}_selection.parquet")
    write_database(folder / "merged" / "merged.db", {"mc_truth": pa.concat_tables(truths), **tables})
    return folder


def test_each_selection_of_nubench_is_imported_from_its_own_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importers, "_EVENTS_A_FILE", 3)
    train, test = neutrinos([4, 9, 1, 30, 2]), neutrinos([5, 6], 1, first_id=100)
    folder, out = nubench(tmp_path / "hexagon", train, test), tmp_path / "out"
    write_geometry(folder / GEOMETRY_FILE, sensors())
    import_with(folder, out)
    stems = sorted(path.stem.removeprefix("merged-") for path in out.glob("*.parquet"))
    assert stems == ["merged_photons-train-00000", "merged_photons-train-00001", "pulses_no_noise-test-00000"]
    assert_imported(out, "*-train-*", train)
    assert_imported(out, "*-test-*", test)
    assert pq.read_table(out / "merged-pulses_no_noise-test-00000.parquet")["true_energy"].to_pylist() == [0.0] * 2
    # A selection and a table of sensors of one's own, of the database alone.
    (folder / GEOMETRY_FILE).unlink()
    x, y, z = sensors().position_S3.T
    pq.write_table(pa.table({"dom_x": x, "dom_y": y, "dom_z": z, "dom_time": x}), tmp_path / "sensors.parquet")
    (tmp_path / "mine.csv").write_text("azimuth,zenith,event_no\n1,1,7\n1,1,21\n")
    import_with(folder / "merged" / "merged.db", tmp_path / "mine.csv", tmp_path / "sensors.parquet", tmp_path / "own")
    assert len(read_geometry(tmp_path / "own" / GEOMETRY_FILE)) == len(sensors())
    (tmp_path / "mine.csv").write_text("event_no\n")
    with pytest.raises(BadInputError, match="no table of pulses with event_no"):
        import_with(folder / "merged" / "merged.db", tmp_path / "mine.csv", tmp_path / "none")
    found = events_in(tmp_path / "own" / "merged-merged_photons-mine-00000.parquet")
    assert [(row["event_id"], len(row["pulses"])) for row in found] == [(7, 9), (21, 30)]


ATTACKS = {
    "a view": ("DROP TABLE pulses; CREATE VIEW pulses AS SELECT * FROM truth", "1 tables with a direction and 0 with"),
    "a computed column": ("ALTER TABLE pulses RENAME dom_time TO u; ALTER TABLE pulses ADD t AS (abs(u))", "and 0"),
    "a text": ("UPDATE pulses SET dom_time = 'now' WHERE event_no = 7", "row 2: the value is null, or of another type"),
    "a blob": ("UPDATE truth SET zenith = zeroblob(99)", "column 'zenith', row 0: the value is null, or of another"),
    "no index": ("DROP INDEX event_no_pulses", 'it has no index on event_no; make one: CREATE INDEX i ON "pulses"'),
    "a path": ('ALTER TABLE pulses RENAME TO "../../x"', "table '../../x' would name files; expected letters"),
    "two truths": ("CREATE TABLE more AS SELECT * FROM truth", "2 tables with a direction and 1 with"),
    "an event without truth": ("UPDATE pulses SET event_no = 99 WHERE event_no = 7", "event 99: it is not in"),
    "an event before all": ("UPDATE pulses SET event_no = -9 WHERE event_no = 7", "event -9: it is not in"),
}


@pytest.mark.parametrize(("change", "told"), ATTACKS.values(), ids=ATTACKS.keys())
def test_a_database_is_not_trusted(tmp_path: Path, change: str, told: str) -> None:
    path = database_of(write_flat(tmp_path, neutrinos([2, 3])))
    with closing(sqlite3.connect(path)) as database:
        database.executescript(change)
    before = path.read_bytes()
    with pytest.raises(BadInputError, match=re.escape(told)) as error:
        import_with(path, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert path.read_bytes() == before
    assert list(tmp_path.rglob("out/*.parquet")) == []


def test_a_database_that_is_damaged_or_being_written_is_named(tmp_path: Path) -> None:
    path = database_of(write_flat(tmp_path, neutrinos([200, 300])))
    (tmp_path / "flat.db-wal").write_bytes(b"pages")
    with pytest.raises(BadInputError, match=r"flat\.db-wal: a change of the database is under way"):
        import_with(path, tmp_path / "out")
    (tmp_path / "flat.db-wal").unlink()
    path.write_bytes(path.read_bytes()[:5000] + b"\xff" * 9000)
    with pytest.raises(BadInputError, match=r"flat\.db: can't be read as SQLite \(.*malformed.*\); get the file again"):
        import_with(path, tmp_path / "out")


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_sqlite", None)  # as if it were not there
    told = r"events\.db: SQLite needs: pip install -c constraints\.txt '\.\[sqlite\]' \(in the clone\)$"
    with pytest.raises(BadInputError, match=told):
        import_with(SAMPLE / "prometheus-events.db", tmp_path / "out")


KILLED = """
import os, sys
import pyarrow.parquet as pq
from icestream.commands.convert import convert
from workloads.direction import importers
importers._EVENTS_A_FILE = 4
write, calls = pq.ParquetWriter.write_table, iter(range(1, 99))
def write_or_die(*args, **kwargs):  # at the last group of the third file: each file begins with an empty one
    os.kill(os.getpid(), 9) if next(calls) == 9 else write(*args, **kwargs)
pq.ParquetWriter.write_table = write_or_die
convert(sys.argv[1:])
"""


@pytest.mark.process
def test_an_import_that_was_killed_goes_on_and_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importers, "_EVENTS_A_FILE", 4)
    path = database_of(write_flat(tmp_path, neutrinos([3, 1, 7, 2] * 4)))
    arguments = [str(path), str(tmp_path / "killed"), "--rows-per-group", "2"]
    assert subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False).returncode == -signal.SIGKILL
    assert len(list((tmp_path / "killed").glob("*.parquet"))) == 2
    output = import_with(*arguments)
    assert output.count(" is there: skipped") == 2
    import_with(str(path), tmp_path / "whole", "--rows-per-group", "2")
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").glob("*.parquet")}
    assert len(whole) == 4
    assert {path.name: path.read_bytes() for path in (tmp_path / "killed").glob("*.parquet")} == whole
    # The database has changed, in place and without another size: what was made from it is not taken for its import.
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE truth SET zenith = 1.0")
    with pytest.raises(BadInputError, match=r"4 of 4 files were not imported; the first: .* not made from flat\.db"):
        import_with(*arguments)
