"""What comes after a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.status import TrainerStatus
from icestream.commands.run_end import already_complete, next_line
from services.config.root import Config, load_config

FINISHED = TrainerStatus(state="finished", step=312, epochs=2, epoch=2)
BY_STEPS = FINISHED.model_copy(update={"max_steps": 312})


def config(**flags: Any) -> Config:
    defaults = {"input": ("/data",), "epochs": 2}
    return load_config({}, flags=defaults | {key.replace("__", "."): value for key, value in flags.items()})


FORMER = config().model_dump(mode="json")


def test_a_finished_run_without_another_setting_is_complete() -> None:
    assert already_complete(FORMER, config(), FINISHED) == "Already complete (312 steps). Raise --epochs to continue."
    words = "Already complete (312 steps). Raise --max-steps to continue."
    assert already_complete(FORMER, config(trainer__max_steps=312), BY_STEPS) == words


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        ({}, None),
        ({}, FINISHED.model_copy(update={"state": "stopped"})),
        ({}, FINISHED.model_copy(update={"state": "training"})),
        ({"epochs": 3}, FINISHED),
        ({"epochs": 0}, FINISHED),
        ({"seed": 5}, FINISHED),
        ({"input": ("/data", "/more")}, FINISHED),
        ({"outputs__destination": "/copies"}, FINISHED),
        ({"trainer__wgan__critic_steps": 7}, FINISHED),
        ({"trainer__max_steps": 313}, BY_STEPS),
        ({"trainer__max_steps": 0}, BY_STEPS),
    ],
)
def test_a_run_with_something_left_to_do_is_not_complete(flags: dict[str, Any], status: TrainerStatus | None) -> None:
    assert already_complete(FORMER, config(**flags), status) == ""


def test_fewer_steps_than_were_made_are_complete_as_well() -> None:
    assert already_complete(FORMER, config(trainer__max_steps=40), BY_STEPS)


def test_settings_that_change_no_result_do_not_make_it_run_again() -> None:
    assert already_complete(FORMER, config(local__decoders=7, trainer__threads=0), FINISHED)


def test_the_next_command_follows_from_the_end() -> None:
    run_dir = Path("runs/my run")
    assert next_line(run_dir, config(), "interrupted") == "Resume: icestream run --run-dir 'runs/my run'"
    assert next_line(run_dir, config(), "finished") == "Next: icestream evaluate 'runs/my run' -i HELD_OUT_FILES"
    assert next_line(run_dir, config(), "failed") == ""
    assert next_line(run_dir, config(trainer__model="none"), "finished") == ""
    resume = next_line(run_dir, config(trainer__model="mine:TRAINING"), "interrupted")
    assert resume == "Resume: icestream run --run-dir 'runs/my run' --model mine:TRAINING"
    own = next_line(run_dir, config(trainer__model="mine:TRAINING"), "finished")
    assert own == "Next, in Python: icestream.load('runs/my run', model='mine:TRAINING')"
