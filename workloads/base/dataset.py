"""Data sets of simulated events: their request, their folder and files, their progress, and what was written."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from common.atomic_file import AS_UMASK_SAYS, replacing
from common.errors import BadInputError
from common.options import checked_seed
from common.paths import require_place


@dataclass(frozen=True)
class Written:
    """Contents of one file, or of a whole data set."""

    num_files: int = 0
    num_events: int = 0
    num_particles: int = 0
    num_bytes: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(
            self.num_files + other.num_files,
            self.num_events + other.num_events,
            self.num_particles + other.num_particles,
            self.num_bytes + other.num_bytes,
        )


OnFile = Callable[[Written], None]
"""Gets the numbers of each file once it is complete."""


def check_request(num_events: int, num_files: int, seed: int) -> None:
    """Raise BadInputError for a data set that can't be."""
    if num_files < 1:
        raise BadInputError(f"files = {num_files}: need at least one")
    if num_events < num_files:
        raise BadInputError(f"events = {num_events}, files = {num_files}: every file needs at least one event")
    checked_seed(seed)


def share(total: int, num_files: int, file_index: int) -> int:
    """Equal share of one file; the first files take one more of a remainder."""
    each, rest = divmod(total, num_files)
    return each + (file_index < rest)


_NO_NAME = re.compile("(?!)")


def prepare_folder(
    out: Path, *, overwrite: bool, own_file: re.Pattern[str], own_folder: re.Pattern[str] = _NO_NAME, content: str
) -> None:
    """Make ``out`` an empty directory. Raises BadInputError.

    ``overwrite``: delete an earlier data set of the same writer, whose files and folders have names that match those
    patterns; with any other file among them nothing is deleted. ``content`` is what the writer writes, in words.
    """
    if out.exists() and not out.is_dir():
        raise BadInputError(f"{out} is a file: name a directory for the data set")
    require_place(out)
    if out.is_dir():
        files = [path for path in out.rglob("*") if not path.is_dir()]
        if files and not overwrite:
            raise BadInputError(f"{out} is not empty: choose another directory, or overwrite it with --force")
        foreign = [path for path in files if not own_file.fullmatch(path.name)]
        if foreign:
            raise BadInputError(
                f"{out} holds files that are no {content}, such as {foreign[0].name}: choose another directory"
            )
        for path in files:
            path.unlink()
        for folder in out.iterdir():
            # It held files of the writer only; one that the new data set lacks must not be left empty.
            if own_folder.fullmatch(folder.name):
                folder.rmdir()
    out.mkdir(parents=True, exist_ok=True)


def write_files(num_files: int, write_file: Callable[[int], Written], on_file: OnFile | None) -> Written:
    """Write each file by its index, and return their sum."""
    total = Written()
    for file_index in range(num_files):
        written = write_file(file_index)
        total += written
        if on_file is not None:
            on_file(written)
    return total


def new_file(path: Path) -> AbstractContextManager[Path]:
    """Return a ``.part`` file that gets its name at the end of the block, or is removed after an error."""
    return replacing(path, durable=False, mode=AS_UMASK_SAYS, part=path.with_name(path.name + ".part"))


def write_tables(
    path: Path, schema: pa.Schema, tables: Iterable[tuple[pa.Table, int, int]], most_rows: int | None, **options: Any
) -> Written:
    """Write a Parquet file, completely or not at all, of tables with their numbers of events and particles.

    A table is a row group, but for one with more than ``most_rows``.
    """
    num_events = num_particles = 0
    with new_file(path) as part:
        with pq.ParquetWriter(part, schema, **options) as writer:
            for table, events, particles in tables:
                writer.write_table(table, row_group_size=most_rows)
                num_events += events
                num_particles += particles
        return Written(1, num_events, num_particles, part.stat().st_size)


def simulate_shown(
    out: Path, particles: str, num_events: int, num_files: int, write: Callable[[OnFile], Written]
) -> None:
    """Write a data set with its progress, and print what was written. ``particles``: their name."""
    started_s = time.perf_counter()
    with file_progress("simulate", num_events, num_files) as on_file:
        total = write(on_file)
    rate = total.num_events / max(time.perf_counter() - started_s, 1e-9)
    click.echo(
        f"{out}: {total.num_events:,} events, {total.num_particles:,} {particles}, {total.num_bytes:,} bytes "
        f"in {total.num_files:,} files, {rate:,.0f} events/s"
    )


@contextmanager
def file_progress(label: str, num_events: int, num_files: int) -> Iterator[OnFile]:
    """Show the progress over finished files: a bar on a terminal, else a plain line at every tenth of the files."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _plain_lines(num_files)
        return
    columns = (TextColumn("{task.completed:,.0f} of {task.total:,.0f} events"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=num_events)
        yield lambda written: bar.advance(task, written.num_events)


def _plain_lines(num_files: int) -> OnFile:
    every = max(num_files // 10, 1)
    done = 0

    def on_file(_: Written) -> None:
        nonlocal done
        done += 1
        if done % every == 0:
            click.echo(f"{done:,} of {num_files:,} files written", err=True)

    return on_file
