"""`icestream export`: the command line."""

from __future__ import annotations

from pathlib import Path

import click

from common.options import output_option
from workloads.muons.export.format_names import FORMATS, Format

EXAMPLES = """\b
Examples:
  icestream export runs/demo -o model/
  icestream export runs/demo-likelihood -o model/ --report runs/demo/evaluation/report.json
"""


@click.command(epilog=EXAMPLES)
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
def export(
    checkpoint: Path, out: Path, wanted: tuple[Format, ...], report_path: Path | None, licence: str, force: bool
) -> None:
    """Write a trained generator for programs without icestream, with a model card.

    CHECKPOINT: a checkpoint, or a run directory (its best checkpoint, else the newest). The standardisation is
    included: inputs and outputs are physical quantities. Noise is an input. The written files are loaded again and
    compared with the trained model; if they differ, nothing is kept.
    """
    from workloads.muons.export.run import run_export  # torch

    for line in run_export(checkpoint, out, wanted, report_path, licence, force=force):
        click.echo(line)
