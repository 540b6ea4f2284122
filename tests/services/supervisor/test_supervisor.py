"""Starts, restarts, ends and stops of a run's processes, with stand-ins for them (stand_ins.py)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from stand_ins import CTRL_C, EVERYONE, PATIENCE_S, Stage, Story, signal_self, started, started_times

from common.locks import RunAttempt
from common.paths import shard_dir
from common.status import FetcherStatus, write_status
from services.supervisor import supervisor as supervisor_module
from services.supervisor.child import MOST_FAILURES
from services.supervisor.supervisor import TrainerGroup

pytestmark = pytest.mark.process


def test_a_killed_decoder_is_started_again_and_counted(stage: Stage) -> None:
    stage.script = [(started(*EVERYONE), stage.kill("decoder-1")), (started_times("decoder-1", 2), CTRL_C)]
    outcome = stage.run()
    assert outcome.restarts == {"fetcher": 0, "decoder": 1, "trainer": 0}
    assert any(line.startswith("decoder-1 was killed by SIGKILL; it starts again in 0 s") for line in stage.said)


@pytest.mark.parametrize(
    ("name", "behaviour", "error"),
    [
        ("fetcher", "refuses", "no such file: demo"),
        ("decoder-0", "refuses silently", "ended with exit code 2; see {log}"),
        ("trainer", "refuses", "no such file: demo"),
    ],
)
def test_exit_code_2_stops_everything_with_its_message(stage: Stage, name: str, behaviour: str, error: str) -> None:
    log = stage.run_dir / "logs" / f"{name}.log"
    log.parent.mkdir()
    log.write_text("Error: of a former session\n")
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    stage.behaviours = {name: behaviour}
    outcome = stage.run()
    assert (outcome.exit_status, outcome.exit_code) == ("failed", 2)
    assert outcome.error == f"{name}: {error.format(log=log)}"
    assert sum(outcome.restarts.values()) == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert log.read_text().startswith("Error: of a former session\n")
    assert sorted(path.name for path in log.parent.iterdir()) == [
        *("decoder-0.log", "decoder-1.log", "fetcher.log", "trainer.log")
    ]
    other = log.with_name("decoder-1.log")
    assert other.stat().st_mode & 0o777 == 0o600


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


def test_a_trainer_that_ends_without_having_finished_fails_the_run(stage: Stage) -> None:
    stage.behaviours = {"trainer": "gives up"}
    outcome = stage.run()
    assert (outcome.exit_status, outcome.exit_code) == ("failed", 1)
    assert outcome.error == "trainer: it ended without having finished (its state: training)"


def test_a_fetcher_that_has_finished_is_started_again_only_with_the_trainer(stage: Stage) -> None:
    stage.behaviours = {"fetcher": "finishes"}
    stage.script = [
        (started(*EVERYONE), lambda: None),
        (lambda story: "fetcher" not in stage.processes.pids, stage.kill("trainer")),
        (lambda story: started_times("trainer", 2)(story) and started_times("fetcher", 2)(story), CTRL_C),
    ]
    stage.run()
    assert stage.story().count(("fetcher", "started")) == 2


def test_a_service_is_told_its_parent_and_reads_its_configuration_from_the_run_directory_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICESTREAM_SEED", "5")
    stage.behaviours = {"trainer": "shows its environment"}
    stage.run()
    assert (stage.run_dir / "logs" / "trainer.log").read_text() == f"{{'_ICESTREAM_PARENT': '{os.getpid()}'}}\n"


# ------------------------------------------------------------------ decoders that leave, and `--decoders auto`


@pytest.mark.parametrize("name", ["fetcher", "decoder-0"])
def test_the_fetcher_and_the_last_decoder_may_not_leave(stage: Stage, name: str) -> None:
    stage.behaviours = {name: "leaves once"}
    stage.script = [(started_times(name, 2), lambda: None), (started("fetcher", "decoder-0", "trainer"), CTRL_C)]
    assert sum(stage.run(decoders=1).restarts.values()) == 1


ONE_OF_EACH = started("fetcher", "decoder-0", "trainer")


def looks(times: int) -> list[tuple[Callable[[Story], bool], Callable[[], None]]]:
    """Script: let the supervisor look at the run so often."""
    return [(lambda story: True, lambda: None)] * times


def test_auto_begins_with_one_decoder_and_starts_as_many_as_are_wanted(stage: Stage) -> None:
    stage.script = [
        (ONE_OF_EACH, lambda: stage.tell_wanted(1, "decoder-0")),
        *looks(3),
        (lambda story: len(stage.processes.pids) == 3, lambda: stage.tell_wanted(3, "decoder-0")),
        (started("decoder-1", "decoder-2"), lambda: None),
        *looks(3),  # both are on their way: no other is started
        (lambda story: True, CTRL_C),
    ]
    outcome = stage.run(decoders="auto")
    assert stage.seen == {"fetcher", "trainer", "decoder-0", "decoder-1", "decoder-2"}
    assert outcome.restarts["decoder"] == 0
    assert sorted(name for name, what in stage.story() if what == "SIGTERM" and "decoder" in name) == [
        *("decoder-0", "decoder-1", "decoder-2")
    ]


def test_auto_takes_a_retired_decoder_as_left_and_starts_it_again_only_when_it_is_wanted(stage: Stage) -> None:
    stage.behaviours = {"decoder-1": "leaves when told"}
    leave = stage.run_dir / "decoder-1.leave"
    times: list[int] = []
    stage.script = [
        (ONE_OF_EACH, lambda: stage.tell_wanted(2, "decoder-0")),
        (started("decoder-1"), lambda: stage.tell_wanted(1, "decoder-0")),
        (lambda story: True, leave.touch),
        (lambda story: "decoder-1 left" in stage.said, stage.kill("trainer")),
        (started_times("trainer", 2), lambda: None),
        *looks(3),
        (lambda story: not times.append(story.count(("decoder-1", "started"))), lambda: None),
        (lambda story: "decoder-1" not in stage.processes.pids, lambda: stage.tell_wanted(2, "decoder-0")),
        (started_times("decoder-1", 2), CTRL_C),
    ]
    assert stage.run(decoders="auto").restarts["decoder"] == 0
    assert stage.said.count("decoder-1 left") == 1
    assert times == [1], "not because the trainer was started again"


def test_auto_starts_no_other_while_a_killed_decoder_pauses_before_its_restart(stage: Stage) -> None:
    stage.script = [
        (ONE_OF_EACH, stage.kill("decoder-0")),
        (lambda story: "decoder-0" not in stage.processes.pids, lambda: stage.tell_wanted(1)),
        *looks(3),
        (lambda story: True, CTRL_C),
    ]
    stage.run(decoders="auto", restart_s=300)
    assert "decoder-1" not in stage.seen


def test_what_a_former_fetcher_wanted_starts_nobody(stage: Stage) -> None:
    write_status(stage.run_dir, "fetcher", FetcherStatus(pid=1, decoders_wanted=5))
    stage.script = [(ONE_OF_EACH, lambda: None), *looks(5), (lambda story: True, CTRL_C)]
    stage.run(decoders="auto")
    assert "decoder-1" not in stage.seen


# ------------------------------------------------------------------ shards

SHARDS = (0, 2)
OF_SHARDS = ("fetcher-000", "fetcher-002", "decoder-000-0", "decoder-002-0", "trainer")


def test_each_shard_that_runs_here_has_a_fetcher_and_as_many_decoders_as_that_wants(stage: Stage) -> None:
    def want_three() -> None:
        pids = (stage.processes.pids["decoder-002-0"],)
        status = FetcherStatus(pid=stage.processes.pids["fetcher-002"], decoders_wanted=3, decoder_pids=pids)
        write_status(shard_dir(stage.run_dir, 2), "fetcher", status)

    stage.script = [(started(*OF_SHARDS), want_three), (started("decoder-002-1", "decoder-002-2"), CTRL_C)]
    outcome = stage.run(decoders="auto", shards=SHARDS)
    assert outcome.exit_status == "interrupted"
    assert stage.seen == {*OF_SHARDS, "decoder-002-1", "decoder-002-2"}
    stopped = [name for name, what in stage.story() if what == "SIGTERM"]
    assert stopped[0] == "trainer"
    assert {name.partition("-")[0] for name in stopped[1:-2]} == {"decoder"}
    assert sorted(stopped[-2:]) == ["fetcher-000", "fetcher-002"]


# ------------------------------------------------------------------ several trainers as a group

TRAINERS = ("trainer", "trainer-1")
GROUP = (*EVERYONE, "trainer-1")


@pytest.mark.parametrize("victim", TRAINERS)
def test_when_one_trainer_dies_all_start_again_once_all_have_ended(
    stage: Stage, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "GROUP_END_S", 0.05)  # the stand-ins don't see that the other one is gone
    stage.script = [
        (started(*GROUP), stage.kill(victim)),
        (lambda story: all(started_times(name, 2)(story) for name in TRAINERS), CTRL_C),
    ]
    outcome = stage.run(trainers=2)
    assert outcome.restarts == {"fetcher": 0, "decoder": 0, "trainer": 1}
    assert sum("all trainers start again" in line for line in stage.said) == 1


def test_a_mistake_of_the_user_is_told_once_whichever_trainer_ends_first(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "GROUP_END_S", 0.05)
    stage.behaviours = {"trainer": "waits", "trainer-1": "refuses"}
    outcome = stage.run(trainers=2)
    assert (outcome.exit_code, outcome.error) == (2, "trainer-1: no such file: demo")
    assert outcome.restarts["trainer"] == 0


def test_a_trainer_that_dies_while_the_others_have_finished_starts_all_again(stage: Stage) -> None:
    stage.behaviours = {"trainer": "crashes, then finishes", "trainer-1": "finishes"}

    def both_have_ended_twice(story: Story) -> bool:
        alive = {*TRAINERS} & stage.processes.pids.keys()
        return all(started_times(name, 2)(story) for name in TRAINERS) and not alive

    stage.script = [(both_have_ended_twice, CTRL_C)]  # it only shortens the wait for the others
    outcome = stage.run(trainers=2)
    assert (outcome.exit_code, outcome.restarts["trainer"]) == (0, 1)
    assert stage.story().count(("trainer-1", "started")) == 2


# ------------------------------------------------------------------ one of several nodes


@pytest.fixture
def on_two_nodes(stage: Stage, tmp_path: Path) -> None:
    """The stage is the second of two nodes."""
    stage.group = TrainerGroup(stage.run_dir, 2, 1, 2, "node-0", RunAttempt(tmp_path, 3))


@pytest.mark.usefixtures("on_two_nodes")
def test_a_trainer_that_dies_ends_the_node_and_is_not_started_again(stage: Stage) -> None:
    stage.script = [(started(*GROUP), stage.kill("trainer-1"))]
    outcome = stage.run(trainers=2)
    assert (outcome.exit_status, outcome.exit_code) == ("failed", 75)
    assert outcome.error is not None
    assert outcome.error.endswith("was killed by SIGKILL; all nodes start again")
    assert outcome.restarts["trainer"] == 0
    assert ("trainer", "SIGTERM") not in stage.story(), "nothing can be saved without the others"


@pytest.mark.usefixtures("on_two_nodes")
def test_it_ends_in_time_though_its_processes_are_stubborn(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE_END_S", "NODE_GROUP_END_S"):
        monkeypatch.setattr(f"services.supervisor.supervisor.{name}", 0.05)
    stage.behaviours = dict.fromkeys(GROUP, "stubborn")
    stage.script = [(started(*GROUP), stage.kill("trainer-1"))]
    assert stage.run(trainers=2).exit_code == 75  # and not after PATIENCE_S


def test_ctrl_c_stops_the_trainer_first_then_the_decoders_then_the_fetcher(stage: Stage) -> None:
    stage.script = [(started(*EVERYONE), CTRL_C)]
    outcome = stage.run()
    stops = [name for name, what in stage.story() if what == "SIGTERM"]
    assert (stops[0], stops[-1]) == ("trainer", "fetcher")
    assert sorted(stops[1:-1]) == ["decoder-0", "decoder-1"]
    assert (outcome.exit_status, outcome.exit_code, outcome.error) == ("interrupted", 130, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU])
def test_other_signals_that_ask_to_stop_count_as_ctrl_c(stage: Stage, number: signal.Signals) -> None:
    stage.script = [(started(*EVERYONE), signal_self(number))]
    before = signal.signal(number, signal.SIG_DFL)  # the tests themselves may have been started by `nohup`
    try:
        assert stage.run().exit_code == 130
    finally:
        signal.signal(number, before)


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
    monkeypatch.setattr("services.supervisor.supervisor.UNKILLABLE_S", 0.1)
    outcome = stage.run(stop_timeout_s=0.5)
    assert (outcome.exit_status, outcome.exit_code) == ("interrupted", 130)
    (pid,) = set(held)
    assert any(f"decoder-1 (process {pid}) was killed and does not end" in line for line in stage.said)
    killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_when_the_trainer_finishes_the_others_end_by_themselves(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FAREWELL_S", PATIENCE_S)  # they may still be starting
    stage.behaviours = dict.fromkeys(EVERYONE, "follows") | {"trainer": "finishes with the others"}
    outcome = stage.run()
    assert (outcome.exit_status, outcome.exit_code, outcome.error) == ("finished", 0, None)
    assert [what for name, what in stage.story() if name != "trainer"].count("followed") == 3


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


def test_a_second_ctrl_c_kills_what_does_not_stop_and_a_second_sigterm_does_not(stage: Stage) -> None:
    stage.behaviours = dict.fromkeys(EVERYONE, "stubborn")
    sigterm = signal_self(signal.SIGTERM)
    told = []
    stage.script = [
        (started(*EVERYONE), sigterm),
        (lambda story: ("trainer", "SIGTERM") in story, sigterm),
        (lambda story: True, lambda: told.append("trainer" in stage.processes.pids)),
        (lambda story: True, CTRL_C),
    ]
    assert stage.run().exit_code == 130
    assert told == [True]
    assert [name for name, what in stage.story() if what == "SIGTERM"] == ["trainer"]
