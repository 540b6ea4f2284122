"""Several trainers as a group, with stand-ins for the processes (stand_ins.py)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from stand_ins import CTRL_C, EVERYONE, Stage, Story, started, started_times

from services.supervisor import trainer_group

pytestmark = pytest.mark.process

TRAINERS = ("trainer", "trainer-1")
GROUP = (*EVERYONE, "trainer-1")


def kill_pid(stage: Stage, name: str) -> Callable[[], None]:
    return lambda: os.kill(stage.processes.pids[name], signal.SIGKILL)


def both_have_ended(stage: Stage, starts: int) -> Callable[[Story], bool]:
    """Both trainers have been started so often, and none of them lives."""
    return lambda story: (
        all(started_times(name, starts)(story) for name in TRAINERS) and not {*TRAINERS} & stage.processes.pids.keys()
    )


def test_several_trainers_get_torchruns_environment(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")  # of whoever started `icestream run`
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    stage.behaviours = dict.fromkeys(TRAINERS, "shows its rank")
    files: list[str] = []

    def told(story: Story) -> bool:
        files[:] = [what for _, what in story if what.startswith("file-")]
        return len(files) == 2

    stage.script = [(started(*EVERYONE), lambda: None), (told, CTRL_C)]
    stage.run(trainers=2)
    assert ("trainer", "0_2_0_-") in stage.story()
    assert ("trainer-1", "1_2_1_-") in stage.story()
    assert len(set(files)) == 1


@pytest.mark.parametrize("victim", TRAINERS)
def test_when_one_trainer_dies_all_start_again_once_all_have_ended(
    stage: Stage, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_group, "GROUP_END_S", 0.05)  # the stand-ins don't see that the other one is gone
    stage.script = [
        (started(*GROUP), kill_pid(stage, victim)),
        (
            lambda story: all(started_times(name, 2)(story) for name in TRAINERS),
            CTRL_C,
        ),
    ]
    outcome = stage.run(trainers=2)
    assert outcome.restarts == {"fetcher": 0, "decoder": 0, "trainer": 1}
    assert sum("all trainers start again" in line for line in stage.said) == 1


def test_a_mistake_of_the_user_is_told_once_whichever_trainer_ends_first(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_group, "GROUP_END_S", 0.05)
    stage.behaviours = {"trainer": "waits", "trainer-1": "refuses"}
    outcome = stage.run(trainers=2)
    assert (outcome.exit_code, outcome.error) == (2, "trainer-1: no such file: demo")
    assert outcome.restarts["trainer"] == 0


def test_the_run_is_finished_when_all_trainers_are(stage: Stage) -> None:
    stage.behaviours = dict.fromkeys(TRAINERS, "finishes")
    stage.script = [(both_have_ended(stage, starts=1), CTRL_C)]  # it only shortens the wait for the others
    outcome = stage.run(trainers=2)
    assert (outcome.exit_status, outcome.exit_code) == ("finished", 0)
    assert outcome.restarts["trainer"] == 0


def test_a_trainer_that_dies_while_the_others_have_finished_starts_all_again(stage: Stage) -> None:
    stage.behaviours = {"trainer": "crashes, then finishes", "trainer-1": "finishes"}
    stage.script = [(both_have_ended(stage, starts=2), CTRL_C)]
    outcome = stage.run(trainers=2)
    assert (outcome.exit_code, outcome.restarts["trainer"]) == (0, 1)
    assert stage.story().count(("trainer-1", "started")) == 2


def test_ctrl_c_stops_all_trainers_before_the_stream(stage: Stage) -> None:
    stage.script = [(started(*GROUP), CTRL_C)]
    outcome = stage.run(trainers=2)
    stops = [name for name, what in stage.story() if what == "SIGTERM"]
    assert sorted(stops[:2]) == ["trainer", "trainer-1"]
    assert stops[-1] == "fetcher"
    assert outcome.exit_code == 130
