"""Job scripts of `icestream slurm` on a real Slurm cluster, with torchrun and real trainers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from proc import command_line, variable
from runs import SMALL_STREAM, audits_in, settings
from slurm_cluster import SlurmCluster, missing, wait_until

from common.locks import newest_number
from icestream.cli import cli
from workloads.base.checkpoint import newest_step
from workloads.muons.simulator.write import simulate

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1200)]

EVENTS = 16_000
STREAM = (
    *SMALL_STREAM,
    *("stream.shards=2", "stream.block_files=1", "stream.batch_events=50", "local.decoders=1"),
    *("trainer.checkpoint_every=1", "trainer.model=held_model:TRAINING"),
)
"""320 steps of two trainers, half a second each until the test releases them, and a checkpoint after each."""
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
    """One job, and the run in it, with a run directory for each machine, since all of them are this one."""

    def __init__(self, cluster: SlurmCluster, place: Path, data: Path, nodes: str) -> None:
        cluster.be_idle()
        self._cluster = cluster
        self.folder = place / 'it\'s $(touch owned) "here"'
        self.folder.mkdir()
        self.shared = self.folder / "shared"
        self.released = place / "released"
        words = ["slurm", "--nodes", nodes, "--time", "10:00", "--shared", str(self.shared)]
        words += ["--run-dir", str(self.folder / "MACHINE"), "-i", str(data)]
        done = CliRunner().invoke(cli, [*words, *settings(*STREAM, f"trainer.own.released={self.released}")])
        assert done.exit_code == 0, done.output
        assert '"$@" &&' in done.stdout
        script = self.folder / "job.sbatch"
        script.write_text(done.stdout.replace('"$@" &&', '"${@/MACHINE/$SLURMD_NODENAME}" &&'))
        self._output = self.folder / "output.txt"
        variables = f"--export=ALL,PYTHONPATH={TESTS.parent}:{TESTS}"
        self.number = cluster.submit(f"--output={self._output}", f"--chdir={self.folder}", variables, str(script))

    def field(self, name: str) -> str:
        return self._cluster.job(self.number)[name]

    def report(self) -> str:
        logs = [self._output, *sorted(self.folder.glob("n*/logs/*"))]
        return "\n".join([f"=== {path}\n{path.read_text()[-4000:]}" for path in logs] + [self._cluster.details()])

    def wait(self, event: Callable[[], object], what: str) -> None:
        def event_of_living() -> object:
            assert self.field("JobState") not in ENDED, self.report()
            return event()

        wait_until(event_of_living, what, self.report)

    def trains_after(self, event: Callable[[], object] = lambda: None, *, restarts: int = 0) -> None:
        """After an event, in this start of the job, all start again from the newest checkpoint, and train."""
        attempt, step = newest_number(self.shared), newest_step(self.shared)
        event()
        self.wait(lambda: self.field("Restarts") == str(restarts), f"{restarts} restarts of the job")
        self.wait(lambda: newest_number(self.shared) > attempt, "an attempt after it")
        begun = newest_step(self.shared)
        self.wait(lambda: newest_step(self.shared) > begun >= step, "a checkpoint of it")

    def process(self, program: str, *, is_first: bool) -> int:
        """A process of the machine that runs the job's script, or of the other one."""
        return next(
            pid
            for pid in self._cluster.processes_of(self.number)
            if program in (words := command_line(pid))
            and "-c" not in words  # not the shell around it
            and (variable(pid, "SLURMD_NODENAME") == self.field("BatchHost")) == is_first
        )

    def machines(self) -> set[str]:
        return set(self._cluster.call("scontrol", "show", "hostnames", self.field("NodeList")).split())

    def let_time_end(self) -> None:
        """Set the end of the job's time within the two minutes that it has for a checkpoint, until it has noticed."""
        hours, minutes, _ = map(int, self.field("RunTime").split(":"))
        update = ("scontrol", "update", f"JobId={self.number}")
        self._cluster.call(*update, f"TimeLimit={60 * hours + minutes + 2}")
        self.wait(lambda: self.field("Restarts") == "1", "the job is requeued")
        self._cluster.call(*update, "TimeLimit=10")

    def ends(self, state: str, exit_code: str) -> None:
        """The job has ended like this; no process and no note of it is left, and its sums are right."""
        wait_until(lambda: self.field("JobState") in ENDED, "the job ends", self.report)
        assert (self.field("JobState"), self.field("ExitCode")) == (state, exit_code), self.report()
        wait_until(lambda: not self._cluster.processes_of(self.number), "no process of the job is left", self.report)
        assert not list(self.shared.glob(".slurm-*"))
        assert not list(self.folder.parent.rglob("owned"))
        summary = json.loads((self.shared / "summary.json").read_text())
        assert summary["adds_up"]
        assert summary["exit_status"] == ("finished" if state == "COMPLETED" else "interrupted")
        assert summary["steps"] == newest_step(self.shared), self.report()
        assert (summary["events_read"] == EVENTS) == (state == "COMPLETED")
        lines = audits_in(self.shared)
        assert sum(json.loads(line)["events"] for line in lines) == summary["events_trained"] > 0


def test_a_job_goes_on_after_a_kill_and_the_end_of_its_time_and_ends_with_a_checkpoint(
    cluster: SlurmCluster, data: Path, tmp_path: Path
) -> None:
    job = Job(cluster, tmp_path, data, "2")
    job.trains_after()
    job.trains_after(lambda: os.kill(job.process("trainer", is_first=False), signal.SIGKILL))
    job.trains_after(lambda: os.kill(job.process("torch.distributed.run", is_first=False), signal.SIGKILL))
    job.trains_after(job.let_time_end, restarts=1)
    cluster.call("scancel", str(job.number))
    job.ends("CANCELLED", "1:0")


def test_a_job_goes_on_after_the_loss_of_machines_with_a_spare_one_and_with_fewer(
    cluster: SlurmCluster, data: Path, tmp_path: Path
) -> None:
    job = Job(cluster, tmp_path, data, "1-2")
    job.trains_after()
    first, lost = job.machines(), job.field("BatchHost")
    job.trains_after(lambda: cluster.lose(lost), restarts=1)
    second = job.machines()
    assert len(second) == 2
    assert second - first, "the spare one"
    (frozen,) = second - {job.field("BatchHost")}
    job.trains_after(lambda: cluster.lose(frozen, by=signal.SIGSTOP), restarts=2)
    assert job.machines() == second - {frozen}
    job.released.touch()
    cluster.thaw()
    job.ends("COMPLETED", "0:0")
