"""Summary of a plan, without running it: bytes, slots, units and mixing of one epoch, or of its first blocks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pydantic import BaseModel, ConfigDict

from common.config import StreamConfig
from common.messages import Unit
from common.plan import SlotCapacity, SourceFile, StagedFile
from icestream.commands.plan.mixing import ChiSquare, events_of_files, expected, in_source_order, observed

_QUARANTINED_SHOWN = 20
_POORLY_MIXED = 2.0
"""Value of chi²/dof from which on the summary gives advice."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class CountSpread(_Frozen):
    """Minimum, median and maximum of one number over all units, or blocks."""

    min: int = 0
    median: float = 0.0
    max: int = 0

    @classmethod
    def of(cls, values: Sequence[int]) -> CountSpread:
        return cls(min=min(values), median=median(values), max=max(values)) if values else cls()


class BadFile(_Frozen):
    """File that would be quarantined."""

    reason: str
    events: int
    """Number of its events, as far as known."""


class UnitLine(_Frozen):
    """Unit of the plan."""

    unit: int
    """Number of the unit, counted from the first of the epoch: in epoch 0 this is k."""
    block: int
    events: int
    particles: int
    bytes: int
    parts: int
    files: list[int]
    """Indices in the inventory."""


class PlanSummary(_Frozen):
    """Summary of a plan. Counts of particles and bytes are upper bounds: footers contain no more."""

    plan_hash: str
    files: int
    """Number of files in the inventory."""
    file_bytes: int
    epoch: int
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
    shard_events: list[int] = []
    """Events of each shard, in order; empty without shards."""
    mixing_in_block: float | None
    """Ratio chi²/dof of the file id over microbatches, against a permutation of each block. None: nothing to mix."""
    mixing_over_epoch: float | None
    """Same ratio against a permutation of the epoch. None also if not all blocks are planned."""
    quarantined: list[BadFile]
    unit_lines: list[UnitLine]


def summarise(
    inventory: Sequence[SourceFile],
    plan_hash: str,
    *,
    epoch: int,
    num_blocks: int,
    blocks: Sequence[tuple[Sequence[StagedFile], Sequence[Unit]]],
    stream: StreamConfig,
    capacity: SlotCapacity,
) -> PlanSummary:
    """Summary of the first ``blocks`` (staged files and units of each) of the ``num_blocks`` of an epoch."""
    staged = [file for files, _ in blocks for file in files]
    units = [unit for _, units_of_block in blocks for unit in units_of_block]
    groups = [group for file in staged if file.footer is not None for group in file.footer.row_groups]
    first_k = units[0].k if units else 0
    lines = [_line(unit, first_k, capacity) for unit in units]
    in_block = sum((_mixing(units_of_block, stream) for _, units_of_block in blocks), ChiSquare())
    return PlanSummary(
        plan_hash=plan_hash,
        files=len(inventory),
        file_bytes=sum(file.size_bytes for file in inventory),
        epoch=epoch,
        blocks=num_blocks,
        blocks_planned=len(blocks),
        files_planned=len(staged),
        events=sum(line.events for line in lines),
        particles=sum(line.particles for line in lines),
        units=len(units),
        units_of_block=CountSpread.of([len(units_of_block) for _, units_of_block in blocks]),
        unit_events=CountSpread.of([line.events for line in lines]),
        unit_particles=CountSpread.of([line.particles for line in lines]),
        unit_bytes=CountSpread.of([line.bytes for line in lines]),
        unit_files=CountSpread.of([len(line.files) for line in lines]),
        slot_bytes=stream.slot_bytes,
        slots=stream.slots,
        arena_bytes=stream.slots * stream.slot_bytes,
        row_groups=len(groups),
        row_groups_cut=sum(bool(group.spans) for group in groups),
        spans=sum(len(group.spans) for group in groups),
        batch_events=stream.batch_events,
        shard_events=_shard_events(lines, stream.shards),
        mixing_in_block=in_block.per_dof,
        mixing_over_epoch=_mixing(units, stream).per_dof if len(blocks) == num_blocks else None,
        quarantined=[BadFile(reason=file.reason, events=file.bad_rows) for file in staged if file.footer is None],
        unit_lines=lines,
    )


def summary_lines(summary: PlanSummary) -> list[str]:
    """Summary as text for people."""
    s = summary
    cut = f"{s.row_groups_cut:,} of {s.row_groups:,} row groups, into {s.spans:,} spans" if s.row_groups_cut else "none"
    lines = [
        f"plan          {s.plan_hash}",
        f"inventory     {s.files:,} files, {_size(s.file_bytes)}, {s.blocks:,} blocks an epoch",
        f"epoch {s.epoch:<7} {_covered(s)}: {s.files_planned:,} files, {s.events:,} events, "
        f"at most {s.particles:,} particles",
        f"units         {s.units:,}",
        f"arena         {s.slots} slots × {_size(s.slot_bytes)} = {_size(s.arena_bytes)}",
        "",
        f"{'':<22}{'min':>12}{'median':>12}{'max':>12}",
        *(
            f"  {name:<20}{show(spread.min):>12}{show(spread.median):>12}{show(spread.max):>12}{note}"
            for name, spread, show, note in (
                ("units of a block", s.units_of_block, _count, ""),
                ("events of a unit", s.unit_events, _count, ""),
                ("particles, at most", s.unit_particles, _count, ""),
                ("bytes, at most", s.unit_bytes, _size, f"  {s.unit_bytes.max / s.slot_bytes:.0%} of a slot"),
                ("files of a unit", s.unit_files, _count, ""),
            )
        ),
        "",
        f"oversize      {cut}",
        f"mixing        {_mixing_text(s)}",
    ]
    if s.shard_events:
        lines += _shard_lines(s)
    if max(s.mixing_in_block or 0.0, s.mixing_over_epoch or 0.0) >= _POORLY_MIXED:
        lines += [f"              {line}" for line in _advice(s)]
    return [*lines, *_quarantined_lines(s)]


def unit_lines(summary: PlanSummary) -> list[str]:
    """Table of all units."""
    lines = [f"{'unit':>8} {'block':>6} {'events':>9} {'particles':>11} {'bytes':>10} {'parts':>6}  files"]
    for line in summary.unit_lines:
        files = " ".join(str(file) for file in line.files)
        lines.append(
            f"{line.unit:>8} {line.block:>6} {line.events:>9,} {line.particles:>11,} {line.bytes:>10,} "
            f"{line.parts:>6}  {files}"
        )
    return lines


def _line(unit: Unit, first_k: int, capacity: SlotCapacity) -> UnitLine:
    particles = sum(part.particles for part in unit.parts)
    return UnitLine(
        unit=unit.k - first_k,
        block=unit.block,
        events=unit.rows,
        particles=particles,
        bytes=capacity.bytes_needed(unit.rows, particles),
        parts=len(unit.parts),
        files=sorted({part.file for part in unit.parts}),
    )


def _shard_events(lines: Sequence[UnitLine], shards: int) -> list[int]:
    if shards == 1:
        return []
    return [sum(line.events for line in lines if line.block % shards == shard) for shard in range(shards)]


def _shard_lines(s: PlanSummary) -> list[str]:
    """Events of the shards. Each step takes as many of one as of another: where one ends first, steps get smaller."""
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


def _mixing(units: Sequence[Unit], stream: StreamConfig) -> ChiSquare:
    rows = [[(part.file, part.rows) for part in unit.parts] for unit in units]
    if stream.shuffle:
        return expected(rows, stream.batch_events)
    return observed(in_source_order(rows, stream.batch_events), events_of_files(rows))


def _covered(s: PlanSummary) -> str:
    if s.blocks_planned == s.blocks:
        return "all blocks"
    return f"first {s.blocks_planned:,} of {s.blocks:,} blocks" if s.blocks_planned > 1 else "first block only"


def _mixing_text(s: PlanSummary) -> str:
    if s.mixing_in_block is None and s.mixing_over_epoch is None:
        return "nothing to mix: one file, or one microbatch, in each block"
    values = [
        f"{value:.2f} {where}"
        for value, where in ((s.mixing_in_block, "inside the blocks"), (s.mixing_over_epoch, "over the epoch"))
        if value is not None
    ]
    return f"chi²/dof {', '.join(values)} (1: perfect, {s.batch_events}: none)"


def _advice(s: PlanSummary) -> list[str]:
    """Advice for better mixing: if the units are the limit, and if the blocks are."""
    lines = []
    if (s.mixing_in_block or 0.0) >= _POORLY_MIXED:
        lines.append(
            f"a unit draws from {s.unit_files.median:g} files: a larger stream.unit_events (with stream.slot_mib), "
            "or smaller row groups in the files, mix more"
        )
    if (s.mixing_over_epoch or 0.0) >= max(_POORLY_MIXED, 1.5 * (s.mixing_in_block or 1.0)):
        lines.append("a block draws from few of all files: a larger stream.block_files mixes more")
    return lines


def _quarantined_lines(s: PlanSummary) -> list[str]:
    if not s.quarantined:
        return ["quarantined   none"]
    events = sum(bad.events for bad in s.quarantined)
    lines = [f"quarantined   {len(s.quarantined):,} files, {events:,} events as far as they could be counted"]
    lines += [f"  {bad.reason}" for bad in s.quarantined[:_QUARANTINED_SHOWN]]
    if len(s.quarantined) > _QUARANTINED_SHOWN:
        lines.append(f"  … and {len(s.quarantined) - _QUARANTINED_SHOWN:,} more")
    return lines


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _size(num_bytes: float) -> str:
    value, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:,.1f} {unit}" if unit != "B" else f"{value:,.0f} B"
