"""`icestream ranges` and `plan`: states of ranges, the summary, the mixing of the files, and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import fsspec
import pytest
from click.testing import CliRunner, Result
from muon_files import make_events, write_events

from common.config import StreamConfig
from common.errors import BadInputError, TransientError
from common.files.inputs import expand
from common.files.remotes import Remotes
from common.messages import Unit
from common.plan import Blocks, Footer, RowGroup, SlotCapacity, SourceFile, Span, StagedFile, plan_block, plan_hash
from common.slow_progress import SlowProgress
from common.status import TrainerStatus, write_status
from icestream.commands.plan import PlanSummary, plan, ranges, summarise, summary_lines
from services.config.root import Config, load_config, store_config
from services.config.settings import make_ranges
from services.fetcher.cache import Cache
from services.fetcher.ledger import LEDGER_FILE, Ledger
from services.fetcher.staging import Stage
from workloads.muons.columns import MUONS


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Run of two ranges, both listed, whose newest checkpoint is in the first."""
    flags = {"input": ("/data/{range}/*.parquet",), "fetcher.ranges": "0:1000:1000"}
    config = load_config({}, flags=flags, environment={})
    store_config(tmp_path, config)
    ledger = Ledger(tmp_path / LEDGER_FILE, "aa" * 16)
    for one in make_ranges(config.input, config.fetcher.ranges):
        ledger.freeze(one, [SourceFile(f"/data/{one.name}/a.parquet", 10)])
    ledger.close()
    return tmp_path


def states(run_dir: Path) -> list[str]:
    told = json.loads(CliRunner().invoke(ranges, ["--run-dir", str(run_dir), "--json"]).output)
    return [line["state"] for line in told["ranges"]]


def test_the_current_range_is_running_only_while_somebody_trains(run_dir: Path) -> None:
    assert states(run_dir)[0] == "running"  # no status yet
    for status, expected_states in (
        (TrainerStatus(state="training"), ["running", "listed"]),
        (TrainerStatus(state="stopped"), ["stopped", "listed"]),
        (TrainerStatus(state="finished", step=40, max_steps=40), ["stopped", "listed"]),
        (TrainerStatus(state="finished", step=40), ["done", "listed"]),
    ):
        write_status(run_dir, "trainer", status)
        assert states(run_dir) == expected_states
    output = CliRunner().invoke(ranges, ["--run-dir", str(run_dir)]).output
    assert output.splitlines()[-1].startswith("finished at step 40: ")


STREAM = StreamConfig(block_files=4, unit_events=100, batch_events=10, max_particles=1000, slot_mib=0.25)


def blocks_of(files: list[StagedFile], stream: StreamConfig = STREAM) -> list[tuple[list[StagedFile], list[Unit]]]:
    capacity = SlotCapacity(MUONS, stream)
    blocks: list[tuple[list[StagedFile], list[Unit]]] = []
    first_k = 0
    for start in range(0, len(files), stream.block_files):
        staged = files[start : start + stream.block_files]
        block = len(blocks)
        units = plan_block(block, first_k, 0, staged, capacity=capacity, stream=stream, seed=0)
        first_k += len(units)
        blocks.append((staged, units))
    return blocks


def summary_of(files: list[StagedFile], stream: StreamConfig = STREAM, num_blocks: int | None = None) -> PlanSummary:
    blocks = blocks_of(files, stream)
    inventory = [SourceFile(file.path, 1000) for file in files]
    return summarise(inventory, "ab" * 16, num_blocks or len(blocks), blocks, stream, SlotCapacity(MUONS, stream))


def staged(file: int, *groups: RowGroup) -> StagedFile:
    return StagedFile(file, f"/f{file}", Footer(groups))


WHOLE = [staged(file, RowGroup(100, 300)) for file in range(8)]
MIXED = [staged(file, *[RowGroup(10, 30)] * 10) for file in range(8)]


def text_of(summary: PlanSummary) -> str:
    return "\n".join(summary_lines(summary))


def test_the_sums_are_those_of_the_units_and_units_of_one_file_each_are_not_mixed() -> None:
    summary = summary_of(WHOLE)
    assert (summary.files, summary.file_bytes, summary.files_planned) == (8, 8000, 8)
    assert (summary.events, summary.particles, summary.units) == (800, 2400, 8)
    assert (summary.unit_events.min, summary.unit_events.median, summary.unit_events.max) == (100, 100, 100)
    assert (summary.units_of_block.min, summary.units_of_block.max) == (4, 4)
    assert summary.unit_bytes.max == SlotCapacity(MUONS, STREAM).bytes_needed(100, 300)
    assert summary.arena_bytes == STREAM.slots * STREAM.slot_bytes
    assert summary.unit_files.max == 1
    assert summary.mixing_in_block is not None
    assert summary.mixing_in_block > 0.9 * STREAM.batch_events
    assert "stream.unit_events" in text_of(summary)


def test_small_row_groups_mix_the_block_and_the_epoch_is_limited_by_the_block() -> None:
    summary = summary_of(MIXED, STREAM.model_copy(update={"unit_events": 400}))
    assert summary.unit_files.min == 4
    assert summary.mixing_in_block is not None
    assert summary.mixing_over_epoch is not None
    assert summary.mixing_in_block < 1.1
    assert 1.5 < summary.mixing_over_epoch < 3  # four of eight files in each block
    summary = summary_of(MIXED, num_blocks=1000)
    assert "first 2 of 1,000 blocks" in text_of(summary)


def test_without_shuffle_or_events_nothing_is_mixed() -> None:
    summary = summary_of(MIXED, STREAM.model_copy(update={"shuffle": False, "unit_events": 400}))
    assert (summary.mixing_in_block, summary.mixing_over_epoch) == (None, None)
    assert "or stream.shuffle = false" in text_of(summary)
    summary = summary_of([staged(0)])
    assert (summary.units, summary.events) == (1, 0)
    assert "nothing to mix" in text_of(summary)


def test_cut_row_groups_are_counted_and_bad_files_named_with_their_events() -> None:
    spans = (Span(0, 60, 100), Span(60, 40, 100))
    bad = StagedFile(1, "/f1", None, reason="/f1: truncated", bad_rows=7)
    summary = summary_of([staged(0, RowGroup(100, 200, spans), RowGroup(5, 5)), bad, staged(2, RowGroup(9, 9))])
    assert (summary.events, summary.row_groups, summary.row_groups_cut, summary.spans) == (114, 3, 1, 2)
    for words in ("1 of 3 row groups, into 2 spans", "1 files, 7 events", "/f1: truncated"):
        assert words in text_of(summary)


def test_the_plan_shows_what_each_shard_gets_and_warns_where_they_differ() -> None:
    stream = STREAM.model_copy(update={"shards": 2, "block_files": 1})
    files = [staged(file, *[RowGroup(100, 300)] * (2 if file % 2 else 1)) for file in range(6)]
    summary = summary_of(files, stream)
    assert summary.shard_events == [300, 600]
    assert "events 300, 600" in text_of(summary)
    assert "WARNING: they differ by 100%" in text_of(summary)
    even = text_of(summary_of(files[1::2] + files[1::2], stream))
    assert "events 600, 600" in even
    assert "WARNING" not in even
    of_three = text_of(summary_of(WHOLE, STREAM.model_copy(update={"shards": 3, "block_files": 4})))
    assert "ERROR: nothing for shard 2: set stream.shards to at most the 2 blocks of an epoch" in of_three


SMALL = ["--set", "stream.block_files=2", "--set", "stream.unit_events=30", "--set", "stream.batch_events=5"]
SMALL += ["--set", "fetcher.transfers=1"]  # and one process that inspects


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


@pytest.mark.process
def test_the_command_prints_what_the_fetcher_would_plan(tmp_path: Path, data: Path) -> None:
    found = answer(tmp_path, "-i", data)
    config = load_config(tmp_path, assignments=SMALL[1::2])
    stream, capacity = config.stream, SlotCapacity(MUONS, config.stream)
    stage = Stage(Cache(tmp_path / "cache", tmp_path), MUONS, stream, capacity)
    with Remotes(Config().remote_access()) as remotes:
        inventory = expand([str(data)], remotes)
    blocks = Blocks(5, stream, 0, 1)
    units = []
    for block in range(3):
        staged = [one for f in blocks.files(block) if isinstance(one := stage(f, inventory[f], None), StagedFile)]
        units += plan_block(block, 0, 0, staged, capacity=capacity, stream=stream, seed=0)
    assert found["units"] == len(units)
    for name, numbers in (
        ("unit_events", [unit.rows for unit in units]),
        ("unit_files", [len({part.file for part in unit.parts}) for unit in units]),
    ):
        assert found[name] == {"min": min(numbers), "median": median(numbers), "max": max(numbers)}
    assert found["events"] == 200
    assert found["blocks_planned"] == found["blocks"] == 3


@pytest.mark.process
def test_nothing_is_written_into_the_run_directory(tmp_path: Path, data: Path) -> None:
    run_dir = tmp_path / "run"
    answer(tmp_path, "-i", data, "--blocks", 1)
    assert not run_dir.exists()
    run_dir.mkdir()
    store_config(run_dir, Config(input=(str(data),), seed=9))
    stored = {path: path.read_bytes() for path in run_dir.rglob("*")}
    stream = load_config({}, assignments=SMALL[1::2]).stream
    assert answer(tmp_path, "--blocks", 1)["plan_hash"] == plan_hash(MUONS, stream, 9), "the run's own seed"
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


@pytest.mark.process
def test_of_remote_files_the_first_blocks_are_planned_and_each_is_deleted_once_its_footer_is_read(
    tmp_path: Path, remote: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run("-i", remote, "--run-dir", tmp_path / "run", *SMALL)
    assert "first block only" in result.stderr
    assert "first block only: 2 files, 80 events" in result.stdout
    held = []
    monkeypatch.setattr(
        SlowProgress, "advance", lambda *_: held.append(sum(path.is_file() for path in temporary.rglob("files/*")))
    )
    found = answer(tmp_path, "-i", remote, "--blocks", 2)
    assert (found["blocks"], found["blocks_planned"], found["files_planned"], found["events"]) == (3, 2, 4, 160)
    assert max(held) <= 1, "no more than is in work"
    assert list(temporary.iterdir()) == []


@pytest.mark.process
def test_a_server_that_is_away_is_an_error_and_nothing_stays(
    tmp_path: Path, remote: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise TransientError("could not be fetched: no route")

    monkeypatch.setattr("common.files.remotes.fetch", fail)
    with pytest.raises(BadInputError, match=r"memory://.*no route.*try again later"):
        run("-i", remote, "--run-dir", tmp_path / "run", *SMALL)
    assert list(temporary.iterdir()) == []


@pytest.mark.process
def test_a_bad_file_is_named_and_without_a_usable_one_the_reason_of_most(tmp_path: Path, data: Path) -> None:
    (data / "3.parquet").write_bytes(b"no parquet")
    result = run("-i", data, "--run-dir", tmp_path / "run", *SMALL)
    assert result.exit_code == 0
    assert "160 events" in result.stdout
    assert f"{data / '3.parquet'}: truncated, or neither Parquet nor HDF5" in result.stdout
    for path in data.glob("*.parquet"):
        path.write_bytes(b"no parquet")
    (data / "0.parquet").write_bytes(b"")
    many = r"1\.parquet: truncated, .* \(4 of the 5 files for this reason\)"
    with pytest.raises(BadInputError, match=rf"no file is usable: .*/{many}"):
        run("-i", data, "--run-dir", tmp_path / "run", *SMALL)


@pytest.mark.process
def test_files_that_an_earlier_training_has_done_are_left_out_and_said(tmp_path: Path, data: Path) -> None:
    done = tmp_path / "training_checkpoint.json"
    names = [str(data / "1.parquet"), "data/3.parquet", "data/9.parquet"]
    done.write_text(json.dumps({"epoch": 0, "processed_files": names}))
    result = run("--run-dir", tmp_path / "run", *SMALL, "-i", data, "--done", done)
    assert "2 files left out, which" in result.stderr
    assert f"1 of its names match no file: {data / '9.parquet'}" in result.stderr
    assert "inventory     3 files" in result.stdout


@pytest.mark.process
def test_a_mixture_is_shown_set_by_set(tmp_path: Path, data: Path) -> None:
    weights = ("--set", "stream.weights=[3,1]", "--set", "stream.batch_events=20")
    sets = answer(tmp_path, "-i", data, "-i", data / "0.parquet", *weights)["sets"]
    assert isinstance(sets, list)
    assert [(one["files"], one["events"], one["batch_events"], one["shard_events"]) for one in sets] == [
        (5, 200, 15, []),
        (1, 40, 5, []),
    ]
    text = run("-i", data, "-i", data / "0.parquet", *weights).stdout
    assert f"\n\nset           {data / '0.parquet'}: 5 events of each batch\nplan  " in text
    assert text.endswith("\nmixture       about 14 steps an epoch, in which the sets are read 1.0, 1.7 times\n")
    with pytest.raises(BadInputError, match="3 numbers, for 1 inputs"):
        run("-i", data, "--set", "stream.weights=[1,1,1]")
