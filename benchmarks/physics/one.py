"""Runs in a separate process: trained if there are no weights yet, then evaluated.

    python -m benchmarks.physics.one FOLDER NAME...

Several names: one after the other. Prints its progress on standard output, a JSON object a line: {"stage": "training",
"done": 0.4}, where done is that of all of them.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.physics.data import batches
from benchmarks.physics.evaluation import judge
from benchmarks.physics.keys import result_path, weights_path
from benchmarks.physics.models import make_model
from benchmarks.physics.purposes import PhysicsPurpose
from benchmarks.physics.runs import find
from benchmarks.physics.spec import Run
from common.atomic_file import AS_UMASK_SAYS, part_of_one_writer, replacing
from workloads.base.random_streams import stream_seed

Progress = Callable[[str, float], None]
_TOLD_EVERY_S = 1.0


def complete(run: Run, folder: Path, progress: Progress) -> dict[str, Any]:
    """Result of a run, from ``folder`` or made and stored there. New metrics need no new training."""
    path = result_path(run, folder)
    if not path.exists():
        torch.manual_seed(stream_seed(PhysicsPurpose.PROCESS))  # whatever ran before in this process
        trained = None if run.model == "simulator" else _train(run, folder, progress)
        result = {"name": run.name, **judge(run, trained, progress)}
        _write(path, lambda part: part.write_text(json.dumps(result, indent=1)))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _train(run: Run, folder: Path, progress: Progress) -> dict[str, Any]:
    path = weights_path(run, folder)
    if not path.exists():
        model = make_model(run)
        if run.start_from:
            first = weights_path(find(run.start_from), folder)
            model.load_state_dict(torch.load(first, weights_only=True)["state"])
        train_cpu_s, told_s, begun_s = 0.0, 0.0, time.process_time()
        for step, batch in enumerate(islice(batches(run.source, run.seed, run.batch_events), run.steps)):
            started_s = time.process_time()
            model.step(batch)
            train_cpu_s += time.process_time() - started_s
            if time.monotonic() - told_s > _TOLD_EVERY_S:
                progress("training", step / run.steps)
                told_s = time.monotonic()
        trained = {
            "state": model.state_dict(),
            "num_parameters": model.num_parameters,
            "train_cpu_s": train_cpu_s,
            "simulate_cpu_s": time.process_time() - begun_s - train_cpu_s,
        }
        _write(path, lambda part: torch.save(trained, part))
    found: dict[str, Any] = torch.load(path, weights_only=True)
    return found


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, durable=False, mode=AS_UMASK_SAYS, part=part_of_one_writer(path)) as part:
        write(part)


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs of the harness; started by benchmarks.physics.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # removes incomplete files
    torch.set_num_threads(1)
    names = arguments.names
    for index, name in enumerate(names):

        def tell(stage: str, done: float, index: int = index) -> None:
            print(json.dumps({"stage": stage, "done": (index + done) / len(names)}), flush=True)

        complete(find(name), arguments.folder, tell)


if __name__ == "__main__":
    main()
