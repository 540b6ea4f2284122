"""Command `icestream convert`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import click

from common.atomic_file import part_of_one_writer
from common.config import StreamConfig
from common.errors import BadInputError, IcestreamError
from common.files.inputs import expand
from common.files.layout import Compression
from common.files.local_copy import local_file
from common.files.remotes import Remotes
from common.options import OutputPath, config_options
from common.plan import SourceFile
from common.redact import shown
from common.schema import EventSchema
from common.slow_progress import SlowProgress
from icestream.commands.convert.convert import Converted, convert_file
from icestream.commands.convert.foreign import MOST_PARTICLES, foreign_inputs, import_files
from icestream.reading.file_apart import in_a_copy
from icestream.reading.workload import config_without_run


@click.command(
    epilog="Examples: icestream convert 'old/*.h5' new/; icestream convert kaggle/ events/ (of another experiment); "
    "where lists hold more numbers than the workload's, name all:"
    ' --set \'source.fields.COLUMN=["a", "b", "c"]\''
)
@click.argument("inputs", nargs=-1, required=True, metavar="IN...")
@click.argument("out", type=OutputPath())
@click.option(
    "--rows-per-group",
    type=click.IntRange(min=1),
    default=StreamConfig().unit_events // 2,
    show_default=True,
    help="Rows per row group: the fewer, the better units mix files.",
)
@click.option("--compression", type=click.Choice(["zstd", "snappy", "none"]), default="zstd", show_default=True)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.option(
    "--from", "layout", metavar="LAYOUT", help="Layout of another experiment; without it, recognised by content."
)
@click.option(
    "--max-particles",
    type=click.IntRange(min=1),
    help=f"Particles kept of an event of another experiment: the best ones.  [default: {MOST_PARTICLES}]",
)
@config_options
def convert(
    inputs: tuple[str, ...],
    out: Path,
    rows_per_group: int,
    compression: Compression,
    force: bool,
    layout: str | None,
    max_particles: int | None,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Write files of any layout, HDF5 or Parquet, in the Parquet layout for the fastest reading.

    IN: files, directories, globs or URLs. OUT: a *.parquet file for one input, else a directory. A file that can't be
    used is reported and skipped, and the exit code is 2. Data sets of other experiments are imported: give the folder
    of one as IN, a directory as OUT; files that are there already are skipped.
    """
    foreign = foreign_inputs(inputs, layout)
    if foreign is not None:
        import_files(
            foreign,
            out,
            rows_per_group=rows_per_group,
            compression=compression,
            most=max_particles or MOST_PARTICLES,
            force=force,
        )
        return
    if max_particles is not None:
        raise BadInputError("--max-particles is for files of another experiment; these have a workload's own columns")
    config = config_without_run(toml, assignments, inputs)
    workload = config.stored_workload()
    bad: list[str] = []
    with Remotes(config.remote_access()) as remotes:
        files = expand(inputs, remotes)
        for source, target in zip(files, targets(files, out), strict=True):
            name, part = shown(source.url), part_of_one_writer(target)
            converts = partial(
                _convert, target, workload, name, part, rows=rows_per_group, compression=compression, force=force
            )
            try:
                with local_file(source, remotes) as path:
                    converted = in_a_copy(partial(converts, path), Converted, name)
            except IcestreamError as error:
                part.unlink(missing_ok=True)  # of a copy that was ended
                if len(files) == 1:
                    raise
                bad.append(str(error))
                click.echo(f"not converted: {shown(str(error))}", err=True)
                continue
            click.echo(f"{name} -> {shown(str(target))}: {_line(converted)}")
    if bad:
        raise BadInputError(f"{len(bad)} of {len(files)} files were not converted; the first: {bad[0]}")


def _convert(
    target: Path,
    workload: EventSchema,
    name: str,
    part: Path,
    path: Path,
    *,
    rows: int,
    compression: Compression,
    force: bool,
) -> Converted:
    with SlowProgress(f"{name}: rows", 0) as progress:
        return convert_file(
            path,
            target,
            workload,
            rows_per_group=rows,
            compression=compression,
            force=force,
            name=name,
            part=part,
            on_rows=progress.reach,
        )


def targets(files: Sequence[SourceFile], out: Path) -> list[Path]:
    """Output path of each file. Raises BadInputError if two have the same one, or OUT is one file for several."""
    if out.suffix == ".parquet" and not out.is_dir():
        if len(files) > 1:
            raise BadInputError(f"{out}: one file for {len(files)} inputs; name a directory")
        return [out]
    if out.exists() and not out.is_dir():
        raise BadInputError(f"{out} is a file without the suffix .parquet; name a directory, or a *.parquet file")
    places: dict[Path, str] = {}
    for file in files:
        place = out / f"{PurePosixPath(urlsplit(file.url).path).stem}.parquet"
        if place in places:
            raise BadInputError(
                f"{shown(places[place])} and {shown(file.url)} would both become {place}; convert "
                "them into different directories"
            )
        places[place] = file.url
    return list(places)


def _line(converted: Converted) -> str:
    parts = [
        f"{converted.rows_in:,} events in, {converted.events:,} out",
        f"{converted.empty:,} of them empty",
        f"{converted.particles:,} particles",
    ]
    if converted.null_events:
        parts.append(f"{converted.null_events:,} null events left out")
    if converted.dropped:
        parts.append(f"{converted.dropped:,} fillers and nulls dropped")
    return f"{', '.join(parts)}; {converted.bytes_in:,} -> {converted.bytes_out:,} bytes"
