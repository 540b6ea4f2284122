"""`icestream evaluate`, `icestream predict` and `icestream seeds`. Imports no torch."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from common.errors import BadInputError
from common.files.local import each_match, files_below
from common.options import InputCommand, config_options, device_option, input_option, output_option, token_file_option
from common.paths import user_path
from workloads.base.interface import Front
from workloads.base.report.page import evaluation_options, typed_options
from workloads.direction.geometry import GEOMETRY_FILE


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
    from workloads.direction.evaluation import EVALUATION  # torch and matplotlib

    EVALUATION.command(front, inputs, token_file, options)


@click.command(epilog="Example: icestream predict runs/direction -i test/ -o submission.csv")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@input_option
@output_option("A file *.parquet (event_id, directions, energies if predicted), or *.csv: Kaggle's submission.")
@device_option("auto")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads of torch.")
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@token_file_option
@config_options
@click.pass_obj
def predict(front: Front, /, inputs: tuple[str, ...], token_file: Path | None, **options: Any) -> None:
    """Write the predicted direction of every event, in the order of the files, with its precision kappa.

    CHECKPOINT: a checkpoint, or a run directory (its best checkpoint, else the newest). Any number of events, in
    bounded memory. Angles in radians point to the source, lg_energy is lg(E / GeV). Same files, same model: same bytes.
    """
    from workloads.direction.prediction import run_predict  # torch

    click.echo("\n".join(run_predict(front, **typed_options(inputs, token_file, options))))


@click.command(epilog="Example: icestream seeds demo/ -o demo-seeds/")
@click.argument("inputs", nargs=-1, required=True, metavar="IN...")
@output_option("Another folder.")
@click.option(
    "--geometry",
    type=click.Path(path_type=Path),
    help=f"Table of sensors. Default: {GEOMETRY_FILE} beside the files.",
)
@click.option("--processes", type=click.IntRange(min=1), help="Files done at a time. Default: one a core.")
@click.option("--force", is_flag=True, help="Overwrite files of OUT.")
def seeds(inputs: tuple[str, ...], out: Path, geometry: Path | None, processes: int | None, force: bool) -> None:
    """Copy files of events to OUT with the classical fits of each event, which the model `sets` starts from.

    IN: files, folders or globs, in the layout that convert and simulate write. Rows, row groups and all other columns
    stay as they are; the table of sensors comes along. Files that OUT has already are skipped, so that the same line
    resumes where it was stopped. A file that can't be used is reported and skipped, and the exit code is 2.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: a process a file, each with one thread
    from workloads.direction.seeds import run_seeds

    files = list(dict.fromkeys(_files(inputs, out.absolute())))
    click.echo(run_seeds(files, out, geometry, processes or len(os.sched_getaffinity(0)), force=force))


def _files(inputs: tuple[str, ...], out: Path) -> Iterator[Path]:
    """Local files that the inputs name; an output folder inside of one is none. Raises BadInputError without a file."""
    for text in inputs:
        if "://" in text:
            raise BadInputError(f"{text}: not a local file; `icestream convert` copies remote files")
        path = user_path(text).absolute()
        found = sorted(files_below(path)) if path.is_dir() else [path] if path.exists() else []
        if path.is_dir() and path != out:
            found = [file for file in found if out not in file.parents]
        if not found and glob.has_magic(text):
            found = sorted(each_match(path))
        if not found:
            raise BadInputError(f"{text}: no such file, or no data file in it")
        yield from found
