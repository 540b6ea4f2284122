"""Position of the weights in the stream: a cursor for each lane, and the fate of every event before. Part of each
checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict

from common.invalid_events import BrokenRules, rules_since, sum_of_rules
from common.messages import Cursor, DeliveredUnit, Quarantined, Source
from common.ragged import SlotMismatch
from common.status import Counters


class LanePosition(BaseModel):
    """Position of one lane."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cursor: Cursor
    open_unit_events: int = 0
    """Events trained of the cursor's unit."""
    content: str = ""
    """Digest of that unit as delivered; empty: unknown, or the cursor is at the start of a unit."""


class Growth(BaseModel):
    """Growth of the position by one rank's share of a batch: all that the other ranks need to know of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lanes: dict[int, LanePosition] = {}
    """Lanes that moved, by number."""
    epoch: int = 0
    counters: Counters = Counters()
    """Counters to add."""
    quarantined: tuple[Quarantined, ...] = ()
    skipped_units: tuple[int, ...] = ()
    changed_units: tuple[str, ...] = ()
    broken_rules: BrokenRules = ()
    """Rules to add."""
    bad_files: tuple[int, ...] = ()
    source: Source = Source()
    shards: dict[int, Growth] = {}
    """Growth of each shard that moved, by its number; everything else is empty then."""


class StreamPosition(BaseModel):
    """Position in the stream, or in that of one shard. Immutable: training a batch replaces it by the next one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lanes: tuple[LanePosition, ...] = (LanePosition(cursor=Cursor()),)
    """Position of every lane, in order. Unit k belongs to lane k mod their number."""
    epoch: int = 0
    counters: Counters = Counters()
    quarantined: tuple[Quarantined, ...] = ()
    """Journal of quarantined files, row groups and units, each once over all epochs."""
    skipped_units: tuple[int, ...] = ()
    changed_units: tuple[str, ...] = ()
    """One line for each unit whose events changed after its training had begun."""
    broken_rules: BrokenRules = ()
    """Invalid events of all epochs by the rule that they break."""
    bad_files: tuple[int, ...] = ()
    """Whole files that the plan left out up to the furthest lane, in order. That lane's position depends on them, and
    the lane that counts them may be behind it."""
    source: Source = Source()
    """Source of the data so far: that of the unit furthest in the inventory."""

    @classmethod
    def start(cls, num_lanes: int) -> Self:
        """Position before the first unit of every lane."""
        return cls(lanes=tuple(LanePosition(cursor=Cursor(unit=number)) for number in range(num_lanes)))

    def begin_plan(self) -> StreamPosition:
        """Position before the first unit of another plan: the training so far still counts."""
        kept = {"counters": self.counters, "broken_rules": self.broken_rules}
        return self.start(len(self.lanes)).model_copy(update=kept)

    @property
    def shards(self) -> tuple[StreamPosition, ...]:
        """Position of each shard, in order."""
        return (self,)

    def with_shards(self, shards: Mapping[int, StreamPosition]) -> StreamPosition:
        """Position with those of some shards replaced, by their numbers."""
        return shards.get(0, self)

    @property
    def cursors(self) -> tuple[Cursor, ...]:
        """Cursors of all lanes, in order."""
        return tuple(lane.cursor for lane in self.lanes)

    @property
    def set_aside(self) -> tuple[str, ...]:
        """One line for each file, row group or unit that was quarantined, as a whole or in part."""
        return (*(bad.reason for bad in self.quarantined), *self.changed_units)

    def since(self, before: StreamPosition) -> Growth:
        """Growth since ``before``."""
        moved = zip(self.lanes, before.lanes, strict=True)
        counters = {name: value - getattr(before.counters, name) for name, value in self.counters}
        return Growth(
            lanes={number: lane for number, (lane, former) in enumerate(moved) if lane != former},
            epoch=self.epoch,
            counters=Counters(**counters),
            quarantined=self.quarantined[len(before.quarantined) :],
            skipped_units=self.skipped_units[len(before.skipped_units) :],
            changed_units=self.changed_units[len(before.changed_units) :],
            broken_rules=rules_since(self.broken_rules, before.broken_rules),
            bad_files=_union(self.bad_files, without=before.bad_files),
            source=self.source,
        )

    def merged(self, growths: Sequence[Growth]) -> StreamPosition:
        """Position after the shares of all ranks, in their order. ValueError if two ranks move the same lane."""
        lanes = dict(enumerate(self.lanes))
        moved: set[int] = set()
        for growth in growths:
            if moved & growth.lanes.keys() or not growth.lanes.keys() <= lanes.keys():
                raise ValueError(f"lanes {sorted(growth.lanes)} were moved by two ranks, or are none of {len(lanes)}")
            moved |= growth.lanes.keys()
            lanes |= growth.lanes
        counters = {
            name: value + sum(getattr(growth.counters, name) for growth in growths) for name, value in self.counters
        }
        # The order of the ranks' reports is random: the record of a run must not depend on it.
        bad = sorted(
            (one for growth in growths for one in growth.quarantined), key=lambda one: (one.file, one.row_group)
        )
        seen = [(self.epoch, self.source), *((growth.epoch, growth.source) for growth in growths)]
        epoch, source = max(seen, key=lambda one: (one[0], one[1].ranges))
        return StreamPosition(
            lanes=tuple(lanes[number] for number in range(len(lanes))),
            epoch=epoch,
            counters=Counters(**counters),
            quarantined=self._journal(tuple({(one.file, one.row_group): one for one in bad}.values())),
            skipped_units=(*self.skipped_units, *sorted({k for growth in growths for k in growth.skipped_units})),
            changed_units=(*self.changed_units, *sorted(line for growth in growths for line in growth.changed_units)),
            broken_rules=sum_of_rules(
                [*self.broken_rules, *sorted((r for g in growths for r in g.broken_rules), key=lambda r: r.examples)]
            ),
            bad_files=_union(self.bad_files, *(growth.bad_files for growth in growths)),
            source=source,
        )

    def lane_of(self, unit: DeliveredUnit) -> LanePosition:
        """Lane of the unit."""
        return self.lanes[unit.k % len(self.lanes)]

    def is_changed(self, unit: DeliveredUnit) -> bool:
        """True if the lane's cursor is inside ``unit``, and its events have changed since it was begun."""
        content = self.lane_of(unit).content
        return unit.slot >= 0 and self._is_open(unit) and content not in ("", unit.content)

    def is_unchecked(self, unit: DeliveredUnit) -> bool:
        """True if the lane's cursor is inside ``unit``, and the digest at its begin is unknown."""
        return unit.slot >= 0 and self._is_open(unit) and not self.lane_of(unit).content

    def after_microbatch(self, unit: DeliveredUnit, index: int, num_events: int, num_particles: int) -> StreamPosition:
        """Position once microbatch ``index`` of ``unit`` has been trained."""
        before = self._with_block_told(unit)
        counters = before.counters
        cursor = Cursor(unit.block, unit.block_first_unit, unit.k, index + 1)
        open_unit_events = self.lane_of(unit).open_unit_events + num_events
        return before.model_copy(
            update={
                "lanes": self._with_lane(
                    unit, LanePosition(cursor=cursor, open_unit_events=open_unit_events, content=unit.content)
                ),
                "epoch": unit.epoch,
                "source": self._source_with(unit),
                "counters": counters.model_copy(
                    update={
                        "events_read": counters.events_read + num_events,
                        "events_trained": counters.events_trained + num_events,
                        "particles_trained": counters.particles_trained + num_particles,
                        "microbatches": counters.microbatches + 1,
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
        cursor = Cursor(unit.block, unit.block_first_unit, unit.k + len(self.lanes), 0)
        return before.model_copy(
            update={
                "lanes": self._with_lane(unit, LanePosition(cursor=cursor)),
                "epoch": unit.epoch,
                "source": self._source_with(unit),
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

    def _is_open(self, unit: DeliveredUnit) -> bool:
        cursor = self.lane_of(unit).cursor
        return cursor.unit == unit.k and cursor.microbatch > 0

    def _fates(self, unit: DeliveredUnit) -> tuple[int, int, int, int]:
        """Outliers, empty, held out and quarantined events to be counted at the end of a unit.

        If a unit was skipped, or has changed since a part of it was trained, every event that was neither trained nor
        set aside now is quarantined: the number of events read equals the number of rows.
        """
        tally = unit.tally
        if unit.slot >= 0 and not self.is_changed(unit):
            return tally.outliers, tally.empty, tally.held_out, tally.quarantined
        left = max(tally.rows_read - self.lane_of(unit).open_unit_events, 0)
        outliers = min(tally.outliers, left)
        empty = min(tally.empty, left - outliers)
        held_out = min(tally.held_out, left - outliers - empty)
        return outliers, empty, held_out, left - outliers - empty - held_out

    def _change(self, unit: DeliveredUnit) -> str:
        trained = self.lane_of(unit).open_unit_events
        return (
            f"unit {unit.k} has changed since it was begun: {trained} of its events were trained, "
            f"{self._fates(unit)[3]} are quarantined, and training continues after it"
        )

    def _with_lane(self, unit: DeliveredUnit, lane: LanePosition) -> tuple[LanePosition, ...]:
        """Lanes with that of ``unit`` replaced."""
        number = unit.k % len(self.lanes)
        return (*self.lanes[:number], lane, *self.lanes[number + 1 :])

    def _source_with(self, unit: DeliveredUnit) -> Source:
        # Lanes are not synchronous: one may still be in the former range, or in the first epoch.
        is_behind = unit.source.ranges < self.source.ranges or unit.epoch < self.epoch
        return self.source if is_behind else unit.source

    def _with_block_told(self, unit: DeliveredUnit) -> StreamPosition:
        """Position with the block's files without units, counted at the first microbatch of the block's first unit."""
        if self._is_open(unit) or not (unit.block_quarantined or unit.bad_files):
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
                "bad_files": _union(self.bad_files, unit.bad_files),
            }
        )

    def _journal(self, bad: tuple[Quarantined, ...]) -> tuple[Quarantined, ...]:
        known = {(one.file, one.row_group) for one in self.quarantined} if bad else set()
        return (*self.quarantined, *(one for one in bad if (one.file, one.row_group) not in known))


def _union(*files: Sequence[int], without: Sequence[int] = ()) -> tuple[int, ...]:
    return tuple(sorted(set().union(*files).difference(without)))
