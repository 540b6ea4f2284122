"""Command `icestream convert`: files of any layout, also of other experiments, in the fastest Parquet layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from glob import has_magic
from pathlib import Path, PurePosixPath
from typing import TypeVar
from urllib.parse import urlsplit

import click
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from common.atomic_file import AS_UMASK_SAYS, part_of_one_writer, replacing
from common.config import StreamConfig
from common.errors import BadInputError, IcestreamError
from common.files.by_content import plan_file, rows_of
from common.files.inputs import expand, local_file
from common.files.layout import schema_of, to_table, writer_options
from common.files.local import each_match
from common.files.remotes import Remotes
from common.files.rows import RaggedRows
from common.options import OutputPath, config_options
from common.paths import user_path
from common.plan import SourceFile
from common.process import in_a_copy
from common.schema import EventSchema
from common.slow_progress import SlowProgress
from common.text import printable, shown
from icestream.run_config import config_without_run
from workloads import registry
from workloads.base.interface import ForeignFile, Importer

_GROUP_PARTICLES = 1 << 22
"""Maximum particles of a row group, which is held in memory before it is written."""
MOST_PARTICLES = 1 << 18
"""Particles kept of an event unless the user says otherwise."""
_STAMP = "icestream.import"
"""Key of the note in an imported file that says from what it was made."""


File = TypeVar("File")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Converted:
    """Result of a conversion, with the fate of the file's events: rows_in = events + null_events."""

    rows_in: int
    events: int
    empty: int
    """Number of events without particles, included in ``events``."""
    null_events: int
    """Number of rows without an event (`source.nulls = "empty"`), which are omitted."""
    particles: int
    dropped: int
    """Number of fillers for "no particle", and of null particles."""
    bytes_in: int
    bytes_out: int


def convert_file(
    path: Path,
    out: Path,
    workload: EventSchema,
    *,
    rows_per_group: int,
    force: bool = False,
    name: str = "",
    part: Path | None = None,
    on_rows: Callable[[int, int], None] = lambda done, total: None,
) -> Converted:
    """Write ``out``, completely or not at all. All numbers named in `source.fields` are kept, in the file's order.

    ``part``: the unfinished file's name, which no other writer has.
    ``on_rows`` is called with the rows read and the total rows. Raises BadInputError that names the file, as ``name``
    if given, or the obstacle.
    """
    if out.exists() and (not force or out.samefile(path)):
        raise BadInputError(f"{out} exists: choose another name" + ("" if force else ", or overwrite it with --force"))
    workload = workload.with_all_stored()
    stream = StreamConfig(shuffle=False, unit_events=rows_per_group)
    try:
        footer, parts = plan_file(path, workload, stream, name=name or str(path))
    except BadInputError as error:
        raise BadInputError(f"{name or path}: {error}") from None
    done = write_rows(
        out,
        workload.in_own_layout(),
        rows_of(parts, workload),
        rows=footer.rows,
        rows_per_group=rows_per_group,
        bytes_in=path.stat().st_size,
        part=part,
        on_rows=on_rows,
    )
    assert done.events + done.null_events == done.rows_in
    return done


def write_rows(
    out: Path,
    workload: EventSchema,
    pieces: Iterator[RaggedRows],
    *,
    rows: int,
    rows_per_group: int,
    bytes_in: int,
    on_rows: Callable[[int, int], None],
    part: Path | None = None,
    notes: Mapping[str, str] | None = None,
) -> Converted:
    """Write ``out`` from ``rows`` rows at most, completely or not at all. ``notes`` are kept in its footer."""
    out.parent.mkdir(parents=True, exist_ok=True)
    schema = schema_of(workload)
    events = empty = null_events = particles = all_dropped = 0
    with replacing(out, durable=False, mode=AS_UMASK_SAYS, part=part or part_of_one_writer(out)) as new:
        with pq.ParquetWriter(new, schema, **writer_options(schema, "zstd")) as writer:
            for group, num_null, dropped in _groups(pieces, rows_per_group, rows, on_rows):
                counts = np.concatenate([piece.counts for piece in group])
                if len(counts):
                    writer.write_table(to_table(group, workload), row_group_size=len(counts))
                events += len(counts)
                empty += int((counts == 0).sum())
                null_events += num_null
                particles += int(counts.sum())
                all_dropped += dropped
            writer.add_key_value_metadata(notes or {})
        bytes_out = new.stat().st_size
    return Converted(rows, events, empty, null_events, particles, all_dropped, bytes_in, bytes_out)


def _groups(
    pieces: Iterator[RaggedRows], rows_per_group: int, rows: int, on_rows: Callable[[int, int], None]
) -> Iterator[tuple[Sequence[RaggedRows], int, int]]:
    """Pieces of each row group, with its number of omitted rows without an event, and of dropped particles."""
    group: list[RaggedRows] = []
    num_rows = num_particles = num_null = dropped = done = 0
    for read in pieces:
        done += len(read.counts)
        num_null += 0 if read.is_null is None else int(read.is_null.sum())
        dropped += read.particles_dropped
        piece = read if read.is_null is None else _rows(read, ~read.is_null)
        first = 0
        while first < len(piece.counts):
            end = min(len(piece.counts), first + rows_per_group - num_rows)
            group.append(piece.part(first, end))
            num_rows += end - first
            num_particles += int(group[-1].counts.sum())
            first = end
            if num_rows == rows_per_group or num_particles >= _GROUP_PARTICLES:
                yield group, num_null, dropped
                group, num_rows, num_particles, num_null, dropped = [], 0, 0, 0, 0
                on_rows(done, rows)
    if group:
        yield group, num_null, dropped
    elif num_null:
        yield [piece.part(0, 0)], num_null, dropped
    on_rows(done, rows)


def _rows(piece: RaggedRows, keep: npt.NDArray[np.bool_]) -> RaggedRows:
    """Rows in ``keep``, with their particles. ``keep`` (R,) bool."""
    kept = np.repeat(keep, piece.counts)
    return replace(
        piece,
        counts=piece.counts[keep],
        event_columns={name: column[keep] for name, column in piece.event_columns.items()},
        particle_columns={name: column[kept] for name, column in piece.particle_columns.items()},
        is_null=None,
    )


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
    importers = registry.importers()
    if layout is not None:
        if layout not in importers:
            raise BadInputError(f"--from {printable(layout, 80)}: no such layout; there are {', '.join(importers)}")
        missing = [text for text in inputs if not _places(text)]
        if missing:
            raise BadInputError(f"{shown(missing[0])}: no such local file or directory; download it first")
        return ForeignInputs(layout, registry.loaded(importers[layout]), places)
    for name, lazy in importers.items() if places else ():
        importer = registry.loaded(lazy)
        if importer.recognises(places[0]):
            other = next((place for place in places if not importer.recognises(place)), None)
            if other is not None or not all(map(_places, inputs)):
                what = f"{shown(str(other))} is not" if other else "others are not there"
                raise BadInputError(f"{shown(inputs[0])} is of the layout {name}, but {what}; give only inputs of one")
            return ForeignInputs(name, importer, places)
    return None


def import_files(found: ForeignInputs, out: Path, *, rows_per_group: int, most: int, force: bool) -> None:
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

    def import_one(file: ForeignFile) -> str:
        target = out / f"{file.stem}.parquet"
        stamp = f"{found.layout} {file.path.name}, {opened.version(file)}, at most {most} particles an event"
        if _is_there(target, file, stamp, force=force):
            return f"{shown(str(target))} is there: skipped"
        number = opened.files.index(file) + 1
        with SlowProgress(f"file {number} of {len(opened.files)}, {file.path.name}: rows", 0) as progress:
            done = write_rows(
                target,
                opened.schema,
                opened.rows(file, most),
                rows=file.rows,
                rows_per_group=rows_per_group,
                bytes_in=file.path.stat().st_size,
                on_rows=progress.reach,
                notes={_STAMP: stamp},
            )
        words = [f"{done.events:,} events", f"{done.particles:,} particles"]
        left_out = file.rows - done.events
        words += [f"{left_out:,} events without particles left out"] if left_out else []
        words += [f"{done.dropped:,} particles above {most:,} an event cut"] if done.dropped else []
        return _line(file.path, target, done, words)

    _each(opened.files, import_one, "imported")


def _each(files: Sequence[File], work: Callable[[File], str], done: str) -> None:
    """Print the line that ``work`` returns for each file; one that can't be used is reported, and the others go on.

    ``done``: the participle of the work. Raises BadInputError at the end, if there was such a file.
    """
    bad: list[str] = []
    for file in files:
        try:
            line = work(file)
        except IcestreamError as error:
            if len(files) == 1:
                raise
            bad.append(str(error))
            click.echo(f"not {done}: {shown(str(error))}", err=True)
        else:
            click.echo(line)
    if bad:
        raise BadInputError(f"{len(bad)} of {len(files)} files were not {done}; the first: {bad[0]}")


def _line(source: object, target: Path, done: Converted, words: Sequence[str]) -> str:
    sizes = f"{done.bytes_in:,} -> {done.bytes_out:,} bytes"
    return f"{shown(str(source))} -> {shown(str(target))}: {', '.join(words)}; {sizes}"


def _places(text: str) -> list[Path]:
    """Local files and directories that an input names."""
    if "://" in text.removeprefix("file://") or text.startswith("@"):
        return []
    path = user_path(text.removeprefix("file://")).absolute()
    if path.exists():
        return [path]
    return sorted(each_match(path)) if has_magic(text) else []


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
            most=max_particles or MOST_PARTICLES,
            force=force,
        )
        return
    if max_particles is not None:
        raise BadInputError("--max-particles is for files of another experiment; these have a workload's own columns")
    config = config_without_run(toml, assignments, inputs)
    workload = config.stored_workload()
    with Remotes(config.remote_access()) as remotes:

        def convert_one(file: tuple[SourceFile, Path]) -> str:
            (source, target), part = file, part_of_one_writer(file[1])
            name = shown(source.url)
            try:
                with local_file(source, remotes) as path:
                    work = partial(
                        convert_file,
                        path,
                        target,
                        workload,
                        rows_per_group=rows_per_group,
                        force=force,
                        name=name,
                        part=part,
                    )
                    done = in_a_copy(partial(with_progress, work, name), Converted, name)
            except IcestreamError:
                part.unlink(missing_ok=True)  # of a copy that was ended
                raise
            words = [f"{done.rows_in:,} events in, {done.events:,} out", f"{done.empty:,} of them empty"]
            words.append(f"{done.particles:,} particles")
            words += [f"{done.null_events:,} null events left out"] if done.null_events else []
            words += [f"{done.dropped:,} fillers and nulls dropped"] if done.dropped else []
            return _line(name, target, done, words)

        files = expand(inputs, remotes)
        _each(list(zip(files, targets(files, out), strict=True)), convert_one, "converted")


def with_progress(work: Callable[..., Result], name: str) -> Result:
    """Return what ``work`` returns; runs in the copy of the process, which shows the progress."""
    with SlowProgress(f"{name}: rows", 0) as progress:
        return work(on_rows=progress.reach)


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
