"""Quality of the direction models on toy events, as `icestream` trains and evaluates them.

Question: which angles do `sets`, `transformer` and `flat` reach with 480 s of one CPU core, or a part of it?

    python -m benchmarks.bench_direction_quality [--seeds 1 2 3] [--jobs 2] [--folder runs/direction-quality]
        [--models sets transformer flat] [--part 1.0] [--cascades 12000]
        [--detector --array tests/data/geometries/flower_l.parquet --medium water]

24,000 training events, 12,000 more cascades for the branch that learns them, 4,000 held out, from simulator seeds that
nothing was tuned on. Each run: fetcher, one decoder and a trainer with one thread; the trainer's CPU time is that of
its whole process, start, validation and checkpoints included. Results that are there are kept.

`--detector`: what follows are options of `icestream simulate`, for another detector than the toy's, in a folder of its
own. `--models` without a name: the data alone. `flat` has no prediction that learns from enriched events: without them
(`--cascades 0`) all models have equal data.

Reading: medians over the seeds of the training; the lowest and highest in brackets. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TRAINING_SEED, HELD_OUT_SEED = 5001, 6001
"""Seeds of the simulator. Trials of settings have used others only."""
RECIPES = {
    "sets": ("direction.toml", 5400, "sets"),
    "transformer": ("direction-transformer.toml", 1870, "transformer"),
    "flat": ("direction-transformer.toml", 2350, "transformer"),
}
"""Configuration, its steps (480 to 570 s), and section of the settings. Warm-up: a 25th of the steps."""
METRICS = (
    *("angle_mean_deg", "angle_median_deg", "angle_68_deg", "track_angle_mean_deg", "cascade_angle_mean_deg"),
    "kappa_pull_mean",
)


def icestream(*arguments: object) -> list[str]:
    """Command line of icestream."""
    return [sys.executable, "-m", "icestream", *map(str, arguments)]


def make_data(folder: Path, cascades_added: int, detector: list[str]) -> dict[str, float]:
    """Training and held-out events with classical fits; CPU seconds of each step, by name.

    ``detector``: options of `icestream simulate`.
    """
    cost: dict[str, float] = {}
    for name, seed, events, cascades, files in (
        ("training", TRAINING_SEED, 24_000, cascades_added, 8),
        ("held-out", HELD_OUT_SEED, 4_000, 0, 2),
    ):
        target = folder / name
        if target.is_dir():
            continue
        raw, part = folder / f"{name}.raw", folder / f"{name}.part"
        for old in (raw, part):
            shutil.rmtree(old, ignore_errors=True)
        size = ("--events", events, "--cascades", cascades, "--files", files, "--seed", seed)
        cost[f"simulate {name}"] = cpu_s(icestream("simulate", raw, "--workload", "direction", *size, *detector))
        cost[f"seeds {name}"] = cpu_s(icestream("seeds", raw, "-o", part))
        part.rename(target)
        shutil.rmtree(raw)
    return cost


def cpu_s(command: list[str]) -> float:
    """CPU seconds of a command and its children. Raises SystemExit if it fails."""
    before = os.times()
    if subprocess.run(command, cwd=ROOT, env=one_thread(), check=False).returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def one_thread() -> dict[str, str]:
    """Environment in which numerical libraries use one thread."""
    return os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def train(folder: Path, model: str, seed: int, part: float) -> tuple[Path, float]:
    """Run directory of a finished training, and the CPU seconds of its trainer."""
    run_dir = folder / f"{model}-{seed}"
    cost = run_dir / "trainer_cpu_s"
    if cost.exists():
        return run_dir, float(cost.read_text())
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
    recipe, full, section = RECIPES[model]
    steps = round(full * part)
    values = {"seed": seed, "trainer.device": "cpu", "trainer.model": model, "trainer.max_steps": steps}
    values |= {f"trainer.{section}.schedule_steps": steps, f"trainer.{section}.warmup_steps": steps // 25}
    settings = ("-c", ROOT / "configs" / recipe, *(f"--set={key}={value}" for key, value in values.items()))
    with (run_dir / "bench.log").open("wb") as log:
        inputs = ("-i", folder / "training")
        commands = [
            icestream("fetcher", *inputs, "--run-dir", run_dir, *settings),
            icestream("decoder", "--run-dir", run_dir),
            icestream("trainer", "--run-dir", run_dir),
        ]
        others = [subprocess.Popen(one, stdout=log, stderr=log, cwd=ROOT, env=one_thread()) for one in commands[:2]]
        trainer = subprocess.Popen(commands[2], stdout=log, stderr=log, cwd=ROOT, env=one_thread())
        try:
            _, status, usage = os.wait4(trainer.pid, 0)
            trainer.returncode = os.waitstatus_to_exitcode(status)
            for other in others:
                other.wait(60)
        finally:
            for process in (*others, trainer):
                if process.returncode is None:
                    process.kill()
    if trainer.returncode:
        raise SystemExit(f"the trainer of {run_dir} failed: see {run_dir}/bench.log")
    spent_s = usage.ru_utime + usage.ru_stime
    cost.write_text(str(spent_s))
    return run_dir, spent_s


def result(folder: Path, model: str, seed: int, part: float) -> dict[str, Any]:
    """Metrics of one training on the held-out events."""
    started = time.monotonic()
    run_dir, spent_s = train(folder, model, seed, part)
    report = run_dir / "evaluation" / "report.json"
    if not report.exists():
        cpu_s(icestream("evaluate", run_dir, "--workload", "direction", "-i", folder / "held-out", "--events", 0))
    metrics = {name: one["value"] for name, one in json.loads(report.read_text())["metrics"].items()}
    summary = json.loads((run_dir / "summary.json").read_text())
    print(f"{model} {seed}: {(time.monotonic() - started) / 60:.1f} min, trainer {spent_s:.0f} CPU s", file=sys.stderr)
    return {
        "model": model,
        "seed": seed,
        "trainer_cpu_s": round(spent_s, 1),
        "steps": summary["steps"],
        "events_trained": summary["events_trained"],
        "events_per_cpu_s": round(summary["events_trained"] / spent_s),
        "metrics": metrics,
    }


def table(results: list[dict[str, Any]]) -> str:
    """Markdown table: median, lowest and highest of each metric by model."""
    lines = ["| model | " + " | ".join(METRICS) + " | CPU s | events/CPU s |", "| --- " * (len(METRICS) + 3) + "|"]
    for model in dict.fromkeys(one["model"] for one in results):
        of_it = [one for one in results if one["model"] == model]
        cells = [_spread([one["metrics"][name] for one in of_it]) for name in METRICS]
        cells += [_spread([one[name] for one in of_it]) for name in ("trainer_cpu_s", "events_per_cpu_s")]
        lines.append(f"| `{model}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.4g} ({min(values):.4g}-{max(values):.4g})"


def main() -> int:
    """Make data, train, evaluate; print the table."""
    parser = argparse.ArgumentParser(description="Quality of the direction models on toy events.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds of the trainings")
    parser.add_argument("--models", nargs="*", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--part", type=float, default=1.0, help="part of the steps of each model's recipe")
    parser.add_argument("--cascades", type=int, default=12_000, help="cascades added to the training events")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "direction-quality")
    parser.add_argument("--detector", nargs=argparse.REMAINDER, default=[], help="options of `icestream simulate`")
    arguments = parser.parse_args()
    if arguments.detector and arguments.folder == parser.get_default("folder"):
        parser.error("--detector: name a --folder of its own")
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    cost = make_data(folder, arguments.cascades, arguments.detector)
    wanted = [(model, seed) for seed in arguments.seeds for model in arguments.models]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(lambda one: result(folder, one[0], one[1], arguments.part), wanted))
    print(table(results))
    print(json.dumps({"preparation_cpu_s": cost, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
