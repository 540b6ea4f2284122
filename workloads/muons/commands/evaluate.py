"""`icestream evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from common.options import InputCommand
from workloads.base.evaluation.command import evaluation_options, tell, typed_options
from workloads.base.front import Front
from workloads.muons.evaluation.settings import NATURAL_FLUX, EvaluationRequest
from workloads.muons.simulator.config import PRESETS

EXAMPLES = """\b
Examples:
  icestream evaluate runs/demo -i demo-validation --simulated bench
  icestream evaluate runs/demo -i demo-validation --simulated bench --beside runs/demo-likelihood
  icestream evaluate best.pt --simulate bench --events 100000           # no files
  icestream evaluate runs/mine -i 'held-out/*.parquet' --thresholds limits.toml

\b
Exit codes: 0 all thresholds are kept, 3 some are missed, 2 an error that you can fix.
"""


@click.command(epilog=EXAMPLES, cls=InputCommand)
@evaluation_options
@click.option(
    "--simulated",
    type=click.Choice(list(PRESETS)),
    help="The files were written by `icestream simulate --preset` of that name: floors are then found with real events "
    "drawn once more for the same primaries. Without: between disjoint showers.",
)
@click.option(
    "--simulate",
    type=click.Choice(list(PRESETS)),
    help="Draw the real events, too; no files are read.",
)
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
@click.option(
    "--beside",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="A second checkpoint or run directory: its values and verdicts, on the same real events, are shown beside.",
)
@click.pass_obj
def evaluate(front: Front, /, inputs: tuple[str, ...], token_file: Path | None, **options: Any) -> None:
    """Compare generated with real muon bundles: metrics with their floors, plots, and an HTML report.

    CHECKPOINT: a file, or a run directory (its best checkpoint). Events are generated for the primaries of real ones;
    every distance is shown with its floor, the distance between two samples of real events. Writes report.html,
    report.json and the plots. The files should not be among those of the training.
    """
    from workloads.base.device import torch_threads
    from workloads.muons.evaluation.evaluate import run_evaluation  # torch and matplotlib
    from workloads.muons.evaluation.words import WORDS

    wanted = EvaluationRequest(**typed_options(inputs, token_file, options))
    with torch_threads(wanted.threads):
        outcome, folder = run_evaluation(front, wanted, say=lambda text: click.echo(text, err=True))
    tell(outcome, folder, WORDS)
