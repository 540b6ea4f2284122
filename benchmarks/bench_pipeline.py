"""Rate of the whole pipeline as a fraction of the replay ceiling.

Question: training from local files with a fetcher and two decoders, against the same steps on batches already on the
device: pipeline rate ÷ replay ceiling, on the CPU. Asked: at least 0.9.

    python -m benchmarks.bench_pipeline [--events 30000] [--repeats 3] [--set KEY=VALUE …]

Both sides are measured in turn, step by step, in one trainer: each batch passes fetcher, decoders, slots
and feed, is trained and logged (and a checkpoint is written every 200 steps); then only the step is repeated on the
same batch. Pipeline time is all time except this second step. The two measurements are a few tenths of a second apart,
so that both see the same load of the machine. But the decoders have twice the time for each batch; so each repeat is
followed by a plain `icestream run`, for the part of its time that the trainer waits for data.

Table: events/s of both, their ratio, the time waited for data, by repeat; medians below. The last line is JSON.
Reading: the difference to 1 is feed, logging, checkpoints, and on the CPU the time that decoders and fetcher take from
the trainer's core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from common.process import StopFlag
from icestream.reading import read_validation_events
from services.config.root import load_config, store_config
from services.trainer import service
from services.trainer.speed import START_UP_STEPS
from services.trainer.state import TrainState
from workloads.base.batch import Batch
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.write import DatasetPlan, write_dataset

ASKED = 0.9
FILES = 8
DECODERS = 2
ICESTREAM = (sys.executable, "-m", "icestream")


class StepsTwice:
    """Replacement of a task's step that does it twice, the second time as a replay, and records both times."""

    def __init__(self, step: Callable[[Batch], dict[str, torch.Tensor]]) -> None:
        self._step = step
        self.pipeline_s: list[float] = []
        self.replay_s: list[float] = []
        self.events: list[int] = []
        self._last_s = time.perf_counter()

    def __call__(self, batch: Batch) -> dict[str, torch.Tensor]:
        metrics = self._step(batch)
        now_s = time.perf_counter()
        self.pipeline_s.append(now_s - self._last_s)  # since the last replay: logging, waits, feed, and the step
        self._step(batch)
        self._last_s = time.perf_counter()
        self.replay_s.append(self._last_s - now_s)
        self.events.append(batch.num_events)
        return metrics


def in_turn(data: Path, run_dir: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Rates of one run with the trainer in this process; fetcher and decoders are separate processes."""
    run_dir.mkdir()
    config = load_config(
        run_dir, assignments=arguments.settings, flags={"input": (str(data),), "trainer.device": "cpu"}
    )
    store_config(run_dir, config)
    made: list[StepsTwice] = []
    make_state = service.new_state

    def make_twice(*given: Any) -> TrainState:
        state = make_state(*given)
        made.append(StepsTwice(state.task.step))
        state.task.step = made[-1]  # type: ignore[method-assign]
        return state

    verbs = ["fetcher", *["decoder"] * DECODERS]
    with (run_dir / "log").open("w") as log:
        processes = [
            subprocess.Popen([*ICESTREAM, verb, "--run-dir", str(run_dir)], stdout=log, stderr=log) for verb in verbs
        ]
        service.new_state = make_twice
        try:
            service.run_trainer(run_dir, config, StopFlag(), read_validation_events, accept_new_plan=False)
        finally:
            service.new_state = make_state
            for process in processes:
                process.terminate()
                process.wait()
    events = sum(made[0].events[START_UP_STEPS:])
    pipeline_s, replay_s = (sum(of[START_UP_STEPS:]) for of in (made[0].pipeline_s, made[0].replay_s))
    return {
        "session_events_per_s": events / pipeline_s,
        "replay_events_per_s": events / replay_s,
        "replay_fraction": replay_s / pipeline_s,
        "waited": waited(data, run_dir.with_name(f"{run_dir.name}-plain"), arguments),
    }


def waited(data: Path, run_dir: Path, arguments: argparse.Namespace) -> float:
    """Return the share of the time of one `icestream run` that the trainer waited for data."""
    command = [*ICESTREAM, "run", "-i", str(data), "--run-dir", str(run_dir)]
    command += ["--decoders", str(DECODERS), "--device", "cpu"]
    for setting in arguments.settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the run ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    summary = json.loads((run_dir / "summary.json").read_text())
    status = json.loads((run_dir / "status" / "trainer.json").read_text())
    return float(status["batches"]["wait_get_s"] / summary["seconds_total"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=30_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    found = []
    print(f"{'run':<8}{'pipeline, events/s':>20}{'ceiling, events/s':>20}{'ratio':>8}{'waited for data':>18}")
    with tempfile.TemporaryDirectory(prefix="icestream-bench-") as folder:
        write_dataset(Path(folder) / "data", preset("bench"), DatasetPlan(arguments.events, FILES, seed=1))
        for repeat in range(arguments.repeats):
            found.append(in_turn(Path(folder) / "data", Path(folder) / f"run-{repeat}", arguments))
            print(_line(str(repeat + 1), found[-1]), flush=True)
    median = {key: statistics.median(one[key] for one in found) for key in _KEYS}
    print(_line("median", median) + f"   asked: {ASKED}")
    print(
        json.dumps(
            {
                "benchmark": "pipeline",
                "how": "in turn",
                **{key: round(value, 4) for key, value in median.items()},
                "ratios": [round(one["replay_fraction"], 3) for one in found],
                "events": arguments.events,
                "device": "cpu",
                "cores": os.cpu_count(),
                "settings": arguments.settings,
            }
        )
    )


_KEYS = ("session_events_per_s", "replay_events_per_s", "replay_fraction", "waited")


def _line(name: str, of: dict[str, float]) -> str:
    rates = f"{of['session_events_per_s']:>20,.1f}{of['replay_events_per_s']:>20,.1f}"
    return f"{name:<8}{rates}{of['replay_fraction']:>8.3f}{100 * of['waited']:>16.2f} %"


if __name__ == "__main__":
    main()
