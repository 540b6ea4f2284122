"""``icestream simulate --workload direction``: the command line of the toy detector."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from common.options import OutputPath
from workloads.base.file_progress import file_progress
from workloads.direction.geometry import ARRAYS
from workloads.direction.simulator.dataset import LAYOUTS, simulate_dataset


@click.command(name="simulate")
@click.argument("out", type=OutputPath(file_okay=False))
@click.option("--events", default=24_000, show_default=True, help="Events of the natural mixture, in total.")
@click.option("--files", default=8, show_default=True, help="Files in total.")
@click.option("--seed", default=0, show_default=True, help="Same seed, same bytes.")
@click.option(
    "--cascades",
    default=0,
    show_default=True,
    help="Cascades above 10 TeV in addition to --events, spread over all files: for models that see too few.",
)
@click.option(
    "--bright",
    default=0,
    show_default=True,
    help="Events of 5,000 to 170,000 pulses in addition to --events, spread over all files: for tests of limits.",
)
@click.option(
    "--array",
    type=click.Choice(list(ARRAYS)),
    default="icecube",
    show_default=True,
    help="Sensors: those of IceCube (5,160 on 86 strings), or 91 strings of a regular hexagon.",
)
@click.option(
    "--layout",
    type=click.Choice(list(LAYOUTS)),
    default="converted",
    show_default=True,
    help="converted: what icestream reads, one row an event, with all truth. "
    "kaggle: as the files of IceCube's contest, for tests of convert.",
)
@click.option("--force", is_flag=True, help="Replace a data set that an earlier run wrote to OUT.")
def simulate(out: Path, **options: Any) -> None:
    """Write neutrino events with known truth to OUT, as a toy detector sees them.

    A toy for demos and tests, not a simulation of a detector: see docs/explanation/simulator.md.

    \b
    Examples:
      icestream simulate demo --workload direction --events 24000 --cascades 12000 --files 12 --seed 1
      icestream simulate kaggle --workload direction --events 2000 --files 2 --layout kaggle
    """
    num_events = options["events"] + options["cascades"] + options["bright"]
    started_s = time.perf_counter()
    with file_progress("simulate", num_events, options["files"]) as on_file:
        total = simulate_dataset(out, **options, on_file=on_file)
    rate = total.num_events / max(time.perf_counter() - started_s, 1e-9)
    click.echo(
        f"{out}: {total.num_events:,} events, {total.num_particles:,} pulses, {total.num_bytes:,} bytes "
        f"in {total.num_files:,} files, {rate:,.0f} events/s"
    )
