"""Words for a checkpoint that does not fit the configuration."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import BadInputError
from services.config.root import Config, load_config
from services.trainer.plan_change import misfit, new_plan_remedy, require_same_plan
from services.trainer.run_checks import config_for_checkpoint


def config(**flags: Any) -> Config:
    return load_config({}, flags={key.replace("__", "."): value for key, value in flags.items()}, environment={})


def checkpoint(**flags: Any) -> dict[str, Any]:
    return {"plan_hash": "aa", "step": 12, "config": config_for_checkpoint(config(**flags))}


def test_a_checkpoint_of_another_plan_names_what_was_and_what_is() -> None:
    now = config_for_checkpoint(config(seed=5, stream__batch_events=512, stream__slots=16))
    with pytest.raises(BadInputError) as error:
        require_same_plan(checkpoint(seed=0), "bb", now)
    words = (
        "the checkpoint at step 12 belongs to another plan (seed was 0, now 5; stream.batch_events was 256, now 512)"
    )
    assert str(error.value).startswith(f"{words}: resume with the former values, or use --new-plan")
    require_same_plan(checkpoint(seed=0), "aa", now)


def test_other_inputs_are_named_and_other_files_behind_the_same_inputs_too() -> None:
    before = checkpoint(input=("/data/a",))
    remedy = new_plan_remedy(before, config_for_checkpoint(config(input=("/data/b", "/data/c"))))
    assert remedy.startswith("(input was /data/a, now /data/b, /data/c): resume with the former values")
    remedy = new_plan_remedy(before, config_for_checkpoint(config(input=("/data/a",))))
    assert remedy.startswith("(the files of its inputs were others): ")


def test_weights_of_other_networks_are_refused_with_the_changed_keys() -> None:
    wider = config(trainer__wgan__network__hidden=99)
    text = str(misfit(checkpoint(), "step-000000012.pt", wider))
    change = "trainer.wgan.network.hidden was 128, now 99"
    assert text.startswith(f"step-000000012.pt: its weights fit no network of this configuration: {change};")
    assert text.endswith("resume with the former values, or use --fresh to start over")
    text = str(misfit(checkpoint(), "step-000000012.pt", config()))
    assert "another version of icestream wrote it" in text
