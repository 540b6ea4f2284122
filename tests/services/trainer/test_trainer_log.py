"""Lines of the trainer's log, with a time that the tests make up."""

from __future__ import annotations

import pytest
from shown_statuses import TRAINER

from services.trainer.telemetry.trainer_log import TrainerLog


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


def test_the_first_step_and_one_every_ten_minutes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = TrainerLog()
    for second in range(0, 1500, 10):
        log.progressed(float(second), TRAINER.model_copy(update={"step": 1 + second}))
    steps = [message.split(" ep ")[0] for message in caplog.messages]
    assert steps == ["step 1", "step 601", "step 1,201"]
    assert caplog.messages[0] == "step 1 ep 1/1 80 ev/s wait 0% c_loss -1.25"


def test_checkpoints_are_logged_at_most_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    log = TrainerLog()
    for second in (0, 59, 60, 61, 200):
        log.checkpointed(float(second), f"checkpoints/step-{second:09}.pt")
    assert caplog.messages == [f"checkpoint checkpoints/step-{second:09}.pt" for second in (0, 60, 200)]


def test_the_end_is_logged_with_its_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    status = TRAINER.model_copy(update={"state": "stopped", "checkpoint": "checkpoints/step-000000010.pt"})
    TrainerLog().progressed(0.0, status)
    assert caplog.messages == [
        "stopped at step 10 after 20 s in all: 1,600 events trained, newest checkpoint checkpoints/step-000000010.pt"
    ]
