"""The supervisor with real processes: stand-ins of a few lines instead of the services.

A stand-in appends a line to `story.txt` for everything that happens to it. The supervisor's own regular look at
the run drives each test: once the story has come far enough, the test acts (a signal, mostly). No test waits for a
time; one that hangs is ended by PATIENCE_S.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from common.status import FetcherStatus, write_status
from services.config.local import LocalConfig
from services.supervisor import supervisor as supervisor_module
from services.supervisor.supervisor import Outcome, Processes, Supervisor, service_command

pytestmark = pytest.mark.process

PATIENCE_S = 60.0

STAND_IN = """
import json, os, signal, sys, time
from pathlib import Path

name, behaviour, run_dir = sys.argv[1], sys.argv[2], Path(sys.argv[3])

def tell(what):
    story = os.open(run_dir / "story.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(story, f"{name} {what} {os.getpid()}\\n".encode())
    os.close(story)

def report(state):
    part = run_dir / "status" / f"{name}.part"
    part.write_text(json.dumps({"state": state, "pid": os.getpid()}))
    part.replace(run_dir / "status" / f"{name}.json")

def on_sigterm(number, frame):
    tell("SIGTERM")
    if behaviour != "stubborn":
        if name == "trainer":
            report("stopped")
        sys.exit({"fails to stop": 1, "can't save": 2}.get(behaviour, 0))

(run_dir / "status").mkdir(exist_ok=True)
signal.signal(signal.SIGTERM, on_sigterm)
first = not (run_dir / f"{name}.was-here").exists()
(run_dir / f"{name}.was-here").touch()
tell("started")
if behaviour == "leaves when told":
    while not (run_dir / f"{name}.leave").exists():
        time.sleep(0.01)
    (run_dir / f"{name}.leave").unlink()
    sys.exit(0)
if behaviour == "has a child":
    import subprocess
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"])
    tell(f"child-{child.pid}")
elif behaviour == "refuses":
    print("Error: an older complaint", flush=True)
    print("Error: no such file: demo", file=sys.stderr, flush=True)
    print("some more words", flush=True)
    sys.exit(2)
elif behaviour == "shows its environment":
    print({key: value for key, value in os.environ.items() if "ICESTREAM" in key}, flush=True)
    sys.exit(2)
elif behaviour == "shows its rank":
    tell("_".join(os.environ.get(key, "-") for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")))
    tell("file-" + os.environ["_ICESTREAM_RANKS_FILE"])
elif behaviour == "refuses silently":
    sys.exit(2)
elif behaviour == "can't save":
    print("Error: the disk is full", flush=True)
elif behaviour == "crashes once" and first:
    sys.exit(1)
elif behaviour == "leaves once" and first:
    sys.exit(0)
elif behaviour == "finishes":
    report("finished")
    sys.exit(0)
elif behaviour == "crashes, then finishes":
    if first:
        os.kill(os.getpid(), signal.SIGKILL)
    report("finished")
    sys.exit(0)
elif behaviour == "gives up":
    report("training")
    sys.exit(0)
elif behaviour == "follows":
    while not (run_dir / ("trainer.done" if name == "fetcher" else "fetcher.done")).exists():
        time.sleep(0.01)
    tell("followed")
    if name == "fetcher":
        report("finished")
        (run_dir / "fetcher.done").touch()
    sys.exit(0)
elif behaviour == "finishes with the others":
    report("finished")
    (run_dir / "trainer.done").touch()
    sys.exit(0)
while True:
    time.sleep(0.02)  # not pause(): a signal just before it would not be heard before the next one
"""

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

Story = list[tuple[str, str]]


class Stage:
    """A run directory, stand-ins with behaviours, and a script: (when the story is so far, do this) in order."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.behaviours: dict[str, str] = {}
        self.script: list[tuple[Callable[[Story], bool], Callable[[], None]]] = []
        self.said: list[str] = []
        self.processes = Processes({}, {})
        self.seen: set[str] = set()
        """Every process that ever ran, also one that had no time to tell of itself."""
        self._deadline_s = time.monotonic() + PATIENCE_S

    def command_for(self, name: str) -> list[str]:
        behaviour = self.behaviours.get(name, "waits")
        return [sys.executable, "-I", "-S", "-c", STAND_IN, name, behaviour, str(self.run_dir)]

    def lines(self) -> list[list[str]]:
        path = self.run_dir / "story.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def story(self) -> Story:
        return [(line[0], line[1]) for line in self.lines()]

    def pids(self) -> list[int]:
        pids = [int(line[2]) for line in self.lines()]
        return pids + [int(what.partition("-")[2]) for _, what in self.story() if what.startswith("child-")]

    def watch(self, processes: Processes) -> None:
        assert time.monotonic() < self._deadline_s, f"stuck: {self.story()} {self.said}"
        self.processes = processes
        self.seen |= processes.pids.keys()
        if self.script and self.script[0][0](self.story()):
            self.script.pop(0)[1]()

    def tell_wanted(self, wanted: int, *connected: str) -> None:
        """What the fetcher would say: so many decoders are wanted, and these have joined."""
        pids = tuple(self.processes.pids[name] for name in connected)
        status = FetcherStatus(pid=self.processes.pids["fetcher"], decoders_wanted=wanted, decoder_pids=pids)
        write_status(self.run_dir, "fetcher", status)

    def run(
        self,
        decoders: int | Literal["auto"] = 2,
        stop_timeout_s: float = PATIENCE_S,
        restart_s: float = 0,
        trainers: int = 1,
    ) -> Outcome:
        local = LocalConfig(
            decoders=decoders,
            trainers=trainers,
            restart_min_s=restart_s,
            restart_max_s=restart_s,
            stop_timeout_s=stop_timeout_s,
        )
        supervisor = Supervisor(
            self.run_dir,
            local,
            self.command_for,
            watch=self.watch,
            say=self.said.append,
            tick_s=0.01,
            hurry_after_s=0.0,
        )
        outcome = supervisor.run()
        assert not self.script, f"the run ended too early: {self.story()}"
        return outcome


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    assert_gone(stage.pids())


def assert_gone(pids: list[int]) -> None:
    """None of the processes is left. Killed ones that somebody else has to reap get a moment for it."""
    deadline_s = time.monotonic() + PATIENCE_S
    for pid in pids:
        while is_running(pid):
            assert time.monotonic() < deadline_s, f"process {pid} is left"
            time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def started(*names: str) -> Callable[[Story], bool]:
    return lambda story: all((name, "started") in story for name in names)


def started_times(name: str, times: int) -> Callable[[Story], bool]:
    return lambda story: story.count((name, "started")) == times


def signal_self(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


EVERYONE = ("fetcher", "decoder-0", "decoder-1", "trainer")
CTRL_C = signal_self(signal.SIGINT)


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


def test_ctrl_c_stops_the_trainer_first_then_the_fetcher_then_the_decoders(stage: Stage) -> None:
    stage.script = [(started(*EVERYONE), CTRL_C)]
    outcome = stage.run()
    stops = [name for name, what in stage.story() if what == "SIGTERM"]
    assert stops[:2] == ["trainer", "fetcher"]
    assert sorted(stops[2:]) == ["decoder-0", "decoder-1"]
    assert (outcome.exit_status, outcome.exit_code, outcome.error) == ("interrupted", 130, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
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
    monkeypatch.setattr(supervisor_module, "UNKILLABLE_S", 0.1)
    outcome = stage.run(stop_timeout_s=0.5)
    assert (outcome.exit_status, outcome.exit_code) == ("interrupted", 130)
    (pid,) = set(held)
    assert any(f"decoder-1 (process {pid}) was killed and does not end" in line for line in stage.said)
    killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.parametrize("name", ["fetcher", "decoder-0", "trainer"])
def test_exit_code_2_stops_everything_with_its_message(stage: Stage, name: str) -> None:
    stage.behaviours = {name: "refuses"}
    outcome = stage.run()
    assert (outcome.exit_status, outcome.exit_code) == ("failed", 2)
    assert outcome.error == f"{name}: no such file: demo"
    assert sum(outcome.restarts.values()) == 0


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
    assert [name for name, what in stage.story() if what == "SIGTERM"] == ["trainer", "fetcher", "decoder-1"]


def test_exit_code_2_without_a_message_names_the_log(stage: Stage) -> None:
    (stage.run_dir / "logs").mkdir()
    (stage.run_dir / "logs" / "trainer.log").write_text("Error: of a former session\n")
    stage.behaviours = {"trainer": "refuses silently"}
    outcome = stage.run()
    assert outcome.error == f"trainer: ended with exit code 2; see {stage.run_dir / 'logs' / 'trainer.log'}"


def test_when_the_trainer_finishes_the_others_end_by_themselves(stage: Stage) -> None:
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


def test_a_trainer_that_crashed_may_finish_later(stage: Stage) -> None:
    stage.behaviours = {"trainer": "crashes, then finishes"}
    outcome = stage.run(stop_timeout_s=0.05)
    assert (outcome.exit_code, outcome.restarts["trainer"]) == (0, 1)


def test_a_trainer_that_ends_without_having_finished_fails_the_run(stage: Stage) -> None:
    stage.behaviours = {"trainer": "gives up"}
    outcome = stage.run()
    assert (outcome.exit_status, outcome.exit_code) == ("failed", 1)
    assert outcome.error == "trainer: it ended without having finished (its state: training)"


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


def test_a_decoder_may_leave(stage: Stage) -> None:
    stage.behaviours = {"decoder-0": "leaves once"}
    stage.script = [
        (started(*EVERYONE), lambda: None),
        (lambda story: "decoder-0" not in stage.processes.pids, CTRL_C),
    ]
    assert sum(stage.run().restarts.values()) == 0


@pytest.mark.parametrize("name", ["fetcher", "decoder-0"])
def test_the_fetcher_and_the_last_decoder_may_not_leave(stage: Stage, name: str) -> None:
    stage.behaviours = {name: "leaves once"}
    stage.script = [(started_times(name, 2), lambda: None), (started("fetcher", "decoder-0", "trainer"), CTRL_C)]
    assert sum(stage.run(decoders=1).restarts.values()) == 1


def test_the_last_decoder_may_leave_after_a_fetcher_that_has_finished(stage: Stage) -> None:
    stage.behaviours = dict.fromkeys(("fetcher", "decoder-0", "decoder-1"), "follows")
    stage.script = [
        (started(*EVERYONE), (stage.run_dir / "trainer.done").touch),
        (lambda story: list(stage.processes.pids) == ["trainer"], CTRL_C),
    ]
    assert sum(stage.run().restarts.values()) == 0


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


# ------------------------------------------------------------------ --trainers

TRAINERS = ("trainer", "trainer-1")
GROUP = (*EVERYONE, "trainer-1")


def kill_pid(stage: Stage, name: str) -> Callable[[], None]:
    return lambda: os.kill(stage.processes.pids[name], signal.SIGKILL)


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
    monkeypatch.setattr(supervisor_module, "GROUP_END_S", 0.05)  # the stand-ins don't see that the other one is gone
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
    monkeypatch.setattr(supervisor_module, "GROUP_END_S", 0.05)
    stage.behaviours = {"trainer": "waits", "trainer-1": "refuses"}
    outcome = stage.run(trainers=2)
    assert (outcome.exit_code, outcome.error) == (2, "trainer-1: no such file: demo")
    assert stage.story().count(("trainer", "started")) == 1


def test_the_run_is_finished_when_all_trainers_are(stage: Stage) -> None:
    stage.behaviours = dict.fromkeys(TRAINERS, "finishes")
    outcome = stage.run(trainers=2, stop_timeout_s=0.5)
    assert (outcome.exit_status, outcome.exit_code) == ("finished", 0)
    assert outcome.restarts["trainer"] == 0


def test_a_trainer_that_dies_while_the_others_have_finished_starts_all_again(stage: Stage) -> None:
    stage.behaviours = {"trainer": "crashes, then finishes", "trainer-1": "finishes"}
    outcome = stage.run(trainers=2, stop_timeout_s=0.5)
    assert (outcome.exit_code, outcome.restarts["trainer"]) == (0, 1)
    assert stage.story().count(("trainer-1", "started")) == 2


def test_ctrl_c_stops_all_trainers_before_the_fetcher(stage: Stage) -> None:
    stage.script = [(started(*GROUP), CTRL_C)]
    outcome = stage.run(trainers=2)
    stops = [name for name, what in stage.story() if what == "SIGTERM"]
    assert sorted(stops[:2]) == ["trainer", "trainer-1"]
    assert stops[2] == "fetcher"
    assert outcome.exit_code == 130


# ------------------------------------------------------------------ --decoders auto

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


def test_auto_counts_a_decoder_that_somebody_else_started(stage: Stage) -> None:
    def joined_by_hand() -> None:
        pids = (stage.processes.pids["decoder-0"], 1)
        fetcher = stage.processes.pids["fetcher"]
        write_status(stage.run_dir, "fetcher", FetcherStatus(pid=fetcher, decoders_wanted=2, decoder_pids=pids))

    stage.script = [(ONE_OF_EACH, joined_by_hand), *looks(5), (lambda story: True, CTRL_C)]
    stage.run(decoders="auto")
    assert "decoder-1" not in stage.seen


def test_auto_takes_a_retired_decoder_as_left_and_starts_it_again_when_it_is_wanted(stage: Stage) -> None:
    stage.behaviours = {"decoder-1": "leaves when told"}
    leave = stage.run_dir / "decoder-1.leave"
    stage.script = [
        (ONE_OF_EACH, lambda: stage.tell_wanted(2, "decoder-0")),
        (started("decoder-1"), lambda: stage.tell_wanted(1, "decoder-0")),
        (lambda story: True, leave.touch),
        (lambda story: "decoder-1 left" in stage.said, lambda: None),
        *looks(3),
        (lambda story: "decoder-1" not in stage.processes.pids, lambda: stage.tell_wanted(2, "decoder-0")),
        (started_times("decoder-1", 2), CTRL_C),
    ]
    assert stage.run(decoders="auto").restarts["decoder"] == 0
    assert stage.said.count("decoder-1 left") == 1


def test_auto_starts_a_killed_decoder_again_and_no_other_in_its_place(stage: Stage) -> None:
    stage.script = [
        (ONE_OF_EACH, lambda: stage.tell_wanted(1, "decoder-0")),
        (lambda story: True, lambda: os.kill(stage.processes.pids["decoder-0"], signal.SIGKILL)),
        (started_times("decoder-0", 2), lambda: None),
        *looks(3),
        (lambda story: True, CTRL_C),
    ]
    assert stage.run(decoders="auto").restarts["decoder"] == 1
    assert "decoder-1" not in stage.seen


def test_auto_starts_no_other_while_a_killed_decoder_pauses_before_its_restart(stage: Stage) -> None:
    stage.script = [
        (ONE_OF_EACH, lambda: os.kill(stage.processes.pids["decoder-0"], signal.SIGKILL)),
        (lambda story: "decoder-0" not in stage.processes.pids, lambda: stage.tell_wanted(1)),
        *looks(3),
        (lambda story: True, CTRL_C),
    ]
    stage.run(decoders="auto", restart_s=300)
    assert "decoder-1" not in stage.seen


def test_auto_does_not_bring_back_who_left_only_because_the_trainer_is_started_again(stage: Stage) -> None:
    stage.behaviours = {"decoder-1": "leaves when told"}
    stage.script = [
        (ONE_OF_EACH, lambda: stage.tell_wanted(2, "decoder-0")),
        (started("decoder-1"), lambda: stage.tell_wanted(1, "decoder-0")),
        (lambda story: True, (stage.run_dir / "decoder-1.leave").touch),
        (
            lambda story: "decoder-1 left" in stage.said,
            lambda: os.kill(stage.processes.pids["trainer"], signal.SIGKILL),
        ),
        (started_times("trainer", 2), lambda: None),
        *looks(3),
        (lambda story: True, CTRL_C),
    ]
    stage.run(decoders="auto")
    assert stage.story().count(("decoder-1", "started")) == 1


def test_what_a_former_fetcher_wanted_starts_nobody(stage: Stage) -> None:
    write_status(stage.run_dir, "fetcher", FetcherStatus(pid=1, decoders_wanted=5))
    stage.script = [(ONE_OF_EACH, lambda: None), *looks(5), (lambda story: True, CTRL_C)]
    stage.run(decoders="auto")
    assert "decoder-1" not in stage.seen


def test_a_fixed_number_of_decoders_stays_fixed(stage: Stage) -> None:
    stage.script = [
        (started(*EVERYONE), lambda: stage.tell_wanted(5, "decoder-0")),
        *looks(5),
        (lambda story: True, CTRL_C),
    ]
    stage.run(decoders=2)
    assert "decoder-2" not in stage.seen


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


def test_signals_are_handled_as_before_when_the_run_has_ended(stage: Stage) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    stage.behaviours = {"trainer": "refuses"}
    stage.run()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_service_never_takes_its_modules_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service_command("decoder-3", Path("run"))[-4:] == ["icestream", "decoder", "--run-dir", "run"]
    monkeypatch.chdir(tmp_path)
    assert "-P" in service_command("decoder-3", Path("run"))
