"""A run that begins with the weights of another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_events import toy_batch
from toy_tasks import CPU, SMALL_WGAN

from common.errors import BadInputError
from services.config.root import Config
from services.trainer.service import start_from
from workloads.base.checkpoint import FORMAT
from workloads.base.context import StepContext
from workloads.muons.models.wgan.task import WganTask


def config_of(**network: Any) -> Config:
    return Config.model_validate({"trainer": {"wgan": {"network": SMALL_WGAN.model_copy(update=network).model_dump()}}})


def make_task(**network: Any) -> WganTask:
    return WganTask(config_of(**network).trainer.wgan, StepContext(CPU, seed=len(network)))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of a run that was trained for two steps; its best checkpoint is the first."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    task = make_task()
    for step in (1, 2):
        task.step(toy_batch(seed=step))
        state = {"format": FORMAT, "step": step, "task": task.state_dict(), "config": config_of().model_dump_json()}
        torch.save(state, folder / f"step-{step:09d}.pt")
    (folder / "step-000000001.pt").rename(folder / "best.pt")
    return tmp_path


def weights_of(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=True)["task"]["networks"]
    return state


@pytest.mark.parametrize("name", ["", "checkpoints/best.pt", "checkpoints/step-000000002.pt"])
def test_networks_and_standardisation_are_those_of_the_checkpoint_and_all_else_is_new(run_dir: Path, name: str) -> None:
    task = make_task()
    start_from(run_dir / name, task, config_of())

    for module, expected in weights_of(run_dir / (name or "checkpoints/best.pt")).items():
        found = task.networks.modules()[module].state_dict()
        assert all(torch.equal(found[key], value) for key, value in expected.items())
    assert task.steps == task.generator_updates == 0
    assert not task.state_dict()["optimisers"]["critic"]["state"]
    assert not task.observe(toy_batch(seed=9))  # the standardisation stays: weights mean nothing with another


def test_other_networks_are_refused_with_the_file_and_the_remedy(run_dir: Path) -> None:
    with pytest.raises(BadInputError, match=r"best\.pt: of the model 'wgan', it fits no model .* same trainer\.model"):
        start_from(run_dir, make_task(hidden=32), config_of(hidden=32))


@pytest.mark.parametrize(("name", "value"), [("radius_offset_m", 1.0), ("pooling", "mean")])
def test_weights_that_would_load_and_mean_something_else_are_refused(run_dir: Path, name: str, value: Any) -> None:
    other = {"pooling": "max"} | {name: value}
    path = run_dir / "checkpoints" / "best.pt"
    state = torch.load(path, weights_only=True)
    torch.save(state | {"config": config_of(pooling="max").model_dump_json()}, path)
    task = make_task(**other)
    before = {key: value.clone() for key, value in task.networks.critic.state_dict().items()}
    told = rf"best\.pt: its weights were learned with trainer\.wgan\.network\.{name} = .*, it is {value} now: set"
    with pytest.raises(BadInputError, match=told):
        start_from(run_dir, task, config_of(**other))
    assert all(torch.equal(value, before[key]) for key, value in task.networks.critic.state_dict().items())


@pytest.mark.parametrize("model", ["wgan", "flow"])
@pytest.mark.parametrize("hidden", [16, 32])
def test_weights_of_an_earlier_version_are_refused_as_such(run_dir: Path, model: str, hidden: int) -> None:
    """Of commit 9843d43, whose count head had no line, or of a model that is gone."""
    path = run_dir / "checkpoints" / "best.pt"
    state = torch.load(path, weights_only=True)
    del state["task"]["networks"]["count_head"]["line.weight"]
    stored = json.loads(state["config"])
    stored["trainer"]["model"] = model
    stored["trainer"][model] = stored["trainer"]["wgan"] | {"betas": [0.0, 0.9]}
    torch.save(state | {"config": json.dumps(stored)}, path)
    told = rf"best\.pt: of the model '{model}', .*; another version of icestream wrote it: start from a run of this one"
    with pytest.raises(BadInputError, match=told):
        start_from(run_dir, make_task(hidden=hidden), config_of(hidden=hidden))


def test_likelihood_and_recipe_may_be_others(run_dir: Path) -> None:
    start_from(run_dir, make_task(), config_of(zero_truncated_counts=True, score_limit=50.0))


def test_a_place_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such checkpoint"):
        start_from(tmp_path / "nothing.pt", make_task(), config_of())
    with pytest.raises(BadInputError, match="no checkpoint in it"):
        start_from(tmp_path, make_task(), config_of())
