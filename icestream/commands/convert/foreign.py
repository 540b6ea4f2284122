"""Import of files of foreign layouts, by the importers of the workloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import BadInputError, IcestreamError
from common.files.layout import Compression
from common.files.local_listing import files_matching
from common.printable import printable
from common.redact import shown
from common.slow_progress import SlowProgress
from common.user_path import user_path
from icestream.commands.convert.convert import Converted, write_rows
from workloads import registry
from workloads.base.importer import ForeignFile, ForeignFiles, Importer

MOST_PARTICLES = 1 << 18
"""Particles kept of an event unless the user says otherwise."""

_STAMP = "icestream.import"
"""Key of the note in an imported file that says from what it was made."""


@dataclass(frozen=True)
class ForeignInputs:
    """Inputs of a foreign layout."""

    layout: str
    importer: Importer
    places: Sequence[Path]


def foreign_inputs(inputs: Sequence[str], layout: str | None) -> ForeignInputs | None:
    """Inputs with the importer that the user named, or that recognises them; None if they are no foreign ones.

    The first input decides. Raises BadInputError if others are not of its layout.
    """
    places = [place for text in inputs for place in _places(text)]
    importers = {name: target for workload in registry.every_workload() for name, target in workload.importers.items()}
    if layout is not None:
        if layout not in importers:
            raise BadInputError(f"--from {printable(layout, 80)}: no such layout; there are {', '.join(importers)}")
        missing = [text for text in inputs if not _places(text)]
        if missing:
            raise BadInputError(f"{shown(missing[0])}: no such local file or directory; download it first")
        return ForeignInputs(layout, registry.imported(importers[layout]), places)
    for name, target in importers.items() if places else ():
        importer: Importer = registry.imported(target)
        if importer.recognises(places[0]):
            other = next((place for place in places if not importer.recognises(place)), None)
            if other is not None or not all(map(_places, inputs)):
                what = f"{shown(str(other))} is not" if other else "others are not there"
                raise BadInputError(f"{shown(inputs[0])} is of the layout {name}, but {what}; give only inputs of one")
            return ForeignInputs(name, importer, places)
    return None


def import_files(
    found: ForeignInputs, out: Path, *, rows_per_group: int, compression: Compression, most: int, force: bool
) -> None:
    """Write a file of the workload's layout for each foreign one into the directory ``out``.

    Files that are there already, from the same source, are left as they are, unless ``force``. A file that can't be
    used is reported and skipped; BadInputError is raised at the end.
    """
    if out.suffix == ".parquet" or (out.exists() and not out.is_dir()):
        raise BadInputError(f"{out}: name a directory; an import writes more than one file")
    opened = found.importer.open(found.places)
    by_stem: dict[str, Path] = {}
    for file in opened.files:
        if by_stem.setdefault(file.stem, file.path) != file.path:
            raise BadInputError(
                f"{by_stem[file.stem]} and {file.path} would both become {out / file.stem}.parquet; import them into "
                "different directories"
            )
    for note in opened.notes:
        click.echo(shown(note), err=True)
    out.mkdir(parents=True, exist_ok=True)
    opened.write_beside(out)
    bad: list[str] = []
    for number, file in enumerate(opened.files, 1):
        target = out / f"{file.stem}.parquet"
        try:
            version = opened.version(file)
            stamp = f"{found.layout} {file.path.name}, {version}, at most {most} particles an event"
            if _is_there(target, file, stamp, force=force):
                click.echo(f"{shown(str(target))} is there: skipped")
                continue
            with SlowProgress(f"file {number} of {len(opened.files)}, {file.path.name}: rows", 0) as progress:
                done = _import_file(
                    opened, file, target, rows_per_group, compression, most, stamp, on_rows=progress.reach
                )
        except IcestreamError as error:
            if len(opened.files) == 1:
                raise
            bad.append(str(error))
            click.echo(f"not imported: {shown(str(error))}", err=True)
            continue
        click.echo(f"{shown(str(file.path))} -> {shown(str(target))}: {_line(done, most)}")
    if bad:
        raise BadInputError(f"{len(bad)} of {len(opened.files)} files were not imported; the first: {bad[0]}")


def _places(text: str) -> list[Path]:
    """Local files and directories that an input names."""
    if "://" in text.removeprefix("file://") or text.startswith("@"):
        return []
    path = user_path(text.removeprefix("file://")).absolute()
    if path.exists():
        return [path]
    return files_matching(path) if has_magic(text) else []


def _is_there(target: Path, file: ForeignFile, stamp: str, *, force: bool) -> bool:
    """True if the target was made from the same file. Raises BadInputError if it is something else."""
    if not target.exists():
        return False
    if target.samefile(file.path):
        raise BadInputError(f"{target} is the input: choose another directory")
    if force:
        return False
    try:
        notes = pq.read_metadata(target).metadata or {}
    except (pa.ArrowException, OSError):
        notes = {}
    if notes.get(_STAMP.encode()) != stamp.encode():
        raise BadInputError(
            f"{target} exists, and was not made from {file.path.name} and its tables as they are, with the same "
            "limit: choose another directory, or overwrite it with --force"
        )
    return True


def _import_file(
    opened: ForeignFiles,
    file: ForeignFile,
    target: Path,
    rows_per_group: int,
    compression: Compression,
    most: int,
    stamp: str,
    *,
    on_rows: Callable[[int, int], None],
) -> Converted:
    return write_rows(
        target,
        opened.schema,
        opened.rows(file, most),
        rows=file.rows,
        rows_per_group=rows_per_group,
        compression=compression,
        bytes_in=file.path.stat().st_size,
        on_rows=on_rows,
        notes={_STAMP: stamp},
    )


def _line(done: Converted, most: int) -> str:
    parts = [f"{done.events:,} events", f"{done.particles:,} particles"]
    if done.null_events:
        parts.append(f"{done.null_events:,} events without particles left out")
    if done.dropped:
        parts.append(f"{done.dropped:,} particles above {most:,} an event cut")
    return f"{', '.join(parts)}; {done.bytes_in:,} -> {done.bytes_out:,} bytes"
