"""Job scripts of `icestream slurm` on a real Slurm cluster, with stand-ins of nodes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, is_alive, missing, variable, wait_until

from icestream.commands.slurm import command
from icestream.commands.slurm.script import SlurmJob

pytestmark = [pytest.mark.process, pytest.mark.slow]

STAND_IN = Path(__file__).parents[1] / "stand_in_node.py"
TEMPLATE = Path(command.__file__).with_name("job.sbatch").read_text()


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """Cluster of three nodes for all scenes."""
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


class Job:
    """One job with its story."""

    def __init__(self, cluster: SlurmCluster, folder: Path, *sbatch: str, options: tuple[str, ...] = ()) -> None:
        cluster.be_idle()
        self.cluster = cluster
        self.shared = folder / "it's shared"
        self.shared.mkdir()
        job = SlurmJob(
            name="run",
            nodes=2,
            shards=2,
            gpus=0,
            time="10:00",
            shared=self.shared,
            run_dir=folder / "$(local)",
            program=(sys.executable, str(STAND_IN)),
            options=options,
        )
        script = folder / "job.sbatch"
        script.write_text(job.script(TEMPLATE))
        self.output = folder / "output.txt"
        self.number = cluster.submit(f"--output={self.output}", f"--chdir={folder}", *sbatch, str(script))

    @property
    def story(self) -> str:
        path = self.shared / "story.txt"
        return path.read_text() if path.exists() else ""

    @property
    def state(self) -> str:
        return self.cluster.job(self.number)["JobState"]

    def log(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def pids(self, number: int) -> list[int]:
        """Process of each node of a start (1 for the first), once all run."""

        def complete() -> list[int]:
            found = re.findall(
                r"^node (\d+) of (\d+) started machine=\S* pid=(\d+) step=\d+ master=(\S+)$", self.story, re.M
            )
            masters = list(dict.fromkeys(master for *_, master in found))
            mine = [one for one in found if len(masters) >= number and one[3] == masters[number - 1]]
            return [int(pid) for _, _, pid, _ in sorted(mine)] if mine and len(mine) == int(mine[0][1]) else []

        return list(wait_until(complete, f"start {number} runs", self.details))

    def details(self) -> str:
        return f"{self.story}\n{self.log()}\n{self.cluster.details()}"

    def steps(self) -> list[int]:
        """Steps at which nodes have started, in order."""
        return [int(step) for step in re.findall(r" step=(\d+) ", self.story)]

    def trains_on(self) -> int:
        """Step of a checkpoint that is newer than the newest now."""
        path = self.shared / "checkpoint"

        def step() -> int:
            return int(path.read_text()) if path.exists() else 0

        now = step()
        return int(wait_until(lambda: step() > now and step(), "there is a new checkpoint"))

    def finish(self) -> None:
        (self.shared / "finish").touch()
        self.ends("COMPLETED")

    def ends(self, state: str) -> None:
        """The job has ended in this state, and nothing is left of it."""
        over = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL")
        wait_until(lambda: self.state in over, "the job ends", self.details)
        assert self.state == state, self.log()
        for pid in map(int, re.findall(r"pid=(\d+)", self.story)):
            wait_until(lambda pid=pid: not is_alive(pid), "no node is left")
        assert list(self.shared.glob(".slurm-*")) == []


def node_of(cluster: SlurmCluster, pid: int) -> str:
    return variable(pid, "SLURMD_NODENAME")


def test_a_job_of_two_nodes_trains_and_ends(cluster: SlurmCluster, tmp_path: Path) -> None:
    hostile = ("-i", "a b/*.parquet", "$(touch owned)", "`touch owned`", "'; touch owned; '", 'x"y\\', "two\nlines")
    job = Job(cluster, tmp_path, options=hostile)
    assert {node_of(cluster, pid) for pid in job.pids(1)} <= set(cluster.names)
    job.trains_on()
    job.finish()
    assert f"given {list(hostile)!r}" in job.story
    assert not list(tmp_path.rglob("owned"))
    assert job.story.count("ended 0") == 2


def test_after_a_killed_task_all_start_again_in_the_same_allocation(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path)
    victim = job.pids(1)[1]
    step = job.trains_on()
    os.kill(victim, signal.SIGKILL)
    job.pids(2)
    assert min(job.steps()[2:]) >= step
    job.finish()
    assert cluster.job(job.number)["Restarts"] == "0"
    assert "ended: 75" in job.log(), "the codes are 75 and 137, of which srun gives 137"


def test_a_node_that_hangs_is_killed_and_all_start_again(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path)
    victim = job.pids(1)[1]
    step = job.trains_on()
    os.kill(victim, signal.SIGSTOP)
    job.pids(2)
    assert min(job.steps()[2:]) >= step
    job.finish()


def test_a_lost_node_is_replaced_by_a_spare_one(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path)
    lost = node_of(cluster, job.pids(1)[1])
    step = job.trains_on()
    cluster.lose(lost)
    pids = job.pids(2)
    assert lost not in {node_of(cluster, pid) for pid in pids}
    assert min(job.steps()[2:]) >= step
    job.finish()
    assert cluster.job(job.number)["Restarts"] == "1"


def test_without_a_spare_node_the_job_goes_on_with_fewer(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, "--nodes=1-2", f"--exclude={cluster.names[0]}")
    lost = node_of(cluster, job.pids(1)[0])
    step = job.trains_on()
    cluster.lose(lost)
    (alone,) = job.pids(2)
    assert node_of(cluster, alone) != lost
    assert min(job.steps()[2:]) >= step
    job.finish()


def test_the_end_of_the_time_is_a_checkpoint_and_another_turn(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, "--time=1", "--signal=B:USR1@55")
    job.pids(1)
    job.trains_on()
    job.pids(2)
    assert job.story.count("ended 130") == 2
    assert min(job.steps()[2:]) >= 5
    job.finish()
    assert cluster.job(job.number)["Restarts"] == "1"


def test_a_cancelled_job_writes_a_checkpoint_and_does_not_start_again(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path)
    job.pids(1)
    step = job.trains_on()
    cluster.call("scancel", str(job.number))
    job.ends("CANCELLED")
    assert job.story.count("ended 130") == 2
    assert int((job.shared / "checkpoint").read_text()) >= step
    assert len(job.steps()) == 2


def test_a_users_mistake_is_not_tried_again(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, options=("--refuses",))
    job.ends("FAILED")
    assert cluster.job(job.number)["ExitCode"] == "2:0"
    assert "no such file" in job.log()
    assert job.log().count(" start ") == 1
