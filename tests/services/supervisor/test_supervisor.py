"""Starts and restarts of a run's processes, with stand-ins for them (stand_ins.py)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from stand_ins import CTRL_C, EVERYONE, Stage, started, started_times

from services.supervisor.names import service_command
from services.supervisor.restart import MOST_FAILURES

pytestmark = pytest.mark.process


def test_a_killed_decoder_is_started_again_and_counted(stage: Stage) -> None:
    stage.script = [
        (started(*EVERYONE), lambda: os.kill(stage.processes.pids["decoder-1"], signal.SIGKILL)),
        (started_times("decoder-1", 2), CTRL_C),
    ]
    outcome = stage.run()
    assert outcome.restarts == {"fetcher": 0, "decoder": 1, "trainer": 0}
    assert any(line.startswith("decoder-1 was killed by SIGKILL; it starts again in 0 s") for line in stage.said)


@pytest.mark.parametrize("name", ["fetcher", "decoder-0", "trainer"])
def test_a_process_that_ends_with_an_exit_code_of_its_own_is_started_again(stage: Stage, name: str) -> None:
    stage.behaviours = {name: "crashes once"}
    stage.script = [(started_times(name, 2), lambda: None), (started(*EVERYONE), CTRL_C)]
    assert sum(stage.run().restarts.values()) == 1


@pytest.mark.parametrize("name", ["fetcher", "decoder-0", "trainer"])
def test_exit_code_2_stops_everything_with_its_message(stage: Stage, name: str) -> None:
    stage.behaviours = {name: "refuses"}
    outcome = stage.run()
    assert (outcome.exit_status, outcome.exit_code) == ("failed", 2)
    assert outcome.error == f"{name}: no such file: demo"
    assert sum(outcome.restarts.values()) == 0


def test_exit_code_2_without_a_message_names_the_log(stage: Stage) -> None:
    (stage.run_dir / "logs").mkdir()
    (stage.run_dir / "logs" / "trainer.log").write_text("Error: of a former session\n")
    stage.behaviours = {"trainer": "refuses silently"}
    outcome = stage.run()
    assert outcome.error == f"trainer: ended with exit code 2; see {stage.run_dir / 'logs' / 'trainer.log'}"


@pytest.mark.parametrize("name", ["fetcher", "trainer"])
def test_a_bug_that_returns_without_a_step_in_between_ends_the_run_with_its_last_line(stage: Stage, name: str) -> None:
    stage.behaviours = {name: "has a bug"}
    outcome = stage.run()
    assert (outcome.exit_status, outcome.exit_code) == ("failed", 1)
    assert stage.story().count((name, "failed")) == MOST_FAILURES
    bug = "ValueError: no such column: theta"
    assert stage.said[0] == (
        f"{name} ended with exit code 1: {bug}; it starts again in 0 s (log: {stage.run_dir / 'logs' / name}.log)"
    )
    assert outcome.error is not None
    assert f"{name}: failed {MOST_FAILURES} times without a step in between, always with: {bug};" in outcome.error


def test_a_trainer_that_crashed_may_finish_later(stage: Stage) -> None:
    stage.behaviours = {"trainer": "crashes, then finishes"}
    outcome = stage.run(stop_timeout_s=0.05)
    assert (outcome.exit_code, outcome.restarts["trainer"]) == (0, 1)


def test_a_trainer_that_ends_without_having_finished_fails_the_run(stage: Stage) -> None:
    stage.behaviours = {"trainer": "gives up"}
    outcome = stage.run()
    assert (outcome.exit_status, outcome.exit_code) == ("failed", 1)
    assert outcome.error == "trainer: it ended without having finished (its state: training)"


def test_a_fetcher_that_has_finished_is_started_again_only_with_the_trainer(stage: Stage) -> None:
    stage.behaviours = {"fetcher": "finishes"}
    stage.script = [
        (started(*EVERYONE), lambda: None),
        (
            lambda story: "fetcher" not in stage.processes.pids,
            lambda: os.kill(stage.processes.pids["trainer"], signal.SIGKILL),
        ),
        (
            lambda story: started_times("trainer", 2)(story) and started_times("fetcher", 2)(story),
            CTRL_C,
        ),
    ]
    stage.run()
    assert stage.story().count(("fetcher", "started")) == 2


def test_logs_are_appended_and_only_for_their_owner(stage: Stage) -> None:
    (stage.run_dir / "logs").mkdir()
    (stage.run_dir / "logs" / "fetcher.log").write_text("a former session\n")
    stage.behaviours = {"fetcher": "refuses"}
    stage.run()
    logs = stage.run_dir / "logs"
    assert (logs / "fetcher.log").read_text().startswith("a former session\nError: an older complaint\n")
    assert sorted(path.name for path in logs.iterdir()) == [
        *("decoder-0.log", "decoder-1.log", "fetcher.log", "trainer.log")
    ]
    assert (logs / "trainer.log").stat().st_mode & 0o777 == 0o600


def test_a_service_is_told_its_parent_and_reads_its_configuration_from_the_run_directory_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICESTREAM_SEED", "5")
    stage.behaviours = {"trainer": "shows its environment"}
    stage.run()
    assert (stage.run_dir / "logs" / "trainer.log").read_text() == f"{{'_ICESTREAM_PARENT': '{os.getpid()}'}}\n"


def test_a_service_never_takes_its_modules_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service_command("decoder-3", Path("run"))[-4:] == ["icestream", "decoder", "--run-dir", "run"]
    monkeypatch.chdir(tmp_path)
    assert "-P" in service_command("decoder-3", Path("run"))
