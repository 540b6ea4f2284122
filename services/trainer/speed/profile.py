"""Profile of a few steps (`trainer.profile_steps`), as a table and as a trace for Perfetto or Chrome.

The steps are those of the running loop, including feed, logging and checkpoints. Each process profiles once,
WARM_UP_STEPS after its start.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

logger = logging.getLogger(__name__)

PROFILE_FOLDER = "profile"
TABLE_SUFFIX = ".txt"
TRACE_SUFFIX = ".trace.json.gz"
WARM_UP_STEPS = 10
"""Steps before the first profiled one: they fit the standardisation, make the optimisers' state, choose kernels."""
ROWS = 25


class StepProfile:
    """Profile of one trainer process. Call stepped() after each step, close() at the end."""

    def __init__(self, run_dir: Path, num_steps: int, device: torch.device) -> None:
        self._folder = run_dir / PROFILE_FOLDER
        self._num_steps = num_steps
        self._device = device
        self._seen = 0
        self._first = 0
        """Number of the first profiled step, over the whole run."""
        self._profile: profile | None = None
        self.done = False
        """True once the profile has been written."""

    def stepped(self, step: int) -> None:
        """Record the end of step ``step`` of the run."""
        if self.done:
            return
        self._seen += 1
        if self._profile is None and self._seen == WARM_UP_STEPS:
            self._begin(step + 1)
        elif self._profile is not None and self._seen == WARM_UP_STEPS + self._num_steps:
            self._end()

    def close(self) -> None:
        """Write the recorded steps: no more follow."""
        if self._profile is not None:
            self._end()
        elif not self.done:
            logger.warning(
                "nothing was profiled: this session made %d steps, and the first %d only warm up",
                self._seen,
                WARM_UP_STEPS,
            )

    def _begin(self, first: int) -> None:
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.synchronize(self._device)  # kernels of earlier steps must not be recorded
        self._first = first
        all_threads = _ExperimentalConfig(profile_all_threads=True)  # a step on the CPU uses trainer.threads threads
        self._profile = profile(activities=activities, experimental_config=all_threads)
        self._profile.start()

    def _end(self) -> None:
        assert self._profile is not None
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._profile.stop()
        recorded, self._profile, self.done = self._profile, None, True
        num_steps = self._seen - WARM_UP_STEPS
        if num_steps == 0:
            logger.warning(
                "nothing was profiled: the first %d steps only warm up, and there were no others", self._seen
            )
            return
        last = self._first + num_steps - 1  # counted, since a rollback would reset the run's own number
        self._folder.mkdir(exist_ok=True)
        name = f"steps-{self._first:08d}-{last:08d}"
        trace = self._folder / f"{name}{TRACE_SUFFIX}"
        recorded.export_chrome_trace(str(trace))
        key = f"self_{self._device.type}_time_total"
        table = recorded.key_averages().table(sort_by=key, row_limit=ROWS, max_name_column_width=60)
        text = f"Profile of {num_steps} steps ({self._first} to {last}) on {self._device}\n{table}"
        (self._folder / f"{name}{TABLE_SUFFIX}").write_text(text)
        logger.info("%strace for https://ui.perfetto.dev: %s", text, trace)
