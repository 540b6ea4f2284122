"""Command `icestream plan`: preview of a run's stream."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from itertools import islice
from pathlib import Path

import click

from common.errors import BadInputError
from common.files.bad_file import none_usable
from common.files.inputs import local_path
from common.files.remotes import Remotes
from common.options import (
    RunCommand,
    absolute,
    config_options,
    done_option,
    input_option,
    ranges_option,
    run_argument,
)
from common.plan import Blocks, SlotCapacity, SourceFile, StagedFile, plan_block
from common.plan_hash import plan_hash
from common.slow_progress import SlowProgress
from icestream.commands.plan.plan_summary import PlanSummary, summarise, summary_lines, unit_lines
from icestream.reading.workload import load_run_config
from services.config.open_files import require_open_files
from services.config.root import Config
from services.fetcher.inventory.done import listed
from services.fetcher.inventory.ranges import InputRange, make_ranges
from services.fetcher.staging.cache import Cache
from services.fetcher.staging.inspection import Inspection
from services.fetcher.staging.stage import NotStaged, Stage

_TICK_S = 0.5


@click.command(
    cls=RunCommand,
    epilog="Example: icestream plan -i 'data/**/*.parquet' --set stream.unit_events=65536 --units",
)
@run_argument(default="run")
@input_option
@ranges_option
@done_option
@config_options
@click.option(
    "--blocks",
    "num_blocks",
    type=click.IntRange(min=1),
    help="Plan only the first blocks of the epoch. Default: all for local files; one for remote files.",
)
@click.option("--epoch", type=click.IntRange(min=0), default=0, show_default=True, help="Epoch to plan, from 0.")
@click.option("--units", "with_units", is_flag=True, help="Also print one line per unit.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
def plan(
    run_dir: Path,
    inputs: tuple[str, ...],
    ranges: str | None,
    done: Path | None,
    toml: Path | None,
    assignments: tuple[str, ...],
    num_blocks: int | None,
    epoch: int,
    with_units: bool,
    as_json: bool,
) -> None:
    """Print the plan, bytes and slots of a run without running it, and its mixing of the files.

    Nothing is written into the directory RUN; its config.json is read if it is there. Inputs are listed as they are
    now (a run that has begun keeps its frozen inventory), with --ranges those of the first range. Remote files are
    fetched into a temporary directory, a few at a time.
    """
    flags = {"input": absolute(inputs) or None, "fetcher.ranges": ranges, "fetcher.done": done and done.absolute()}
    config = load_run_config(run_dir, toml=toml, assignments=assignments, flags=flags)
    first, *others = make_ranges(config.input, config.fetcher.ranges, config.fetcher.done)
    if others:
        click.echo(f"range {first.name}; {len(others)} others follow", err=True)
    with Remotes(config.remote_access()) as remotes:
        summary = _plan_first(config, first, remotes, epoch=epoch, num_blocks=num_blocks)
    if as_json:
        click.echo(summary.model_dump_json(indent=2, exclude=None if with_units else {"unit_lines"}))
        return
    click.echo("\n".join(summary_lines(summary)))
    if with_units:
        click.echo("\n" + "\n".join(unit_lines(summary)))


def _plan_first(
    config: Config, first: InputRange, remotes: Remotes, *, epoch: int, num_blocks: int | None
) -> PlanSummary:
    found = listed(first, remotes)
    inventory = found.files
    if first.done is not None:
        click.echo(found.line(first.done), err=True)
    if num_blocks is None and any(local_path(file.url) is None for file in inventory):
        require_open_files(config)
        num_blocks = 1
        click.echo("remote files: planning the first block only, see --blocks", err=True)
    return preview(config, inventory, remotes, epoch=epoch, num_blocks=num_blocks)


def preview(
    config: Config, inventory: Sequence[SourceFile], remotes: Remotes, *, epoch: int, num_blocks: int | None
) -> PlanSummary:
    """Plan of the first ``num_blocks`` of an epoch (None: of all). Raises BadInputError if no file is usable."""
    workload, stream = config.stored_workload(), config.stream
    capacity = SlotCapacity(workload, stream)
    order = Blocks(len(inventory), stream, config.seed, epochs=0)
    first = epoch * order.per_epoch
    blocks = range(first, first + min(num_blocks or order.per_epoch, order.per_epoch))
    with (
        tempfile.TemporaryDirectory(prefix="icestream-plan-") as folder,
        closing(Inspection(config.workload, config.source, stream)) as inspection,
    ):
        stage = Stage(Cache(Path(folder), Path(folder)), workload, stream, capacity, remotes.fetch, inspection)
        staged = _stage_all([f for b in blocks for f in order.files(b)], inventory, stage, config.fetcher.transfers)
    bad = [file for file in staged.values() if file.footer is None]
    if len(bad) == len(staged):
        raise none_usable([file.reason for file in sorted(bad, key=lambda file: file.file)])
    planned = []
    next_k = 0
    for block in blocks:
        files = [staged[file] for file in order.files(block)]
        units = plan_block(block, next_k, epoch, files, capacity=capacity, stream=stream, seed=config.seed)
        next_k += len(units)
        planned.append((files, units))
    return summarise(
        inventory,
        plan_hash(workload, stream, config.seed),
        epoch=epoch,
        num_blocks=order.per_epoch,
        blocks=planned,
        stream=stream,
        capacity=capacity,
    )


def _stage_all(
    files: Sequence[int], inventory: Sequence[SourceFile], stage: Stage, workers: int
) -> dict[int, StagedFile]:
    """Footers of the files, read by ``workers`` threads. A remote file is deleted as soon as its footer is read."""
    staged: dict[int, StagedFile] = {}
    waiting = iter(files)
    pending: set[Future[StagedFile]] = set()
    with SlowProgress("footers", len(files)) as progress, ThreadPoolExecutor(workers) as threads:
        try:
            while len(staged) < len(files):
                for file in islice(waiting, 2 * workers - len(pending)):
                    pending.add(threads.submit(_stage_one, stage, file, inventory[file]))
                done, pending = wait(pending, _TICK_S, FIRST_COMPLETED)
                staged |= {future.result().file: future.result() for future in done}
                progress.advance(len(done))
        finally:
            stage.cache.close()
            threads.shutdown(wait=False, cancel_futures=True)
    return staged


def _stage_one(stage: Stage, file: int, source: SourceFile) -> StagedFile:
    """Footer of one file. Raises BadInputError if the server can't be reached (a run would wait). Runs in a thread."""
    found = stage(file, source, None)
    if isinstance(found, NotStaged):
        raise BadInputError(f"{found.reason}; a run would wait and try again, so try again later")
    if local_path(source.url) is None:
        stage.cache.drop(source)
    return found
