"""Import of GraphNeT's and NuBench's SQLite databases."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from neutrino_files import Neutrino, database_of, events_in, expected, import_with, neutrinos, sensors, write_database
from neutrino_files import write_flat as flat_tables

from common.errors import BadInputError
from workloads.direction import importers
from workloads.direction.columns import TRACK
from workloads.direction.geometry import GEOMETRY_FILE, read_geometry, write_geometry
from workloads.direction.grouping import unit_vectors

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
    with closing(sqlite3.connect(SAMPLE / "prometheus-events.db")) as database:
        truth = database.execute(
            "SELECT event_no, injection_azimuth, injection_zenith, injection_position_x, injection_position_y, "
            "injection_position_z FROM mc_truth ORDER BY event_no"
        ).fetchall()
        pulses = database.execute(
            "SELECT event_no, sensor_pos_x, sensor_pos_y, sensor_pos_z, t FROM total ORDER BY event_no, t"
        ).fetchall()
    rows = events_in(out)
    assert [row["event_id"] for row in rows] == [event for event, *_ in truth]
    angles = [(row["azimuth"], row["zenith"]) for row in rows]
    assert np.array(angles) == pytest.approx(np.array([row[1:3] for row in truth]))
    position_S3 = read_geometry(tmp_path / GEOMETRY_FILE).position_S3
    found = [
        (row["event_id"], *position_S3[pulse["sensor_id"]], pulse["time_ns"])
        for row in rows
        for pulse in sorted(row["pulses"], key=lambda pulse: pulse["time_ns"])
    ]
    assert np.array(found) == pytest.approx(np.array(pulses), abs=0.01)
    table = pq.read_table(out)
    assert set(table["topology"].to_pylist()) == {TRACK}
    assert table["true_energy"][0].as_py() == pytest.approx(11.047, abs=1e-3)
    assert offsets_of_light(out, np.array([row[3:] for row in truth])).mean() < -0.2


def test_the_angles_of_newer_prometheus_are_those_of_travel_and_are_turned(tmp_path: Path) -> None:
    import_with(SAMPLE / "22980001_photons.parquet", tmp_path)
    rows = pq.read_table(SAMPLE / "22980001_photons.parquet").to_pylist()
    truth = [row["mc_truth"] for row in rows if row["photons"]["t"]]
    vertex_E3 = np.array([[event[f"initial_state_{axis}"] for axis in "xyz"] for event in truth])
    assert offsets_of_light(tmp_path / "22980001_photons.parquet", vertex_E3).mean() < -0.4


def nubench(folder: Path, splits: Mapping[str, Sequence[Neutrino]]) -> Path:
    """A data set of NuBench: a table of pulses for training, another one for testing, and both selections."""
    tables: dict[str, pa.Table] = {}
    truth: list[dict[str, float | None]] = []
    for split, events in splits.items():
        pulses = pq.read_table(flat_tables(folder / "made" / split, events) / "pulses" / "pulses_0.parquet")
        names = ["sensor_pos_x", "sensor_pos_y", "sensor_pos_z", "t", "charge", "hlc", "event_no"]
        tables[{"train": "merged_photons", "test": "pulses_no_noise"}[split]] = pulses.rename_columns(names)
        selection = folder / "selections" / f"{split}_selection.parquet"
        selection.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"event_no": [event.event_id for event in events][::-1]}), selection)
        for event in events:
            travel = {"zenith": np.pi - event.zenith, "azimuth": event.azimuth - np.pi, "energy": None, "type": 14}
            truth.append({f"initial_state_{name}": value for name, value in travel.items()})
            truth[-1] |= {"event_no": event.event_id, "interaction": 1}
    write_database(folder / "merged" / "merged.db", {"mc_truth": pa.Table.from_pylist(truth), **tables})
    return folder


def assert_imported(folder: Path, pattern: str, events: Sequence[Neutrino]) -> None:
    found = [row for path in sorted(folder.glob(pattern)) for row in events_in(path)]
    for row, event in zip(found, events, strict=True):
        wanted = expected(event)
        for angle in ("azimuth", "zenith"):
            assert row.pop(angle) == pytest.approx(wanted.pop(angle), abs=1e-6)
        assert row == wanted


def test_each_selection_of_nubench_is_imported_from_its_own_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importers, "_EVENTS_A_FILE", 3)
    train, test = neutrinos([4, 9, 1, 30, 2]), neutrinos([5, 6], 1, first_id=100)
    folder, out = nubench(tmp_path / "hexagon", {"train": train, "test": test}), tmp_path / "out"
    write_geometry(folder / GEOMETRY_FILE, sensors())
    import_with(folder, out)
    names = [
        "merged-merged_photons-train-00000",
        "merged-merged_photons-train-00001",
        "merged-pulses_no_noise-test-00000",
    ]
    assert sorted(path.stem for path in out.glob("*.parquet")) == names
    assert_imported(out, "*-train-*", train)
    assert_imported(out, "*-test-*", test)
    paths = list(out.glob("*.parquet"))
    assert pq.read_table(paths)["true_energy"].to_pylist() == [0.0] * 7
    # A selection and a table of sensors of one's own, of the database alone.
    (folder / GEOMETRY_FILE).unlink()
    x, y, z = sensors().position_S3.T
    pq.write_table(pa.table({"dom_x": x, "dom_y": y, "dom_z": z, "dom_time": x}), tmp_path / "sensors.parquet")
    (tmp_path / "mine.csv").write_text(",event_no\n0,7\n1,21\n")
    import_with(folder / "merged" / "merged.db", tmp_path / "mine.csv", tmp_path / "sensors.parquet", tmp_path / "own")
    assert len(read_geometry(tmp_path / "own" / GEOMETRY_FILE)) == len(sensors())
    found = events_in(tmp_path / "own" / "merged-merged_photons-mine-00000.parquet")
    assert [(row["event_id"], len(row["pulses"])) for row in found] == [(7, 9), (21, 30)]


ATTACKS = {
    "a view": ("DROP TABLE pulses; CREATE VIEW pulses AS SELECT * FROM truth", "1 tables with a direction and 0 with"),
    "a computed column": (
        "ALTER TABLE pulses RENAME dom_time TO u; ALTER TABLE pulses ADD t AS (abs(u))",
        "and 0 with",
    ),
    "a text": ("UPDATE pulses SET dom_time = 'now' WHERE event_no = 7", "row 2: the value is null, or of another type"),
    "a blob": ("UPDATE truth SET zenith = zeroblob(99)", "column 'zenith', row 0: the value is null, or of another"),
    "no index": ("DROP INDEX event_no_pulses", 'it has no index on event_no; make one: CREATE INDEX i ON "pulses"'),
    "a path": ('ALTER TABLE pulses RENAME TO "../../x"', "'flat-../../x' would name files; expected letters"),
    "a quote": ('ALTER TABLE pulses RENAME TO "x"";DROP"', "would name files; expected letters and digits"),
    "two truths": (
        "CREATE TABLE more AS SELECT * FROM truth",
        "2 tables with a direction and 1 with",
    ),
    "an event without truth": ("UPDATE pulses SET event_no = 99 WHERE event_no = 7", "event 99: it is not in"),
    "an event before all": ("UPDATE pulses SET event_no = -9 WHERE event_no = 7", "event -9: it is not in"),
    "no number": ("UPDATE pulses SET dom_x = 9e999", "row 0: its position is [inf,"),
}


@pytest.mark.parametrize(("change", "told"), ATTACKS.values(), ids=ATTACKS.keys())
def test_a_database_is_not_trusted(tmp_path: Path, change: str, told: str) -> None:
    path = database_of(flat_tables(tmp_path, neutrinos([2, 3])))
    with closing(sqlite3.connect(path)) as database:
        database.executescript(change)
    before = path.read_bytes()
    with pytest.raises(BadInputError, match=re.escape(told)) as error:
        import_with(path, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert path.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir() if one.name != "out") == ["flat.db", "pulses", "truth"]
    assert list(tmp_path.rglob("out/*.parquet")) == []


def test_a_database_that_is_damaged_or_being_written_is_named(tmp_path: Path) -> None:
    path = database_of(flat_tables(tmp_path, neutrinos([200, 300])))
    (tmp_path / "flat.db-wal").write_bytes(b"pages")
    with pytest.raises(BadInputError, match=r"flat\.db-wal: a change of the database is under way"):
        import_with(path, tmp_path / "out")
    (tmp_path / "flat.db-wal").unlink()
    path.write_bytes(path.read_bytes()[:5000] + b"\xff" * 9000)
    with pytest.raises(BadInputError, match=r"flat\.db: can't be read as SQLite \(.*malformed.*\); get the file again"):
        import_with(path, tmp_path / "out")


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_sqlite", None)  # as if it were not there
    path = database_of(flat_tables(tmp_path, neutrinos([2])))
    told = r"flat\.db: SQLite needs: pip install -c constraints\.txt '\.\[sqlite\]' \(in the clone\)$"
    with pytest.raises(BadInputError, match=told):
        import_with(path, tmp_path / "out")


KILLED = """
import os, signal, sys
import pyarrow.parquet as pq
from workloads.direction import importers
from icestream.commands.convert import convert
importers._EVENTS_A_FILE = 4
write, done = pq.ParquetWriter.write_table, []
def write_table(self, *args, **options):
    done.append(1)
    if len(done) == 9:  # the last group of the third file: each begins with an empty one
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, *args, **options)
pq.ParquetWriter.write_table = write_table
convert(sys.argv[1:])
"""


@pytest.mark.process
def test_an_import_that_was_killed_goes_on_and_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importers, "_EVENTS_A_FILE", 4)
    path = database_of(flat_tables(tmp_path, neutrinos([3, 1, 7, 2] * 4)))
    arguments = [str(path), str(tmp_path / "killed"), "--rows-per-group", "2"]
    assert subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False).returncode == -signal.SIGKILL
    assert len(list((tmp_path / "killed").glob("*.parquet"))) == 2
    output = import_with(*arguments)
    assert output.count(" is there: skipped") == 2
    assert output.count(": 4 events, 13 particles; ") == 2
    import_with(str(path), tmp_path / "whole", "--rows-per-group", "2")
    killed, whole = (
        {one.name: one.read_bytes() for one in sorted((tmp_path / out).glob("*.parquet"))}
        for out in ("killed", "whole")
    )
    assert len(whole) == 4
    assert killed == whole
    # The database has changed, in place and without another size: what was made from it is not taken for its import.
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE truth SET zenith = 1.0")
    with pytest.raises(BadInputError, match=r"4 of 4 files were not imported; the first: .* not made from flat\.db"):
        import_with(*arguments)
