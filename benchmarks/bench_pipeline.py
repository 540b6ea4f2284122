"""What part of the replay ceiling does the whole pipeline reach?

Question: `icestream run` from local files with two decoders, against the same steps on batches that are on the device
already (`trainer.replay_batches`): pipeline rate ÷ replay ceiling, on the CPU. Asked: at least 0.9.

    python -m benchmarks.bench_pipeline [--events 60000] [--repeats 3] [--device cpu] [--set KEY=VALUE …]

Each repeat is one run: its own pace after the first steps, checkpoints and logging included, then the ceiling in the
same process right after. So both sides are measured in turn, on the same batches and weights.

Table: events/s of both, their ratio, the time that the trainer waited for data, by repeat; medians below. The last line
is JSON.
Reading: what is missing to 1 is feed, logging, checkpoints, and on the CPU what decoders and fetcher take from the
trainer's core. A machine on which other things run gives the ratio of two times of its own: look at the spread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from services.simulator.config import preset
from services.simulator.write import DatasetPlan, write_dataset

ASKED = 0.9
FILES = 8


def one_run(data: Path, run_dir: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The summary of one run, and the share of its time that the trainer waited for data."""
    command = [sys.executable, "-m", "services", "run", "-i", str(data), "--run-dir", str(run_dir)]
    command += ["--decoders", "2", "--device", arguments.device]
    for setting in (
        f"trainer.replay_batches={arguments.replay_batches}",
        f"trainer.replay_s={arguments.replay_s}",
        *arguments.settings,
    ):
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the run ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    status = json.loads((run_dir / "status" / "trainer.json").read_text())
    summary["waited"] = status["batches"]["wait_get_s"] / summary["seconds_total"]
    summary["ceiling"] = json.loads((run_dir / "ceiling.json").read_text())
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--replay-batches", type=int, default=48)
    parser.add_argument("--replay-s", type=float, default=10.0)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    found = []
    print(f"{'run':<8}{'pipeline, events/s':>20}{'ceiling, events/s':>20}{'ratio':>8}{'waited for data':>18}")
    with tempfile.TemporaryDirectory(prefix="icestream-bench-") as folder:
        write_dataset(Path(folder) / "data", preset("bench"), DatasetPlan(arguments.events, FILES, seed=1))
        for repeat in range(arguments.repeats):
            summary = one_run(Path(folder) / "data", Path(folder) / f"run-{repeat}", arguments)
            found.append(summary)
            print(_line(str(repeat + 1), summary), flush=True)
    median = {key: statistics.median(summary[key] for summary in found) for key in _KEYS}
    print(_line("median", median) + f"   asked: {ASKED}")
    ceiling = found[0]["ceiling"]
    print(
        json.dumps(
            {
                "benchmark": "pipeline",
                **{key: round(value, 4) for key, value in median.items()},
                "ratios": [summary["replay_fraction"] for summary in found],
                "events": arguments.events,
                "events_per_batch": round(ceiling["events_per_batch"], 1),
                "device": ceiling["device"],
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
