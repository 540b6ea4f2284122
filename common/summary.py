"""Summary of a run: exit status and fate of every event read (promise 3), as `summary.json` and a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.atomic_file import replace_file
from common.errors import USER_ERROR_EXIT_CODE
from common.status import Counters, EventCounts, TrainerStatus, events_by_fate

_EPOCHS = "epochs"


@dataclass(frozen=True)
class PlannedShard:
    """Sum of a shard's blocks."""

    blocks: int = 0
    files: int = 0
    events: int = 0


def planned_name(shard: int) -> str:
    """File name of a shard's record."""
    return f"planned-{shard:03d}.jsonl"


def planned_line(block: int, files: int, events: int) -> str:
    """Line for a block, by its number in the shard; events of quarantined files count as far as they are known."""
    return json.dumps([block, files, events])


def epochs_line(epochs: int) -> str:
    """Line for the number of epochs of the blocks that follow."""
    return json.dumps({_EPOCHS: epochs})


def planned_shard(lines: Iterable[str], end: int | None = None) -> PlannedShard:
    """Sum over the blocks in a record. A block that was planned again counts once, as planned last; what a killed
    process left of a line is skipped.

    ``end``: number of blocks. Those behind it do not count if they were planned while the run had more epochs.
    """
    blocks: dict[int, tuple[int, int, int | None]] = {}
    epochs: int | None = None
    for line in lines:
        try:
            content = json.loads(line)
            if isinstance(content, dict):
                epochs = content[_EPOCHS]
                continue
            block, files, events = content
        except (ValueError, TypeError):
            continue
        blocks[block] = files, events, epochs
    counted = [one for block, one in blocks.items() if end is None or block < end or one[2] in (None, epochs)]
    return PlannedShard(len(counted), sum(files for files, *_ in counted), sum(events for _, events, _ in counted))


@dataclass(frozen=True)
class ShardEvents:
    """Both sides of one shard's sum."""

    shard: int
    planned: PlannedShard
    """Record of its fetcher."""
    counters: Counters
    """Counters of the trainers."""


def imbalance(shards: Sequence[ShardEvents], *, files: int | None, is_complete: bool) -> str:
    """First of the sums that is wrong, with the shard and the difference; empty if all are right.

    ``files``: number in the inventory, over all epochs (None: unknown, or without end). ``is_complete``: the plan was
    read to its end; else a shard may have read less than was planned.
    """
    for one in shards:
        missing = one.planned.events - one.counters.events_read
        if missing < 0 or (missing and is_complete):
            how = f"{missing:,} missing" if missing > 0 else f"{-missing:,} too many"
            return (
                f"shard {one.shard}: {one.planned.events:,} planned, but {one.counters.events_read:,} read by the"
                f" trainers ({how})"
            )
        if not one.counters.adds_up():
            return f"shard {one.shard}: {unequal_fates(one.counters)}"
    planned = sum(one.planned.files for one in shards)
    if is_complete and files is not None and planned != files:
        of_each = ", ".join(f"shard {one.shard} {one.planned.files:,}" for one in shards)
        return f"{files:,} files in all epochs, but {planned:,} planned ({of_each})"
    return ""


def unequal_fates(counters: Counters) -> str:
    """Sum of the fates of events, which is not the number read, in words."""
    fates = " + ".join(f"{number} {fate}" for fate, number in events_by_fate(counters).items())
    return f"{counters.events_read} read, but {fates}"


SUMMARY_FILE = "summary.json"
SERVICES = ("fetcher", "decoder", "trainer")
FAILED_EXIT_CODE = 1
QUARANTINED_SHOWN = 20
_BUG = "; this is a bug in icestream, please report it"

ExitStatus = Literal["finished", "interrupted", "failed"]


class Summary(EventCounts):
    """Content of `summary.json`. Counts cover the whole run, restarts and earlier sessions included."""

    exit_status: ExitStatus
    exit_code: int
    adds_up: bool
    """True if `events_read` is the sum of the other seven. False is a bug: the run counts as failed."""
    steps: int
    epochs: int
    """Number of epochs begun."""
    seconds: float
    """Seconds of this session, from the start of the command to its end."""
    seconds_total: float
    """Seconds of the trainer, over all sessions."""
    events_per_s: float
    """Events trained per second of ``seconds_total``."""
    particles_per_s: float
    session_events_per_s: float
    """Events per second trained by the last trainer process, since its first steps."""
    restarts: dict[str, int]
    """Restarts in this session, by service."""
    checkpoint: str
    """Newest checkpoint, relative to the run directory. Empty: none was written."""
    sets: dict[str, Counters]
    """Counts of each set of `stream.weights` since the plan began, by its input."""
    quarantined: list[str]
    """One line for each of the newest quarantined files, row groups or units."""
    num_quarantined: int
    """Number of all quarantined files, row groups and units."""
    invalid: list[str]
    """One line for each rule that invalid events break: their number, the rule, examples with file, row group, row."""
    warnings: list[str]
    """Warnings about settings without effect, and about values that can't be."""
    error: str | None


def build_summary(
    status: TrainerStatus | None,
    *,
    exit_status: ExitStatus,
    exit_code: int,
    seconds: float,
    restarts: Mapping[str, int] | None = None,
    error: str | None = None,
    imbalance: str = "",
    sets: Sequence[str] = (),
) -> Summary:
    """Summary of a run with the last ``status`` of its trainer (None: no status, so all counts are 0).

    Counts that do not add up make the run a failed one, whatever the ``exit_status``; ``imbalance``: those of its
    shards, in words. ``sets``: inputs of the sets that the shards are.
    """
    status = status or TrainerStatus()
    counters = status.counters
    adds_up = counters.adds_up() and not imbalance
    if not adds_up:
        exit_status = "failed"
        exit_code = USER_ERROR_EXIT_CODE if exit_code == USER_ERROR_EXIT_CODE else FAILED_EXIT_CODE
        broken_sum = f"events do not add up: {imbalance or unequal_fates(counters)}{_BUG}"
        error = f"{error}; {broken_sum}" if error else broken_sum
    epochs_begun = status.epoch + 1 if status.step else 0
    return Summary(
        exit_status=exit_status,
        exit_code=exit_code,
        **{name: getattr(counters, name) for name in EventCounts.model_fields},
        adds_up=adds_up,
        steps=status.step,
        epochs=min(epochs_begun, status.epochs) if status.epochs else epochs_begun,
        seconds=round(seconds, 3),
        seconds_total=round(status.seconds, 3),
        events_per_s=_rate(counters.events_trained, status.seconds),
        particles_per_s=_rate(counters.particles_trained, status.seconds),
        session_events_per_s=round(status.session_events_per_s, 3),
        restarts={service: (restarts or {}).get(service, 0) for service in SERVICES},
        checkpoint=status.checkpoint,
        sets=dict(zip(sets, status.shards, strict=False)),
        quarantined=status.quarantined,
        num_quarantined=max(status.num_quarantined, len(status.quarantined)),
        invalid=status.invalid,
        warnings=list(status.warnings),
        error=error,
    )


def write_summary(run_dir: Path, summary: Summary) -> None:
    """Replace the run directory's summary, atomically."""
    replace_file(run_dir / SUMMARY_FILE, summary.model_dump_json(indent=2) + "\n", durable=True)


def summary_lines(summary: Summary) -> list[str]:
    """Lines of the summary for people: exit status, then the sum of events."""
    asked_for = ("held out", "filtered", "invalid")
    fates = {fate: number for fate, number in events_by_fate(summary).items() if number or fate not in asked_for}
    how_many = {4: "four", 5: "five", 6: "six", 7: "seven"}[len(fates)]
    equals = "=" if summary.adds_up else "≠"
    restarts = ", ".join(f"{service} {count}" for service, count in summary.restarts.items() if count)
    lines = [
        f"{summary.exit_status} after {summary.seconds:,.1f} s"
        + (f" (training, all sessions: {summary.seconds_total:,.1f} s)" if summary.seconds_total else ""),
        *(f"  events {fate:<13}{count:>16,}" for fate, count in fates.items()),
        f"  events {'read':<13}{summary.events_read:>16,}  {equals} the sum of these {how_many}",
        f"  particles {'trained':<10}{summary.particles_trained:>16,}"
        + (f"  ({summary.particles_dropped:,} of zero energy dropped)" if summary.particles_dropped else ""),
        f"  {'steps':<20}{summary.steps:>16,}  (epochs begun: {summary.epochs})",
        f"  {'events/s':<20}{summary.events_per_s:>16,.1f}",
        f"  {'particles/s':<20}{summary.particles_per_s:>16,.1f}",
        f"  restarts: {restarts or 'none'}",
        f"  checkpoint: {summary.checkpoint or 'none'}",
        *(
            f"  set {name}: {one.events_trained:,} trained of {one.events_read:,} read"
            for name, one in summary.sets.items()
        ),
        *(f"  quarantined: {line}" for line in summary.quarantined[-QUARANTINED_SHOWN:]),
    ]
    if summary.num_quarantined > QUARANTINED_SHOWN:
        lines.append(f"  … and {summary.num_quarantined - QUARANTINED_SHOWN:,} more: see logs/fetcher.log")
    lines += [f"  invalid: {line}" for line in summary.invalid]
    lines += [f"  warning: {line}" for line in summary.warnings]
    if not summary.adds_up:
        lines.append(f"  SUM IS WRONG: {summary.events_read:,} read ≠ {sum(fates.values()):,} accounted for")
    return lines


def _rate(count: float, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0
