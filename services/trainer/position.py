"""Position in the stream of a run with several shards: that of each shard, and their sum."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, model_serializer, model_validator

from common.config import StreamConfig
from common.invalid_events import BrokenRules, rules_since, sum_of_rules
from common.messages import Cursor, DeliveredUnit, Quarantined, Source
from common.status import Counters
from common.unit_arrays import SlotMismatch

_JOURNALS = ("quarantined", "skipped_units", "changed_units")


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
        journals = {name: getattr(self, name)[len(getattr(before, name)) :] for name in _JOURNALS}
        rules = rules_since(self.broken_rules, before.broken_rules)
        return self.model_copy(update={"counters": Counters(**counters), "broken_rules": rules, **journals})

    def grown(self, growth: StreamPosition) -> StreamPosition:
        """Position of a shard after ``growth``."""
        counters = sum_of_counters([self.counters, growth.counters])
        journals = {name: (*getattr(self, name), *getattr(growth, name)) for name in _JOURNALS}
        rules = sum_of_rules((*self.broken_rules, *growth.broken_rules))
        return growth.model_copy(update={"counters": counters, "broken_rules": rules, **journals})

    def is_changed(self, unit: DeliveredUnit) -> bool:
        """True if the cursor is inside ``unit``, and its events have changed since it was begun."""
        return unit.slot >= 0 and self._is_open(unit) and self.content not in ("", unit.content)

    def after_microbatches(self, unit: DeliveredUnit, end: int, num_events: int, num_particles: int) -> StreamPosition:
        """Position once the microbatches of ``unit`` up to ``end`` have been trained, of so many events and particles
        since this position."""
        before = self._with_block_told(unit)
        cursor = Cursor(unit.block, unit.block_first_unit, unit.k, end)
        return before.model_copy(
            update={
                "cursor": cursor,
                "open_unit_events": self.open_unit_events + num_events,
                "content": unit.content,
                "epoch": unit.epoch,
                "source": unit.source,
                "counters": _plus(
                    before.counters,
                    events_read=num_events,
                    events_trained=num_events,
                    particles_trained=num_particles,
                    microbatches=end - (self.cursor.microbatch if self.cursor.unit == unit.k else 0),
                ),
            }
        )

    def after_unit(self, unit: DeliveredUnit) -> StreamPosition:
        """Position once all of ``unit`` is done: its other events are counted by their fate. Raises SlotMismatch."""
        before = self._with_block_told(unit)
        tally = unit.tally
        if not tally.adds_up(unit.layout):
            raise SlotMismatch(f"the tally of unit {unit.k} doesn't add up: {unit.layout}, {tally}")
        changed = self.is_changed(unit)
        outliers, empty, held_out, filtered, quarantined = self._fates(unit)
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
                "counters": _plus(
                    before.counters,
                    events_read=outliers + empty + held_out + filtered + quarantined + invalid,
                    events_invalid=invalid,
                    events_outlier=outliers,
                    events_empty=empty,
                    events_held_out=held_out,
                    events_filtered=filtered,
                    events_quarantined=quarantined,
                    particles_dropped=tally.particles_dropped,
                    units=1,
                ),
                "quarantined": before._journal(tally.bad),
                "broken_rules": sum_of_rules((*self.broken_rules, *(tally.broken_rules if is_whole else ()))),
                "skipped_units": (*self.skipped_units, unit.k) if unit.slot < 0 else self.skipped_units,
                "changed_units": (*self.changed_units, self._change(unit)) if changed else self.changed_units,
            }
        )

    def _is_open(self, unit: DeliveredUnit) -> bool:
        return self.cursor.unit == unit.k and self.cursor.microbatch > 0

    def _fates(self, unit: DeliveredUnit) -> tuple[int, ...]:
        """Outliers, empty, held out, filtered and quarantined events to be counted at the end of a unit.

        If a unit was skipped, or has changed since a part of it was trained, every event that was neither trained nor
        set aside now is quarantined: the number of events read equals the number of rows.
        """
        tally = unit.tally
        if unit.slot >= 0 and not self.is_changed(unit):
            return tally.outliers, tally.empty, tally.held_out, tally.filtered, tally.quarantined
        left = max(tally.rows_read - self.open_unit_events, 0)
        fates = []
        for fate in (tally.outliers, tally.empty, tally.held_out, tally.filtered):
            fates.append(min(fate, left))
            left -= fates[-1]
        return (*fates, left)

    def _change(self, unit: DeliveredUnit) -> str:
        return (
            f"unit {unit.k} has changed since it was begun: {self.open_unit_events} of its events were trained, "
            f"{self._fates(unit)[-1]} are quarantined, and training continues after it"
        )

    def _with_block_told(self, unit: DeliveredUnit) -> StreamPosition:
        """Position with the block's files without units, counted at the first microbatch of the block's first unit."""
        if self._is_open(unit) or not unit.block_quarantined:
            return self
        rows = sum(bad.rows for bad in unit.block_quarantined)
        counters = _plus(self.counters, events_read=rows, events_quarantined=rows)
        return self.model_copy(update={"counters": counters, "quarantined": self._journal(unit.block_quarantined)})

    def _journal(self, bad: tuple[Quarantined, ...]) -> tuple[Quarantined, ...]:
        known = {(one.file, one.row_group) for one in self.quarantined} if bad else set()
        return (*self.quarantined, *(one for one in bad if (one.file, one.row_group) not in known))


class ShardedPosition(StreamPosition):
    """Position of a run with several shards. The fields of StreamPosition are those of all shards together:
    sums of the counters, all lines of the journals; it has no cursor of its own. They are derived when it is read.
    """

    of_shards: tuple[StreamPosition, ...] = ()
    is_mixed: bool = False
    """True if the shards are sets, which have epochs of their own: the run is in that of the slowest one."""
    former: Counters = Counters()
    """Counters of former plans of the run."""
    former_rules: BrokenRules = ()
    """Their invalid events."""

    @staticmethod
    def of(
        shards: Sequence[StreamPosition], former: Counters, former_rules: BrokenRules = (), *, is_mixed: bool = False
    ) -> ShardedPosition:
        """Position with these of the shards, in order."""
        return ShardedPosition.model_construct(
            of_shards=tuple(shards),
            is_mixed=is_mixed,
            former=former,
            former_rules=former_rules,
            cursor=Cursor(),
            open_unit_events=0,
            content="",
            epoch=(min if is_mixed else max)(shard.epoch for shard in shards),
            counters=sum_of_counters([former, *(shard.counters for shard in shards)]),
            quarantined=tuple(
                {
                    (number if is_mixed else 0, one.file, one.row_group): one  # sets number files of their own
                    for number, shard in enumerate(shards)
                    for one in shard.quarantined
                }.values()
            ),
            skipped_units=(),
            changed_units=tuple(
                f"shard {number}: {line}" for number, shard in enumerate(shards) for line in shard.changed_units
            ),
            broken_rules=sum_of_rules((*former_rules, *(one for shard in shards for one in shard.broken_rules))),
            source=max(((shard.epoch, shard.source) for shard in shards), key=lambda one: (one[0], one[1].ranges))[1],
        )

    @property
    def shards(self) -> tuple[StreamPosition, ...]:
        return self.of_shards

    def with_shards(self, shards: Mapping[int, StreamPosition]) -> StreamPosition:
        now = [shards.get(number, shard) for number, shard in enumerate(self.of_shards)]
        return self.of(now, self.former, self.former_rules, is_mixed=self.is_mixed)

    @model_serializer
    def _stored(self) -> dict[str, Any]:
        return {
            "of_shards": self.of_shards,
            "is_mixed": self.is_mixed,
            "former": self.former,
            "former_rules": self.former_rules,
            "counters": self.counters,
        }

    @model_validator(mode="wrap")
    @classmethod
    def _completed(cls, value: Any, handler: ModelWrapValidatorHandler[ShardedPosition]) -> ShardedPosition:
        read = handler(value)
        if not read.of_shards:
            raise ValueError("a position of no shards")
        return ShardedPosition.of(read.of_shards, read.former, read.former_rules, is_mixed=read.is_mixed)


def start_of(stream: StreamConfig, former: StreamPosition | None = None) -> StreamPosition:
    """Position before the first unit of every shard. ``former``: that at the end of the run's former plans."""
    counters, rules = (former.counters, former.broken_rules) if former is not None else (Counters(), ())
    if stream.shards == 1:
        return StreamPosition(counters=counters, broken_rules=rules)
    return ShardedPosition.of([StreamPosition()] * stream.shards, counters, rules, is_mixed=stream.is_mixed)


def read_position(text: str) -> StreamPosition:
    """Position from the JSON of a checkpoint. Raises pydantic's ValidationError."""
    kind = ShardedPosition if '"of_shards"' in text else StreamPosition
    return kind.model_validate_json(text)


def _plus(counters: Counters, **more: int) -> Counters:
    """Return counters with some of them raised."""
    return counters.model_copy(update={name: getattr(counters, name) + num for name, num in more.items()})


def sum_of_counters(counters: Iterable[Counters]) -> Counters:
    """Sum of counters, name by name."""
    total = dict.fromkeys(Counters.model_fields, 0)
    for one in counters:
        for name, value in one:
            total[name] += value
    return Counters(**total)
