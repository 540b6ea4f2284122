"""Stopping of a run, with stand-ins for its processes (stand_ins.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from stand_ins import CTRL_C, EVERYONE, PATIENCE_S, STAND_IN, Stage, signal_self, started

from services.supervisor import supervisor as supervisor_module

pytestmark = pytest.mark.process

SUPERVISOR = """
import sys
from pathlib import Path
from services.config.local import LocalConfig
from services.supervisor.supervisor import Supervisor

run_dir, stand_in = Path(sys.argv[1]), sys.argv[2]
command = lambda name: [sys.executable, "-I", "-S", "-c", stand_in, name, "waits", str(run_dir)]
outcome = Supervisor(run_dir, LocalConfig(), command).run()
sys.exit(outcome.exit_code)
"""


def test_ctrl_c_stops_the_trainer_first_then_the_decoders_then_the_fetcher(stage: Stage) -> None:
    stage.script = [(started(*EVERYONE), CTRL_C)]
    outcome = stage.run()
    stops = [name for name, what in stage.story() if what == "SIGTERM"]
    assert (stops[0], stops[-1]) == ("trainer", "fetcher")
    assert sorted(stops[1:-1]) == ["decoder-0", "decoder-1"]
    assert (outcome.exit_status, outcome.exit_code, outcome.error) == ("interrupted", 130, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
def test_other_signals_that_ask_to_stop_count_as_ctrl_c(stage: Stage, number: signal.Signals) -> None:
    stage.script = [(started(*EVERYONE), signal_self(number))]
    before = signal.signal(number, signal.SIG_DFL)  # the tests themselves may have been started by `nohup`
    try:
        assert stage.run().exit_code == 130
    finally:
        signal.signal(number, before)


def test_a_second_ctrl_c_kills_what_does_not_stop(stage: Stage) -> None:
    stage.behaviours = dict.fromkeys(EVERYONE, "stubborn")
    stage.script = [
        (started(*EVERYONE), CTRL_C),
        (lambda story: ("trainer", "SIGTERM") in story, CTRL_C),
    ]
    assert stage.run().exit_code == 130
    assert [name for name, what in stage.story() if what == "SIGTERM"] == ["trainer"]


def test_a_second_sigterm_does_not_kill(stage: Stage) -> None:
    stage.behaviours = {"trainer": "stubborn"}
    sigterm = signal_self(signal.SIGTERM)
    told = []
    stage.script = [
        (started(*EVERYONE), sigterm),
        (lambda story: ("trainer", "SIGTERM") in story, sigterm),
        (lambda story: True, lambda: told.append("trainer" in stage.processes.pids)),
        (lambda story: True, CTRL_C),
    ]
    stage.run()
    assert told == [True]


def test_a_process_that_ignores_its_signal_is_killed_when_patience_ends(stage: Stage) -> None:
    stage.behaviours = dict.fromkeys(EVERYONE, "stubborn")
    stage.script = [(started(*EVERYONE), CTRL_C)]
    assert stage.run(stop_timeout_s=0.05).exit_code == 130


def test_a_process_that_was_killed_and_does_not_end_is_left_behind_and_named(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in uninterruptible sleep: its kill is accepted, and nothing follows."""
    stage.behaviours = {"decoder-1": "stubborn"}
    stage.script = [(started(*EVERYONE), CTRL_C)]
    killpg = os.killpg
    held: list[int] = []

    def accept(pid: int, number: signal.Signals) -> None:
        if pid == stage.processes.pids.get("decoder-1", 0) and number == signal.SIGKILL:
            held.append(pid)
        else:
            killpg(pid, number)

    monkeypatch.setattr(os, "killpg", accept)
    monkeypatch.setattr("services.supervisor.stopping.UNKILLABLE_S", 0.1)
    outcome = stage.run(stop_timeout_s=0.5)
    assert (outcome.exit_status, outcome.exit_code) == ("interrupted", 130)
    (pid,) = set(held)
    assert any(f"decoder-1 (process {pid}) was killed and does not end" in line for line in stage.said)
    killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_after_exit_code_2_of_another_the_trainer_stops_first(stage: Stage) -> None:
    refuse = stage.run_dir / "refuse"
    stage.script = [
        (started(*EVERYONE), lambda: (refuse.touch(), stage.behaviours.update({"decoder-0": "refuses"}))[0])
    ]
    stage.script += [
        (lambda story: refuse.exists(), lambda: os.kill(stage.processes.pids["decoder-0"], signal.SIGKILL))
    ]
    outcome = stage.run()
    assert outcome.error == "decoder-0: no such file: demo"
    assert [name for name, what in stage.story() if what == "SIGTERM"] == ["trainer", "decoder-1", "fetcher"]


def test_when_the_trainer_finishes_the_others_end_by_themselves(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FAREWELL_S", PATIENCE_S)  # they may still be starting
    stage.behaviours = dict.fromkeys(EVERYONE, "follows") | {"trainer": "finishes with the others"}
    outcome = stage.run()
    assert (outcome.exit_status, outcome.exit_code, outcome.error) == ("finished", 0, None)
    assert [what for name, what in stage.story() if name != "trainer"].count("followed") == 3


def test_when_the_trainer_finishes_those_that_stay_are_stopped(stage: Stage) -> None:
    stage.behaviours = {"trainer": "finishes", "decoder-1": "stubborn"}
    assert stage.run(stop_timeout_s=0.05).exit_code == 0


def test_ctrl_c_after_the_trainer_has_finished_only_shortens_the_wait(stage: Stage) -> None:
    stage.behaviours = {"trainer": "finishes"}
    stage.script = [
        (started(*EVERYONE), lambda: None),
        (lambda story: "trainer" not in stage.processes.pids, CTRL_C),
    ]
    assert stage.run().exit_code == 0


def test_a_trainer_that_somebody_else_stopped_ends_the_run_as_interrupted(stage: Stage) -> None:
    stage.script = [(started(*EVERYONE), lambda: os.kill(stage.processes.pids["trainer"], signal.SIGTERM))]
    assert stage.run().exit_code == 130


@pytest.mark.parametrize(
    ("behaviour", "exit_code", "error"),
    [("fails to stop", 1, "trainer: ended with exit code 1 while"), ("can't save", 2, "trainer: the disk is full")],
)
def test_a_trainer_that_fails_while_it_stops_is_not_an_interruption(
    stage: Stage, behaviour: str, exit_code: int, error: str
) -> None:
    stage.behaviours = {"trainer": behaviour}
    stage.script = [(started(*EVERYONE), CTRL_C)]
    outcome = stage.run()
    assert (outcome.exit_status, outcome.exit_code) == ("failed", exit_code)
    assert outcome.error is not None
    assert outcome.error.startswith(error)


def test_an_error_of_the_supervisor_leaves_no_process_behind(stage: Stage) -> None:
    def break_down() -> None:
        raise RuntimeError("a bug")

    stage.script = [(started(*EVERYONE), break_down)]
    with pytest.raises(RuntimeError, match="a bug"):
        stage.run()
    assert len(stage.pids()) >= 4


def test_what_a_service_has_started_does_not_outlive_it(stage: Stage) -> None:
    stage.behaviours = {"decoder-0": "has a child"}
    stage.script = [
        (lambda story: any(what.startswith("child-") for _, what in story), lambda: None),
        (started(*EVERYONE), CTRL_C),
    ]
    stage.run()


def test_a_supervisor_that_is_terminated_leaves_nothing_behind(stage: Stage) -> None:
    command = [sys.executable, "-c", SUPERVISOR, str(stage.run_dir), STAND_IN]
    with subprocess.Popen(command) as supervisor:
        deadline_s = time.monotonic() + PATIENCE_S
        while not started(*EVERYONE)(stage.story()):
            assert time.monotonic() < deadline_s
            assert supervisor.poll() is None
            time.sleep(0.01)
        supervisor.terminate()
        assert supervisor.wait(PATIENCE_S) == 130
    assert next(name for name, what in stage.story() if what == "SIGTERM") == "trainer"


def test_signals_are_handled_as_before_when_the_run_has_ended(stage: Stage) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    stage.behaviours = {"trainer": "refuses"}
    stage.run()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
    assert signal.set_wakeup_fd(-1) == -1
