"""State of a run from made-up holders of its lock and made-up statuses."""

from __future__ import annotations

import pytest

from common.status import RunStatus, TrainerStatus
from icestream.commands.status.run_state import Occupant, state_of

HERE = Occupant("icestream run, process 7 on a", is_alive=True)
GONE = Occupant("icestream run, process 7 on a", is_alive=False)
ELSEWHERE = Occupant("icestream run, process 7 on b", is_alive=None)
TRAINING = TrainerStatus(state="training", step=3)


@pytest.mark.parametrize(
    ("run", "trainer", "state"),
    [
        (RunStatus(), TRAINING, "running"),
        (RunStatus(), None, "starting"),
        (RunStatus(), TrainerStatus(), "starting"),
        (RunStatus(state="stopping"), TRAINING, "stopping"),
        (RunStatus(), TrainerStatus(state="finished"), "stopping"),
        (None, TRAINING, "running"),
    ],
)
def test_the_state_of_a_run_with_a_living_process(
    run: RunStatus | None, trainer: TrainerStatus | None, state: str
) -> None:
    assert state_of(HERE, run, trainer, silent_s=0.1) == (state, HERE.text)


def test_a_run_whose_process_is_gone_without_an_end_was_killed_whatever_its_status_says() -> None:
    for run in (RunStatus(), None, RunStatus(state="finished")):  # an end of a former session
        state, reason = state_of(GONE, run, TRAINING, silent_s=0.1)
        assert state == "killed"
        assert reason.startswith("icestream run, process 7 on a, is gone and recorded no end")
    assert state_of(None, RunStatus(state="running"), TRAINING, silent_s=9.0)[0] == "killed"


def test_a_run_on_another_host_runs_while_it_writes_and_is_unknown_once_it_is_silent() -> None:
    assert state_of(ELSEWHERE, RunStatus(), TRAINING, silent_s=5.0)[0] == "running"
    state, reason = state_of(ELSEWHERE, RunStatus(), TRAINING, silent_s=3600.0)
    assert state == "unknown"
    assert reason == "no sign of life for 1 h from icestream run, process 7 on b; it can't be seen from here"
    assert state_of(ELSEWHERE, RunStatus(), TRAINING, silent_s=None)[0] == "unknown"


@pytest.mark.parametrize("end", ["finished", "interrupted", "failed"])
def test_an_ended_run_has_the_state_and_the_reason_of_its_end(end: str) -> None:
    run = RunStatus.model_validate({"state": end, "error": "why"})
    assert state_of(None, run, TRAINING, silent_s=9.0) == (end, "why")


def test_services_that_were_started_one_by_one_have_the_end_of_their_trainer() -> None:
    assert state_of(None, None, TrainerStatus(state="finished"), silent_s=9.0) == ("finished", "")
    assert state_of(None, None, TrainerStatus(state="stopped"), silent_s=9.0) == ("interrupted", "")
    assert state_of(None, None, TRAINING, silent_s=9.0)[0] == "unknown"
    assert state_of(None, None, None, silent_s=None)[0] == "new"
