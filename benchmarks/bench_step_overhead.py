"""Overhead of Python and logging in a step, without the work of the device.

Question: the real loop, with the real telemetry (TensorBoard every `trainer.log_every` steps, the status file twice a
second, a fetcher's status beside it), a feed with ready batches, and a task that does nothing: how many
milliseconds a step? Asked: less than 1.

    python -m benchmarks.bench_step_overhead [--steps 3000] [--repeats 5]

Table: ms a step, for each repeat: mean over all steps, median of the steps without logging, mean of the steps with
logging (every 10th, by default). The last line is JSON.
Reading: the mean is the cost of a step besides the model. Not included: the validation block and its panel, the feed's
work for a batch (benchmarks of the queue), checkpoints, and the calls into torch that queue the model's own work, which
grow with the model.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.status import HOPS, STALL_REASONS, Counters, FetcherStatus, Hop, write_status
from icestream.reading import read_validation_events
from services.config.root import Config
from services.config.settings import TrainerConfig, ValidationConfig
from services.trainer.commits import Checkpoints
from services.trainer.health import HEALTH_FILE, HealthLog
from services.trainer.position import StreamPosition
from services.trainer.service import train
from services.trainer.speed import Gauges
from services.trainer.state import TrainState
from services.trainer.telemetry import open_telemetry
from services.trainer.units import BatchWaits, FedBatch
from workloads.base.batch import Batch, Microbatch

CPU = torch.device("cpu")
METRICS = (
    *("c_loss", "g_loss", "m_loss", "w_gap", "gp_norm"),
    *("generator_grad_norm", "critic_grad_norm", "count_grad_norm", "skipped_updates"),
)
ASKED_MS = 1.0


class NothingToDo:
    """Task with an empty step."""

    def __init__(self) -> None:
        self._metrics = {name: torch.tensor(0.0 if name == "skipped_updates" else 0.5) for name in METRICS}

    def step(self, batch: Batch) -> dict[str, Tensor]:
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError

    def scale_learning_rates(self, factor: float) -> None:
        raise NotImplementedError


class NothingToSee:
    """Evaluator with three learning rates only."""

    def settings(self) -> dict[str, float]:
        return {f"train/lr_{name}": 1e-4 for name in ("count", "generator", "critic")}

    def evaluate(self, block: Batch) -> None:
        return None


class ReadyFeed:
    """Feed that always has the next batch; records the time of each request."""

    def __init__(self, steps: int) -> None:
        self.waits = BatchWaits()
        self.position = StreamPosition()
        self.ended = False
        self.outside_values = ""
        self.stopped = False
        self.asked_s: list[float] = []
        self._steps = steps
        offsets = torch.arange(257)
        self._batch = Batch((Microbatch(0, 0, 0, offsets, offsets.numpy(), {}, {}, 256, 256),))

    def stream(self, position: StreamPosition) -> Generator[FedBatch]:
        for step in range(1, self._steps + 1):
            counters = Counters(events_read=256 * step, events_trained=256 * step, particles_trained=1000 * step)
            fed = FedBatch(self._batch, position.model_copy(update={"counters": counters}), ())
            now_s = time.perf_counter()
            self.asked_s.append(now_s)
            self.waits.given(now_s)
            yield fed
            self.waits.taken(time.perf_counter())
        self.asked_s.append(time.perf_counter())
        self.ended = True

    def take_commit_request(self) -> bool:
        return False

    def committed(self, position: StreamPosition) -> None:
        pass

    def finished(self, position: StreamPosition) -> None:
        pass


def one_run(steps: int) -> tuple[float, float, float]:
    """(mean of all, median without logging, mean with logging), in ms a step."""
    trainer = TrainerConfig(checkpoint_every=10**9, device="cpu", validation=ValidationConfig(events=0))
    config = Config(trainer=trainer)
    feed = ReadyFeed(steps)
    with tempfile.TemporaryDirectory(prefix="icestream-bench-") as folder:
        run_dir = Path(folder)
        write_status(run_dir, "fetcher", a_fetcher())
        state = TrainState(NothingToDo(), CPU, "ab" * 16, headline="w_gap")
        telemetry = open_telemetry(run_dir, config, state, NothingToSee(), config.own_json(), read_validation_events)
        checkpoints = Checkpoints(run_dir, 1, wait_s=1.0, stopped=lambda: False)
        after_step = Gauges(run_dir, trainer, CPU).stepped
        try:
            log = HealthLog(run_dir / HEALTH_FILE)
            train(state, feed, checkpoints, telemetry, None, log, trainer, "{}", after_step)  # type: ignore[arg-type]
        finally:
            telemetry.close()
            checkpoints.close()
    # The first step opens the TensorBoard file, which belongs to the start.
    ms = [1e3 * (after - before) for before, after in zip(feed.asked_s[1:], feed.asked_s[2:], strict=False)]
    logged = [one for step, one in enumerate(ms, 2) if step % trainer.log_every == 0]
    plain = [one for step, one in enumerate(ms, 2) if step % trainer.log_every]
    return statistics.mean(ms), statistics.median(plain), statistics.mean(logged)


def a_fetcher() -> FetcherStatus:
    """Fetcher status with all its numbers: each is written to TensorBoard."""
    return FetcherStatus(
        state="streaming",
        stalled_s=dict.fromkeys(STALL_REASONS, 1.0),
        stall_shares=dict.fromkeys(STALL_REASONS, 0.1),
        hops={name: Hop(occupancy=0.5) for name in HOPS if name != "batches"},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    one_run(200)  # imports, page cache
    print(f"{'ms a step':<12}{'mean':>10}{'without logging, median':>26}{'with logging, mean':>22}")
    found = []
    for repeat in range(arguments.repeats):
        found.append(one_run(arguments.steps))
        print(f"{'run ' + str(repeat + 1):<12}{found[-1][0]:>10.3f}{found[-1][1]:>26.3f}{found[-1][2]:>22.3f}")
    mean, plain, logged = (statistics.median(column) for column in zip(*found, strict=True))
    print(f"{'median':<12}{mean:>10.3f}{plain:>26.3f}{logged:>22.3f}   asked: < {ASKED_MS:g} in the mean")
    print(
        json.dumps(
            {
                "benchmark": "step_overhead",
                "ms_per_step": round(mean, 4),
                "ms_per_plain_step": round(plain, 4),
                "ms_per_logged_step": round(logged, 4),
                "log_every": TrainerConfig().log_every,
                "torch": torch.__version__,
                "python": platform.python_version(),
            }
        )
    )


if __name__ == "__main__":
    main()
