"""The trainer that only counts: its loop against a real feed, its checkpoints, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from feeding import COLUMNS, CONFIG, EVENTS, PLAN, STREAM, Fetcher

from common.errors import BadInputError
from common.rank_variables import RANKS_FILE_VARIABLE
from common.status import TrainerStatus
from common.status_files import read_status
from icestream.commands.bench.command import bench
from services.config.root import Config, load_config
from services.config.trainer import TrainerConfig
from services.trainer.checkpoints.checkpoint import Checkpoints
from services.trainer.counting.checkpoint import PositionCheckpoints
from services.trainer.counting.copier import CountingCopier
from services.trainer.counting.loop import CountingLoop
from services.trainer.counting.service import _restored, run_counting, settings_without_use
from services.trainer.progress import TrainingProgress
from services.trainer.ranks.rank_group import SingleRank
from services.trainer.stream.audit import Audit
from services.trainer.stream.copier import copiers_for
from services.trainer.stream.feed import Feed
from services.trainer.stream.microbatch_copy import Copiers
from services.trainer.telemetry.telemetry import Telemetry
from workloads.base.checkpoint import find_checkpoint, read_checkpoint
from workloads.muons.columns import MUONS
from workloads.muons.commands.evaluate import evaluate
from workloads.muons.commands.export import export
from workloads.muons.commands.generate import generate


def never() -> bool:
    return False


@pytest.fixture
def fetcher(tmp_path: Path) -> Iterator[Fetcher]:
    with closing(Fetcher(tmp_path)) as fetcher:
        yield fetcher


def feed_of(run_dir: Path, copiers: Copiers, stopped: Callable[[], bool] = never) -> Feed:
    return Feed(run_dir, MUONS, STREAM, CONFIG, copiers=copiers, prefetch_units=2, audit=True, stopped=stopped)


def count(
    run_dir: Path, stopped: Callable[[TrainingProgress], bool] = lambda progress: False, **settings: Any
) -> TrainingProgress:
    """One process's counting, from the newest checkpoint on."""
    config = TrainerConfig(**({"checkpoint_every": 2} | settings))
    progress = TrainingProgress(PLAN)
    with (
        closing(PositionCheckpoints(run_dir, 2, wait_s=0, stopped=never)) as checkpoints,
        closing(feed_of(run_dir, Copiers(CountingCopier), lambda: stopped(progress))) as feed,
        closing(Telemetry(run_dir, step=0, device="cpu", max_steps=0, epochs=1)) as telemetry,
    ):
        if latest := checkpoints.latest():
            progress.restore(latest[1], accept_new_plan=False)
        audit = Audit(run_dir, progress.audit_bytes, SingleRank())
        end = CountingLoop(progress, feed, checkpoints, telemetry, audit, config, "{}").run(lambda: feed.stopped)
        telemetry.status(end, progress, feed.waits, force=True)
    return progress


def audited(run_dir: Path) -> list[str]:
    return (run_dir / "audit.jsonl").read_text().splitlines()


def saved_steps(run_dir: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("step-")) for path in (run_dir / "checkpoints").glob("step-*.json"))


def test_the_audit_is_that_of_a_feed_to_a_model(tmp_path: Path, fetcher: Fetcher) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with closing(Fetcher(other)), closing(feed_of(other, copiers_for(torch.device("cpu"), COLUMNS))) as feed:
        position = TrainingProgress(PLAN).position
        with closing(feed.stream(position)) as batches:
            expected = [line for fed in batches if fed for _, line in fed.audit_lines]
    progress = count(tmp_path)
    assert audited(tmp_path) == expected
    assert progress.position == feed.position
    assert progress.position.counters.events_trained == sum(EVENTS)
    status = read_status(tmp_path, "trainer", TrainerStatus)
    assert status is not None
    assert (status.state, status.step, status.counters.events_trained) == ("finished", progress.step, sum(EVENTS))
    assert fetcher.finished.wait(20)


def test_it_stops_and_goes_on_without_a_gap(tmp_path: Path, fetcher: Fetcher) -> None:
    first = count(tmp_path, lambda progress: progress.step >= 3)
    assert (first.step, saved_steps(tmp_path)) == (3, [2, 3])
    assert not fetcher.finished.is_set()
    second = count(tmp_path)
    lines = audited(tmp_path)
    assert len(set(lines)) == len(lines)
    assert sum(json.loads(line)["events"] for line in lines) == sum(EVENTS) == second.position.counters.events_trained
    assert second.seconds > first.seconds
    assert fetcher.finished.wait(20)


def test_what_a_killed_process_wrote_behind_its_checkpoint_is_cut_off(tmp_path: Path, fetcher: Fetcher) -> None:
    count(tmp_path, lambda progress: progress.step >= 3)
    with (tmp_path / "audit.jsonl").open("a") as file:
        file.write("written by a process that was killed before it saved\n")
    count(tmp_path)
    assert sum(json.loads(line)["events"] for line in audited(tmp_path)) == sum(EVENTS)


def test_it_ends_at_the_last_step_that_was_asked_for(tmp_path: Path, fetcher: Fetcher) -> None:
    assert count(tmp_path, max_steps=4).step == 4
    assert saved_steps(tmp_path)[-1] == 4
    assert fetcher.finished.wait(20)


def test_files_are_evicted_only_behind_what_is_on_disk(
    tmp_path: Path, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    evicted_at_save: list[int] = []
    save = PositionCheckpoints.save

    def watched(self: PositionCheckpoints, step: int, content: dict[str, Any]) -> Path:
        evicted_at_save.append(len(fetcher.evicted))
        return save(self, step, content)

    monkeypatch.setattr(PositionCheckpoints, "save", watched)
    fetcher.ask_for_commit = True
    count(tmp_path, checkpoint_every=1000)
    assert fetcher.finished.wait(20)
    assert fetcher.evicted
    assert evicted_at_save[0] == 0


def test_a_checkpoint_that_cannot_be_written_leaves_the_former_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(PositionCheckpoints(tmp_path, 2, wait_s=0, stopped=never)) as checkpoints:
        checkpoints.save(1, TrainingProgress(PLAN).checkpoint("{}"))

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            checkpoints.save(2, TrainingProgress(PLAN).checkpoint("{}"))
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000001.json"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"format": 1', r"step-000000003\.json: can't be read \(.*\); delete it to resume from the one before"),
        ("\0\0\0", r"step-000000003\.json: can't be read \(.*\); delete it"),
        ("[]", r"step-000000003\.json: not a checkpoint of format 1; use --fresh"),
        ('{"format": 9}', r"step-000000003\.json: not a checkpoint of format 1; use --fresh"),
    ],
)
def test_a_damaged_checkpoint_is_an_error_that_names_it(tmp_path: Path, text: str, why: str) -> None:
    with closing(PositionCheckpoints(tmp_path, 2, wait_s=0, stopped=never)) as checkpoints:
        (tmp_path / "checkpoints" / "step-000000003.json").write_text(text)
        with pytest.raises(BadInputError, match=why):
            checkpoints.latest()


def test_a_run_with_weights_is_not_gone_on_without_a_model(tmp_path: Path) -> None:
    config = Config.model_validate({"trainer": {"model": "sets"}})
    with closing(Checkpoints(tmp_path, 2, wait_s=0, stopped=never)) as checkpoints:
        checkpoints.save(7, TrainingProgress(PLAN).checkpoint(config.model_dump_json()))
        assert checkpoints.foreign() is None
    none = Config.model_validate({"trainer": {"model": "none"}})
    with (
        closing(PositionCheckpoints(tmp_path, 2, wait_s=0, stopped=never)) as checkpoints,
        pytest.raises(
            BadInputError, match=r"step 0 is of the model 'sets'.*'none': resume with --model sets, or .*--fresh"
        ),
    ):
        _restored(none, checkpoints, PLAN, accept_new_plan=False)


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """A run directory with a checkpoint without weights."""
    with closing(PositionCheckpoints(tmp_path / "counted", 2, wait_s=0, stopped=never)) as checkpoints:
        checkpoints.save(7, TrainingProgress(PLAN).checkpoint("{}"))
    return tmp_path / "counted"


def test_there_are_no_weights_to_be_read(counted: Path) -> None:
    with pytest.raises(BadInputError, match=r"its run only counted events \(--model none\), it has no weights"):
        find_checkpoint(counted)
    with pytest.raises(BadInputError, match=r"step-000000007\.json: of a run that only counted events"):
        read_checkpoint(find_checkpoint(counted / "checkpoints" / "step-000000007.json"))


@pytest.mark.parametrize("verb", ["evaluate", "generate", "export"])
def test_what_needs_a_model_names_the_reason(counted: Path, tmp_path: Path, verb: str) -> None:
    command, options = {
        "evaluate": (evaluate, ["-i", str(tmp_path)]),
        "generate": (generate, [str(tmp_path / "primaries.parquet"), "-o", str(tmp_path / "made")]),
        "export": (export, ["-o", str(tmp_path / "made")]),
    }[verb]
    result = CliRunner().invoke(command, [str(counted), *options])
    assert isinstance(result.exception, BadInputError), result.output
    assert "only counted events (--model none)" in str(result.exception)


@pytest.mark.parametrize(
    ("assignments", "why"),
    [
        (("local.trainers=2",), "trainer.model = 'none'.*local.trainers = 2"),
        (("trainer.start_from=runs/other",), "trainer.model = 'none'.*trainer.start_from = 'runs/other'"),
    ],
)
def test_what_counting_has_no_use_for_is_refused(tmp_path: Path, assignments: tuple[str, ...], why: str) -> None:
    with pytest.raises(BadInputError, match=why):
        load_config(tmp_path, assignments=("trainer.model=none", *assignments), environment={})
    load_config(tmp_path, assignments=("trainer.model=wgan", *assignments), environment={})


def test_settings_that_need_a_model_are_named() -> None:
    assert settings_without_use(TrainerConfig(model="none", checkpoint_every=7, audit=True)) == []
    changed = {"profile_steps": 3, "replay_batches": 8, "wandb": {"mode": "offline"}, "validation": {"input": ["here"]}}
    found = settings_without_use(TrainerConfig.model_validate(changed))
    assert found == ["profile_steps", "replay_batches", "validation.input", "wandb.mode"]


def test_one_of_several_ranks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.delenv(RANKS_FILE_VARIABLE, raising=False)
    with pytest.raises(BadInputError, match=r"trainer\.model = 'none' counts in one trainer, .* one of 2 ranks"):
        run_counting(tmp_path, Config(), None, accept_new_plan=False)  # type: ignore[arg-type]  # before it is used


def test_there_is_no_step_to_be_measured() -> None:
    result = CliRunner().invoke(bench, ["trainer", "--model", "none", "--batches=1"])
    assert isinstance(result.exception, BadInputError)
    assert "trainer.model = 'none' has no steps to measure" in str(result.exception)
