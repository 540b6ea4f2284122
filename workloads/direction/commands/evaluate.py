"""`icestream evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from common.options import InputCommand
from workloads.base.evaluation.command import evaluation_options, tell, typed_options
from workloads.base.front import Front


@click.command(
    cls=InputCommand, epilog="Example: icestream evaluate runs/direction -i direction-validation --simulated"
)
@evaluation_options
@click.option(
    "--simulated",
    is_flag=True,
    help="The files were written by `icestream simulate`: angles are shown beside their floor, the smallest possible "
    "errors.",
)
@click.pass_obj
def evaluate(front: Front, /, inputs: tuple[str, ...], token_file: Path | None, **options: Any) -> None:
    """Compare predicted with true neutrino directions: angles, calibration, plots, and an HTML report.

    CHECKPOINT: a file, or a run directory (its best checkpoint). Classical fits in the files are shown beside the
    model. Writes report.html, report.json and the plots. The files should not be among those of the training.
    """
    from workloads.base.device import torch_threads
    from workloads.direction.evaluation.evaluate import DirectionOptions, run_evaluation  # torch and matplotlib
    from workloads.direction.evaluation.words import WORDS
    from workloads.direction.models.load import load_predictor

    wanted = DirectionOptions(**typed_options(inputs, token_file, options))
    with torch_threads(wanted.threads):
        outcome, folder = run_evaluation(front, wanted, load_predictor, say=lambda text: click.echo(text, err=True))
    tell(outcome, folder, WORDS)
