"""One measurement, in a process of its own: `python -m benchmarks.peers.one TASK`, a JSON object. Prints a JSON line.

All imports of the loader are inside: start-up counts from the start of the process to the first batch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.peers.processes import MARK, cpu_between_s, cpu_times_s

WARM_UP_BATCHES = 10
WARM_UP_S = 1.5
LEAST_BATCHES = 4


def main() -> None:
    started_s = float(os.environ["PEERS_STARTED_S"])
    task = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    module = import_module(f"benchmarks.peers.loaders.{task['loader']}")
    from benchmarks.peers.loaders.base import Job

    job = Job(Path(task["source"]), Path(task["prepared"]), task["workers"], task["batch_events"], task["seed"])
    job = job._replace(features=tuple(task.get("features", ())))
    if task["what"] == "prepare":
        module.prepare(job.source, job.prepared)
        return
    loader = module.Loader(job)
    if task["what"] == "speed":
        print(json.dumps(speed(loader, started_s, task["seconds"], job.features)), flush=True)
    else:
        read(loader, task)
    loader.close()


def speed(loader: Any, started_s: float, seconds: float, features: Sequence[str]) -> dict[str, float]:
    """Start-up, rate and processor time within a window after the first batches, over as many epochs as it takes.

    Raises AssertionError if the batches are not filtered, transformed or complete as asked.
    """
    from benchmarks.peers.features import check, share_of_first

    mark = os.environ[MARK]
    first_s = window_s = 0.0
    batches = events = particles = in_window = of_first = 0
    before: dict[int, float] = {}
    while True:
        for batch in loader:
            now_s = time.time()
            batches += 1
            if window_s:
                in_window += 1
                events += len(batch.ids)
                particles += len(batch.muons)
                of_first += share_of_first(batch.ids) if "mix" in features else 0
                if now_s - window_s >= seconds and in_window >= LEAST_BATCHES:
                    cpu_s = cpu_between_s(before, cpu_times_s(mark))
                    spent_s = now_s - window_s
                    check(batch, features)
                    return {
                        "startup_s": first_s - started_s,
                        "events_per_s": events / spent_s,
                        "particles_per_s": particles / spent_s,
                        "cpu_us": 1e6 * cpu_s / events,
                        "share": of_first / events,
                    }
                continue
            first_s = first_s or now_s
            if batches >= WARM_UP_BATCHES or now_s - first_s > WARM_UP_S:
                before = cpu_times_s(mark)
                window_s = time.time()


def read(loader: Any, task: dict[str, Any]) -> None:
    """Write the ids of all events that were handed out, a file for each of `epochs` loops, or to batch `stop_after`.

    The state is saved every `save_every` batches, and before a stop; with `kill`, the stop is a SIGKILL.
    """
    import torch

    if task["state_in"]:
        loader.load_state_dict(torch.load(task["state_in"], weights_only=False))
    saved = Path(task["state_out"])
    for epoch in range(task["epochs"]):
        with Path(f"{task['ids_out']}{epoch}").open("ab", buffering=0) as ids:
            for number, batch in enumerate(loader, start=1):
                ids.write(json.dumps(batch.ids.tolist()).encode() + b"\n")
                if task["save_every"] and number % task["save_every"] == 0:
                    new = saved.with_suffix(".new")
                    torch.save(loader.state_dict(), new)
                    new.replace(saved)
                if number == task["stop_after"]:
                    if task["kill"]:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return


if __name__ == "__main__":
    main()
