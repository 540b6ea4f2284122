"""Telemetry as the configuration asks for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from muon_files import make_events, write_events
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_tensorboard_sink import wait_for_next_second
from toy_events import toy_batch
from toy_tasks import SMALL_WGAN

from common.errors import BadInputError
from icestream.reading.validation import read_validation_events
from services.config.root import Config
from services.trainer.state import TrainState
from services.trainer.stream.waits import BatchWaits
from services.trainer.telemetry.open_telemetry import open_telemetry
from services.trainer.telemetry.tensorboard_sink import run_folder
from workloads.base.context import StepContext
from workloads.muons.models.wgan.panel import WganPanel
from workloads.muons.models.wgan.task import WganTask

CPU = torch.device("cpu")


def make_config(**trainer: Any) -> Config:
    return Config.model_validate({"trainer": {"wgan": {"network": SMALL_WGAN, "critic_steps": 1}, **trainer}})


def run_steps(run_dir: Path, config: Config, last: int, *, first: int = 1) -> None:
    """Train the toy from step ``first`` on, as the loop does."""
    task = WganTask(config.trainer.wgan, StepContext(CPU, 1))
    state = TrainState(task, CPU, "plan", headline="w_gap")
    state.step = first - 1
    panel = WganPanel(task, config.seed)
    telemetry = open_telemetry(run_dir, config, state, panel, config.model_dump_json(), read_validation_events)
    for step in range(first, last + 1):
        batch = toy_batch(30, seed=step)
        metrics = task.step(batch)
        state.step = step
        telemetry.scalars(state, metrics, BatchWaits())
        telemetry.evaluate(state, batch)
    telemetry.close()


def steps(run_dir: Path, name: str) -> list[int]:
    return [point.step for point in EventAccumulator(str(run_folder(run_dir))).Reload().Scalars(name)]


@pytest.mark.slow
def test_the_panel_is_on_tensorboard_and_goes_on_with_the_same_block_after_a_restart(tmp_path: Path) -> None:
    config = make_config(validation={"events": 80, "every": 2})
    run_steps(tmp_path, config, 5)
    assert steps(tmp_path, "panel/score") == [4]
    block = (tmp_path / "validation.pt").read_bytes()
    wait_for_next_second()
    run_steps(tmp_path, config, 8, first=5)  # the checkpoint was of step 4
    assert steps(tmp_path, "panel/score") == [4, 6, 8]
    assert steps(tmp_path, "train/held_out_w_gap") == [4, 6, 8]
    assert steps(tmp_path, "train/lr_critic") == list(range(1, 9))
    assert (tmp_path / "validation.pt").read_bytes() == block
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    events = EventAccumulator(str(run_folder(tmp_path))).Reload()
    floors = [point.value for point in events.Scalars("panel/log10_energy_w1_floor")]
    assert len(set(floors)) == 1, "the same events each time"
    assert events.Tags()["images"] == ["panel/distributions"]
    assert "hist/generated/log10_bundle_energy" in events.Tags()["histograms"]


@pytest.mark.slow
def test_the_block_may_come_from_files_of_its_own(tmp_path: Path) -> None:
    path = write_events(tmp_path / "held-out.parquet", make_events([number % 4 for number in range(60)]))
    config = make_config(validation={"events": 40, "every": 1, "input": [str(path)]})
    run_steps(tmp_path, config, 2)
    assert steps(tmp_path, "panel/score") == [1, 2]
    path.unlink()  # it is not needed any more
    wait_for_next_second()
    run_steps(tmp_path, config, 4, first=3)
    assert steps(tmp_path, "panel/score") == [1, 2, 3, 4]


def test_without_events_there_is_no_block(tmp_path: Path) -> None:
    run_steps(tmp_path, make_config(validation={"events": 0, "every": 1}), 2)
    events = EventAccumulator(str(run_folder(tmp_path))).Reload()
    assert not [name for name in events.Tags()["scalars"] if name.startswith("panel/")]
    assert steps(tmp_path, "train/w_gap") == [1, 2]
    assert not (tmp_path / "validation.pt").exists()


def test_a_rank_that_is_not_the_first_has_a_status_file_and_nothing_else(tmp_path: Path) -> None:
    config = make_config(validation={"events": 30, "every": 1}, wandb={"mode": "offline"})
    task = WganTask(config.trainer.wgan, StepContext(CPU, seed=1))
    state = TrainState(task, CPU, "plan", headline="w_gap")
    panel, settings = WganPanel(task, 0), config.model_dump_json()
    telemetry = open_telemetry(tmp_path, config, state, panel, settings, read_validation_events, rank=2)
    metrics = task.step(toy_batch(30))
    state.step = 1
    assert telemetry.scalars(state, metrics, BatchWaits()).keys() == metrics.keys()
    telemetry.evaluate(state, toy_batch(30))
    telemetry.checkpointed(tmp_path / "checkpoints" / "step-1.pt", 1)
    telemetry.rolled_back(0)
    telemetry.close()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()] == [
        "status/trainer-2.json"
    ]


def test_a_bad_validation_file_ends_the_start_with_its_name(tmp_path: Path) -> None:
    config = make_config(validation={"input": [str(tmp_path / "none.parquet")]})
    with pytest.raises(BadInputError, match=r"none\.parquet: no such file"):
        run_steps(tmp_path, config, 1)


def test_wandb_without_its_extra_ends_the_start_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not there
    with pytest.raises(BadInputError, match=r"'\.\[wandb\]'"):
        run_steps(tmp_path, make_config(wandb={"mode": "online"}), 1)
