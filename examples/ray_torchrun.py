"""A run on the machines of a Ray cluster: on each of them a Ray task runs torchrun until the run ends.

    pip install ray
    python examples/ray_torchrun.py --address head:6379 --machines 4 --gpus 8 --cpus 32 --shared /shared/mine \\
        --run-dir /local/mine -i '/data/*.parquet' --set stream.shards=8

Ray finds the machines, and starts the task of a lost one elsewhere, or once there is a machine again; torchrun starts
all trainers again from the last checkpoint, with as many machines as there are. Ctrl-C writes a checkpoint; the same
command resumes. Options that are not listed by --help are those of `icestream run`, with paths of the machines.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import ray

STOPS_WITHIN_S = 60.0
"""Time for the checkpoint and the end of all machines, after which Ray kills what is left."""


def parsed() -> tuple[argparse.Namespace, list[str]]:
    """Return the options of this command, and those of `icestream run`."""
    parser = argparse.ArgumentParser(description="Other options are those of `icestream run`.", allow_abbrev=False)
    parser.add_argument("--address", required=True, help="HOST:PORT of the cluster's head")
    parser.add_argument("--machines", type=int, required=True, help="most machines; the run goes on with fewer")
    parser.add_argument("--cpus", type=int, required=True, help="CPUs of a machine: all, so that each has one task")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a machine")
    parser.add_argument("--trainers", type=int, help="trainers of each machine (default: one for each GPU)")
    parser.add_argument("--shared", type=Path, required=True, help="folder that all machines see")
    parser.add_argument("--wait-s", type=int, default=30, help="wait for more machines before each start")
    return parser.parse_known_args()


def torchrun(settings: argparse.Namespace, options: list[str], launch: str) -> int:
    """Run torchrun on a machine; return its exit code. Raises ChildProcessError if it was killed: Ray tries again."""
    settings.shared.mkdir(mode=0o700, parents=True, exist_ok=True)  # private: torchrun trusts what it reads there
    command = [
        *("setpriv", "--pdeathsig", "TERM"),  # ends with Ray's worker, as that does with Ray and with this command
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", f"1:{settings.machines}"),
        *("--nproc-per-node", str(settings.trainers or settings.gpus or 1), "--max-restarts", "20"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", str(settings.shared / "rendezvous"), "--rdzv-id", launch),
        *("--rdzv-conf", f"store_type=file,last_call_timeout={settings.wait_s}"),
        *("--local-addr", ray.util.get_node_ip_address()),
        *("-m", "icestream", "run", "--shared", str(settings.shared), *options),
    ]
    # It meets the others by the file alone, and imports nothing from the working directory.
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONSAFEPATH": "1"}
    child = subprocess.Popen(command, env=environment)
    try:
        while child.poll() is None:
            time.sleep(0.5)  # in short pieces: ray.cancel() raises KeyboardInterrupt between two of them
    finally:
        child.terminate()
        child.wait()
    if child.returncode < 0:
        raise ChildProcessError(f"torchrun was killed by signal {-child.returncode}")
    return child.returncode


def main() -> int:
    """Run to the end; return 0 if the run is complete, 130 if it was stopped, 1 if it failed."""
    settings, options = parsed()
    ray.init(settings.address)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    on_machine = ray.remote(torchrun).options(
        num_cpus=settings.cpus, num_gpus=settings.gpus, max_retries=-1, retry_exceptions=[ChildProcessError]
    )
    launch = secrets.token_hex(8)  # the same at each machine and after a loss, another one at the next start
    tasks = [on_machine.remote(settings, options, launch) for _ in range(settings.machines)]
    try:
        ended, _ = ray.wait(tasks)  # torchrun ends on all machines together; tasks beside them have no machine
        return int(ray.get(ended[0]))
    except KeyboardInterrupt:
        return 130
    finally:
        for task in tasks:
            ray.cancel(task)
        ray.wait(tasks, num_returns=len(tasks), timeout=STOPS_WITHIN_S)


if __name__ == "__main__":
    sys.exit(main())
