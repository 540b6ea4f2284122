"""`icestream status` and its neighbours on the folder that nodes share, and on a node's own run directory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from run_dirs import TRAINER, made_run, session

from common.errors import BadInputError
from common.file_lock import RunLock
from common.status import Counters, TrainerStatus
from common.summary import build_summary, write_summary
from icestream.commands.logs import logs
from icestream.commands.ranges import ranges
from icestream.commands.run_checks import refuse_folder_of_nodes
from icestream.commands.status.snapshot import read_run
from icestream.commands.status.view import rows_of
from services.config.root import Config, store_config
from services.supervisor.nodes.note import NodeNote
from services.supervisor.nodes.notes import write_note
from services.supervisor.nodes.own_folder import claim_run_dir, run_id
from workloads.base.checkpoint import find_checkpoint

NOTE = NodeNote(
    attempt=2,
    token="x",
    node=0,
    nodes=4,
    host=os.uname().nodename,
    pid=os.getpid(),
    since="2026-11-26 12:00:00 UTC",
    run_dir="/local/mine",
)
AGAIN = "start all nodes (again), by your engine or by hand: icestream node --node I --nodes {} --master HOST:PORT"


def shared_folder(folder: Path, **note: Any) -> Path:
    folder.mkdir(exist_ok=True)
    store_config(folder, Config.model_validate({"epochs": 3, "trainer": {"max_steps": 200}}))
    run_id(folder, begins=True)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step-000000090.pt").touch()
    write_note(folder, NOTE.model_copy(update=note))
    return folder


def rows(run_dir: Path) -> dict[str, str]:
    return dict(rows_of(read_run(run_dir), time.time()))


@pytest.mark.parametrize(("state", "word"), [("gathering", "starting"), ("running", "running")])
def test_a_shared_folder_of_living_nodes_says_where_their_progress_is_shown(
    tmp_path: Path, state: str, word: str
) -> None:
    shared_folder(tmp_path, state=state)
    with RunLock(tmp_path, "run", "icestream node"):
        told = rows(tmp_path)
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
def test_a_shared_folder_of_nodes_that_ended_says_how_to_go_on(
    tmp_path: Path, exit_code: int, text: str, state: str
) -> None:
    shared_folder(tmp_path, state="ended", exit_code=exit_code, text=text)
    told = rows(tmp_path)
    assert told["state"] == state
    assert told["next"] == f"{AGAIN.format(4)} --shared {tmp_path} --run-dir RUN_DIR"
    assert "icestream run" not in " ".join(told.values())
    assert "time" not in told  # nobody has noted it: not 0 s


def test_a_finished_run_of_nodes_has_its_sums(tmp_path: Path) -> None:
    shared_folder(tmp_path, state="ended")
    counters = Counters(events_read=500, events_trained=500)
    status = TrainerStatus(state="finished", step=120, epoch=2, epochs=3, seconds=10.0, counters=counters)
    write_summary(tmp_path, build_summary(status, exit_status="finished", exit_code=0, seconds=12.0))
    told = rows(tmp_path)
    assert told["state"] == "finished 0 s ago"
    assert told["step"] == "120, epoch 3/3"
    assert told[""] == "50 events/s on average, 500 events trained"
    assert "next" not in told


def test_nodes_that_were_killed_or_give_no_sign_of_life(tmp_path: Path) -> None:
    shared_folder(tmp_path, state="running")
    with RunLock(tmp_path, "run", "icestream node"):
        killed = (tmp_path / "locks/run").read_text().replace('"start_ticks": ', '"start_ticks": 1')
    (tmp_path / "locks/run").write_text(killed)
    told = rows(tmp_path)
    assert told["state"].startswith("killed 0 s ago: node 0 on ")
    assert told["next"].startswith("start all nodes (again)")
    (tmp_path / "locks/run").write_text("")
    long_ago_s = time.time() - 3600
    os.utime(tmp_path / "nodes" / "0", (long_ago_s, long_ago_s))
    told = rows(tmp_path)
    assert told["state"].startswith("unknown: no sign of life for 1 h from node 0 on ")
    assert told["next"].startswith("start all nodes (again)")


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
    told = rows(own)
    assert told["state"] == "failed 0 s ago: node 1 is silent"
    assert told["checkpoint"] == f"step 90, 0 s ago ({shared}/checkpoints/step-000000090.pt)"
    assert told["next"] == f"{AGAIN.format('N')} --shared {shared} --run-dir {own}"
    with pytest.raises(BadInputError, match="its checkpoints are in the folder that they share"):
        find_checkpoint(own)
    with pytest.raises(BadInputError, match="go on with `icestream node`"):
        refuse_folder_of_nodes(own)


def test_what_a_shared_folder_does_not_have_is_said_in_a_line(tmp_path: Path) -> None:
    shared_folder(tmp_path)
    runner = CliRunner()
    assert "each node has its logs in its own --run-dir" in str(runner.invoke(logs, [str(tmp_path)]).exception)
    assert "name the --run-dir of node 0" in str(runner.invoke(ranges, [str(tmp_path)]).exception)


@pytest.mark.parametrize("name", ["nodes/0", "summary.json"])
def test_a_pipe_of_another_user_in_a_shared_folder_blocks_nothing(tmp_path: Path, name: str) -> None:
    shared_folder(tmp_path, state="ended")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    assert rows(tmp_path)["run"]
