"""`icestream predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from common.options import config_options, device_option, input_option, output_option, token_file_option
from workloads.base.evaluation.command import typed_options
from workloads.base.front import Front


@click.command(epilog="Example: icestream predict runs/direction -i test/ -o submission.csv")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@input_option
@output_option("A file *.parquet (event_id, azimuth, zenith, kappa), or *.csv: Kaggle's submission, without kappa.")
@device_option("auto")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads of torch.")
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@token_file_option
@config_options
@click.pass_obj
def predict(front: Front, /, inputs: tuple[str, ...], token_file: Path | None, **options: Any) -> None:
    """Write the predicted direction of every event, in the order of the files, with its precision kappa.

    CHECKPOINT: a checkpoint, or a run directory (its best checkpoint, else the newest). Any number of events, in
    bounded memory. Angles in radians point to the source. Same files, same model: same bytes.
    """
    from workloads.direction.models.load import load_predictor  # torch
    from workloads.direction.prediction.predict import PredictOptions, run_predict

    wanted = PredictOptions(**typed_options(inputs, token_file, options))
    click.echo("\n".join(run_predict(front, wanted, load_predictor)))
