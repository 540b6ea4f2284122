"""`icestream ray` on a real Ray cluster of several machines on the loopback interface, with stand-ins of nodes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_scenes import GUARD, HERE, PATIENCE_S, ROOT, SECRET, Machines, command_lines, scene, wait_until
from runs import SMALL_STREAM

pytestmark = [pytest.mark.process, pytest.mark.slow]

QUICK_LOSS = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
}
"""A dead machine is noticed within 4 s, not 15 s."""
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""As Ray does it on a desktop: all addresses are 127.0.0.1, and nothing listens elsewhere."""
REAL = (
    "trainer.model=likelihood",
    "stream.batch_events=50",
    "trainer.checkpoint_every=2",
    "trainer.validation.events=0",
)
"""Settings of real nodes: many small steps, with a checkpoint every other one."""


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """Cluster for all scenes: its start takes ten times as long as a scene."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # short: sockets are in it
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
    environment |= QUICK_LOSS | LOOPBACK
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": f"{ROOT}:{HERE.parent}"}
    made = Machines(folder, environment)
    yield made
    made.close()
    logs = [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    wait_until(lambda: not command_lines(str(folder)), "no process of Ray is left")
    shutil.rmtree(folder)
    assert logs == [], "the password is in a log of Ray"


def test_no_password_of_an_input_is_in_a_command_line_or_log(machines: Machines, tmp_path: Path) -> None:
    machines.be("a", "b")
    with scene(machines, tmp_path) as run:
        starts = run.attempt(1)
        run.trains_on()
        assert f"https://me:{SECRET}@host.example/data" in run.story, "the nodes are given it"
        assert len(command_lines(GUARD)) == 4, "a guard and a node on each machine"
        drivers = [line for line in command_lines(SECRET) if "ray_drive.py" not in line]
        assert drivers == []
        assert {start.machine for start in starts} == {"a", "b"}
        run.finish()
        assert "all nodes have finished" in run.output.read_text()
        assert SECRET not in "".join(path.read_text() for path in (tmp_path / "local").glob("*.log"))


def test_a_lost_machine_is_replaced_by_a_spare_one_and_all_go_on_from_the_checkpoint(
    machines: Machines, tmp_path: Path
) -> None:
    machines.be("a", "b", "c")
    with scene(machines, tmp_path) as run:
        lost = run.attempt(1)[1].machine
        step = run.trains_on()
        machines.lose(lost)
        again = run.attempt(2)
        assert len(again) == 2
        assert lost not in {start.machine for start in again}
        assert {start.step >= step for start in again} == {True}
        run.finish()


def test_without_a_spare_machine_fewer_nodes_go_on_and_all_again_once_it_is_back(
    machines: Machines, tmp_path: Path
) -> None:
    machines.be("a", "b")
    with scene(machines, tmp_path) as run:
        lost = run.attempt(1)[0].machine
        step = run.trains_on()
        machines.lose(lost)
        (alone,) = run.attempt(2)
        assert alone.machine != lost
        assert alone.step >= step
        step = run.trains_on()
        machines.add(lost)
        both = run.attempt(3)
        assert {start.machine for start in both} == {"a", "b"}
        assert {start.step >= step for start in both} == {True}
        run.finish()


def test_a_node_that_hangs_is_killed_and_all_start_again_in_the_same_places(machines: Machines, tmp_path: Path) -> None:
    machines.be("a", "b")
    with scene(machines, tmp_path) as run:
        first = run.attempt(1)
        step = run.trains_on()
        os.kill(first[1].pid, signal.SIGSTOP)
        second = run.attempt(2)
        assert [start.machine for start in second] == [start.machine for start in first], "its files are there"
        assert {start.step >= step for start in second} == {True}
        run.finish()
        assert "lost another node" in run.output.read_text()


def test_after_a_killed_node_all_start_again(machines: Machines, tmp_path: Path) -> None:
    machines.be("a", "b")
    with scene(machines, tmp_path) as run:
        step, victim = run.trains_on(), run.attempt(1)[1].pid
        os.kill(victim, signal.SIGKILL)
        assert {start.step >= step for start in run.attempt(2)} == {True}
        run.finish()


def test_a_killed_guard_takes_its_node_along_and_all_start_again(machines: Machines, tmp_path: Path) -> None:
    machines.be("a", "b")
    with scene(machines, tmp_path) as run:
        victim = run.attempt(1)[1].pid
        guard = int(Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[1])
        run.trains_on()
        os.kill(guard, signal.SIGKILL)
        run.attempt(2)
        run.finish()


def test_a_killed_driver_leaves_nothing_but_a_checkpoint(machines: Machines, tmp_path: Path) -> None:
    machines.be("a", "b")
    with scene(machines, tmp_path) as run:
        run.attempt(1)
        run.trains_on()
        run.driver.kill()
        run.end()
        run.nothing_is_left()
        assert run.story.count("ended 130") == 2, "with a checkpoint"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_nodes_with_a_checkpoint(machines: Machines, tmp_path: Path, number: signal.Signals) -> None:
    machines.be("a", "b")
    with scene(machines, tmp_path) as run:
        run.attempt(1)
        run.trains_on()
        run.driver.send_signal(number)
        assert run.end() == 130
        assert run.story.count("ended 130") == 2


def test_a_users_mistake_is_shown_and_not_tried_again(machines: Machines, tmp_path: Path) -> None:
    machines.be("a", "b")
    with scene(machines, tmp_path, "--refuses") as run:
        assert run.end() == 2
        assert "no such file" in run.output.read_text()
        assert {start.node for start in run.starts()} <= {0}
        assert "start 2" not in run.output.read_text()


def test_real_nodes_train_every_event_though_a_machine_is_lost(machines: Machines, tmp_path: Path) -> None:
    machines.be("a", "b")
    shared = tmp_path / "shared"
    called(machines, "simulate", str(tmp_path / "data"), "--events", "2000", "--files", "4")
    assignments = (*SMALL_STREAM, "stream.shards=2", "stream.lanes=2", "stream.block_files=1", *REAL)
    command = (
        *("ray", "--nodes", "2", "--address", machines.address, "--wait-for-nodes", "2"),
        *("--shared", str(shared), "--run-dir", str(tmp_path / "local"), "-i", str(tmp_path / "data")),
        *("--epochs", "2", "--decoders", "1", "--device", "cpu"),
        *(word for one in assignments for word in ("--set", one)),
    )
    output = tmp_path / "output.txt"
    with output.open("wb") as file:
        driver = subprocess.Popen(icestream(*command), stdout=file, stderr=file, env=machines.environment)
    try:

        def has_checkpoint() -> bool:
            assert driver.poll() is None, output.read_text()
            return any((shared / "checkpoints").glob("step-*.pt"))

        wait_until(has_checkpoint, "there is a checkpoint")
        machines.lose("a")
        assert driver.wait(PATIENCE_S) == 0, output.read_text()
    finally:
        driver.kill()
        driver.wait()
    summary = json.loads((shared / "summary.json").read_text())
    assert summary["adds_up"]
    assert summary["events_trained"] == 2 * 2000, summary
    assert "start 2: 1 nodes of 2" in output.read_text()
    wait_until(lambda: not command_lines(str(tmp_path)), "no process is left")


def icestream(*words: str) -> list[str]:
    """Command line of icestream."""
    return [sys.executable, "-m", "icestream", *words]


def called(machines: Machines, *words: str) -> None:
    """Call icestream, which must succeed."""
    subprocess.run(
        icestream(*words), check=True, env=machines.environment, stdout=subprocess.DEVNULL, timeout=PATIENCE_S
    )
