"""Position in the stream of a run with several shards: that of each shard, and their sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ModelWrapValidatorHandler, model_serializer, model_validator

from common.invalid_events import BrokenRules, sum_of_rules
from common.messages import Cursor
from common.status import Counters
from services.trainer.stream.position import StreamPosition


class ShardedPosition(StreamPosition):
    """Position of a run with several shards. The fields of StreamPosition are those of all shards together:
    sums of the counters, all lines of the journals; it has no cursor of its own. They are derived when it is read.
    """

    of_shards: tuple[StreamPosition, ...] = ()
    former: Counters = Counters()
    """Counters of former plans of the run."""
    former_rules: BrokenRules = ()
    """Their invalid events."""

    @staticmethod
    def of(shards: Sequence[StreamPosition], former: Counters, former_rules: BrokenRules = ()) -> ShardedPosition:
        """Position with these of the shards, in order."""
        return ShardedPosition.model_construct(
            of_shards=tuple(shards),
            former=former,
            former_rules=former_rules,
            cursor=Cursor(),
            open_unit_events=0,
            content="",
            epoch=max(shard.epoch for shard in shards),
            counters=sum_of_counters([former, *(shard.counters for shard in shards)]),
            quarantined=tuple(
                {(one.file, one.row_group): one for shard in shards for one in shard.quarantined}.values()
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
        return self.of(now, self.former, self.former_rules)

    def begin_plan(self) -> StreamPosition:
        return self.of([StreamPosition()] * len(self.of_shards), self.counters, self.broken_rules)

    @model_serializer
    def _stored(self) -> dict[str, Any]:
        return {
            "of_shards": self.of_shards,
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
        return ShardedPosition.of(read.of_shards, read.former, read.former_rules)


def start_of(shards: int, former: StreamPosition | None = None) -> StreamPosition:
    """Position before the first unit of every shard. ``former``: that at the end of the run's former plans."""
    counted = former or StreamPosition()
    if shards == 1:
        return StreamPosition(counters=counted.counters, broken_rules=counted.broken_rules)
    return ShardedPosition.of([StreamPosition()] * shards, counted.counters, counted.broken_rules)


def read_position(text: str) -> StreamPosition:
    """Position from the JSON of a checkpoint. Raises pydantic's ValidationError."""
    kind = ShardedPosition if '"of_shards"' in text else StreamPosition
    return kind.model_validate_json(text)


def sum_of_counters(counters: Iterable[Counters]) -> Counters:
    """Sum of counters, name by name."""
    total = dict.fromkeys(Counters.model_fields, 0)
    for one in counters:
        for name, value in one:
            total[name] += value
    return Counters(**total)
