"""`icestream evaluate`, `icestream generate` and `icestream export`: the command lines for a trained generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from common.options import InputCommand, config_options, device_option, output_option
from workloads.base.interface import Front
from workloads.base.report.page import evaluation_options
from workloads.muons.export import FORMATS
from workloads.muons.simulator.config import NATURAL_FLUX, PRESETS

EVALUATE_EXAMPLES = """\b
Examples:
  icestream evaluate runs/demo -i demo-validation --simulated bench
  icestream evaluate runs/demo -i demo-validation --simulated bench --beside runs/demo-likelihood
  icestream evaluate best.pt --simulate bench --events 100000           # no files
  icestream evaluate runs/mine -i 'held-out/*.parquet' --redraws 'held-out-again/*.parquet'
  icestream evaluate runs/mine -i 'held-out/*.parquet' --thresholds limits.toml

\b
Exit codes: 0 all thresholds are kept, 3 some are missed, 2 an error that you can fix.
"""


@click.command(epilog=EVALUATE_EXAMPLES, cls=InputCommand)
@evaluation_options
@click.option(
    "--simulated",
    type=click.Choice(list(PRESETS)),
    help="The files were written by `icestream simulate --preset` of that name: floors are then found with real events "
    "drawn once more for the same primaries. Without: between disjoint showers.",
)
@click.option(
    "--redraws",
    multiple=True,
    metavar="FILES",
    help="Files with the events of -i drawn again, twice or more: the same ids and primaries, other muons. Floors are "
    "then found with these. Repeatable.",
)
@click.option("--simulate", type=click.Choice(list(PRESETS)), help="Draw the real events, too; no files are read.")
@click.option(
    "--weights",
    metavar="COLUMN",
    help=f"Parquet column that says how much each event counts. {NATURAL_FLUX}: the natural flux, of simulated events.",
)
@click.option(
    "--c2st-epochs",
    type=click.IntRange(min=1),
    default=12,
    show_default=True,
    help="Of the classifiers, which take most of the time.",
)
@click.pass_obj
def evaluate(front: Front, /, inputs: tuple[str, ...], token_file: Path | None, **options: Any) -> None:
    """Compare generated with real muon bundles: metrics with their floors, plots, and an HTML report.

    CHECKPOINT: a file, or a run directory (its best checkpoint). Events are generated for the primaries of real ones;
    every distance is shown with its floor, the distance between two samples of real events. Writes report.html,
    report.json and the plots. The files should not be among those of the training.
    """
    from workloads.muons.evaluation import EVALUATION  # torch and matplotlib

    EVALUATION.command(front, inputs, token_file, options)


GENERATE_EXAMPLES = """\b
Examples:
  icestream generate runs/demo primaries.parquet -o generated.parquet
  icestream generate runs/demo --primaries-from h3a --events 1000000 -o generated/
"""


@click.command(epilog=GENERATE_EXAMPLES)
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
@click.option("--max-count", type=click.IntRange(min=0), help="Most muons of an event. Without: 100,000.")
@click.option(
    "--depth-kind",
    type=click.Choice(["vertical", "slant"]),
    help="What the primaries' depth is. Without: what it was in the run's inputs.",
)
@click.option(
    "--depth",
    "depths",
    type=float,
    multiple=True,
    metavar="METRES",
    help="Record each primary's shower at this depth, in place of its own: a row each, all with its id. Repeatable.",
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
    from workloads.muons.generation import run_generate  # torch

    click.echo(run_generate(front, **options))


EXPORT_EXAMPLES = """\b
Examples:
  icestream export runs/demo -o model/
  icestream export runs/demo-likelihood -o model/ --report runs/demo/evaluation/report.json
"""


@click.command(epilog=EXPORT_EXAMPLES)
@click.argument("checkpoint", type=click.Path(path_type=Path))
@output_option("Folder for the model.")
@click.option(
    "--format",
    "wanted",
    type=click.Choice(FORMATS),
    multiple=True,
    default=FORMATS,
    show_default=True,
    help="pt2: torch.export. onnx: ONNX (needs the extra `export`). Repeatable.",
)
@click.option(
    "--report",
    "report_path",
    type=click.Path(path_type=Path),
    help="report.json of `icestream evaluate`, for the model card; it may be one in which the model is "
    "the run --beside. Without: that of the run, if there is one.",
)
@click.option("--licence", default="", help="Terms of use, for the model card.")
@click.option("--force", is_flag=True, help="Replace a model that is there.")
def export(**options: Any) -> None:
    """Write a trained generator for programs without icestream, with a model card.

    CHECKPOINT: a checkpoint, or a run directory (its best checkpoint, else the newest). The standardisation is
    included: inputs and outputs are physical quantities. Noise is an input. The written files are loaded again and
    compared with the trained model; if they differ, nothing is kept.
    """
    from workloads.muons.export.run import run_export  # torch

    for line in run_export(**options):
        click.echo(line)
