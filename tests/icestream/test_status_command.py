"""`icestream status`, `ls`, `logs` and `stop` on made-up run directories."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from run_dirs import TRAINER, holding, made_run, session

from common import locks as file_lock
from common.errors import BadInputError
from common.locks import Holder, RunLock, RunPart, holder_of
from common.status import Counters, RunStatus, TrainerStatus, write_status
from common.summary import build_summary, write_summary
from icestream.cli import workload_of_run
from icestream.commands import status as module
from icestream.commands.checks import refuse_folder_of_nodes
from icestream.commands.node_session import claim_run_dir, run_id
from icestream.commands.plan import ranges
from icestream.commands.snapshot import RunSnapshot, read_run, state_of
from icestream.commands.status import Tails, ask_to_stop, done_share, logs, ls, render, rows_of, status, stop
from services.config.root import Config, store_config
from services.supervisor.meeting import NodeNote
from workloads.base.checkpoint import find_checkpoint


def rows(run: RunSnapshot) -> dict[str, str]:
    return dict(rows_of(run, time.time()))


def test_a_running_run_shows_progress_bottlenecks_checkpoint_health_and_machine(tmp_path: Path) -> None:
    made_run(tmp_path, session(), input=["pelican://a.org/x/*.parquet"], fetcher={"disk_budget_gib": 7})
    with RunLock(tmp_path, "run", "icestream run"):
        told = rows(read_run(tmp_path))
    assert told["state"].startswith(f"running for 2 h: icestream run, process {os.getpid()} on ")
    assert (told["done"], told["step"]) == ("50 %  10,000 of 20,000 events", "100 of about 200, epoch 1/1")
    assert told["time"] == "trained for 1 min 40 s, ETA 50 s"
    assert told["speed"].startswith("200 events/s")
    assert told["bottleneck"]
    assert told["last hour"].startswith("decoders (no credit 50 % of the last 1 h")
    assert told["checkpoint"].startswith("step 90, 0 s ago (checkpoints/step-000000090.pt)")
    assert told["health"] == "warning: the loss jumped, 2 lines in health.jsonl"
    assert told["restarts"] == "decoder 2"
    assert told["GPU"] == (
        "90 % busy, 40 % of the time memory access, memory 25 %, tensors 5.0 GiB mean, 8.0 GiB max, 9.0 GiB reserved"
    )
    assert told["copied"] == "4 MiB/s of data"
    assert told["disk"].endswith("; staged 3.0 GiB of 7.0 GiB")
    assert told["files"] == "40, 3 bad (logs/fetcher.log)"
    assert f"run {os.getpid()} (" in told["processes"]
    assert "next" not in told


def test_a_run_that_was_killed_says_so_shows_no_rate_of_now_and_how_to_resume(tmp_path: Path) -> None:
    made_run(tmp_path, session())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    told = rows(read_run(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before, "looking changes nothing"
    assert told["state"].startswith("killed 0 s ago")
    assert told["next"] == f"resume: icestream run --run-dir {tmp_path}"
    assert {"speed", "GPU", "bottleneck", "processes"}.isdisjoint(told)
    assert "last hour" in told


def test_a_run_that_ended_shows_how_and_the_newest_session_counts(tmp_path: Path) -> None:
    now_s = time.time()
    finished = TRAINER.model_copy(update={"state": "finished"})
    made_run(tmp_path, session(state="failed", exit_code=2, error="trainer: no such device"))
    run = read_run(tmp_path)
    assert (rows(run)["state"], run.exit_code) == ("failed 0 s ago: trainer: no such device", 2)
    write_status(tmp_path, "run", session(state="finished", exit_code=0))
    run = read_run(tmp_path)
    assert (done_share(run), rows(run)["step"]) == (1.0, "100, epoch 1/1")
    write_status(tmp_path, "trainer", finished)
    write_status(tmp_path, "run", session(state="failed", started_s=now_s - 90.0, changed_s=now_s - 60.0))
    assert read_run(tmp_path).state == "finished", "services that were started by hand went on later"
    os.utime(tmp_path / "status/trainer.json", (1.0, 1.0))
    write_status(tmp_path, "run", session())
    with RunLock(tmp_path, "run", "icestream run"):
        assert read_run(tmp_path).state == "starting", "its trainer has not reported"


def test_json_has_every_documented_field_and_the_page_documents_every_field(tmp_path: Path) -> None:
    made_run(tmp_path, session())
    result = CliRunner().invoke(status, [str(tmp_path), "--json"])
    told = json.loads(result.output)
    page = (Path(__file__).resolve().parents[2] / "docs/reference/status.md").read_text()
    page = page.partition("### JSON")[2].partition("\n## ")[0]
    for name, value in told.items():
        assert f"| `{name}` |" in page, f"docs/reference/status.md does not document {name}"
        for part in value if isinstance(value, dict) and name not in ("losses", "restarts") else ():
            assert f"`{part}`" in page, f"docs/reference/status.md does not document {name}.{part}"
    documented = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert [name for name in documented if name not in told] == []


def test_text_of_a_run_directory_can_not_control_the_terminal(tmp_path: Path) -> None:
    made_run(tmp_path, session(state="failed", error="\x1b]0;title\x07 [bold]red"))
    result = CliRunner().invoke(status, [str(tmp_path), "--once"])
    assert "\x1b" not in result.output
    assert "[bold]red" in result.output
    assert render(read_run(tmp_path))


def test_a_folder_that_is_no_run_directory_or_can_not_be_read_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"not a run directory \(it has no config\.json\)"):
        read_run(tmp_path)
    with pytest.raises(BadInputError, match=r"typo: not a run directory \(no such folder\)"):
        read_run(tmp_path / "typo")
    made_run(tmp_path, session())
    (tmp_path / "status/trainer.json").unlink()
    (tmp_path / "status/trainer.json").symlink_to("trainer.json")  # for root, too, no permission is missing
    with pytest.raises(BadInputError, match=r"can't be read: .*Too many levels"):
        CliRunner().invoke(status, [str(tmp_path), "--once"], catch_exceptions=False)


@dataclass(frozen=True)
class FakeHolder(Holder):
    lives: bool | None = None

    def is_alive(self) -> bool | None:
        return self.lives


HERE = FakeHolder("a", "", 7, "", "icestream run", lives=True)
GONE = replace(HERE, lives=False)
ELSEWHERE = replace(HERE, host="b", lives=None)
TRAINING = TrainerStatus(state="training", step=3)
FINISHED = TrainerStatus(state="finished")
GONE_WORDS = "icestream run, process 7 on a, is gone and recorded no end: it was killed, or its machine went down"
SILENT_WORDS = "no sign of life for 1 h from icestream run, process 7 on b; it can't be seen from here"


@pytest.mark.parametrize(
    ("known", "state", "reason"),
    [
        ((HERE, RunStatus(), TRAINING, 0.1), "running", HERE.who),
        ((HERE, RunStatus(), None, 0.1), "starting", HERE.who),
        ((HERE, RunStatus(), TrainerStatus(), 0.1), "starting", HERE.who),
        ((HERE, RunStatus(state="stopping"), TRAINING, 0.1), "stopping", HERE.who),
        ((HERE, RunStatus(), FINISHED, 0.1), "stopping", HERE.who),
        ((HERE, None, TRAINING, 0.1), "running", HERE.who),
        ((GONE, RunStatus(), TRAINING, 0.1), "killed", GONE_WORDS),
        ((GONE, RunStatus(state="finished"), TRAINING, 0.1), "killed", GONE_WORDS),  # an end of a former session
        ((None, RunStatus(state="running"), TRAINING, 9.0), "killed", None),
        ((ELSEWHERE, RunStatus(), TRAINING, 5.0), "running", ELSEWHERE.who),
        ((ELSEWHERE, RunStatus(), TRAINING, 3600.0), "unknown", SILENT_WORDS),
        ((ELSEWHERE, RunStatus(), TRAINING, None), "unknown", None),
        ((None, RunStatus(state="interrupted", error="why"), TRAINING, 9.0), "interrupted", "why"),
        ((None, RunStatus(state="failed", error="why"), TRAINING, 9.0), "failed", "why"),
        ((None, None, FINISHED, 9.0), "finished", ""),  # services that were started one by one
        ((None, None, TrainerStatus(state="stopped"), 9.0), "interrupted", ""),
        ((None, None, TRAINING, 9.0), "unknown", None),
        ((None, None, None, None), "new", None),
    ],
)
def test_the_state_follows_from_the_process_and_the_newest_statuses(
    known: tuple[Holder | None, RunStatus | None, TrainerStatus | None, float | None], state: str, reason: str | None
) -> None:
    occupant, run, trainer, silent_s = known
    found = state_of(occupant, run, trainer, silent_s=silent_s)
    assert found == (state, found[1] if reason is None else reason)


def listed(*arguments: str) -> list[str]:
    result = CliRunner().invoke(ls, [*arguments])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_every_run_has_a_row_with_its_state_wherever_it_is_below_the_folder(tmp_path: Path) -> None:
    for name in ("a/deep", "b", "c", "no-run/demo"):
        (tmp_path / name).mkdir(parents=True)
    made_run(tmp_path / "a/deep", session(state="finished", exit_code=0))
    made_run(tmp_path / "b", session())
    made_run(tmp_path / "c", session(state="interrupted"), TRAINER.model_copy(update={"state": "stopped"}))
    with RunLock(tmp_path / "b", "run", "icestream run"):
        header, *rows = listed(str(tmp_path))
    assert header.split() == ["run", "state", "model", "step", "done", "events/s", "events", "changed", "size"]
    cells = {row.split()[0]: row.split()[1:] for row in rows}
    assert cells[str(tmp_path / "a/deep")][:6] == ["finished", "muons", "wgan", "100", "100%", "100"]
    assert cells[str(tmp_path / "b")][:6] == ["running", "muons", "wgan", "100", "50%", "200"]
    assert cells[str(tmp_path / "c")][:5] == ["interrupted", "muons", "wgan", "100", "50%"], "also when it has stopped"
    assert len(rows) == 3


def test_a_folder_without_runs_says_so_a_loop_of_links_ends_and_a_typo_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    assert listed(str(tmp_path)) == [f"no runs below {tmp_path}"]
    with pytest.raises(BadInputError, match="no such folder"):
        CliRunner().invoke(ls, [str(tmp_path / "typo")], catch_exceptions=False)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["locks/run", "status/trainer.json", "status/run.json", "health.jsonl"])
def test_a_pipe_in_a_run_directory_is_refused_with_its_name(tmp_path: Path, name: str) -> None:
    made_run(tmp_path, session(state="finished"))
    (tmp_path / "locks").mkdir()
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    for command in (status, stop):
        with pytest.raises(BadInputError, match=rf"{name}: a named pipe; expected a file"):
            CliRunner().invoke(command, [str(tmp_path)], catch_exceptions=False)
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    assert workload_of_run([str(tmp_path)]) is None


NOTE = NodeNote(
    attempt=2,
    state="running",
    launch="x",
    port="1",
    nodes=4,
    used=4,
    host=os.uname().nodename,
    pid=os.getpid(),
    since="2026-11-26 12:00:00 UTC",
    run_dir="/local/mine",
)
AGAIN = "start it again, by your engine or by hand on all machines: torchrun --nnodes … -m icestream run"


def shared_folder(folder: Path, **note: Any) -> Path:
    folder.mkdir(exist_ok=True)
    store_config(folder, Config.model_validate({"epochs": 3, "trainer": {"max_steps": 200}}))
    run_id(folder, begins=True)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step-000000090.pt").touch()
    (folder / "nodes").mkdir()
    (folder / "nodes" / "0").write_text(NOTE.model_copy(update=note).model_dump_json())
    return folder


@pytest.mark.parametrize(("state", "word"), [("gathering", "starting"), ("running", "running")])
def test_living_nodes_say_where_their_progress_is_shown(tmp_path: Path, state: str, word: str) -> None:
    shared_folder(tmp_path, state=state)
    with RunLock(tmp_path, "run", "icestream run"):
        told = rows(read_run(tmp_path))
    assert told["state"].startswith(f"{word}: node 0 on {NOTE.host} since ")
    assert told["state"].endswith(f", of 4; progress: `icestream status /local/mine` on {NOTE.host}")
    assert told["step"] == "90 of 200 (newest checkpoint)"
    assert told["checkpoint"].startswith("step 90, ")
    assert {"speed", "time", "next"}.isdisjoint(told)


@pytest.mark.parametrize(
    ("exit_code", "text", "state"),
    [
        (130, "", "interrupted 0 s ago"),
        (75, "node 1 on gpu-b has been silent for 10 s", "failed 0 s ago: node 1 on gpu-b has been silent for 10 s"),
    ],
)
def test_an_ended_run_of_nodes_says_how_to_go_on(tmp_path: Path, exit_code: int, text: str, state: str) -> None:
    shared_folder(tmp_path, state="ended", exit_code=exit_code, text=text)
    told = rows(read_run(tmp_path))
    assert told["state"] == state
    assert told["next"] == f"{AGAIN} --shared {tmp_path} --run-dir RUN_DIR"
    assert "time" not in told  # nobody has noted it: not 0 s


def test_a_finished_run_of_nodes_has_its_sums(tmp_path: Path) -> None:
    shared_folder(tmp_path, state="ended")
    counters = Counters(events_read=500, events_trained=500)
    status = TrainerStatus(state="finished", step=120, epoch=2, epochs=3, seconds=10.0, counters=counters)
    write_summary(tmp_path, build_summary(status, exit_status="finished", exit_code=0, seconds=12.0))
    told = rows(read_run(tmp_path))
    assert told["state"] == "finished 0 s ago"
    assert told["step"] == "120, epoch 3/3"
    assert told[""] == "50 events/s on average, 500 events trained"
    assert "next" not in told


def test_nodes_that_were_killed_or_give_no_sign_of_life(tmp_path: Path) -> None:
    shared_folder(tmp_path, state="running")
    with RunLock(tmp_path, "run", "icestream run"):
        killed = (tmp_path / "locks/run").read_text().replace('"start_ticks": ', '"start_ticks": 1')
    (tmp_path / "locks/run").write_text(killed)
    told = rows(read_run(tmp_path))
    assert told["state"].startswith("killed 0 s ago: node 0 on ")
    assert told["next"].startswith(AGAIN)
    (tmp_path / "locks/run").write_text("")
    long_ago_s = time.time() - 3600
    os.utime(tmp_path / "nodes" / "0", (long_ago_s, long_ago_s))
    told = rows(read_run(tmp_path))
    assert told["state"].startswith("unknown: no sign of life for 1 h from node 0 on ")
    assert told["next"].startswith(AGAIN)


def test_a_nodes_own_directory_names_the_shared_folder(tmp_path: Path) -> None:
    shared = shared_folder(tmp_path / "shared", state="running")
    own = tmp_path / "own"
    own.mkdir()
    made_run(own, session(state="failed", exit_code=75, error="node 1 is silent"), TRAINER)
    for path in (own / "checkpoints").iterdir():
        path.unlink()
    (own / "config.json").rename(tmp_path / "config.json")
    claim_run_dir(own, run_id(shared, begins=False), shared)
    (tmp_path / "config.json").rename(own / "config.json")
    told = rows(read_run(own))
    assert told["state"] == "failed 0 s ago: node 1 is silent"
    assert told["checkpoint"] == f"step 90, 0 s ago ({shared}/checkpoints/step-000000090.pt)"
    assert told["next"] == f"{AGAIN} --shared {shared} --run-dir {own}"
    with pytest.raises(BadInputError, match="its checkpoints are in the folder that they share"):
        find_checkpoint(own)
    with pytest.raises(BadInputError, match="go on with --shared and torchrun"):
        refuse_folder_of_nodes(own)


@pytest.mark.timeout(120)
def test_what_a_shared_folder_does_not_have_is_said_and_a_pipe_of_another_user_blocks_nothing(tmp_path: Path) -> None:
    shared_folder(tmp_path, state="ended")
    runner = CliRunner()
    assert "each node has its logs in its own --run-dir" in str(runner.invoke(logs, [str(tmp_path)]).exception)
    assert "name the --run-dir of node 0" in str(runner.invoke(ranges, [str(tmp_path)]).exception)
    for name in ("nodes/0", "summary.json"):
        (tmp_path / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name)
        assert rows(read_run(tmp_path))["run"]


@pytest.fixture
def logged_dir(tmp_path: Path) -> Path:
    made_run(tmp_path, session(state="finished"))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/fetcher.log").write_text(
        "2026-11-23 10:00:00 fetcher INFO begins\n2026-11-23 10:00:04 fetcher INFO ends\n"
    )
    (tmp_path / "logs/decoder-0.log").write_text("2026-11-23 10:00:01 decoder INFO zero\n")
    (tmp_path / "logs/decoder-1.log").write_text(
        "2026-11-23 10:00:02 decoder WARNING one\nTraceback of one\n2026-11-23 10:00:03 decoder INFO again\n"
    )
    return tmp_path


def printed(*arguments: object) -> list[str]:
    result = CliRunner().invoke(logs, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [line.split(maxsplit=1)[0] + " " + line.split()[-1] for line in result.output.splitlines()]


def test_logs_are_merged_by_time_and_a_line_without_time_stays_behind_its_own(logged_dir: Path) -> None:
    assert printed(logged_dir) == [
        *("fetcher begins", "decoder-0 zero", "decoder-1 one", "decoder-1 one", "decoder-1 again", "fetcher ends")
    ]
    assert printed(logged_dir, "-n", 2) == ["decoder-1 again", "fetcher ends"]
    assert printed(logged_dir, "-n", 0) == []
    assert printed(logged_dir, "decoder-0") == ["decoder-0 zero"]
    assert [line.split()[0] for line in printed(logged_dir, "decoder")] == ["decoder-0", *["decoder-1"] * 3]
    with pytest.raises(BadInputError, match="no log of 'trainer'; there are: decoder-0, decoder-1, fetcher"):
        printed(logged_dir, "trainer")


def test_new_lines_come_once_when_they_are_complete_and_a_new_file_is_found(logged_dir: Path) -> None:
    tails = Tails(logged_dir / "logs", None)
    assert len(list(tails.new_lines())) == 6
    with (logged_dir / "logs/fetcher.log").open("a") as log:
        log.write("2026-11-23 10:00:05 fetcher INFO ha")
        log.flush()
        assert list(tails.new_lines()) == []
        log.write("lf\n")
    (logged_dir / "logs/trainer.log").write_text("2026-11-23 10:00:06 trainer INFO new\n")
    assert [text.split()[-1] for _, _, text in tails.new_lines()] == ["half", "new"]
    (logged_dir / "logs/trainer.log").write_text("2026-11-23 10:00:07 t\n")  # begun again, and shorter
    assert [text.split()[-1] for _, _, text in tails.new_lines()] == ["t"]


def test_text_in_a_log_can_not_control_the_terminal_and_tokens_are_not_shown(logged_dir: Path) -> None:
    (logged_dir / "logs/trainer.log").write_text("2026-11-23 10:00:09 \x1b[2J Authorization: Bearer abc.def.ghi\n")
    result = CliRunner().invoke(logs, [str(logged_dir), "trainer"])
    assert "\x1b" not in result.output
    assert "abc.def" not in result.output


HOLDER = """
import sys, time
from pathlib import Path
from common.locks import RunLock
from common.process import StopFlag

run_dir, part = sys.argv[1:]
stopped = StopFlag()
with RunLock(Path(run_dir), part, "icestream run"):
    print("held", flush=True)
    while not stopped:
        time.sleep(0.01)  # not pause(): a signal just before it would not be heard
"""


def leave_note(run_dir: Path, holder: Holder) -> None:
    (run_dir / "locks").mkdir(exist_ok=True)
    (run_dir / "locks/run").write_text(json.dumps(asdict(holder)))


@pytest.mark.process
@pytest.mark.parametrize("part", ["run", "trainer"])
def test_the_supervisor_or_a_trainer_started_by_hand_is_asked_and_waited_for(tmp_path: Path, part: str) -> None:
    made_run(tmp_path, session())
    with holding(HOLDER, tmp_path, part) as process:
        if part == "run":
            write_status(tmp_path, "run", session(state="interrupted", exit_code=130))
        result = CliRunner().invoke(stop, [str(tmp_path)])
        assert process.wait(60) == 0, "it was asked by SIGTERM, and ended by itself"
    assert f"process {process.pid} on" in result.output
    if part == "run":
        assert result.exit_code == 0
        assert "state       interrupted" in result.output
        assert f"next        resume: icestream run --run-dir {tmp_path}" in result.output


def test_a_process_that_has_the_pid_of_a_killed_run_gets_no_signal(tmp_path: Path) -> None:
    made_run(tmp_path, session())
    here = Holder.of_this_process("icestream run")
    leave_note(tmp_path, replace(here, start_ticks=here.start_ticks - 1))
    result = CliRunner().invoke(stop, [str(tmp_path)])  # or the tests would end here
    assert "is not running" in result.output
    assert "killed" in result.output
    assert result.exit_code == 0


@pytest.mark.parametrize("forged", ["note", "link to the folder", "link to the file"])
def test_a_forged_note_makes_nobody_signal_a_process_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forged: str
) -> None:
    """The foreign process that keeps the lock of the forged note is here a patch."""
    for name in ("theirs", "mine"):
        (tmp_path / name).mkdir()
    theirs, mine = made_run(tmp_path / "theirs", session()), made_run(tmp_path / "mine", session())
    monkeypatch.setattr(file_lock, "_is_held", lambda path: True)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *signalled: pytest.fail(f"a signal: {signalled}"))
    with RunLock(mine, "run", "icestream run"):
        if forged == "note":
            leave_note(theirs, Holder.of_this_process("icestream run"))
        elif forged == "link to the folder":
            (theirs / "locks").symlink_to(mine / "locks")
        else:
            (theirs / "locks").mkdir()
            (theirs / "locks/run").symlink_to(mine / "locks/run")
        with pytest.raises(BadInputError, match=r"which does not hold it.*nothing was stopped"):
            CliRunner().invoke(stop, [str(theirs)], catch_exceptions=False)


def test_a_run_of_another_user_or_on_another_host_is_not_stopped_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, number: int) -> None:
        raise PermissionError

    made_run(tmp_path, session())
    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    with (
        RunLock(tmp_path, "run", "icestream run"),
        pytest.raises(BadInputError, match="of another user: only they can stop it"),
    ):
        CliRunner().invoke(stop, [str(tmp_path)], catch_exceptions=False)
    leave_note(tmp_path, replace(Holder.of_this_process("icestream run"), host="node-b", boot_id="b"))
    with pytest.raises(BadInputError, match=r"process \d+ on node-b, which can't be seen from here: stop it there"):
        CliRunner().invoke(stop, [str(tmp_path)], catch_exceptions=False)


def test_a_run_that_failed_while_it_stopped_gives_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_run(tmp_path, session())
    lock = RunLock(tmp_path, "run", "icestream run")

    def ends(run_dir: Path, part: RunPart, holder: Holder) -> None:
        lock.close()
        write_status(run_dir, "run", RunStatus(state="failed", changed_s=2e9, error="why", pid=os.getpid()))

    monkeypatch.setattr(module, "ask_to_stop", ends)
    monkeypatch.setattr(module, "_wait", lambda run_dir, holder: None)
    result = CliRunner().invoke(stop, [str(tmp_path)])
    assert result.exit_code == 1
    assert "failed" in result.output


def test_a_run_is_stopped_by_its_torchrun_which_would_start_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_is_torchrun", lambda pid: pid == os.getppid())
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    with RunLock(tmp_path, "run", "icestream run"):
        holder = holder_of(tmp_path, "run")
        assert holder is not None
        ask_to_stop(tmp_path, "run", holder)
    assert sent == [(os.getppid(), signal.SIGTERM)]
