from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner, Result
from muon_files import make_events, write_events

from common.errors import BadInputError, TransientError
from common.files.inputs import expand
from common.files.remotes import Remotes
from common.plan import Blocks, SlotCapacity, StagedFile, plan_block
from common.slow_progress import SlowProgress
from icestream.commands.plan.command import plan
from services.config.root import Config, load_config, store_config
from services.fetcher.staging.cache import Cache
from services.fetcher.staging.stage import Stage
from workloads.muons.columns import MUONS

pytestmark = pytest.mark.process

SMALL = ["--set", "stream.block_files=2", "--set", "stream.unit_events=30", "--set", "stream.batch_events=5"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Five files of 40 events, in row groups of 10."""
    folder = tmp_path / "data"
    folder.mkdir()
    for file in range(5):
        write_events(folder / f"{file}.parquet", make_events([2] * 40, first=100 * file), row_group_rows=10)
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(plan, [str(argument) for argument in arguments], catch_exceptions=False)


def answer(tmp_path: Path, *arguments: object) -> dict[str, object]:
    result = run("--run-dir", tmp_path / "run", *SMALL, "--json", *arguments)
    assert result.exit_code == 0
    parsed: dict[str, object] = json.loads(result.stdout)
    return parsed


def test_the_command_prints_what_the_fetcher_would_plan(tmp_path: Path, data: Path) -> None:
    found = answer(tmp_path, "-i", data, "--units", "--epoch", 1)
    config = load_config(tmp_path, assignments=SMALL[1::2])
    stream, capacity = config.stream, SlotCapacity(MUONS, config.stream)
    stage = Stage(Cache(tmp_path / "cache", tmp_path), MUONS, stream, capacity)
    with Remotes(Config().remote_access()) as remotes:
        inventory = expand([str(data)], remotes)
    blocks = Blocks(5, stream, 0, 2)
    units = []
    for block in range(3, 6):
        staged = [one for f in blocks.files(block) if isinstance(one := stage(f, inventory[f], None), StagedFile)]
        units += plan_block(block, 0, 1, staged, capacity=capacity, stream=stream, seed=0)
    lines = found["unit_lines"]
    assert isinstance(lines, list)
    assert [(line["block"], line["events"], line["files"]) for line in lines] == [
        (unit.block, unit.rows, sorted({part.file for part in unit.parts})) for unit in units
    ]
    assert found["events"] == 200
    assert found["blocks_planned"] == found["blocks"] == 3


def test_a_person_reads_files_units_slots_and_mixing(tmp_path: Path, data: Path) -> None:
    text = run("-i", data, "--run-dir", tmp_path / "run", *SMALL, "--units").stdout
    for expected in ("5 files", "200 events", "8 slots × 8.0 MiB = 64.0 MiB", "files of a unit", "chi²/dof"):
        assert expected in text
    assert text.count("\n       ") >= 7, "a line for each unit"


def test_only_the_first_blocks_are_planned_if_asked(tmp_path: Path, data: Path) -> None:
    found = answer(tmp_path, "-i", data, "--blocks", 2)
    assert (found["blocks"], found["blocks_planned"], found["files_planned"], found["events"]) == (3, 2, 4, 160)
    assert "unit_lines" not in found


def test_nothing_is_written_into_the_run_directory(tmp_path: Path, data: Path) -> None:
    run_dir = tmp_path / "run"
    answer(tmp_path, "-i", data)
    assert not run_dir.exists()
    run_dir.mkdir()
    store_config(run_dir, Config(input=(str(data),), seed=9))
    stored = {path: path.read_bytes() for path in run_dir.rglob("*")}
    assert answer(tmp_path)["plan_hash"] != answer(tmp_path, "--set", "seed=0")["plan_hash"], "the run's own seed"
    assert {path: path.read_bytes() for path in run_dir.rglob("*")} == stored


@pytest.fixture
def remote(data: Path) -> Iterator[str]:
    """URL of the same files on a server of sorts."""
    server = fsspec.filesystem("memory")
    for path in data.iterdir():
        server.pipe(f"/plan-test/{path.name}", path.read_bytes())
    yield "memory://plan-test/"
    server.rm("/plan-test", recursive=True)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_of_remote_files_the_first_block_is_planned_unless_asked_for_more(tmp_path: Path, remote: str) -> None:
    result = run("-i", remote, "--run-dir", tmp_path / "run", *SMALL)
    assert "first block only" in result.stderr
    assert "first block only: 2 files, 80 events" in result.stdout
    assert answer(tmp_path, "-i", remote, "--blocks", 99)["events"] == 200


def test_remote_files_are_deleted_as_soon_as_their_footers_are_read(
    tmp_path: Path, remote: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    monkeypatch.setattr(
        SlowProgress, "advance", lambda *_: held.append(sum(path.is_file() for path in temporary.rglob("pool/*/*")))
    )
    answer(tmp_path, "-i", remote, "--blocks", 3, "--set", "fetcher.transfers=1")
    assert max(held) <= 1, "no more than is in work"
    assert list(temporary.iterdir()) == []


def test_a_server_that_is_away_is_an_error_and_nothing_stays(
    tmp_path: Path, remote: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise TransientError("could not be fetched: no route")

    monkeypatch.setattr("common.files.remotes.fetch", fail)
    with pytest.raises(BadInputError, match=r"memory://.*no route.*try again later"):
        run("-i", remote, "--run-dir", tmp_path / "run", *SMALL)
    assert list(temporary.iterdir()) == []


def test_a_bad_file_is_named_and_the_others_are_planned(tmp_path: Path, data: Path) -> None:
    (data / "3.parquet").write_bytes(b"no parquet")
    result = run("-i", data, "--run-dir", tmp_path / "run", *SMALL)
    assert result.exit_code == 0
    assert "160 events" in result.stdout
    assert f"{data / '3.parquet'}: truncated, or neither Parquet nor HDF5" in result.stdout


def test_no_usable_file_is_an_error_that_names_one(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(BadInputError, match=r"no file is usable: .*bad\.parquet"):
        run("-i", tmp_path / "bad.parquet", "--run-dir", tmp_path / "run")


def test_without_a_usable_file_the_reason_of_most_is_named(tmp_path: Path, data: Path) -> None:
    for path in data.glob("*.parquet"):
        path.write_bytes(b"no parquet")
    (data / "0.parquet").write_bytes(b"")
    num = len(list(data.iterdir()))
    many = rf"1\.parquet: truncated, .* \({num - 1} of the {num} files for this reason\)"
    with pytest.raises(BadInputError, match=rf"no file is usable: .*/{many}"):
        run("-i", data, "--run-dir", tmp_path / "run")


def test_no_input_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no input"):
        run("--run-dir", tmp_path / "run")


def test_files_that_an_earlier_training_has_done_are_left_out_and_said(tmp_path: Path, data: Path) -> None:
    done = tmp_path / "training_checkpoint.json"
    names = [str(data / "1.parquet"), "data/3.parquet", "data/9.parquet"]
    done.write_text(json.dumps({"epoch": 0, "processed_files": names}))
    result = run("--run-dir", tmp_path / "run", *SMALL, "-i", data, "--done", done)
    assert "2 files left out, which" in result.stderr
    assert f"1 of its names match no file: {data / '9.parquet'}" in result.stderr
    assert "inventory     3 files" in result.stdout
