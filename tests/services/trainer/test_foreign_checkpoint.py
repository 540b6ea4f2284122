"""A checkpoint of another model, or a damaged one of the other kind, is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.errors import BadInputError
from services.config.root import Config
from services.trainer.checkpoints.checkpoint_folder import CHECKPOINT_FOLDER
from services.trainer.counting.checkpoint import read_position
from services.trainer.run_checks import require_model
from workloads.base.checkpoint import UnreadableError


def test_a_damaged_position_is_named(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT_FOLDER / "step-000000005.json"
    path.parent.mkdir()
    path.write_text('{"gar')
    with pytest.raises(UnreadableError, match=path.name):
        read_position(path)


@pytest.mark.parametrize(("written", "wanted"), [("wgan", "sets"), ("sets", "wgan"), ("none", "wgan")])
def test_training_does_not_go_on_from_a_checkpoint_of_another_model(written: str, wanted: str) -> None:
    config = Config.model_validate({"trainer": {"model": wanted}})
    checkpoint = {"step": 7, "config": json.dumps({"trainer": {"model": written}})}
    with pytest.raises(BadInputError, match=f"step 7 is of the model '{written}'.*--model {written}.*--fresh"):
        require_model(checkpoint, config)
    require_model(checkpoint, Config.model_validate({"trainer": {"model": written}}))


def test_training_does_not_go_on_from_a_checkpoint_of_a_model_that_is_gone() -> None:
    checkpoint = {"step": 7, "config": json.dumps({"trainer": {"model": "flow"}})}
    with pytest.raises(BadInputError, match=r"step 7 is of the model 'flow'.* has no model 'flow'.*--fresh"):
        require_model(checkpoint, Config())
