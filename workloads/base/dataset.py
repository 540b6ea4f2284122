"""Data sets of simulated events: their request, their folder and files, their progress, and what was written."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import astuple, dataclass
from functools import partial
from multiprocessing import get_context
from operator import add
from pathlib import Path
from typing import Any, TypeVar, cast

import click
import pyarrow as pa
import pyarrow.parquet as pq

from common.atomic_file import AS_UMASK_SAYS, replacing
from common.errors import BadInputError
from common.options import checked_seed
from common.paths import require_place
from common.process import PARENT_VARIABLE, end_with_parent
from common.slow_progress import SlowProgress

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Written:
    """Contents of one file, or of a whole data set."""

    num_files: int = 0
    num_events: int = 0
    num_particles: int = 0
    num_bytes: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(*map(add, astuple(self), astuple(other)))


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


def write_files(write_file: Callable[[Job], Written], jobs: Sequence[Job], processes: int = 1) -> Written:
    """Write a file for each job, with progress, and return their sum."""
    total = Written()
    with SlowProgress("simulating: files", len(jobs)) as progress:
        for result in in_processes(write_file, jobs, min(processes, len(jobs))):
            total += result()
            progress.advance(1)
    return total


def in_processes(
    function: Callable[[Job], Result], jobs: Iterable[Job], processes: int, *, jobs_of_process: int | None = None
) -> Iterator[Callable[[], Result]]:
    """Yield functions that return the results or raise, in the order of the jobs; in this process, if it is one.

    Processes are spawned: a fork would copy the locks of torch's threads. Each ends after ``jobs_of_process`` jobs.
    """
    if processes <= 1 and jobs_of_process is None:
        yield from (partial(function, job) for job in jobs)
        return
    pool = ProcessPoolExecutor(
        processes, get_context("spawn"), _start_worker, (os.getpid(),), max_tasks_per_child=jobs_of_process
    )
    futures = [pool.submit(function, job) for job in jobs]
    try:
        yield from (partial(_result, future) for future in futures)
    finally:
        children, manager = pool._processes, cast(Any, pool._executor_manager_thread)
        is_complete = all(future.done() and future.exception() is None for future in futures)
        pool.shutdown(wait=is_complete, cancel_futures=True)
        # After Ctrl-C or an error nobody wants the rest. One that is killed as it waits keeps the queue's lock: all go.
        while not is_complete and manager.is_alive():
            for process in list(children.values()):
                process.kill()
            manager.join(0.1)


def _result(future: Future[Result]) -> Result:
    try:
        return future.result()
    except BrokenProcessPool:
        raise BadInputError("a process ended: out of memory, or a script without `if __name__ == '__main__'`") from None


def _start_worker(parent: int) -> None:
    """One thread; end with the parent, which alone hears Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ |= {PARENT_VARIABLE: str(parent), "OMP_NUM_THREADS": "1"}
    end_with_parent(signal.SIGTERM)


def write_tables(
    path: Path,
    schema: pa.Schema,
    tables: Iterable[tuple[pa.Table, int, int]],
    most_rows: int | None,
    *,
    part: Path | None = None,
    **options: Any,
) -> Written:
    """Write a Parquet file, completely or not at all, of tables with their numbers of events and particles.

    A table is a row group, but for one with more than ``most_rows``. ``part``: what is written until it is complete.
    """
    num_events = num_particles = 0
    part = part or path.with_name(path.name + ".part")
    with replacing(path, durable=False, mode=AS_UMASK_SAYS, part=part) as opened:
        with pq.ParquetWriter(opened, schema, **options) as writer:
            for table, events, particles in tables:
                writer.write_table(table, row_group_size=most_rows)
                num_events += events
                num_particles += particles
        return Written(1, num_events, num_particles, opened.stat().st_size)


def simulate_shown(out: Path, particles: str, write: Callable[[], Written]) -> None:
    """Write a data set, and print what was written. ``particles``: their name."""
    started_s = time.perf_counter()
    total = write()
    rate = total.num_events / max(time.perf_counter() - started_s, 1e-9)
    click.echo(
        f"{out}: {total.num_events:,} events, {total.num_particles:,} {particles}, {total.num_bytes:,} bytes "
        f"in {total.num_files:,} files, {rate:,.0f} events/s"
    )
