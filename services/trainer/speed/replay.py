"""Replay ceiling: rate of the same steps on batches that are on the device already.

No feed, no logging, no checkpoints: only the task's step, repeated on the same few batches. The efficiency of the
pipeline is its rate ÷ the replay ceiling.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict

from common.atomic_file import replace_file
from workloads.base.batch import Batch
from workloads.base.task import Task

CEILING_FILE = "ceiling.json"
MIN_ROUNDS = 3


class Ceiling(BaseModel):
    """Content of `ceiling.json`. A round replays each batch once; the host waits for the device only at its end."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    device: str
    batches: int
    rounds: int
    events_per_batch: float
    particles_per_batch: float
    events_per_s: float
    """Rate of the median round, as the other rates."""
    particles_per_s: float
    steps_per_s: float
    s_per_step: float
    s_per_step_min: float
    """Rate of the fastest round."""
    s_per_step_max: float
    """Rate of the slowest round."""


class SpreadSample:
    """Sample of a session's batches on the device, evenly spread over it: every 2**n-th one.

    The newest batches alone are no good sample: batches differ in their particles, and the plan's last one is small.
    """

    def __init__(self, most: int) -> None:
        """``most``: batches held at a time; at the end the sample holds more than half of that."""
        self._most = most
        self._stride = 1
        self._seen = 0
        self._batches: list[Batch] = []

    def add(self, batch: Batch) -> None:
        """Add a batch that was trained."""
        if self._seen % self._stride == 0:
            if len(self._batches) == self._most:
                del self._batches[1::2]
                self._stride *= 2
            if self._seen % self._stride == 0:
                self._batches.append(batch)
        self._seen += 1

    def whole(self) -> list[Batch]:
        """Sample without batches of less than half the middle one's events."""
        if not self._batches:
            return []
        middle = statistics.median(batch.num_events for batch in self._batches)
        return [batch for batch in self._batches if 2 * batch.num_events >= middle]


def measure(
    task: Task,
    batches: Sequence[Batch],
    device: torch.device,
    *,
    seconds: float,
    steps: int = 0,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> Ceiling | None:
    """Replay ``batches`` for at least ``seconds``, ``steps`` and MIN_ROUNDS rounds, after one that doesn't count.

    The replay trains the task: don't use it afterwards. None if stopped before a round was measured.
    """
    if not batches:
        raise ValueError("there is nothing to replay")
    round_s: list[float] = []
    warm = False
    while not warm or len(round_s) < MIN_ROUNDS or sum(round_s) < seconds or len(round_s) * len(batches) < steps:
        _wait_for(device)
        started_s = clock()
        for batch in batches:
            if stopped():
                return _ceiling(round_s, batches, device) if round_s else None
            task.step(batch)
        _wait_for(device)
        if warm:
            round_s.append(clock() - started_s)
        warm = True
    return _ceiling(round_s, batches, device)


def write_ceiling(run_dir: Path, ceiling: Ceiling) -> None:
    """Replace the run directory's ceiling, atomically."""
    replace_file(run_dir / CEILING_FILE, ceiling.model_dump_json(indent=2) + "\n", durable=False)


def _ceiling(round_s: Sequence[float], batches: Sequence[Batch], device: torch.device) -> Ceiling:
    median_s = statistics.median(round_s)
    num_events = sum(batch.num_events for batch in batches)
    num_particles = sum(batch.num_particles for batch in batches)
    return Ceiling(
        device=str(device),
        batches=len(batches),
        rounds=len(round_s),
        events_per_batch=num_events / len(batches),
        particles_per_batch=num_particles / len(batches),
        events_per_s=num_events / median_s,
        particles_per_s=num_particles / median_s,
        steps_per_s=len(batches) / median_s,
        s_per_step=median_s / len(batches),
        s_per_step_min=min(round_s) / len(batches),
        s_per_step_max=max(round_s) / len(batches),
    )


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
