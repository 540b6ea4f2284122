"""`icestream export`: the command line."""

from __future__ import annotations

from pathlib import Path

import click

from workloads.muons.export.format_names import FORMATS, Format


@click.command(epilog="Example: icestream export runs/demo -o model/")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="Folder for the model.")
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
    help="report.json of `icestream evaluate`, for the model card. Without: that of the run, if there is one.",
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
