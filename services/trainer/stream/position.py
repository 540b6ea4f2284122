"""Position of the weights in the stream: a cursor, and the fate of every event before. Part of each checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from common.invalid_events import BrokenRules, rules_since, sum_of_rules
from common.messages import Cursor, DeliveredUnit, Quarantined, Source
from common.ragged import SlotMismatch
from common.status import Counters


class StreamPosition(BaseModel):
    """Position in the stream, or in that of one shard. Immutable: training a batch replaces it by the next one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cursor: Cursor = Cursor()
    open_unit_events: int = 0
    """Events trained of the cursor's unit."""
    content: str = ""
    """Digest of that unit as delivered; empty: unknown, or the cursor is at the start of a unit."""
    contents: str = ""
    """Digest of the digests of all units before it, by which trainers notice that they were given different ones."""
    epoch: int = 0
    counters: Counters = Counters()
    quarantined: tuple[Quarantined, ...] = ()
    """Journal of quarantined files, row groups and units, each once over all epochs."""
    skipped_units: tuple[int, ...] = ()
    changed_units: tuple[str, ...] = ()
    """One line for each unit whose events changed after its training had begun."""
    broken_rules: BrokenRules = ()
    """Invalid events of all epochs by the rule that they break."""
    source: Source = Source()
    """Source of the data so far: that of the newest unit."""

    def begin_plan(self) -> StreamPosition:
        """Position before the first unit of another plan: the training so far still counts."""
        return StreamPosition(counters=self.counters, broken_rules=self.broken_rules)

    @property
    def shards(self) -> tuple[StreamPosition, ...]:
        """Position of each shard, in order."""
        return (self,)

    def with_shards(self, shards: Mapping[int, StreamPosition]) -> StreamPosition:
        """Position with those of some shards replaced, by their numbers."""
        return shards.get(0, self)

    @property
    def cursors(self) -> tuple[Cursor, ...]:
        """Cursors of all shards, in order."""
        return tuple(shard.cursor for shard in self.shards)

    @property
    def bad_files(self) -> tuple[int, ...]:
        """Whole files that were quarantined: the plan leaves them out."""
        return tuple(sorted({bad.file for bad in self.quarantined if bad.row_group == -1}))

    @property
    def set_aside(self) -> tuple[str, ...]:
        """One line for each file, row group or unit that was quarantined, as a whole or in part."""
        return (*(bad.reason for bad in self.quarantined), *self.changed_units)

    def since(self, before: StreamPosition) -> StreamPosition:
        """Growth of a shard since ``before``, all that trainers of other shards need to know: a position with the
        counts and journals that grown() adds."""
        counters = {name: value - getattr(before.counters, name) for name, value in self.counters}
        return self.model_copy(
            update={
                "counters": Counters(**counters),
                "quarantined": self.quarantined[len(before.quarantined) :],
                "skipped_units": self.skipped_units[len(before.skipped_units) :],
                "changed_units": self.changed_units[len(before.changed_units) :],
                "broken_rules": rules_since(self.broken_rules, before.broken_rules),
            }
        )

    def grown(self, growth: StreamPosition) -> StreamPosition:
        """Position of a shard after ``growth``."""
        counters = {name: value + getattr(growth.counters, name) for name, value in self.counters}
        return growth.model_copy(
            update={
                "counters": Counters(**counters),
                "quarantined": (*self.quarantined, *growth.quarantined),
                "skipped_units": (*self.skipped_units, *growth.skipped_units),
                "changed_units": (*self.changed_units, *growth.changed_units),
                "broken_rules": sum_of_rules((*self.broken_rules, *growth.broken_rules)),
            }
        )

    def is_changed(self, unit: DeliveredUnit) -> bool:
        """True if the cursor is inside ``unit``, and its events have changed since it was begun."""
        return unit.slot >= 0 and self._is_open(unit) and self.content not in ("", unit.content)

    def is_unchecked(self, unit: DeliveredUnit) -> bool:
        """True if the cursor is inside ``unit``, and the digest at its begin is unknown."""
        return unit.slot >= 0 and self._is_open(unit) and not self.content

    def after_microbatches(self, unit: DeliveredUnit, end: int, num_events: int, num_particles: int) -> StreamPosition:
        """Position once the microbatches of ``unit`` up to ``end`` have been trained, of so many events and particles
        since this position."""
        before = self._with_block_told(unit)
        counters = before.counters
        cursor = Cursor(unit.block, unit.block_first_unit, unit.k, end)
        return before.model_copy(
            update={
                "cursor": cursor,
                "open_unit_events": self.open_unit_events + num_events,
                "content": unit.content,
                "epoch": unit.epoch,
                "source": unit.source,
                "counters": counters.model_copy(
                    update={
                        "events_read": counters.events_read + num_events,
                        "events_trained": counters.events_trained + num_events,
                        "particles_trained": counters.particles_trained + num_particles,
                        "microbatches": counters.microbatches + end - self._next_of(unit),
                    }
                ),
            }
        )

    def after_unit(self, unit: DeliveredUnit) -> StreamPosition:
        """Position once all of ``unit`` is done: its other events are counted by their fate. Raises SlotMismatch."""
        before = self._with_block_told(unit)
        tally, counters = unit.tally, before.counters
        if not tally.adds_up(unit.layout):
            raise SlotMismatch(f"the tally of unit {unit.k} doesn't add up: {unit.layout}, {tally}")
        changed = self.is_changed(unit)
        outliers, empty, held_out, quarantined = self._fates(unit)
        is_whole = unit.slot >= 0 and not changed
        invalid = tally.invalid if is_whole else 0
        cursor = Cursor(unit.block, unit.block_first_unit, unit.k + 1, 0)
        return before.model_copy(
            update={
                "cursor": cursor,
                "open_unit_events": 0,
                "content": "",
                "contents": hashlib.blake2b((self.contents + unit.content).encode(), digest_size=8).hexdigest(),
                "epoch": unit.epoch,
                "source": unit.source,
                "counters": counters.model_copy(
                    update={
                        "events_read": counters.events_read + outliers + empty + held_out + quarantined + invalid,
                        "events_invalid": counters.events_invalid + invalid,
                        "events_outlier": counters.events_outlier + outliers,
                        "events_empty": counters.events_empty + empty,
                        "events_held_out": counters.events_held_out + held_out,
                        "events_quarantined": counters.events_quarantined + quarantined,
                        "particles_dropped": counters.particles_dropped + tally.particles_dropped,
                        "units": counters.units + 1,
                    }
                ),
                "quarantined": before._journal(tally.bad),
                "broken_rules": sum_of_rules((*self.broken_rules, *(tally.broken_rules if is_whole else ()))),
                "skipped_units": (*self.skipped_units, unit.k) if unit.slot < 0 else self.skipped_units,
                "changed_units": (*self.changed_units, self._change(unit)) if changed else self.changed_units,
            }
        )

    def _next_of(self, unit: DeliveredUnit) -> int:
        return self.cursor.microbatch if self.cursor.unit == unit.k else 0

    def _is_open(self, unit: DeliveredUnit) -> bool:
        return self.cursor.unit == unit.k and self.cursor.microbatch > 0

    def _fates(self, unit: DeliveredUnit) -> tuple[int, int, int, int]:
        """Outliers, empty, held out and quarantined events to be counted at the end of a unit.

        If a unit was skipped, or has changed since a part of it was trained, every event that was neither trained nor
        set aside now is quarantined: the number of events read equals the number of rows.
        """
        tally = unit.tally
        if unit.slot >= 0 and not self.is_changed(unit):
            return tally.outliers, tally.empty, tally.held_out, tally.quarantined
        left = max(tally.rows_read - self.open_unit_events, 0)
        outliers = min(tally.outliers, left)
        empty = min(tally.empty, left - outliers)
        held_out = min(tally.held_out, left - outliers - empty)
        return outliers, empty, held_out, left - outliers - empty - held_out

    def _change(self, unit: DeliveredUnit) -> str:
        return (
            f"unit {unit.k} has changed since it was begun: {self.open_unit_events} of its events were trained, "
            f"{self._fates(unit)[3]} are quarantined, and training continues after it"
        )

    def _with_block_told(self, unit: DeliveredUnit) -> StreamPosition:
        """Position with the block's files without units, counted at the first microbatch of the block's first unit."""
        if self._is_open(unit) or not unit.block_quarantined:
            return self
        rows = sum(bad.rows for bad in unit.block_quarantined)
        counters = self.counters.model_copy(
            update={
                "events_read": self.counters.events_read + rows,
                "events_quarantined": self.counters.events_quarantined + rows,
            }
        )
        return self.model_copy(
            update={
                "counters": counters,
                "quarantined": self._journal(unit.block_quarantined),
            }
        )

    def _journal(self, bad: tuple[Quarantined, ...]) -> tuple[Quarantined, ...]:
        known = {(one.file, one.row_group) for one in self.quarantined} if bad else set()
        return (*self.quarantined, *(one for one in bad if (one.file, one.row_group) not in known))
