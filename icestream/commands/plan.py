"""Commands `icestream ranges` and `plan`: state of a run's ranges, preview of its stream, and its mixing of the files.

docs/explanation/mixing.md has the measure of mixing: chi² of the file id over batches, a degree of freedom.
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

import click

from common.config import StreamConfig
from common.errors import BadInputError
from common.files.inputs import local_path
from common.files.local import none_usable
from common.files.remotes import Remotes
from common.locks import no_other_host
from common.messages import Unit
from common.options import RunCommand, absolute, config_options, done_option, input_option, ranges_option, run_argument
from common.paths import CONFIG_FILE, shard_dirs
from common.plan import Blocks, SlotCapacity, SourceFile, StagedFile, plan_block, plan_hash
from common.run_words import binary_words
from common.slow_progress import SlowProgress
from common.status import TrainerStatus, read_status
from common.text import shown
from icestream.commands.snapshot import is_shared_folder
from icestream.run_config import load_run_config
from services.config.root import Config, load_config, require_open_files
from services.config.settings import make_ranges
from services.fetcher.cache import Cache
from services.fetcher.inspection import Inspection
from services.fetcher.inventory import listed
from services.fetcher.ledger import LEDGER_FILE, Ledger, damage_named
from services.fetcher.staging import NotStaged, Stage

State = Literal["done", "running", "stopped", "listed", "skipped", "failed", "to come"]


class RangeLine(NamedTuple):
    """Line of the output for one range."""

    name: str
    state: State
    files: int = 0
    bytes: int = 0
    note: str = ""
    """Reason that it was skipped, or could not be listed yet."""


@click.command(epilog="Example: icestream ranges runs/osdf", cls=RunCommand)
@run_argument(default="run")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
def ranges(run_dir: Path, as_json: bool) -> None:
    """Show the ranges of the run RUN: done, running (or stopped there), listed, skipped, failed, to come.

    A range is done if the newest checkpoint is past it, in its current epoch. Needs no running process.
    """
    if is_shared_folder(run_dir):
        raise BadInputError(f"{run_dir}: shared by several nodes; name the --run-dir of node 0, on its machine")
    if not (run_dir / CONFIG_FILE).is_file() or not (shard_dirs(run_dir)[0] / LEDGER_FILE).is_file():
        raise BadInputError(f"{run_dir}: no run has begun here; name its directory: icestream ranges RUN")
    status = read_status(run_dir, "trainer", TrainerStatus)
    epoch, lines = _range_lines(run_dir, status)
    if as_json:
        click.echo(json.dumps({"epoch": epoch, "ranges": [line._asdict() for line in lines]}, indent=2))
        return
    for line in lines:
        size = f"{line.files:9,} files {line.bytes / 2**30:9.2f} GiB" if line.files else ""
        click.echo(f"{line.name:15}  {line.state:8}{size}{'  ' if line.note else ''}{line.note}".rstrip())
    counts = Counter(line.state for line in lines)
    is_finished = status is not None and status.state == "finished"
    where = f"finished at step {status.step:,}" if status is not None and is_finished else f"epoch {epoch + 1}"
    click.echo(f"{where}: " + ", ".join(f"{number} {state}" for state, number in counts.items()))


def _range_lines(run_dir: Path, status: TrainerStatus | None) -> tuple[int, list[RangeLine]]:
    config = load_config(run_dir, environment={})
    state: State = "running"  # of the range that the newest checkpoint is in
    if status is not None and status.state in ("finished", "stopped"):
        by_steps = 0 < status.max_steps <= status.step
        state = "done" if status.state == "finished" and not by_steps else "stopped"
    if config.stream.is_mixed:
        raise BadInputError(f"{run_dir}: stream.weights makes a set of each input; they have no ranges")
    first, *others = shard_dirs(run_dir)
    places = []
    for folder in others:
        with _ledger(folder) as ledger:
            places.append(ledger.place())
    with _ledger(first) as ledger:
        place = min((found for found in (ledger.place(), *places) if found is not None), key=astuple, default=None)
        lines: list[RangeLine] = []
        for index, one in enumerate(make_ranges(config.input, config.fetcher.ranges, config.fetcher.done)):
            name, frozen, failure = one.name or "all inputs", ledger.frozen(one), ledger.failure(one)
            if frozen is not None and frozen.note:
                lines.append(RangeLine(name, "skipped", note=shown(frozen.note)))
            elif frozen is not None and place is not None and index < place.ranges_done:
                lines.append(RangeLine(name, "done", frozen.num_files, frozen.bytes))
            elif frozen is not None:
                lines.append(RangeLine(name, state, frozen.num_files, frozen.bytes))
                state = "listed"  # the next ones
            elif failure is not None:
                lines.append(RangeLine(name, "failed", note=f"{failure[0]} tries: {shown(failure[1])}"))
            else:
                lines.append(RangeLine(name, "to come"))
    return (place.epoch if place is not None else 0), lines


@contextlib.contextmanager
def _ledger(folder: Path) -> Iterator[Ledger]:
    path = folder / LEDGER_FILE
    with damage_named(path), no_other_host(folder, "fetcher"), contextlib.closing(Ledger(path)) as ledger:
        yield ledger


_QUARANTINED_SHOWN = 20
_POORLY_MIXED = 2.0
"""Value of chi²/dof from which on the summary gives advice."""


@dataclass(frozen=True)
class CountSpread:
    """Minimum, median and maximum of one number over all units, or blocks."""

    min: int = 0
    median: float = 0.0
    max: int = 0

    @classmethod
    def of(cls, values: Sequence[int]) -> CountSpread:
        """Return those of the values; zeros without any."""
        return cls(min(values), median(values), max(values)) if values else cls()


@dataclass(frozen=True)
class BadFile:
    """File that would be quarantined."""

    reason: str
    events: int
    """Number of its events, as far as known."""


@dataclass(frozen=True)
class PlanSummary:
    """Summary of a plan. Counts of particles and bytes are upper bounds: footers contain no more."""

    plan_hash: str
    files: int
    """Number of files in the inventory."""
    file_bytes: int
    blocks: int
    """Number of blocks in one epoch."""
    blocks_planned: int
    """Number of blocks that the rest of this summary covers."""
    files_planned: int
    events: int
    particles: int
    units: int
    units_of_block: CountSpread
    unit_events: CountSpread
    unit_particles: CountSpread
    unit_bytes: CountSpread
    unit_files: CountSpread
    slot_bytes: int
    slots: int
    arena_bytes: int
    row_groups: int
    row_groups_cut: int
    """Row groups too large for one slot, and so cut into spans."""
    spans: int
    batch_events: int
    shard_events: list[int]
    """Events of each shard, in order; empty without shards."""
    mixing_in_block: float | None
    """Ratio chi²/dof of the file id over microbatches, against a permutation of each block. None: nothing to mix, or
    `stream.shuffle` is false."""
    mixing_over_epoch: float | None
    """Same ratio against a permutation of the epoch."""
    quarantined: list[BadFile]
    where: str
    """Filter of the stream: all counts are those before it."""


@click.command(cls=RunCommand, epilog="Example: icestream plan -i 'data/**/*.parquet' --set stream.unit_events=65536")
@run_argument(default="run")
@input_option
@ranges_option
@done_option
@config_options
@click.option(
    "--blocks",
    "num_blocks",
    type=click.IntRange(min=1),
    help="Plan only the first blocks of the first epoch. Default: all for local files; one for remote files.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
def plan(
    run_dir: Path,
    inputs: tuple[str, ...],
    ranges: str | None,
    done: Path | None,
    toml: Path | None,
    assignments: tuple[str, ...],
    num_blocks: int | None,
    as_json: bool,
) -> None:
    """Print the plan, bytes and slots of a run without running it, and its mixing of the files.

    Nothing is written into the directory RUN; its config.json is read if it is there. Inputs are listed as they are
    now (a run that has begun keeps its frozen inventory), with --ranges those of the first range. Remote files are
    fetched into a temporary directory, a few at a time.
    """
    flags = {"input": absolute(inputs) or None, "fetcher.ranges": ranges, "fetcher.done": done and done.absolute()}
    config = load_run_config(run_dir, toml=toml, assignments=assignments, flags=flags)
    config.require_sets()
    stream = config.stream
    sets = [config.of_shard(shard) for shard in range(stream.shards)] if stream.is_mixed else [config]
    summaries = [_planned(one, num_blocks) for one in sets]
    if as_json:
        contents = [asdict(summary) for summary in summaries]
        click.echo(json.dumps({"sets": contents} if stream.is_mixed else contents[0], indent=2))
        return
    for number, (one, summary) in enumerate(zip(sets, summaries, strict=True)):
        if stream.is_mixed:
            title = f"set           {shown(one.input[0])}: {summary.batch_events:,} events of each batch"
            click.echo(f"\n{title}" if number else title)
        click.echo("\n".join(summary_lines(summary)))
    if stream.is_mixed and all(one.events and one.blocks_planned == one.blocks for one in summaries):
        steps = max(one.events / one.batch_events for one in summaries)
        times = ", ".join(f"{steps * one.batch_events / one.events:.1f}" for one in summaries)
        click.echo(
            f"\nmixture       about {math.ceil(steps):,} steps an epoch, in which the sets are read {times} times"
        )


def _planned(config: Config, num_blocks: int | None) -> PlanSummary:
    """Return the plan of the first range of the inputs as they are now."""
    first, *others = make_ranges(config.input, config.fetcher.ranges, config.fetcher.done)
    if others:
        click.echo(f"range {first.name}; {len(others)} others follow", err=True)
    with Remotes(config.remote_access()) as remotes:
        found = listed(first, remotes)
        if first.done is not None:
            click.echo(found.line(first.done), err=True)
        if num_blocks is None and any(local_path(file.url) is None for file in found.files):
            require_open_files(config)
            num_blocks = 1
            click.echo("remote files: planning the first block only, see --blocks", err=True)
        return preview(config, found.files, remotes, num_blocks)


def preview(config: Config, inventory: Sequence[SourceFile], remotes: Remotes, num_blocks: int | None) -> PlanSummary:
    """Plan the first ``num_blocks`` of the first epoch (None: of all). Raises BadInputError if no file is usable."""
    workload, stream = config.stored_workload(), config.stream
    capacity = SlotCapacity(workload, stream)
    order = Blocks(len(inventory), stream, config.seed, epochs=0)
    blocks = range(min(num_blocks or order.per_epoch, order.per_epoch))
    with (
        tempfile.TemporaryDirectory(prefix="icestream-plan-") as folder,
        contextlib.closing(Inspection(config.workload, config.source, stream)) as inspection,
    ):
        stage = Stage(Cache(Path(folder), Path(folder)), workload, stream, capacity, remotes.fetch, inspection)
        wanted = [file for block in blocks for file in order.files(block)]
        staged = _stage_all(wanted, inventory, stage, config.fetcher.transfers)
    bad = [file for file in staged.values() if file.footer is None]
    if len(bad) == len(staged):
        raise none_usable([file.reason for file in sorted(bad, key=lambda file: file.file)])
    planned = []
    next_k = 0
    for block in blocks:
        files = [staged[file] for file in order.files(block)]
        units = plan_block(block, next_k, 0, files, capacity=capacity, stream=stream, seed=config.seed)
        next_k += len(units)
        planned.append((files, units))
    digest = plan_hash(workload, stream, config.seed)
    return summarise(inventory, digest, order.per_epoch, planned, stream, capacity)


def _stage_all(
    files: Sequence[int], inventory: Sequence[SourceFile], stage: Stage, workers: int
) -> dict[int, StagedFile]:
    """Read the footers of the files, in ``workers`` threads. A remote file is deleted as soon as its footer is read.

    Raises BadInputError if a server can't be reached: a run would wait.
    """

    def footer(file: int) -> StagedFile:
        found = stage(file, inventory[file], None)
        if isinstance(found, NotStaged):
            raise BadInputError(f"{found.reason}; a run would wait and try again, so try again later")
        if local_path(inventory[file].url) is None:
            stage.cache.drop(inventory[file])
        return found

    staged: dict[int, StagedFile] = {}
    with SlowProgress("footers", len(files)) as progress, ThreadPoolExecutor(workers) as threads:
        try:
            for found in threads.map(footer, files):
                staged[found.file] = found
                progress.advance(1)
        finally:
            stage.cache.close()
            threads.shutdown(wait=False, cancel_futures=True)
    return staged


def summarise(
    inventory: Sequence[SourceFile],
    plan_hash: str,
    num_blocks: int,
    blocks: Sequence[tuple[Sequence[StagedFile], Sequence[Unit]]],
    stream: StreamConfig,
    capacity: SlotCapacity,
) -> PlanSummary:
    """Summarise the first ``blocks`` (staged files and units of each) of the ``num_blocks`` of an epoch."""
    staged = [file for files, _ in blocks for file in files]
    units = [unit for _, units_of_block in blocks for unit in units_of_block]
    groups = [group for file in staged if file.footer is not None for group in file.footer.row_groups]
    particles = [sum(part.particles for part in unit.parts) for unit in units]
    of_shards = [0] * (stream.shards if stream.shards > 1 and not stream.is_mixed else 0)
    for unit in units if of_shards else ():
        of_shards[unit.block % stream.shards] += unit.rows
    batch_events = stream.shard_batch_events if stream.is_mixed else stream.batch_events
    mixing_in_block = mixing_over_epoch = None
    if stream.shuffle and units:
        parts = median(sum(len(unit.parts) for unit in units_of_block) for _, units_of_block in blocks)
        mixing_in_block = mixing(max(median(len(unit.parts) for unit in units), 1), parts, batch_events)
        mixing_over_epoch = mixing(stream.block_files, len(inventory), batch_events)
    return PlanSummary(
        plan_hash=plan_hash,
        files=len(inventory),
        file_bytes=sum(file.size_bytes for file in inventory),
        blocks=num_blocks,
        blocks_planned=len(blocks),
        files_planned=len(staged),
        events=sum(unit.rows for unit in units),
        particles=sum(particles),
        units=len(units),
        units_of_block=CountSpread.of([len(units_of_block) for _, units_of_block in blocks]),
        unit_events=CountSpread.of([unit.rows for unit in units]),
        unit_particles=CountSpread.of(particles),
        unit_bytes=CountSpread.of(
            [capacity.bytes_needed(unit.rows, most) for unit, most in zip(units, particles, strict=True)]
        ),
        unit_files=CountSpread.of([len({part.file for part in unit.parts}) for unit in units]),
        slot_bytes=stream.slot_bytes,
        slots=stream.slots,
        arena_bytes=stream.slots * stream.slot_bytes,
        row_groups=len(groups),
        row_groups_cut=sum(bool(group.spans) for group in groups),
        spans=sum(len(group.spans) for group in groups),
        batch_events=batch_events,
        shard_events=of_shards,
        mixing_in_block=mixing_in_block,
        mixing_over_epoch=mixing_over_epoch,
        quarantined=[BadFile(reason=file.reason, events=file.bad_rows) for file in staged if file.footer is None],
        where=stream.where,
    )


# ------------------------------------------------------------------ text


def summary_lines(summary: PlanSummary) -> list[str]:
    """Return the summary as text for people."""
    s = summary
    cut = f"{s.row_groups_cut:,} of {s.row_groups:,} row groups, into {s.spans:,} spans" if s.row_groups_cut else "none"
    covered = "all blocks"
    if s.blocks_planned < s.blocks:
        covered = f"first {s.blocks_planned:,} of {s.blocks:,} blocks" if s.blocks_planned > 1 else "first block only"
    lines = [
        f"plan          {s.plan_hash}",
        f"inventory     {s.files:,} files, {binary_words(s.file_bytes)}, {s.blocks:,} blocks an epoch",
        f"epoch 0       {covered}: {s.files_planned:,} files, {s.events:,} events, at most {s.particles:,} particles",
        *([f"filter        {s.where} (the counts here are those before it)"] if s.where else []),
        f"units         {s.units:,}",
        f"arena         {s.slots} slots × {binary_words(s.slot_bytes)} = {binary_words(s.arena_bytes)}",
        "",
        f"{'':<22}{'min':>12}{'median':>12}{'max':>12}",
        _spread_line("units of a block", s.units_of_block),
        _spread_line("events of a unit", s.unit_events),
        _spread_line("particles, at most", s.unit_particles),
        _spread_line("bytes, at most", s.unit_bytes, binary_words)
        + f"  {s.unit_bytes.max / s.slot_bytes:.0%} of a slot",
        _spread_line("files of a unit", s.unit_files),
        "",
        f"oversize      {cut}",
        *_mixing_lines(s),
        *(_shard_lines(s) if s.shard_events else []),
    ]
    if not s.quarantined:
        return [*lines, "quarantined   none"]
    events = sum(bad.events for bad in s.quarantined)
    lines.append(f"quarantined   {len(s.quarantined):,} files, {events:,} events as far as they could be counted")
    lines += [f"  {bad.reason}" for bad in s.quarantined[:_QUARANTINED_SHOWN]]
    if len(s.quarantined) > _QUARANTINED_SHOWN:
        lines.append(f"  … and {len(s.quarantined) - _QUARANTINED_SHOWN:,} more")
    return lines


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _spread_line(name: str, spread: CountSpread, words: Callable[[float], str] = _count) -> str:
    return f"  {name:<20}{words(spread.min):>12}{words(spread.median):>12}{words(spread.max):>12}"


def _mixing_lines(s: PlanSummary) -> list[str]:
    """Return the mixing, with advice if the units are its limit, and if the blocks are."""
    in_block, over_epoch = s.mixing_in_block, s.mixing_over_epoch
    if in_block is None and over_epoch is None:
        return ["mixing        nothing to mix: one file or microbatch in each block, or stream.shuffle = false"]
    values = [f"{in_block:.2f} inside the blocks"] if in_block is not None else []
    values += [f"{over_epoch:.2f} over the epoch"] if over_epoch is not None else []
    lines = [f"mixing        chi²/dof {', '.join(values)} (1: perfect, {s.batch_events}: none)"]
    if (in_block or 0.0) >= _POORLY_MIXED:
        lines.append(
            f"              a unit draws from {s.unit_files.median:g} files: a larger stream.unit_events (with"
            " stream.slot_mib), or smaller row groups in the files, mix more"
        )
    if (over_epoch or 0.0) >= max(_POORLY_MIXED, 1.5 * (in_block or 1.0)):
        lines.append("              a block draws from few of all files: a larger stream.block_files mixes more")
    return lines


def _shard_lines(s: PlanSummary) -> list[str]:
    """Return the events of the shards. A step takes as many of one as of another, and fewer where one ends first."""
    lines = ["shards        events " + ", ".join(f"{events:,}" for events in s.shard_events)]
    largest = max(s.shard_events)
    empty = [str(number) for number, events in enumerate(s.shard_events) if not events]
    if empty and s.blocks_planned == s.blocks:
        lines.append(
            f"              ERROR: nothing for shard {', '.join(empty)}: set stream.shards to at most the"
            f" {s.blocks:,} blocks of an epoch, or a smaller stream.block_files"
        )
    elif not empty and largest > 1.1 * min(s.shard_events):
        lines.append(
            f"              WARNING: they differ by {largest / min(s.shard_events) - 1:.0%}: the last steps have events"
            " of some shards only; a smaller stream.block_files evens them out"
        )
    return lines


# ------------------------------------------------------------------ mixing


def mixing(drawn: float, of: float, batch_events: int) -> float | None:
    """Return chi²/dof of the file id over batches, each drawn at random from ``drawn`` of the ``of`` sources: 1 for a
    draw from all, ``batch_events`` from one. None if there is nothing to mix."""
    return None if of <= 1 else 1 + batch_events / drawn * max(of - drawn, 0) / (of - 1)
