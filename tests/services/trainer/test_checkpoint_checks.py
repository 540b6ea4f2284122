"""Checks at the start and the end of a trainer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.errors import BadInputError
from common.status import Counters, TrainerStatus
from services.config.root import Config, load_config
from services.trainer import checks


def test_a_run_that_could_train_nothing_says_where_its_events_went() -> None:
    counters = Counters(events_read=5000, events_outlier=4000, events_quarantined=1000)
    status = TrainerStatus(state="finished", counters=counters, quarantined=["a.parquet: primary has 5 numbers"])
    with pytest.raises(BadInputError) as error:
        checks.require_data(status)
    assert str(error.value) == (
        "nothing to train on: all 5,000 events were set aside: 4,000 outliers (more particles than"
        " stream.max_particles_per_event), 1,000 quarantined; the newest quarantined: a.parquet: primary has 5 numbers"
    )
    checks.require_data(status.model_copy(update={"counters": Counters(events_read=1, events_trained=1)}))
    checks.require_data(status.model_copy(update={"state": "stopped"}))


def test_small_batches_on_a_gpu_are_warned_of_with_the_setting() -> None:
    (warning,) = checks.warnings_of_speed(256, "cuda")
    assert "stream.batch_events = 256" in warning
    assert "8,192" in warning
    assert checks.warnings_of_speed(checks.LEAST_GPU_EVENTS, "cuda") == checks.warnings_of_speed(256, "cpu") == ()


def config(**flags: Any) -> Config:
    return load_config({}, flags={key.replace("__", "."): value for key, value in flags.items()}, environment={})


def checkpoint(**flags: Any) -> dict[str, Any]:
    return {"plan_hash": "aa", "step": 12, "config": checks.config_for_checkpoint(config(**flags))}


def test_a_checkpoint_of_another_plan_names_what_was_and_what_is() -> None:
    now = checks.config_for_checkpoint(config(seed=5, stream__batch_events=512, stream__slots=16))
    with pytest.raises(BadInputError) as error:
        checks.require_same_plan(checkpoint(seed=0), "bb", now)
    words = (
        "the checkpoint at step 12 belongs to another plan (seed was 0, now 5; stream.batch_events was 256, now 512)"
    )
    assert str(error.value).startswith(f"{words}: resume with the former values, or use --new-plan")
    checks.require_same_plan(checkpoint(seed=0), "aa", now)


def test_other_inputs_are_named_and_other_files_behind_the_same_inputs_too() -> None:
    before = checkpoint(input=("/data/a",))
    remedy = checks.new_plan_remedy(before, checks.config_for_checkpoint(config(input=("/data/b", "/data/c"))))
    assert remedy.startswith('(input was ["/data/a"], now ["/data/b", "/data/c"]): resume with the former values')
    remedy = checks.new_plan_remedy(before, checks.config_for_checkpoint(config(input=("/data/a",))))
    assert remedy.startswith("(the files of its inputs were others): ")


def test_weights_of_other_networks_are_refused_with_the_changed_keys() -> None:
    wider, reason = config(trainer__wgan__network__hidden=99), RuntimeError("size\nmismatch")
    text = "step-1.pt: its weights fit no network of this configuration (size mismatch): {}; use --fresh"
    told = str(checks.misfit(checkpoint(), "step-1.pt", wider, reason, "use --fresh"))
    assert told == text.format("trainer.wgan.network.hidden was 64, now 99")
    told = str(checks.misfit(checkpoint(trainer__model="likelihood"), "step-1.pt", config(), reason, "use --fresh"))
    assert told == text.format('trainer.model was "likelihood", now "wgan"')
    told = str(checks.misfit(checkpoint(), "step-1.pt", config(), reason, "use --fresh"))
    assert told == text.format("another version of icestream, or of a model of your own, wrote it")


def test_weights_do_not_get_another_meaning_when_a_run_goes_on() -> None:
    name = "network.energy_cut_gev"
    flags = {"trainer__model": "likelihood", f"trainer__likelihood__{name.replace('.', '__')}": 0.0}
    changed = config(**flags | {f"trainer__likelihood__{name.replace('.', '__')}": 100.0})
    told = f"step-1.pt: its weights were learned with trainer.likelihood.{name} = 0.0, it is 100.0 now: set it to 0.0"
    with pytest.raises(BadInputError) as error:
        checks.require_meaning(checkpoint(**flags), changed, (name,), "step-1.pt", ", or use --fresh")
    assert str(error.value) == f"{told}, or use --fresh"
    checks.require_meaning(checkpoint(**flags), changed, ("network.hidden",), "step-1.pt")


@pytest.mark.parametrize(
    ("written", "wanted", "told"),
    [
        ("wgan", "sets", "--model wgan, or use --fresh"),
        ("none", "wgan", "--model none, or use --fresh"),
        ("flow", "wgan", "has no model 'flow'.*--fresh"),
    ],
)
def test_training_does_not_go_on_from_a_checkpoint_of_another_model(written: str, wanted: str, told: str) -> None:
    checkpoint = {"step": 7, "config": json.dumps({"trainer": {"model": written}})}
    with pytest.raises(BadInputError, match=f"step 7 is of the model '{written}'.*{told}"):
        checks.require_model(checkpoint, Config.model_validate({"trainer": {"model": wanted}}))
    checks.require_model(
        checkpoint | {"config": json.dumps({"trainer": {"model": wanted}})},
        Config.model_validate({"trainer": {"model": wanted}}),
    )
