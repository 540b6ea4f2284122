"""A run that begins with the weights of another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_wgan_task import CPU, SMALL, toy_batch

from common.errors import BadInputError
from services.trainer.checkpoint import FORMAT
from services.trainer.service import start_from
from services.trainer.wgan.config import WganConfig
from services.trainer.wgan.task import WganTask


def make_task(**network: Any) -> WganTask:
    return WganTask(WganConfig(network=SMALL.model_copy(update=network)), CPU, seed=len(network))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of a run that was trained for two steps; its best checkpoint is the first."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    task = make_task()
    for step in (1, 2):
        task.step(toy_batch(seed=step))
        torch.save({"format": FORMAT, "step": step, "task": task.state_dict()}, folder / f"step-{step:09d}.pt")
    (folder / "step-000000001.pt").rename(folder / "best.pt")
    return tmp_path


def weights_of(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=True)["task"]["networks"]
    return state


@pytest.mark.parametrize("name", ["", "checkpoints/best.pt", "checkpoints/step-000000002.pt"])
def test_networks_and_standardisation_are_those_of_the_checkpoint_and_all_else_is_new(run_dir: Path, name: str) -> None:
    task = make_task()
    start_from(run_dir / name, task)

    for module, expected in weights_of(run_dir / (name or "checkpoints/best.pt")).items():
        found = task.networks.modules()[module].state_dict()
        assert all(torch.equal(found[key], value) for key, value in expected.items())
    assert task.steps == task.generator_updates == 0
    assert not task.state_dict()["optimisers"]["critic"]["state"]
    assert not task.observe(toy_batch(seed=9))  # the standardisation stays: weights mean nothing with another


def test_other_networks_are_refused_with_the_file_and_the_remedy(run_dir: Path) -> None:
    with pytest.raises(BadInputError, match=r"best\.pt: it fits no model of this configuration .* same trainer\.model"):
        start_from(run_dir, make_task(hidden=32))


def test_a_place_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such checkpoint"):
        start_from(tmp_path / "nothing.pt", make_task())
    with pytest.raises(BadInputError, match="no checkpoint in it"):
        start_from(tmp_path, make_task())
