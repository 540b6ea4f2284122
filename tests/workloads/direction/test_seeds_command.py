"""Tests of `icestream seeds`: files with their classical fits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from direction_files import event_rows, read_arrays, write_direction_file

from common.errors import BadInputError
from workloads.direction.commands import seeds
from workloads.direction.fits import classical_fits
from workloads.direction.geometry import GEOMETRY_FILE, WATER, Geometry, hex_geometry, read_geometry, write_geometry

COUNTS = (12, 0, 30, 0, 0)  # the second row group has no pulses


def write_events(path: Path, seed: int = 0, *, sensor: int = 0, time_ns: float = 1e4) -> None:
    """A file of five events of random pulses, the first of which is this one."""
    rows = event_rows(COUNTS, first=100 * seed)
    rows.particle_columns["sensor"][0], rows.particle_columns["pulses"][0, 0] = sensor, time_ns
    write_direction_file(path, rows, row_group_rows=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files, and the table of sensors."""
    folder = tmp_path / "events"
    folder.mkdir()
    for seed, name in enumerate(("a.parquet", "b.parquet")):
        write_events(folder / name, seed)
    write_geometry(folder / GEOMETRY_FILE, hex_geometry())
    return folder


def run(*arguments: str | Path, processes: int = 1) -> Result:
    return CliRunner().invoke(seeds, [*map(str, arguments), "--processes", str(processes)])


def done(*arguments: str | Path, processes: int = 1) -> str:
    """Output of a command that ends well."""
    result = run(*arguments, processes=processes)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_fits_are_added_and_all_else_stays(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "10 events, 84 pulses in 2 files" in done(folder, "-o", out)
    assert np.array_equal(read_geometry(out / GEOMETRY_FILE).position_S3, hex_geometry().position_S3)
    for name in ("a.parquet", "b.parquet"):
        before, after = pq.ParquetFile(folder / name), pq.ParquetFile(out / name)
        assert after.schema_arrow == before.schema_arrow
        sizes = [[file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)] for file in (before, after)]
        assert sizes == [[3, 2], [3, 2]]
        old, new = before.read(), after.read()
        assert new.drop_columns("classical_fits") == old.drop_columns("classical_fits")
        arrays = read_arrays(folder / name)
        columns = (row for column in ("sensor", "pulses", "auxiliary") for row in arrays.particle_columns[column].T)
        expected = classical_fits(*columns, arrays.offsets, hex_geometry())
        assert np.allclose(np.array(new["classical_fits"].to_pylist()), expected, rtol=1e-3, atol=0.05)
        assert expected.any(1).all()


def test_files_that_are_there_are_skipped(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    done(folder / "a.parquet", "-o", out)
    before = (out / "a.parquet").stat().st_mtime_ns
    output = done(folder, "-o", out)
    for told in (f"{out / 'a.parquet'} is there: skipped", "5 events", "1 were there"):
        assert told in output
    assert (out / "a.parquet").stat().st_mtime_ns == before
    monkeypatch.setattr("workloads.direction.seeds._VERSION", -1)
    assert "as it is by this version: choose" in refused(folder, "-o", out)
    made, places = pq.ParquetWriter, []
    monkeypatch.setattr(pq, "ParquetWriter", lambda at, *rest, **more: places.append(at) or made(at, *rest, **more))
    assert "10 events" in done(folder, "-o", out, "--force")
    assert (out / "a.parquet").stat().st_mtime_ns > before
    assert [place.parent.name for place in places] == ["fd", "fd"], "a name may be a link a moment later"


@pytest.mark.process
@pytest.mark.slow
def test_several_processes_write_the_same_files_as_one(folder: Path, tmp_path: Path) -> None:
    done(folder, "-o", tmp_path / "one")
    assert "in 2 processes" in done(folder, "-o", tmp_path / "two", processes=2)
    for name in ("a.parquet", "b.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def refused(*arguments: str | Path) -> str:
    """Message of the user error that ends the command, and what it printed before."""
    result = run(*arguments)
    assert isinstance(result.exception, BadInputError), result.output
    return f"{result.output}{result.exception}"


def test_a_folder_without_a_table_of_sensors_needs_one_by_name(folder: Path, tmp_path: Path) -> None:
    (folder / GEOMETRY_FILE).rename(tmp_path / "sensors.csv")
    assert "no sensor_geometry.csv (positions of the sensors) in" in refused(folder, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    done(folder, "-o", tmp_path / "out", "--geometry", tmp_path / "sensors.csv")


def test_files_of_two_detectors_or_of_the_same_name_are_not_done_at_once(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_events(other / "a.parquet")
    write_geometry(other / GEOMETRY_FILE, hex_geometry())
    assert "would both become" in refused(folder, other, "-o", tmp_path / "out")
    for geometry in (Geometry(hex_geometry().position_S3 + 1), Geometry(hex_geometry().position_S3, WATER)):
        write_geometry(other / GEOMETRY_FILE, geometry)
        assert "differ: do the files of one detector at a time" in refused(folder, other, "-o", tmp_path / "out")


def test_an_output_of_other_events_of_the_same_number_is_not_taken_for_done(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done(folder / "a.parquet", "-o", out)
    write_events(folder / "a.parquet", seed=7)
    assert "exists, and was not made from" in refused(folder / "a.parquet", "-o", out)
    done(folder / "a.parquet", "-o", out, "--force")
    assert pq.read_table(out / "a.parquet")["event_id"][0].as_py() == 700
    write_geometry(tmp_path / "water.csv", Geometry(hex_geometry().position_S3, WATER))
    assert "or another medium" in refused(folder / "a.parquet", "-o", out, "--geometry", tmp_path / "water.csv")
    (out / GEOMETRY_FILE).unlink()
    assert "exists, and was not made" in refused(folder / "a.parquet", "-o", out, "--geometry", tmp_path / "water.csv")
    (out / GEOMETRY_FILE).write_bytes((folder / GEOMETRY_FILE).read_bytes())
    done(out / "a.parquet", "-o", tmp_path / "again")  # what is noted in the input is not what the output is of
    assert "1 were there" in done(out / "a.parquet", "-o", tmp_path / "again")


def test_an_output_is_no_input_and_no_input_is_replaced(folder: Path) -> None:
    assert "would be replaced by itself: name another folder with -o" in refused(folder, "-o", folder)
    done(folder, "-o", folder / "out")
    again = done(folder, "-o", folder / "out")
    assert "0 events" in again
    assert "2 were there" in again


def test_a_bad_file_is_named_and_the_others_are_done(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (folder / "aa.parquet").write_bytes(b"PAR1 nothing of the kind PAR1")
    pq.write_table(pa.table({"event_id": [1]}), folder / "ab.parquet")
    write_events(folder / "ac.parquet", sensor=32_000)
    write_events(folder / "ad.parquet", time_ns=float("nan"))
    whole = (folder / "a.parquet").read_bytes()
    (folder / "ae.parquet").write_bytes(whole[:40] + bytes(9) + whole[49:])  # in a page of data
    message = refused(folder, "-o", out)
    assert "5 of 7 files were not done" in message
    assert "but the geometry has the sensors 0 to 5459" in message
    assert "event 0: pulses.time_ns is nan; expected finite numbers" in message
    for name in ("aa", "ab", "ac", "ad", "ae"):
        assert str(folder / f"{name}.parquet") in message
    assert sorted(path.name for path in out.iterdir()) == ["a.parquet", "b.parquet", GEOMETRY_FILE]


def test_an_input_without_files_is_named(tmp_path: Path) -> None:
    assert "no such file, or no data file in it" in refused(tmp_path / "none", "-o", tmp_path / "out")
    assert "//osg/a.parquet: not a local file" in refused("pelican://osg/a.parquet", "-o", tmp_path / "out")
