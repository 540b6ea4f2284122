"""Job scripts of `icestream slurm` on a real Slurm cluster, with real nodes of a run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from faulty_services import BRAKE_VARIABLE
from nodes import Nodes
from proc import variable
from runs import SMALL_STREAM, kill, settings
from slurm_cluster import SlurmCluster, missing, wait_until

from icestream.cli import cli
from workloads.muons.simulator.write import simulate

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(2400)]

EVENTS = 4000
STREAM = (
    *SMALL_STREAM,
    *("stream.shards=2", "stream.block_files=1", "stream.batch_events=50", "local.decoders=1"),
    *("trainer.checkpoint_every=1", "trainer.validation.events=0"),
)
"""80 steps, and a checkpoint after each."""
PAUSE_S = 1.0
"""Of each step, until the test releases them: none of its events may come after the last step."""
TESTS = Path(__file__).parents[2]
ENDED = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """Cluster of three machines for all jobs."""
    if reason := missing():
        if "REQUIRE_SLURM" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons are started as root")
    folder = Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))  # short: a socket is in it
    made = SlurmCluster(folder, 3)
    yield made
    made.close()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("of 'a' $(touch owned) `touch owned`") / "muons"
    done = CliRunner().invoke(simulate, [str(folder), "--events", str(EVENTS), "--files", "4"])
    assert done.exit_code == 0, done.output
    return folder


class Job:
    """One job of two nodes, and the run in it. With ``forks`` the nodes fork their processes."""

    def __init__(self, cluster: SlurmCluster, place: Path, data: Path, *sbatch: str, forks: bool = True) -> None:
        cluster.be_idle()
        self._cluster = cluster
        folder = place / 'it\'s $(touch owned) "here"'
        folder.mkdir()
        self.run = Nodes(folder, ())
        self._released = place / "released"
        words = ["slurm", "--nodes", "2", "--time", "10:00", "--shared", str(self.run.shared), "--run-dir", str(folder)]
        done = CliRunner().invoke(cli, [*words, "-i", str(data), *settings(*STREAM)])
        assert done.exit_code == 0, done.output
        program = f"NODE=({sys.executable} -P -m icestream node)\n"
        assert program in done.stdout
        forking = f"NODE=({sys.executable} {Path(__file__).with_name('forking_node.py')} icestream node)\n"
        script = folder / "job.sbatch"
        script.write_text(done.stdout.replace(program, forking) if forks else done.stdout)
        self._output = folder / "output.txt"
        variables = f"--export=ALL,PYTHONPATH={TESTS / 'pipeline'},{BRAKE_VARIABLE}=0 {PAUSE_S} {self._released}"
        self.number = cluster.submit(f"--output={self._output}", f"--chdir={folder}", variables, *sbatch, str(script))

    # ------------------------------------------------------------ words of it

    def field(self, name: str) -> str:
        return self._cluster.job(self.number)[name]

    def log(self) -> str:
        return self._output.read_text() if self._output.exists() else ""

    def report(self) -> str:
        return f"{self.log()}\n{self.run.report()}\n{self._cluster.details()}"

    def wait(self, event: Callable[[], object], what: str) -> None:
        def event_of_living() -> object:
            assert self.field("JobState") not in ENDED, self.report()
            return event()

        wait_until(event_of_living, what, self.report)

    # ------------------------------------------------------------ events

    def trains(self) -> None:
        """Returns when there is a checkpoint that is newer than the one that its nodes have begun with."""
        begun = [0, *self._resumed()][-1]
        self.wait(lambda: self.run.step() > begun, "there is a new checkpoint")

    def goes_on_after(self, event: Callable[[], object]) -> None:
        """The nodes start again after an event, from the newest checkpoint, and train."""
        before, starts = self.run.step(), len(self._resumed())
        event()
        self.wait(lambda: len(self._resumed()) > starts, "the nodes have started again")
        resumed = self._resumed()
        assert len(resumed) == starts + 1
        assert resumed[-1] >= before > 0
        self.trains()

    def _resumed(self) -> list[int]:
        """Steps of the checkpoints with which the first trainer has begun, in order."""
        return [int(step) for step in re.findall(r"resumes from step-(\d+)\.pt", self.run.node(0).log("trainer"))]

    def machine_of(self, node: int) -> str:
        return variable(self.run.node(node).the_pid("node"), "SLURMD_NODENAME")

    def lose_machine_of(self, node: int, *, reported: bool) -> None:
        """Slurm is told so, as by a check of the machines' health, or notices it after its SlurmdTimeout."""
        lost = self.machine_of(node)
        self._cluster.lose(lost)
        if reported:
            self._cluster.call("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=lost")

    def let_time_end(self) -> None:
        """Set the end of the job's time within the two minutes that it has for a checkpoint, until it has noticed."""
        hours, minutes, _ = map(int, self.field("RunTime").split(":"))
        update = ("scontrol", "update", f"JobId={self.number}")
        self._cluster.call(*update, f"TimeLimit={60 * hours + minutes + 2}")
        self.wait(lambda: "stopped (time)" in self.log(), "the script stops its nodes")
        self._cluster.call(*update, "TimeLimit=10")

    def release(self) -> None:
        """Let all steps go at full speed."""
        self._released.touch()

    # ------------------------------------------------------------ end

    def ends(self, state: str, exit_code: str) -> None:
        """The job has ended like this; nothing of it is left, no process, no port, no file, and its sums are right."""
        wait_until(lambda: self.field("JobState") in ENDED, "the job ends", self.report)
        assert (self.field("JobState"), self.field("ExitCode")) == (state, exit_code), self.report()
        wait_until(lambda: not self._cluster.processes_of(self.number), "no process of the job is left", self.report)
        self.run.assert_nothing_is_left()
        for port in map(int, re.findall(r"master \S+:(\d+)$", self.log(), re.M)):
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port)) != 0
        assert not list(self.run.shared.glob(".slurm-*"))

    def has_trained(self, whole: bool) -> None:
        """The summary is that of the newest checkpoint; sums and audits of all shards are right."""
        summary = self.run.summary()
        assert summary["adds_up"]
        assert summary["steps"] == self.run.step(), self.report()
        assert sum(summary.events.values()) == summary["events_read"]
        assert (summary["events_read"] == EVENTS) == whole
        lines = [json.loads(line) for audit in self.run.audits().values() for line in audit.splitlines()]
        assert sum(line["events"] for line in lines) == summary["events_trained"] > 0
        assert len({(line["shard"], line["epoch"], line["unit"], line["microbatch"]) for line in lines}) == len(lines)


def test_a_users_mistake_is_not_tried_again(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, tmp_path / "no such folder", "--nodes=1", forks=False)
    job.ends("FAILED", "2:0")
    assert job.log().count("no such folder") > 0
    assert "start 2" not in job.log()


def test_the_end_of_the_time_is_a_checkpoint_and_another_turn_and_scancel_a_checkpoint_and_the_end(
    cluster: SlurmCluster, data: Path, tmp_path: Path
) -> None:
    job = Job(cluster, tmp_path, data)
    job.trains()
    job.goes_on_after(job.let_time_end)
    assert job.field("Restarts") == "1"
    step = job.run.step()
    cluster.call("scancel", str(job.number))
    job.ends("CANCELLED", "130:0")
    assert job.run.step() >= step
    assert job.run.summary()["exit_status"] == "interrupted"
    job.has_trained(whole=False)
    assert not list(tmp_path.rglob("owned"))


def test_the_run_goes_on_whatever_dies_with_a_spare_machine_and_without(
    cluster: SlurmCluster, data: Path, tmp_path: Path
) -> None:
    job = Job(cluster, tmp_path, data, "--nodes=1-2")
    job.trains()
    job.goes_on_after(lambda: kill(job.run.node(1).the_pid("trainer"), signal.SIGKILL))
    job.goes_on_after(lambda: job.run.freeze(0))
    assert job.field("Restarts") == "0"
    first = {job.machine_of(0), job.machine_of(1)}

    job.goes_on_after(lambda: job.lose_machine_of(1, reported=False))
    second = {job.machine_of(0), job.machine_of(1)}
    assert len(second - first) == 1, "the spare one"

    lost = job.machine_of(0)
    job.goes_on_after(lambda: job.lose_machine_of(0, reported=True))
    assert {job.machine_of(0)} == second - {lost}
    assert not job.run.node(1).pids()
    # One for each lost machine; where starts fail before Slurm notices the loss, the script queues the job, too.
    assert int(job.field("Restarts")) >= 2

    job.release()
    job.ends("COMPLETED", "0:0")
    job.has_trained(whole=True)
