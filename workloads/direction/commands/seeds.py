"""`icestream seeds`."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

import click

from common.errors import BadInputError
from common.files.local_listing import files_below, files_matching
from common.options import output_option
from common.user_path import user_path
from workloads.direction.geometry import GEOMETRY_FILE


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
    from workloads.direction.fits.run import run_seeds

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
            found = files_matching(path)
        if not found:
            raise BadInputError(f"{text}: no such file, or no data file in it")
        yield from found
