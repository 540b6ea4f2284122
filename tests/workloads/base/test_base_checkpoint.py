"""Checkpoints in a run's folder, what they say of the run that wrote them, and versions of programs."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import BadInputError
from services.config.root import Config
from services.trainer.position import StreamPosition
from workloads.base import checkpoint


def test_the_newest_checkpoint_is_that_of_the_highest_step(tmp_path: Path) -> None:
    assert checkpoint.newest_checkpoint(tmp_path) is None
    assert checkpoint.newest_step(tmp_path) == 0
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in ("best.pt", "step-000000020.2.part", "step-000000030.part", "step-7.pt"):
        (folder / name).touch()
    assert checkpoint.newest_step(tmp_path) == 0
    (folder / "step-000000009.pt").touch()
    (folder / "step-000000010.pt").touch()
    assert checkpoint.newest_checkpoint(tmp_path) == folder / "step-000000010.pt"
    assert checkpoint.newest_step(tmp_path) == 10


def write(path: Path, config_json: str) -> Path:
    state = {"config": config_json, "position": StreamPosition().model_dump_json(), "task": {"weight": 3}}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"format": checkpoint.FORMAT, "step": 7, **state}, path)
    return path


def run_and_state(
    run: checkpoint.TrainedRun, task_state: dict[str, Any]
) -> tuple[checkpoint.TrainedRun, dict[str, Any]]:
    return run, task_state


def test_a_run_is_known_by_its_settings_without_secrets(tmp_path: Path) -> None:
    settings = {"input": ["https://user:s3cret@host/x"], "source": {"depth_kind": "slant"}}
    config_json = Config.model_validate(settings).model_dump_json()
    path = write(tmp_path / checkpoint.CHECKPOINT_FOLDER / "step-000000007.pt", config_json)
    run, task_state = checkpoint.load_run(tmp_path, run_and_state)
    assert (run.path, run.step, run.events_trained, task_state) == (path, 7, 0, {"weight": 3})
    config = json.loads(config_json)
    assert (run.model, run.section) == (config["trainer"]["model"], config["trainer"][config["trainer"]["model"]])
    assert run.source.depth_kind == "slant"
    assert "s3cret" not in run.config_json
    assert run.config_digest == hashlib.sha256(run.config_json.encode()).hexdigest()[:16]
    assert checkpoint.run_dir_of(run.path) == tmp_path
    assert checkpoint.run_dir_of(tmp_path / "elsewhere.pt") is None


def test_settings_that_a_later_version_added_do_no_harm(tmp_path: Path) -> None:
    config = json.loads(Config().model_dump_json()) | {"of_the_future": {"key": 1}}
    run, _ = checkpoint.load_run(write(tmp_path / "x.pt", json.dumps(config)), run_and_state)
    assert run.step == 7


@pytest.mark.parametrize("key", ["input", "source", "trainer"])
def test_a_configuration_without_a_part_that_is_needed_is_told_with_the_file(tmp_path: Path, key: str) -> None:
    config = json.loads(Config().model_dump_json())
    del config[key]
    with pytest.raises(BadInputError, match=rf"x\.pt: its model can't be built .*{key}"):
        checkpoint.load_run(write(tmp_path / "x.pt", json.dumps(config)), run_and_state)


def test_a_position_without_the_number_of_events_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.pt", Config().model_dump_json())
    torch.save(torch.load(path) | {"position": '{"counters": {}}'}, path)
    with pytest.raises(BadInputError, match=r"x\.pt: its model can't be built .*events_trained"):
        checkpoint.load_run(path, run_and_state)


def test_a_package_that_is_not_installed_is_unknown_and_an_optional_one_is_left_out() -> None:
    found = checkpoint.versions(("numpy", "no-such-package"), optional=("torch", "nor-this-one"))
    assert found == {
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "no-such-package": "unknown",
        "torch": version("torch"),
    }
