"""Position of a run with several shards: whatever the number of ranks and their order, it ends the same."""

from __future__ import annotations

import random
from itertools import chain

import pytest

from common import messages as m
from common.config import StreamConfig
from common.status import Counters
from services.fetcher.dispatcher import Action, Dispatcher, Send
from services.trainer.ranks.agreement import Turn
from services.trainer.stream.position import StreamPosition
from services.trainer.stream.sharded_position import ShardedPosition, read_position, start_of
from services.trainer.stream.shares import shares_of_rank

PLAN = "ab" * 16
STREAM = StreamConfig(shards=4)
UNITS = (5, 8, 0, 3)
"""Units of each shard."""


def unit(shard: int, k: int) -> m.Unit:
    bad = (m.Quarantined(100 + shard, -1, 3, f"bad {shard}"),) if not k else ()
    part = m.Part(10 * shard + k, "f", 0, 0, 10, 99, 0)
    return m.Unit(k, 0, k, k, (part,), bad, m.Source(1, "digest"))


class Shard:
    """Dispatcher of one shard with a decoder; its trainers are ranks."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._dispatcher = Dispatcher(slots=8, plan_hash=PLAN, max_unit_deaths=3, stall_timeout_s=100)
        self.arrived: list[m.DeliveredUnit] = []
        self._act(self._dispatcher.handle("decoder", m.Hello(8), 0.0))
        self._act(self._dispatcher.add_units([unit(shard, k) for k in range(UNITS[shard])]))
        self._act(self._dispatcher.end_plan())

    def tell(self, rank: int, message: m.Message) -> list[m.DeliveredUnit]:
        """Units delivered in answer to a message of a rank."""
        self.arrived.clear()
        self._act(self._dispatcher.handle(f"trainer {rank}", message, 0.0))
        return list(self.arrived)

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send("decoder", m.Lease(lease=lease, unit=planned)):
                    tally = m.Tally(rows_read=10, outliers=planned.k % 3)
                    layout = m.Layout(10 - planned.k % 3, 20, 2)
                    done = m.Done(planned.k, lease, layout, tally, "content")
                    self._act(self._dispatcher.handle("decoder", done, 0.0))
                case Send(_, m.DeliveredUnit() as delivered):
                    self.arrived.append(delivered)


def trained(ranks: int, seed: int) -> StreamPosition:
    """Position after ``ranks`` trainers have trained all units of all shards, in random order."""
    rng = random.Random(seed)
    shards = [Shard(number) for number in range(STREAM.shards)]
    position: StreamPosition = start_of(STREAM.shards)
    shares = [shares_of_rank(STREAM, rank, ranks) for rank in range(ranks)]
    for rank, share in ((rank, share) for rank, of in enumerate(shares) for share in of):
        cursor = position.shards[share.shard].cursor
        shards[share.shard].tell(rank, m.Attach(share.rank, share.ranks, PLAN, cursor))
    for _ in range(max(UNITS) + 1):
        growths: dict[int, StreamPosition] = {}
        for rank, of in rng.sample(list(enumerate(shares)), ranks):
            mine = position
            for share in rng.sample(of, len(of)):
                for arrived in shards[share.shard].tell(rank, m.Want(1)):
                    shards[share.shard].tell(rank, m.Release(arrived.k))
                    place = mine.shards[share.shard].after_microbatches(arrived, 2, arrived.layout.events, 20)
                    mine = mine.with_shards({share.shard: place.after_unit(arrived)})
                grown = mine.shards[share.shard].since(position.shards[share.shard])
                turn = Turn(growths={share.shard: grown}).model_dump_json(exclude_defaults=True)
                told = Turn.model_validate_json(turn).growths[share.shard]
                assert growths.setdefault(share.shard, told) == told, "all trainers of a shard say the same"
        position = position.with_shards({shard: position.shards[shard].grown(one) for shard, one in growths.items()})
    return position


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_any_number_of_ranks_in_any_order_ends_at_the_same_position(ranks: int) -> None:
    expected = trained(1, seed=0)
    for seed in range(5):
        assert trained(ranks, seed) == expected
    assert [shard.counters.units for shard in expected.shards] == list(UNITS)
    events = [10 * number + 3 * bool(number) for number in UNITS]
    assert [shard.counters.events_read for shard in expected.shards] == events
    assert expected.counters.events_read == sum(events)
    assert expected.counters.adds_up()


def test_equal_numbers_of_units_and_files_in_different_shards_stay_apart() -> None:
    position = start_of(STREAM.shards)
    skipped = m.DeliveredUnit(0, 0, 0, 0, -1, 0, m.Layout(0, 0, 0), m.Tally(rows_read=10, quarantined=10), ())
    for shard in (0, 3):
        position = position.with_shards({shard: position.shards[shard].after_unit(skipped)})
    assert [shard.skipped_units for shard in position.shards] == [(0,), (), (), (0,)]
    assert position.counters.events_quarantined == 20


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    position = trained(2, seed=3)
    assert isinstance(position, ShardedPosition)
    assert read_position(position.model_dump_json()) == position
    alone = StreamPosition()
    assert read_position(alone.model_dump_json()) == alone
    assert "shards" not in alone.model_dump_json(), "the checkpoint of a run without shards is that of before"


def test_cursors_are_those_of_the_shards_in_order() -> None:
    position = trained(1, seed=0)
    assert position.cursors == tuple(chain.from_iterable(shard.cursors for shard in position.shards))
    assert len(position.cursors) == STREAM.shards


def test_a_new_plan_begins_each_shard_and_keeps_what_was_counted() -> None:
    position = trained(1, seed=0)
    begun = position.begin_plan()
    assert begun.counters == position.counters
    assert all(shard.counters == Counters() for shard in begun.shards)
    assert begun.cursors == start_of(4).cursors
    other = start_of(2, position)
    assert (other.counters, len(other.shards)) == (position.counters, 2)


def test_a_new_plan_of_any_number_of_shards_keeps_the_reasons_of_invalid_events() -> None:
    rules = (m.InvalidEvents("a rule", 3, ("where",)),)
    former = StreamPosition(counters=Counters(events_read=3, events_invalid=3), broken_rules=rules)
    for shards in (1, 2):
        begun = start_of(shards, former).begin_plan()
        assert (begun.broken_rules, begun.counters.events_invalid) == (rules, 3)
        assert read_position(begun.model_dump_json()) == begun
    again = begun.with_shards({1: StreamPosition(broken_rules=rules)}).begin_plan()
    assert [one.events for one in again.broken_rules] == [6]


def test_the_source_is_that_of_the_shard_furthest_in_the_inventory() -> None:
    begun = start_of(4)
    assert begun.source == m.Source()
    ranges, complete = m.Source(3, "three"), m.Source(2, "complete")
    of_shards = [StreamPosition().model_copy(update={"source": source}) for source in (m.Source(), ranges)]
    position = begun.with_shards(dict(enumerate(of_shards)))
    assert position.source == ranges
    later = StreamPosition().model_copy(update={"source": complete, "epoch": 1})
    assert position.with_shards({3: later}).source == complete
    assert read_position(position.model_dump_json()) == position
