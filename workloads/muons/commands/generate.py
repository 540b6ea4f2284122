"""`icestream generate`: the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from common.options import config_options, device_option, output_option
from workloads.base.front import Front
from workloads.muons.generation.options import GenerateOptions
from workloads.muons.simulator.config import PRESETS

EXAMPLES = """\b
Examples:
  icestream generate runs/demo primaries.parquet -o generated.parquet
  icestream generate runs/demo --primaries-from h3a --events 1000000 -o generated/
"""


@click.command(epilog=EXAMPLES)
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("inputs", nargs=-1, metavar="[PRIMARIES]...")
@output_option("A *.parquet file, or a directory for several.")
@click.option(
    "--primaries-from",
    "preset_name",
    type=click.Choice(list(PRESETS)),
    help="Primaries of this spectrum of the simulator, in place of files.",
)
@click.option("--events", type=click.IntRange(min=1), help="How many, with --primaries-from.")
@click.option(
    "--counts",
    default="sampled",
    show_default=True,
    metavar="sampled|column|constant:N",
    help="Numbers of muons: the model's, those of the files, or N for each event.",
)
@click.option(
    "--counts-column",
    default="",
    metavar="NAME",
    help="Column with the numbers of muons (or with lists of so many). Without: `muons`, or `num_muons`.",
)
@click.option("--max-count", type=click.IntRange(min=0), help="Most muons of an event. Without: max_count of the run.")
@click.option(
    "--depth-kind",
    type=click.Choice(["vertical", "slant"]),
    help="What the primaries' depth is. Without: what it was in the run's inputs.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Same seed, same bytes.")
@device_option("auto")
@click.option("--threads", type=click.IntRange(min=1), help="Threads for the networks on a CPU. Without: all cores.")
@click.option(
    "--rows-per-file",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="Events of a file, where OUT is a directory.",
)
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@config_options
@click.pass_obj
def generate(front: Front, /, **options: Any) -> None:
    """Write muon bundles of a trained model, one for each primary, in the production schema.

    CHECKPOINT: a checkpoint, or a run directory (its best checkpoint, else the newest). PRIMARIES: files,
    directories, globs or URLs: production files (muons in them are not read, unless --counts column), or Parquet tables
    with the column `primary`, or with energy_gev, zenith_rad, mass_a, depth_m. Ids and the kind of depth are kept.
    The output can be an input of `icestream run`.
    """
    from workloads.muons.generation.run import run_generate  # torch

    click.echo(run_generate(front, GenerateOptions(**options)))
