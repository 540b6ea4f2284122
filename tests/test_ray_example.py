"""examples/ray_torchrun.py on a real Ray cluster, whose machines are raylets with a working directory each."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from federation.free_ports import free_port
from proc import command_line, is_alive, parent, processes, variable
from runs import SMALL_STREAM, settings

from common.locks import newest_number
from workloads.base.checkpoint import newest_step

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1800)]

TESTS = Path(__file__).resolve().parent
PATIENCE_S = 240.0
MACHINE = "STAND_IN_MACHINE"
"""Variable that all processes of a machine have: its folder."""
RAY = {
    "RAY_health_check_period_ms": "1000",  # a dead machine is noticed within 6 s, not 15 s
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_worker_niceness": "0",  # beside other tests, Ray's own 15 gets no time at all
    "RAY_process_group_cleanup_enabled": "0",  # what a killed worker has started ends by itself
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # else a token of the user's, in ~/.ray, would be asked for
}
EVENTS = 4000
STREAM = (
    *(one for one in SMALL_STREAM if not one.startswith(("trainer.wgan", "stream.block_files", "stream.batch_events"))),
    *("stream.shards=2", "stream.block_files=1", "stream.batch_events=20", "trainer.checkpoint_every=2"),
    *("local.decoders=1", "trainer.model=held_model:TRAINING"),
)
"""Two shards, and 200 small steps."""


def wait_until(holds: Callable[[], Any], what: Callable[[], str]) -> None:
    """Wait until this holds; the wait is bounded."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, what()
        time.sleep(0.05)


class Machines:
    """Ray cluster of a head without CPUs, and machines with one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
        self._environment = inherited | RAY | {"RAY_TMPDIR": str(folder), "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
        self.address = f"127.0.0.1:{free_port()}"
        # As on a desktop, where Ray leaves 127.0.0.1 as it is.
        self.driver_environment = self._environment | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        self._alive: dict[str, subprocess.Popen[bytes]] = {}
        port = self.address.partition(":")[2]
        self._start("head", "--head", "--port", port, "--num-cpus", "0", "--include-dashboard", "false")

    def _start(self, name: str, *options: str) -> None:
        """One after the other: raylets that start at once on one machine time out."""
        place = self.folder(name)
        place.mkdir(exist_ok=True)
        command = (
            *(Path(sys.executable).with_name("ray"), "start", "--block", "--node-ip-address", "127.0.0.1", *options),
            *("--object-store-memory", "80000000", "--include-log-monitor", "false"),
            *("--dashboard-agent-listen-port", "0", "--min-worker-port", "0", "--max-worker-port", "0"),
        )
        environment = self._environment | {MACHINE: str(place)}
        with (place / "ray.log").open("wb") as log:
            self._alive[name] = subprocess.Popen(
                command, cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        said = (place / "ray.log").read_text
        wait_until(
            lambda: "Ray runtime started" in said() or self._alive[name].poll(), lambda: f"{name} starts: {said()}"
        )
        assert self._alive[name].poll() is None, said()

    def folder(self, name: str) -> Path:
        return self._folder / name

    def be(self, *names: str) -> None:
        """Have exactly these machines."""
        for name in self._alive.keys() - {"head", *names}:
            self.lose(name)
        for name in names:
            if name not in self._alive:
                self._start(name, "--address", self.address, "--num-cpus", "1")

    def pids(self, name: str, *words: str) -> list[int]:
        """Processes of a machine whose command line has these words."""
        pids = [pid for pid in processes() if variable(pid, MACHINE) == str(self.folder(name)) and is_alive(pid)]
        return [pid for pid in pids if set(words) <= set(command_line(pid))]

    def lose(self, name: str) -> None:
        """Kill all processes of a machine at once: none may see that another one is gone."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in self.pids(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        self._alive.pop(name).wait()
        wait_until(lambda: not self.pids(name), lambda: f"{name} is gone")

    def kill_raylet(self, name: str) -> None:
        """Kill Ray's daemon of a machine: what the run has started there ends by itself."""
        (raylet,) = (pid for pid in self.pids(name) if command_line(pid)[0].endswith("/raylet"))
        os.kill(raylet, signal.SIGKILL)
        wait_until(lambda: not self.pids(name, "icestream"), lambda: f"all has ended on {name}")
        self.lose(name)

    def close(self) -> None:
        for name in list(self._alive):
            self.lose(name)


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # short: sockets are in it
    cluster = Machines(folder)
    try:
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder)


class Run:
    """A run on two machines: its drivers, one after the other."""

    def __init__(self, machines: Machines, folder: Path) -> None:
        self._machines = machines
        self._folder = folder
        self.shared = folder / "shared"
        self._attempt = self._step = 0
        self._is_rays = False
        simulate = (sys.executable, "-m", "icestream", "simulate", folder / "data", "--events", str(EVENTS))
        subprocess.run((*simulate, "--files", "4"), check=True, capture_output=True, timeout=PATIENCE_S)
        self.driver = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = (
            *(sys.executable, TESTS.parent / "examples" / "ray_torchrun.py", "--address", self._machines.address),
            *("--machines", "2", "--cpus", "1", "--wait-s", "2", "--shared", self.shared),
            *("--run-dir", self._folder.name, "-i", self._folder / "data", "--epochs", "1"),
            *settings(*STREAM, f"trainer.own.released={self._folder / 'released'}"),
        )
        # A shell that starts the tests in its background has them, and so the driver, ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with self._output.open("ab") as output:
            self.driver = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self._machines.driver_environment
            )
        return self.driver

    @property
    def _output(self) -> Path:
        return self._folder / "output.txt"

    def report(self) -> str:
        root = self._machines.folder("head").parent
        logs = [*root.glob(f"*/{self._folder.name}/logs/*.log"), *root.glob("ray/session_latest/logs/worker-*")]
        return "\n".join(f"--- {log}\n{log.read_text()[-3000:]}" for log in [self._output, *logs])

    def _started_after_rays_own_abort(self) -> bool:
        """True, once, if a check in Ray ended the driver ("a bug in Ray"): the same command goes on then.

        Whatever its exit code is: mostly that of SIGABRT, but not always.
        """
        if self._is_rays or "a bug in Ray" not in self._output.read_text():
            return False
        self._is_rays = True
        self.start()
        return True

    def trains_on(self, *names: str) -> None:
        """Wait until exactly these machines train in a new attempt, which goes on from the newest checkpoint."""

        def trains() -> bool:
            assert self.driver.poll() is None or self._started_after_rays_own_abort(), self.report()
            trainers = {name for name in ("a", "b", "c") if self._machines.pids(name, "icestream", "trainer")}
            return trainers == set(names) and newest_number(self.shared) > self._attempt

        wait_until(trains, lambda: f"{names} train: {self.report()}")
        begins_at = newest_step(self.shared)
        wait_until(lambda: newest_step(self.shared) > begins_at and trains(), lambda: f"a checkpoint: {self.report()}")
        logs = [self._machines.folder(name) / self._folder.name / "logs" / "trainer.log" for name in names]
        resumed_at = [int(step) for log in logs for step in re.findall(r"resumes from step-(\d+)", log.read_text())]
        assert max(resumed_at, default=0) >= self._step, self.report()
        self._attempt, self._step = newest_number(self.shared), newest_step(self.shared)

    def kill(self, name: str, *words: str) -> None:
        """Kill the process of a machine whose command line has these words."""
        os.kill(self._machines.pids(name, *words)[0], signal.SIGKILL)

    def nothing_is_left(self) -> dict[str, Any]:
        """No process of the run, and no half file, but a checkpoint of the last step; returns the summary."""

        def left() -> list[list[str]]:
            names = ("a", "b", "c")
            return [command_line(pid) for name in names for pid in self._machines.pids(name, "icestream")]

        wait_until(lambda: not left(), lambda: f"no process is left: {left()}")
        assert not list(self._folder.rglob("*.part"))
        summary: dict[str, Any] = json.loads((self.shared / "summary.json").read_text())
        assert summary["steps"] == newest_step(self.shared) >= self._step, self.report()
        return summary

    def finish(self) -> None:
        """Let the run end, and compare what was trained with the data."""
        (self._folder / "released").touch()
        while self.driver.wait(PATIENCE_S) != 0:
            assert self._started_after_rays_own_abort(), self.report()
        summary = self.nothing_is_left()
        assert summary["adds_up"]
        assert summary["events_trained"] == summary["events_read"] == EVENTS, summary
        lines = [line for path in self.shared.rglob("audit*.jsonl") for line in path.read_text().splitlines()]
        names = ("shard", "epoch", "unit", "microbatch", "events")
        trained = Counter(tuple(part[name] for name in names) for part in map(json.loads, lines))
        assert set(trained.values()) == {1}, "no part twice"
        assert sum(events for *_, events in trained) == EVENTS


@pytest.fixture
def run(machines: Machines, tmp_path: Path) -> Iterator[Run]:
    machines.be("a", "b")
    run = Run(machines, tmp_path)
    yield run
    if run.driver.poll() is None:
        run.driver.kill()
        run.driver.wait()
    machines.be()


def test_every_event_is_trained_once_whatever_is_killed_lost_and_comes_back(run: Run, machines: Machines) -> None:
    run.trains_on("a", "b")
    run.kill("b", "icestream", "trainer")
    run.trains_on("a", "b")
    run.kill("b", "torch.distributed.run")
    run.trains_on("a", "b")
    (former,) = machines.pids("b", "torch.distributed.run")
    os.kill(parent(former), signal.SIGKILL)  # Ray's worker
    run.trains_on("a", "b")
    assert former not in machines.pids("b", "torch.distributed.run")
    machines.be("a", "b", "c")
    machines.be("a", "c")
    run.trains_on("a", "c")
    machines.be("c")
    run.trains_on("c")
    machines.be("b", "c")
    run.trains_on("b", "c")
    machines.kill_raylet("c")
    run.trains_on("b")
    machines.be("a", "b")
    run.trains_on("a", "b")
    run.driver.kill()
    run.driver.wait()
    assert run.nothing_is_left()["exit_code"] == 130
    run.start()
    run.trains_on("a", "b")
    run.driver.send_signal(signal.SIGINT)
    assert run.driver.wait(PATIENCE_S) == 130, run.report()
    assert run.nothing_is_left()["exit_code"] == 130
    run.start()
    run.finish()
