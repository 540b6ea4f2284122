"""``icestream simulate``: the command line of the simulator."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, get_args

import click

from common.options import OutputPath
from workloads.base.file_progress import file_progress
from workloads.muons.simulator.config import PRESETS, DepthKind
from workloads.muons.simulator.dataset import simulate_dataset


@click.command(name="simulate")
@click.argument("out", type=OutputPath(file_okay=False))
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    default="bench",
    show_default=True,
    help="Spectrum: corsika (most rows empty), bench (0 to 1,000 muons), heavy (tail to 10,000 muons), "
    "flat (every decade of energy), h3a (natural flux above 10 TeV).",
)
@click.option("--events", default=200_000, show_default=True, help="Rows in total.")
@click.option("--files", default=8, show_default=True, help="Files in total.")
@click.option("--seed", default=0, show_default=True, help="Same seed, same bytes.")
@click.option(
    "--showers",
    default=0,
    metavar="DEPTHS",
    help="Shower mode: record each shower at this many depths, one row each, all with its id "
    "(production has up to 100). 0: every row is its own event.",
    show_default=True,
)
@click.option(
    "--depth-kind",
    type=click.Choice(get_args(DepthKind)),
    default="vertical",
    show_default=True,
    help="Meaning of the depth column: metres below the surface, or metres of ice along the track.",
)
@click.option(
    "--files-per-range",
    default=0,
    show_default=True,
    help="Files in one range directory, at most 1000. 0: about the square root of --files.",
)
@click.option("--force", is_flag=True, help="Replace a data set that an earlier run wrote to OUT.")
def simulate(out: Path, **options: Any) -> None:
    """Write muon bundles with known truth to OUT, in the production schema and directory layout.

    A toy for demos and tests, not a simulation of a detector: see docs/explanation/simulator.md.

    \b
    Example:
      icestream simulate demo-data --preset bench --events 400000 --files 16 --seed 1
    """
    started_s = time.perf_counter()
    with file_progress("simulate", options["events"], options["files"]) as on_file:
        total = simulate_dataset(out, **options, on_file=on_file)
    rate = total.num_events / max(time.perf_counter() - started_s, 1e-9)
    click.echo(
        f"{out}: {total.num_events:,} events, {total.num_particles:,} muons, {total.num_bytes:,} bytes "
        f"in {total.num_files:,} files, {rate:,.0f} events/s"
    )
