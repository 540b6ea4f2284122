"""Mistakes that `icestream run` finds before anything starts, and sums over the shards at its end."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from common.errors import BadInputError
from common.plan import SourceFile, plan_hash
from common.status import Counters, TrainerStatus
from common.summary import epochs_line, planned_line, planned_name
from icestream.commands import checks as run_checks
from icestream.commands.checks import check_before_start, check_device, imbalance_of_shards
from icestream.commands.doctor import doctor
from icestream.commands.run import run
from services.config.root import Config, load_config, store_config
from services.config.settings import make_ranges
from services.fetcher.shared_folder import PublishedInventory, SharedFolder
from services.trainer.checks import config_for_checkpoint
from workloads.base.checkpoint import FORMAT


def check(run_dir: Path, **settings: Any) -> None:
    config = load_config({}, flags={key.replace("__", "."): value for key, value in settings.items()}, environment={})
    check_before_start(run_dir, config, lists_inputs=True)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.parquet").touch()
    return folder


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "{data}/b*.parquet",
            r"b\*.parquet: no file matches this glob \(folder .*data exists; for the files below it: .*data\)",
        ),
        ("{data}/no/*/b*.parquet", r"no file matches this glob \(folder .*/data/no does not exist\)"),
        ("{data}/b.parquet", "b.parquet: no such file or directory"),
        ("@{data}/list.txt", "list.txt: no such list of inputs"),
        ("{data}/{{range}}/*.parquet", "needs --ranges FIRST:LAST:STEP"),
    ],
)
def test_an_input_without_a_file_is_found_at_once(tmp_path: Path, data: Path, text: str, problem: str) -> None:
    with pytest.raises(BadInputError, match=problem):
        check(tmp_path / "run", input=(text.format(data=data),))


def test_an_empty_folder_is_found_and_a_file_deep_below_is_enough(tmp_path: Path, data: Path) -> None:
    check(tmp_path / "run", input=(str(data), f"{data}/*.parquet", f"file://{data}", "s3://bucket/x.parquet"))
    (tmp_path / "empty" / "below").mkdir(parents=True)
    with pytest.raises(BadInputError, match="the directory holds no file with one of"):
        check(tmp_path / "run", input=(str(tmp_path / "empty"),))
    (tmp_path / "empty" / "below" / "a.parquet").touch()
    check(tmp_path / "run", input=(str(tmp_path / "empty"),))


def test_the_checkpoint_to_start_from_and_validation_files_are_looked_for(tmp_path: Path, data: Path) -> None:
    with pytest.raises(BadInputError, match=r"--start-from .*/nowhere: no such checkpoint or run directory"):
        check(tmp_path / "run", input=(str(data),), trainer__start_from=str(tmp_path / "nowhere"))
    with pytest.raises(BadInputError, match=r"other\.parquet: no such file"):
        check(tmp_path / "run", input=(str(data),), trainer__validation__input=(str(data / "other.parquet"),))
    with pytest.raises(BadInputError, match=r"stream.slot_mib = 0.25 holds 262144 bytes, but one event of"):
        check(tmp_path / "run", input=(str(data),), stream__slot_mib=0.25)


@pytest.mark.parametrize("text", ["{data}", "{data}/**/*.parquet", "{data}/../d*/**/*.parquet", "@{data}/list"])
def test_a_folder_inside_of_an_input_is_no_run_directory(tmp_path: Path, data: Path, text: str) -> None:
    (data / "list").write_text(f"{data}\n")
    text = text.format(data=data).replace(f"{data}/..", str(tmp_path))
    with pytest.raises(BadInputError, match=r"runs/mine lies inside of the input .*, which would read its files, too"):
        check(data / "runs/mine", input=(text,))
    check(tmp_path / "data-runs/mine", input=(text.replace("/d*", "/dat?"),))
    check(data / "runs/mine", input=(f"{data}/*.parquet",))


def test_the_folder_of_the_data_is_no_run_directory(data: Path) -> None:
    inputs = [(str(data),), (f"{data}/*.parquet",), (f"{data}/a.parquet",)]
    for one in inputs:
        with pytest.raises(BadInputError, match=r"is the folder of the input .*: choose one elsewhere"):
            check(data, input=one)
    (data / "config.json").touch()  # it is one already
    check(data, input=inputs[0])


def test_a_cuda_device_that_the_driver_does_not_have_is_found_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_checks, "num_cuda_devices", lambda: 0)
    with pytest.raises(BadInputError, match="there is no CUDA device here; use --device cpu"):
        check_device("cuda")
    monkeypatch.setattr(run_checks, "num_cuda_devices", lambda: 2)
    for name in ("cuda", "cuda:1", "cpu", "auto"):
        check_device(name)
    with pytest.raises(BadInputError, match="'cuda:2': the CUDA devices here are cuda:0 to cuda:1"):
        check_device("cuda:2")
    monkeypatch.undo()
    monkeypatch.setattr(run_checks, "_CUDA_DRIVER", "libno-such-driver.so")
    assert run_checks.num_cuda_devices() == 0


class _Started(Exception):
    pass


@pytest.fixture
def former_run(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run with a checkpoint of seed 0. A run that would start its processes raises _Started."""

    def start(*_: Any, **__: Any) -> None:
        raise _Started

    monkeypatch.setattr("icestream.commands.run_session.supervise", start)
    run_dir = tmp_path / "run"
    (run_dir / "checkpoints").mkdir(parents=True)
    config = load_config({}, flags={"input": [str(data)], "workload": "muons", "trainer.model": "none"}, environment={})
    config = load_config(config.model_dump(mode="json"), environment={})
    store_config(run_dir, config)
    content = {
        "format": FORMAT,
        "step": 12,
        "plan_hash": plan_hash(config.stored_workload(), config.stream, config.seed),
        "config": config_for_checkpoint(config),
    }
    torch.save(content, run_dir / "checkpoints" / "step-000000012.pt")
    return run_dir


def test_another_plan_than_that_of_the_checkpoint_is_refused_before_anything_starts(former_run: Path) -> None:
    before = (former_run / "config.json").read_text()
    for change, words in (
        (["--seed", "5"], "(seed was 0, now 5): resume with the former values, or use --new-plan"),
        (["--set", "stream.batch_events=512"], "(stream.batch_events was 256, now 512): resume with"),
        (["--set", "source.depth_kind=slant"], "(source.depth_kind was"),
    ):
        result = CliRunner().invoke(run, ["--run-dir", str(former_run), *change])
        assert isinstance(result.exception, BadInputError)
        assert f"the checkpoint at step 12 belongs to another plan {words}" in str(result.exception)
        assert (former_run / "config.json").read_text() == before
    (former_run / "checkpoints" / "step-000000012.pt").write_text("{")  # damaged: it is left to the trainer
    result = CliRunner().invoke(run, ["--run-dir", str(former_run), "--seed", "5"])
    assert isinstance(result.exception, _Started)


@pytest.mark.parametrize(
    "change",
    [
        ["--epochs", "3", "--decoders", "7"],
        ["--seed", "5", "--new-plan"],
        ["--seed", "5", "--fresh", "--yes", "-i", "{data}"],
        ["--seed", "5", "--model", "wgan"],  # the trainer refuses the model
    ],
)
def test_a_plan_that_is_the_same_or_meant_to_be_another_starts(former_run: Path, data: Path, change: list[str]) -> None:
    result = CliRunner().invoke(run, ["--run-dir", str(former_run), *(text.format(data=data) for text in change)])
    assert isinstance(result.exception, _Started)


def test_an_unquoted_glob_is_told_apart_from_other_arguments(tmp_path: Path, data: Path) -> None:
    (data / "b.parquet").touch()
    names = [str(path) for path in sorted(data.iterdir())]
    result = CliRunner().invoke(run, ["-i", *names, "--run-dir", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert "Quote globs, so that the shell leaves them alone: -i 'x/*/*.parquet'" in result.output
    result = CliRunner().invoke(run, ["-i", names[0], "typo", "--run-dir", str(tmp_path / "run")])
    assert "Quote globs" not in result.output
    assert "Inputs follow -i, the folder of a run follows --run-dir" in result.output
    for more in ([], [str(data / "c.parquet")]):  # the first of several is taken for a RUN
        result = CliRunner().invoke(doctor, ["-i", *names, *more])
        assert "Quote globs" in result.output


@pytest.mark.process
def test_too_few_open_files_end_a_run_at_its_start_with_the_limit_the_need_and_the_command(
    tmp_path: Path, data: Path
) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
    try:
        check(tmp_path / "run", input=(str(data),), local__decoders=4)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (148, before[1]), "raised where that is allowed"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32)); from icestream.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "run", "-i", str(data), "--decoders=4", f"--run-dir={tmp_path / 'run'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert "may open 32 files here (ulimit -n), and this run needs up to 148" in done.stderr
    assert not (tmp_path / "run").exists()


FILES = [SourceFile("/data/a.parquet", 7, ""), SourceFile("/data/b.parquet", 8, "")]
SHARDS = (Counters(events_read=60, events_trained=60), Counters(events_read=40, events_trained=40))


def config(*inputs: str) -> Config:
    return load_config({}, assignments=("stream.shards=2",), flags={"input": inputs}, environment={})


def listed(folder: Path, of: Config, files: list[SourceFile]) -> None:
    for one in make_ranges(of.input, of.fetcher.ranges, of.fetcher.done):
        PublishedInventory(SharedFolder(folder), lambda one: files).expand(one)


def finished() -> TrainerStatus:
    return TrainerStatus(state="finished", step=9, shards=SHARDS)


def test_a_list_of_inputs_that_the_run_refused_counts_no_files(tmp_path: Path) -> None:
    mine = config("/data")
    listed(tmp_path, mine, FILES)
    listed(tmp_path, config("/mistyped"), FILES[:1])
    for shard, counters in enumerate(SHARDS):
        (tmp_path / planned_name(shard)).write_text(planned_line(0, 1, counters.events_read))
    assert imbalance_of_shards(tmp_path, mine, finished()) == ""
    (tmp_path / planned_name(1)).write_text(planned_line(0, 0, 40))
    assert imbalance_of_shards(tmp_path, mine, finished()).startswith("2 files in all epochs, but 1 planned")


def test_blocks_planned_ahead_do_not_count_once_the_epochs_are_fewer(tmp_path: Path) -> None:
    of_three = config("/data").model_copy(update={"epochs": 3})
    listed(tmp_path, of_three, FILES)
    one_block_an_epoch = of_three.stream.block_files >= len(FILES)
    assert one_block_an_epoch, "shard 0 has blocks 0 and 2 of the run, shard 1 block 1"
    ahead, end = (planned_line(0, 2, 60), planned_line(1, 2, 60)), (planned_line(0, 2, 40),)
    for shard, blocks in enumerate((ahead, end)):
        text = "\n".join([epochs_line(3), *blocks, epochs_line(2)])
        (tmp_path / planned_name(shard)).write_text(text)
    assert imbalance_of_shards(tmp_path, of_three.model_copy(update={"epochs": 2}), finished()) == ""
    assert "shard 0: 120 planned, but 60 read" in imbalance_of_shards(tmp_path, of_three, finished())
    with (tmp_path / planned_name(0)).open("a") as lines:
        lines.write("\n" + planned_line(7, 1, 5))
    lost = imbalance_of_shards(tmp_path, of_three.model_copy(update={"epochs": 2}), finished())
    assert "shard 0: 65 planned, but 60 read" in lost, "a block behind the end, of this number of epochs"
    further, one_epoch = finished().model_copy(update={"epoch": 2}), of_three.model_copy(update={"epochs": 1})
    assert imbalance_of_shards(tmp_path, one_epoch, further) == "", "it was further than its epochs are now"
