"""Command `icestream inspect`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from common.errors import BadInputError, IcestreamError
from common.files.inputs import expand
from common.files.local_copy import local_file
from common.files.remotes import Remotes
from common.options import config_options, input_option
from common.redact import shown
from common.schema import EventSchema
from common.slow_progress import SlowProgress
from icestream.commands.inspect.describe import Description, as_json, describe
from icestream.commands.inspect.text import lines
from icestream.reading.file_apart import in_a_copy
from icestream.reading.workload import config_without_run


@click.command(epilog="Example: icestream inspect data/*.h5 --events 5")
@click.argument("files", nargs=-1, metavar="FILE...")
@input_option
@click.option(
    "--events", "num_events", type=click.IntRange(min=0), default=3, show_default=True, help="Events to print."
)
@click.option("--json", "in_json", is_flag=True, help="Print JSON instead.")
@config_options
def inspect(
    files: tuple[str, ...],
    inputs: tuple[str, ...],
    num_events: int,
    in_json: bool,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Print the content of files: kind, layout, row groups, counts, ranges and first events; and their problems.

    FILE: files, directories, globs or URLs, of HDF5 or Parquet. Each is read once in full; a remote one is fetched into
    a temporary directory. The exit code is 2 if one can't be used as it is.
    """
    inputs = (*files, *inputs)
    if not inputs:
        raise click.UsageError("Missing argument 'FILE...' (or -i).")
    config = config_without_run(toml, assignments, inputs)
    workload = config.stored_workload()
    found: list[Description] = []
    with Remotes(config.remote_access()) as remotes:
        for source in expand(inputs, remotes):
            name = shown(source.url)
            try:
                with local_file(source, remotes) as path:
                    describes = partial(_describe, path, name, workload, num_events)
                    found.append(in_a_copy(describes, Description, name))
            except IcestreamError as error:  # it is not available at all
                found.append(Description(name=name, size_bytes=source.size_bytes, problems=[shown(str(error))]))
            if not in_json:
                click.echo("\n".join(lines(found[-1])))
    if in_json:
        click.echo(json.dumps(as_json(found), indent=2))
    bad = [one for one in found if one.problems]
    if bad:
        raise BadInputError(f"{len(bad)} of {len(found)} files can't be used as they are; the first: {_named(bad[0])}")


def _describe(path: Path, name: str, workload: EventSchema, num_events: int) -> Description:
    with SlowProgress(f"{name}: rows", 0) as progress:
        return describe(path, name, workload, num_events=num_events, on_rows=progress.reach)


def _named(found: Description) -> str:
    """First problem of a file, with the file's name once."""
    problem = found.problems[0]
    return problem if problem.startswith(found.name) else f"{found.name}: {problem}"
