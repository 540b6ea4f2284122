"""`icestream ray` on a real Ray cluster of several machines on the loopback interface: real nodes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from proc import command_line, parent, processes
from ray_cluster import GUARD, HERE, PATIENCE_S, ROOT, SECRET, Driver, Machines, wait_until
from ray_run import RayRun
from runs import SMALL_STREAM, settings

from workloads.base.checkpoint import newest_step

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(2400)]

QUICK_LOSS = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_timeout_ms": "30000",
}
"""A dead machine refuses connections, which is noticed within 6 s, not 15 s. A slow one is not taken for dead."""
EQUAL = {"RAY_worker_niceness": "0"}
"""Ray gives what it starts a niceness of 15: beside other tests that gets no time at all."""
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""As Ray does it on a desktop: all addresses are 127.0.0.1, and nothing listens elsewhere."""
EVENTS = 2000
STREAM = (
    *(one for one in SMALL_STREAM if not one.startswith(("trainer.wgan", "stream.block_files", "stream.batch_events"))),
    *("stream.shards=2", "stream.block_files=1", "stream.batch_events=20"),
    *("trainer.checkpoint_every=2", "trainer.validation.events=0"),
)
"""Two shards, and many small steps, with a checkpoint every other one."""


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """Cluster for all scenes: its start takes ten times as long as a scene."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # short: sockets are in it
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
    environment |= QUICK_LOSS | EQUAL | LOOPBACK
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": f"{ROOT}:{HERE}:{HERE.parent}"}
    made = Machines(folder, environment)
    yield made
    made.close()
    logs = [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    wait_until(lambda: not processes_with(str(folder)), lambda: f"Ray has ended: {processes_with(str(folder))}")
    shutil.rmtree(folder)
    assert logs == [], "the password is in a log of Ray"


def processes_with(word: str) -> list[str]:
    """Command lines of all processes of this machine with this word."""
    lines = [" ".join(command_line(pid)) for pid in processes()]
    return [line for line in lines if word in line]


def test_a_users_mistake_is_shown_and_not_tried_again(machines: Machines, tmp_path: Path) -> None:
    machines.be("a", "b")
    command = (
        *("ray", "--nodes", "2", "--address", machines.address, "--shared", str(tmp_path / "shared")),
        *("--run-dir", str(tmp_path / "local"), "-i", str(tmp_path / "nowhere"), *settings(*STREAM)),
    )
    driver = Driver(machines, tmp_path, icestream(*command))
    try:
        assert driver.end() == 2, driver.output()
        before, shown, after = driver.output().partition(f"{tmp_path / 'nowhere'}: no such file")
        assert "start 1" in before
        assert shown
        assert "start" not in after
        driver.nothing_is_left()
    finally:
        driver.kill_all()


def test_nodes_train_every_event_once_whatever_is_lost_killed_or_hangs_and_no_password_is_seen(
    machines: Machines, tmp_path: Path
) -> None:
    machines.be("a", "b", "c")
    called(machines, "simulate", str(tmp_path / "data"), "--events", str(EVENTS), "--files", "4")
    options = ("-i", str(tmp_path / "data"), "--epochs", "1", "--decoders", "1", "--device", "cpu")
    model = ("--model", "held_model:TRAINING", *settings(f"trainer.own.released={tmp_path / 'released'}"))
    run = RayRun(machines, tmp_path, *options, *settings(*STREAM), *model)
    try:
        now = run.trains_on()
        assert len(run.driver.pids(GUARD)) == 4, "a guard and a node on each machine"
        assert [line for line in processes_with(SECRET) if str(tmp_path) in line and "ray_drive.py" not in line] == []
        os.kill(parent(run.supervisor(1)), signal.SIGKILL)
        now = run.trains_on(now)

        lost = run.lose(1)
        now = run.trains_on(now)
        assert lost not in run.places()
        assert "nodes of 2" not in run.driver.output(), "there is a spare machine"

        os.kill(run.trainer(1), signal.SIGKILL)
        now = run.trains_on(now)

        run.driver.process.kill()
        run.driver.end()
        run.nothing_is_left()
        assert newest_step(run.shared) >= now.step
        assert [log.read_text().splitlines()[-1][-13:] for log in run.local.glob("*.log")] == ["exit code 130"] * 2

        run.start(kills_after_s=5.0)
        now = run.trains_on(now)
        places = run.places()
        run.freeze(1, with_guard=False)
        now = run.trains_on(now)
        assert run.places() == places, "its files are there"

        lost = run.lose(0)
        now = run.trains_on(now)
        assert ": 1 nodes of 2" in run.driver.output(), "there is no spare machine"

        machines.add(lost)
        now = run.trains_on(now)
        assert set(run.places()) == set(places)

        run.released.touch()
        assert run.driver.end() == 0, run.report()
        run.nothing_is_left()
    finally:
        run.driver.kill_all()
    assert SECRET not in run.report()
    summary = run.summary()
    assert summary["adds_up"]
    assert summary["events_trained"] == summary["events_read"] == EVENTS, summary
    assert summary["steps"] == newest_step(run.shared) > now.step
    trained = run.trained()
    assert set(trained.values()) == {1}, "no part twice"
    assert sum(events for *_, events in trained) == EVENTS


def icestream(*words: str) -> list[str]:
    """Command line of icestream."""
    return [sys.executable, "-m", "icestream", *words]


def called(machines: Machines, *words: str) -> None:
    """Call icestream, which must succeed."""
    subprocess.run(
        icestream(*words), check=True, env=machines.environment, stdout=subprocess.DEVNULL, timeout=PATIENCE_S
    )
