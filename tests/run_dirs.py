"""Run directories with made-up statuses, and processes that hold their locks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.status import Counters, FetcherStatus, GpuStatus, RunStatus, TimeShares, TrainerStatus, write_status
from services.config.root import Config, store_config

FETCHER = FetcherStatus(
    state="streaming",
    pid=os.getpid(),
    decoders=2,
    files_total=40,
    files_planned=40,
    files_bad=3,
    events_planned=20_000,
    bytes_staged=3 << 30,
    last_hour=TimeShares(seconds=3600.0, shares={"no_credit": 0.5}),
)
TRAINER = TrainerStatus(
    state="training",
    pid=os.getpid(),
    device="cuda:0",
    step=100,
    epochs=1,
    seconds=100.0,
    counters=Counters(events_read=10_000, events_trained=10_000),
    events_per_s=200.0,
    batches_per_s=2.0,
    losses={"loss": -1.25},
    health="warning",
    health_reason="the loss jumped",
    copied_bytes_per_s=3.5 * 2**20,
    gpu=GpuStatus(
        utilisation=0.9,
        memory_utilisation=0.4,
        memory_share=0.25,
        allocated_mean_bytes=5 << 30,
        allocated_max_bytes=8 << 30,
        reserved_bytes=9 << 30,
    ),
)


def made_run(folder: Path, run: RunStatus | None, trainer: TrainerStatus = TRAINER, **settings: Any) -> Path:
    store_config(folder, Config.model_validate(settings))
    if run is not None:
        write_status(folder, "run", run)
    write_status(folder, "fetcher", FETCHER)
    write_status(folder, "trainer", trainer)
    (folder / "checkpoints").mkdir()
    for step in (90, 80):
        (folder / f"checkpoints/step-{step:09d}.pt").write_text("")
    (folder / "health.jsonl").write_text("{}\n{}\n")
    return folder


@contextmanager
def holding(code: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Python code as a process that holds a lock, since it has printed `held`, and is killed at the end."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


def session(**changes: object) -> RunStatus:
    now_s = time.time()
    return RunStatus(pid=os.getpid(), started_s=now_s - 7200.0, changed_s=now_s, restarts={"decoder": 2}).model_copy(
        update=changes
    )
