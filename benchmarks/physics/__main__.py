"""Quality of the models: trains and evaluates all runs of docs/explanation/physics.md.

    python -m benchmarks.physics [--jobs 2] [--only TABLE] [--quick] [--tuning] [--precision] [--force] [--plan]

Runs are separate processes with one thread, short ones together. Results are kept under runs/physics; a repeated
command makes only results that are missing, or obsolete after changes of code or settings. Writes the tables to
benchmarks/results/, the figure of docs/explanation/physics.md, and the table of docs/explanation/models.md.

`--precision` trains in bfloat16, beside the same seeds in float32, and prints the comparison.

Settings are chosen by `--tuning`, never by what docs/explanation/physics.md quotes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from benchmarks.physics.cost import plan
from benchmarks.physics.keys import ROOT, result_path, weights_path
from benchmarks.physics.report import draw_figures, read_results, shown, write_choice, write_page, write_results
from benchmarks.physics.runs import BF16, TABLES, TUNING, in_order, quick
from benchmarks.physics.schedule import RunFailed, make_results

FOLDER = ROOT / "runs" / "physics"
EXPLANATION = ROOT / "docs" / "explanation"
PAGE, CHOICE = EXPLANATION / "physics.md", EXPLANATION / "models.md"
FIGURES = ROOT / "docs" / "images"


def main() -> int:
    parser = argparse.ArgumentParser(description="The quality of the models: docs/explanation/physics.md.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time (default: cores)")
    parser.add_argument("--only", choices=[table.key for table in TABLES], action="append", help="only this table")
    parser.add_argument("--quick", action="store_true", help="50 steps and 4,000 events: does it work? Writes no page")
    parser.add_argument("--tuning", action="store_true", help="other seeds and primaries, for choices. Writes no page")
    parser.add_argument(
        "--precision", action="store_true", help="models in bfloat16 beside those in float32. Writes no page"
    )
    parser.add_argument("--force", action="store_true", help="make results again that are there")
    parser.add_argument("--plan", action="store_true", help="only print the runs and their expected times")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where results are kept (default: runs/physics)")
    arguments = parser.parse_args()
    if arguments.precision and (arguments.only or arguments.quick or arguments.tuning):
        parser.error("--precision is a comparison of its own: without --only, --quick and --tuning")
    tables = tuple(table for table in TABLES if not arguments.only or table.key in arguments.only)
    if arguments.tuning or arguments.precision:
        tables = (TUNING if arguments.tuning else BF16,)
    if arguments.quick:
        tables = quick(tables)
    runs = in_order(tables)
    print(plan(runs, arguments.jobs), flush=True)
    if arguments.plan:
        return 0
    if arguments.force:
        for run in runs:
            result_path(run, arguments.folder).unlink(missing_ok=True)
            weights_path(run, arguments.folder).unlink(missing_ok=True)
    begun_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{(time.monotonic() - begun_s) / 60:5.1f} min  {text}", flush=True)

    try:
        make_results(runs, arguments.folder, arguments.jobs, say)
    except RunFailed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: what is done is kept, the same command goes on", file=sys.stderr)
        return 130
    results = read_results(runs, arguments.folder)
    for table in tables:
        print(f"\n{shown(table, results)}")
    if not (arguments.quick or arguments.tuning or arguments.precision):
        results = read_results(in_order(TABLES), arguments.folder)
        written = write_results(results)
        write_page(PAGE, results, written, draw_figures(results, FIGURES))
        write_choice(CHOICE, results)
        print(f"written: {PAGE.relative_to(ROOT)}, {CHOICE.relative_to(ROOT)}, {written.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
