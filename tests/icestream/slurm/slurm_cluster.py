"""Slurm cluster of several nodes on this machine: Debian's daemons as root, without systemd, on loopback."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from proc import below, is_alive, parent, processes, read, variable

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol")
PATIENCE_S = 240.0
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/%n
SlurmctldPort={controller_port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/backfill
SchedulerParameters=requeue_delay=1,sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
KillWait=30
InactiveLimit=0
MinJobAge=600
JobRequeue=1
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# cred_expire: else a job that is requeued waits two minutes for its former credential to expire.


def missing() -> str:
    """Programs that are not installed, and what to do; empty if all are."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    return f"no {', '.join(absent)}: apt-get install slurmctld slurmd slurm-client munge" if absent else ""


def wait_until(
    holds: Callable[[], Any], what: str, details: Callable[[], str] = str, patience_s: float = PATIENCE_S
) -> Any:
    """First true value; the wait is bounded."""
    deadline_s = time.monotonic() + patience_s
    while not (found := holds()):
        assert time.monotonic() < deadline_s, f"waited in vain until {what}\n{details()}"
        time.sleep(0.1)
    return found


class SlurmCluster:
    """Controller and the nodes that are up."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self._frozen: set[int] = set()
        self.environment = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
        }
        self.names = [f"n{number}" for number in range(1, count + 1)]
        self._write(free_ports(count + 1))
        munge = folder / "munge"
        files = ("socket", "key-file", "pid-file", "log-file", "seed-file")
        self.call("munged", "--force", *(f"--{name}={munge / name.removesuffix('-file')}" for name in files))
        self.call("slurmctld", "-c")
        for name in self.names:
            self.up(name)

    def _write(self, ports: list[int]) -> None:
        for name in ("state", "log", "munge", *(f"spool-{name}" for name in self.names)):
            (self.folder / name).mkdir(mode=0o700)
        key = self.folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        host = socket.gethostname().partition(".")[0]
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000 State=UNKNOWN"
            for name, port in zip(self.names, ports, strict=False)
        )
        text = CONFIGURATION.format(host=host, folder=self.folder, controller_port=ports[-1], nodes=nodes)
        (self.folder / "slurm.conf").write_text(text)

    def call(self, *command: str | Path) -> str:
        """Output of a command that must succeed."""
        done = subprocess.run(
            command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}"
        return done.stdout

    def up(self, name: str) -> None:
        """Start a node, and wait until jobs may use it."""
        self.call("slurmd", "-N", name)
        wait_until(lambda: name in self.idle(), f"{name} is up")

    def idle(self) -> list[str]:
        """Nodes that are up and have no job."""
        return self.call("sinfo", "--noheader", "--Node", "--states=idle", "--responding", "--format=%N").split()

    def be_idle(self) -> None:
        """Have all nodes up, and none with a job."""
        for name in self.names:
            if not (self.folder / f"slurmd-{name}.pid").exists():
                self.up(name)
        wait_until(lambda: len(set(self.idle())) == len(self.names), "all nodes are idle")

    def lose(self, name: str, by: signal.Signals = signal.SIGKILL) -> None:
        """Kill a node's daemon and all that it has started, at once: what a power cut leaves. SIGSTOP: it hangs."""
        pid_file = self.folder / f"slurmd-{name}.pid"
        marked = [pid for pid in processes() if variable(pid, "SLURMD_NODENAME") == name]
        marked += [above for pid in marked if read(above := parent(pid), "comm").strip() == "slurmstepd"]
        lost = below(*marked, int(pid_file.read_text()))
        # Stopped first: a slurmstepd that still runs would report the death of its script, as the job's end.
        for number in (signal.SIGSTOP, by):
            for pid in lost:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        if by == signal.SIGKILL:
            pid_file.unlink()
        else:
            self._frozen |= lost

    def thaw(self) -> None:
        """Wake up what hangs."""
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._frozen.clear()

    def submit(self, *arguments: str | Path) -> int:
        """Number of a new job."""
        found = re.search(r"\d+", self.call("sbatch", *arguments))
        assert found is not None
        return int(found[0])

    def job(self, number: int) -> dict[str, str]:
        """Fields of a job: JobState, Restarts, ExitCode, …"""
        fields = self.call("scontrol", "show", "job", str(number), "--oneliner").split()
        return dict(field.split("=", 1) for field in fields if "=" in field)

    def processes_of(self, number: int) -> list[int]:
        """Processes of a job, on all nodes."""
        return [pid for pid in self._processes() if variable(pid, "SLURM_JOB_ID") == str(number)]

    def details(self) -> str:
        """State of the jobs and nodes, and the end of the controller's log."""
        log = (self.folder / "log" / "slurmctld").read_text().splitlines()[-40:]
        return "\n".join([self.call("squeue", "--long"), self.call("sinfo", "--Node", "--long"), *log])

    def close(self) -> None:
        """End all jobs and daemons; after a failed test with SIGKILL."""
        self.thaw()
        with suppress(AssertionError):
            self.call("scancel", "--user=root")
            wait_until(lambda: not self.call("squeue", "--noheader"), "no job is left")
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self._processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            with suppress(AssertionError):
                wait_until(lambda: not self._processes(), "all daemons have ended", patience_s=10)
        assert not self._processes()

    def _processes(self) -> list[int]:
        """All processes of this cluster: daemons, job steps and jobs."""
        mine = self.environment["SLURM_CONF"]
        return [pid for pid in processes() if variable(pid, "SLURM_CONF") == mine and is_alive(pid)]


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses at this moment."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
