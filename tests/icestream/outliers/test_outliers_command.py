from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from muon_files import make_events, make_table
from outlier_files import names, rows_of, unit_path, write_unit

from common.errors import BadInputError
from common.file_lock import RunLock, RunPart
from icestream.commands.outliers.command import outliers
from services.decoder.outliers import Outliers, write_outliers
from workloads.muons.columns import MUONS


def run(*arguments: object) -> Result:
    command = ["compact", *(str(argument) for argument in arguments)]
    return CliRunner().invoke(outliers, command, catch_exceptions=False)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for k in range(5):
        write_unit(tmp_path / "outliers", k, [9, 8])
    return tmp_path


@pytest.mark.parametrize("inner", ["", "outliers"])
def test_the_run_directory_or_its_folder_may_be_named(run_dir: Path, inner: str) -> None:
    text = run(run_dir / inner).stdout
    assert "5 unit files and 0 shards" in text
    assert "merged into 1 shards" in text
    assert "10 events; 5 files removed" in text
    assert len(names(run_dir / "outliers")) == 1
    assert "nothing to merge" in run(run_dir / inner).stdout


@pytest.fixture
def sharded_dir(tmp_path: Path) -> Path:
    """Three shards, of which one has no outliers, and outliers of a plan without shards before."""
    (tmp_path / "config.json").write_text("{}")
    for folder, units in (("outliers", 1), ("shards/000/outliers", 2), ("shards/002/outliers", 3)):
        (tmp_path / folder).mkdir(parents=True)
        for k in range(units):
            write_unit(tmp_path / folder, k, [9, 8])
    (tmp_path / "shards" / "001" / "status").mkdir(parents=True)
    return tmp_path


def test_the_directory_of_a_run_in_shards_stands_for_all_of_them(sharded_dir: Path) -> None:
    lines = run(sharded_dir).stdout.splitlines()
    found = [(line.partition(": ")[0], line.partition(": ")[2].partition(" unit files")[0]) for line in lines]
    inside = ("outliers", "shards/000/outliers", "shards/002/outliers")
    assert found == [(str(sharded_dir / name), str(number)) for name, number in zip(inside, (1, 2, 3), strict=True)]
    assert [len(rows_of(sharded_dir / name)) for name in inside] == [2, 4, 6]
    assert all(name.startswith("shard-") for folder in inside for name in names(sharded_dir / folder))
    assert len(run(sharded_dir / "shards" / "002").stdout.splitlines()) == 1


@pytest.mark.parametrize("inner", ["", "shards/000", "shards/000/outliers"])
@pytest.mark.parametrize(("of", "part"), [("", "run"), ("", "trainer"), ("shards/000", "fetcher")])
def test_the_outliers_of_a_shard_of_an_active_run_are_left_alone(
    sharded_dir: Path, inner: str, of: str, part: RunPart
) -> None:
    with RunLock(sharded_dir / of, part, part), pytest.raises(BadInputError, match="the run is in use by"):
        run(sharded_dir / inner)
    assert "unit-0000000001.parquet" in names(sharded_dir / "shards" / "000" / "outliers")


def test_a_dry_run_says_so(run_dir: Path) -> None:
    text = run(run_dir, "--dry-run", "--shard-mib", 3).stdout
    assert "would merge 5 unit files" in text
    assert "shards of 3 MiB" in text
    assert len(names(run_dir / "outliers")) == 5


def test_unit_files_stay_if_asked(run_dir: Path) -> None:
    assert "0 files removed" in run(run_dir, "--keep").stdout
    assert len(names(run_dir / "outliers")) == 6
    assert "nothing to merge" in run(run_dir, "--keep").stdout
    assert "would remove 5 files" in run(run_dir, "--dry-run").stdout
    assert "5 files removed" in run(run_dir).stdout
    assert len(rows_of(run_dir / "outliers")) == 10


def test_a_small_shard_size_gives_several(run_dir: Path) -> None:
    assert "merged into 5 shards" in run(run_dir, "--shard-mib", 0.0001).stdout


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such directory"):
        run(tmp_path / "nowhere")


def test_invalid_events_of_a_run_are_merged_by_the_name_of_their_folder(tmp_path: Path) -> None:
    for k in range(3):
        path = unit_path(tmp_path / "invalid", k)
        events = make_table(make_events([2]))
        write_outliers(path, [Outliers([f"f{k}.parquet"], np.array([7]), events, reasons=["no NaN"])], MUONS)
    assert "3 events; 3 files removed" in run(tmp_path / "invalid").stdout
    rows = rows_of(tmp_path / "invalid")
    assert [(row["source_file"], row["source_row"], row["reason"]) for row in rows] == [
        (f"f{k}.parquet", 7, "no NaN") for k in range(3)
    ]
