"""Work of `icestream seeds`: the files of a folder, several at a time, each in its own process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import click
import numpy as np
import torch

from common.errors import BadInputError
from common.process import PARENT_VARIABLE, end_with_parent
from workloads.base.dataset import Written
from workloads.base.file_progress import file_progress
from workloads.direction.fits.files import FitsJob, check_file, is_done, write_fits
from workloads.direction.geometry import GEOMETRY_FILE, Geometry, read_geometry
from workloads.direction.importers.beside import write_geometry_beside


@dataclass
class _Outcome:
    """Summary of the fits, and the errors of files that can't be used."""

    written: Written
    bad: list[str]


def run_seeds(files: Sequence[Path], out: Path, geometry_file: Path | None, processes: int, *, force: bool) -> str:
    """Summary of what was written. Files that can't be used are reported, and raise BadInputError at the end."""
    started_s = time.perf_counter()
    geometry = _geometry(files, geometry_file)
    jobs = _jobs(files, out, geometry)
    out.mkdir(parents=True, exist_ok=True)
    write_geometry_beside(out, geometry)
    outcome = _Outcome(Written(), [])
    waiting: list[FitsJob] = []
    num_events = 0
    for job in jobs:
        try:
            if not force and is_done(job):
                click.echo(f"{job.target} is there: skipped", err=True)
                continue
            num_events += check_file(job.source)
        except BadInputError as error:
            _report(error, outcome, len(jobs))
            continue
        waiting.append(job)
    processes = min(processes, len(waiting))
    with file_progress("seeds", num_events, len(waiting)) as on_file:
        for result in _in_processes(waiting, processes) if processes > 1 else _here(waiting):
            try:
                written = result()
            except BadInputError as error:
                _report(error, outcome, len(jobs))
                continue
            outcome.written += written
            on_file(written)
    if outcome.bad:
        raise BadInputError(f"{len(outcome.bad)} of {len(jobs)} files were not done; the first: {outcome.bad[0]}")
    written = outcome.written
    rate = written.num_events / max(time.perf_counter() - started_s, 1e-9)
    skipped = f", {len(jobs) - len(waiting):,} were there" if len(waiting) < len(jobs) else ""
    return (
        f"{out}: {written.num_events:,} events, {written.num_particles:,} pulses in {written.num_files:,} files"
        f"{skipped}; {rate:,.0f} events/s in {max(processes, 1)} {'process' if processes < 2 else 'processes'}"
    )


def _report(error: BadInputError, outcome: _Outcome, num_jobs: int) -> None:
    """Note a file that can't be used. Raises the error if there is no other file."""
    if num_jobs == 1:
        raise error
    outcome.bad.append(str(error))
    click.echo(f"not done: {error}", err=True)


def _geometry(files: Sequence[Path], geometry_file: Path | None) -> Geometry:
    """Table of sensors: the named one, else that beside the files. Raises BadInputError, also for no file of events."""
    if geometry_file is not None:
        return read_geometry(geometry_file)
    places = [folder / GEOMETRY_FILE for folder in dict.fromkeys(file.parent for file in files)]
    for place in places:
        if not place.exists():
            check_file(next(file for file in files if file.parent == place.parent))  # the larger mistake is told first
            raise BadInputError(
                f"no {GEOMETRY_FILE} (positions of the sensors) in {place.parent}: copy it there, or name it with "
                "--geometry"
            )
    first, *others = (read_geometry(place) for place in places)
    for place, other in zip(places[1:], others, strict=True):
        if not np.array_equal(first.position_S3, other.position_S3):
            raise BadInputError(f"{places[0]} and {place} differ: do the files of one detector at a time")
    return first


def _jobs(files: Sequence[Path], out: Path, geometry: Geometry) -> list[FitsJob]:
    """One job a file. Raises BadInputError for outputs that are inputs, or of the same name."""
    sources: dict[Path, Path] = {}
    for file in files:
        target = out / f"{file.stem}.parquet"
        if target in sources:
            raise BadInputError(f"{sources[target]} and {file} would both become {target}: use different folders")
        if target.exists() and target.samefile(file):
            raise BadInputError(f"{file} would be replaced by itself: name another folder with -o")
        sources[target] = file
    return [FitsJob(source, target, geometry) for target, source in sources.items()]


def _here(jobs: Sequence[FitsJob]) -> Iterator[Callable[[], Written]]:
    torch.set_num_threads(1)
    for job in jobs:
        yield lambda job=job: write_fits(job)  # type: ignore[misc]


def _in_processes(jobs: Sequence[FitsJob], processes: int) -> Iterator[Callable[[], Written]]:
    """Results in the order in which they are ready. Spawned: a fork would copy torch's threads' locks."""
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _start_worker, (os.getpid(),))
    try:
        for future in as_completed([pool.submit(write_fits, job) for job in jobs]):
            yield future.result
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(parent: int) -> None:
    """One thread; end with the parent, which alone hears Ctrl-C."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[PARENT_VARIABLE] = str(parent)
    end_with_parent(signal.SIGTERM)
