"""The field's own direction models, trained on the same stream as ours.

Question: which angles do GraphNeT's DynEdge and DeepIce and ParticleNet reach beside `sets`, `transformer` and `flat`,
with the same events and the same CPU time? How fast are they?

Commands, from the repository's root, in an environment of their own, which has icestream, too (requirements.txt beside
this file says how):

    python -m benchmarks.peers.direction train --data FOLDER --out RESULTS
    python -m benchmarks.peers.direction table RESULTS [--ours PRINTED ...]

FOLDER has the folders `training` and `held-out`: benchmarks.bench_direction_quality makes them, and so does `icestream
simulate` for any detector (`icestream seeds` adds the fits that our models read; the peers don't need them). PRINTED is
a file with what benchmarks.bench_direction_quality printed of our models: `sets`, `transformer`, and `flat`, which is
the model of iceaggr.

Each training is a process of its own with one thread; the CPU time of all of it, imports, conversion and stream
included, ends it. The learning rate follows the CPU time. Rows are JSON files; one that is there is kept.

Reading: in benchmarks/results. Angles of trainings that were cut short say nothing of what a model reaches in the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.bench_direction_quality import one_thread
from benchmarks.peers.direction.recipes import RECIPES, changed
from benchmarks.peers.direction.table import rows_in, rows_of_ours, table

ROOT = Path(__file__).resolve().parent.parent.parent.parent
EXAMPLES = """\
examples:
  python -m benchmarks.bench_direction_quality --models flat > ours.txt
  python -m benchmarks.peers.direction train --data runs/direction-quality --out runs/peers --models dynedge --seeds 1
  python -m benchmarks.peers.direction train --data tuning --out trials --models dynedge-small --seconds 60 \\
      --set learning_rate=3e-4 --set cascades=false --tag slow
  python -m benchmarks.peers.direction table runs/peers --ours ours.txt
"""


def arguments_of(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.direction",
        description="The field's own direction models, trained on the same stream as ours.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True)
    training = actions.add_parser("train", help="train and evaluate, one after the other")
    training.add_argument("--data", type=Path, required=True, help="folder with the folders training and held-out")
    training.add_argument("--out", type=Path, required=True, help="folder of the rows")
    training.add_argument("--models", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    training.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    training.add_argument("--seconds", type=float, default=480.0, help="CPU time of each (default: 480)")
    training.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting (JSON)")
    training.add_argument("--tag", default="", help="what to add to the names of the rows")
    printing = actions.add_parser("table", help="print the table")
    printing.add_argument("out", type=Path, help="folder of the rows")
    printing.add_argument("--ours", type=Path, nargs="+", help="what benchmarks.bench_direction_quality printed")
    return parser.parse_args(argv)


def changes_of(assignments: list[str]) -> dict[str, Any]:
    """Return other values of settings by name. Raises SystemExit for what is no KEY=VALUE of a recipe."""
    try:
        changes = {key: json.loads(value) for key, _, value in (one.partition("=") for one in assignments)}
        changed(next(iter(RECIPES.values())), changes)
    except ValueError as error:
        raise SystemExit(f"--set {' '.join(assignments)}: {error}") from None
    return changes


def train(arguments: argparse.Namespace) -> None:
    """Train what has no row yet."""
    for name in ("training", "held-out"):
        if not (arguments.data / name).is_dir():
            raise SystemExit(f"{arguments.data / name}: no such folder; see the head of benchmarks/peers/direction")
    arguments.out.mkdir(parents=True, exist_ok=True)
    changes = changes_of(arguments.set)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = one_thread() | {"PYTHONPATH": path}
    for seed in arguments.seeds:
        for model in arguments.models:
            name = f"{model}-{arguments.tag}" if arguments.tag else model
            row = (arguments.out / f"{name}-{seed}.json").absolute()
            if row.exists():
                continue
            task = {"name": name, "model": model, "seed": seed, "seconds": arguments.seconds, "changes": changes}
            task |= {"data": str(arguments.data.absolute()), "row": str(row)}
            started_s = time.monotonic()
            command = [sys.executable, "-m", "benchmarks.peers.direction.one", json.dumps(task)]
            with row.with_suffix(".log").open("wb") as log:
                # GraphNeT writes a folder of logs where it is started.
                result = subprocess.run(command, cwd=row.parent, env=environment, stdout=log, stderr=log, check=False)
            state = f"failed: see {log.name}" if result.returncode else "done"
            print(f"{name} {seed}: {state}, {(time.monotonic() - started_s) / 60:.1f} min", flush=True)


def main() -> int:
    arguments = arguments_of()
    if arguments.action == "train":
        train(arguments)
    rows = [*rows_in(arguments.out)]
    for printed in getattr(arguments, "ours", None) or ():
        rows += rows_of_ours(printed)
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
