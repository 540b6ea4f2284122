"""Position of a run with several shards: whatever the number of ranks and their order, it ends the same."""

from __future__ import annotations

import random
from itertools import chain

import pytest
from services.trainer.stream.lane import lanes_of_share, shares_of_rank

from common import messages as m
from common.config import StreamConfig
from common.status import Counters
from services.fetcher.dispatcher import Action, Dispatcher, Send
from services.trainer.ranks.agreement import Turn
from services.trainer.stream.position import StreamPosition
from services.trainer.stream.sharded_position import ShardedPosition, read_position, start_of

PLAN = "ab" * 16
STREAM = StreamConfig(lanes=8, shards=4)
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
        self._dispatcher = Dispatcher(slots=8, plan_hash=PLAN, max_unit_deaths=3, stall_timeout_s=100, lanes=2)
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
    position: StreamPosition = start_of(STREAM.lanes, STREAM.shards)
    shares = [shares_of_rank(STREAM, rank, ranks) for rank in range(ranks)]
    for rank, share in ((rank, share) for rank, of in enumerate(shares) for share in of):
        cursors = position.shards[share.shard].cursors
        shards[share.shard].tell(rank, m.Attach(share.rank, share.ranks, PLAN, cursors))
    rounds = max(UNITS) + 1
    for _ in range(rounds):
        growths = []
        for rank, of in enumerate(shares):
            mine = position
            lanes = [(share.shard, lane.number) for share in of for lane in lanes_of_share(STREAM, share)]
            for shard, lane in rng.sample(lanes, len(lanes)):
                for arrived in shards[shard].tell(rank, m.Want(lane, 1)):
                    shards[shard].tell(rank, m.Release(arrived.k))
                    place = mine.shards[shard].after_microbatch(arrived, 0, arrived.layout.events, 20)
                    mine = mine.with_shards({shard: place.after_unit(arrived)})
            turn = Turn(growth=mine.since(position)).model_dump_json(exclude_defaults=True)
            growths.append(Turn.model_validate_json(turn).growth)
        position = position.merged(growths)
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
    position = start_of(STREAM.lanes, STREAM.shards)
    skipped = m.DeliveredUnit(0, 0, 0, 0, -1, 0, m.Layout(0, 0, 0), m.Tally(rows_read=10, quarantined=10), ())
    for shard in (0, 3):
        position = position.with_shards({shard: position.shards[shard].after_unit(skipped)})
    assert [shard.skipped_units for shard in position.shards] == [(0,), (), (), (0,)]
    assert position.counters.events_quarantined == 20


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    position = trained(2, seed=3)
    assert isinstance(position, ShardedPosition)
    assert read_position(position.model_dump_json()) == position
    alone = StreamPosition.start(3)
    assert read_position(alone.model_dump_json()) == alone
    assert "shards" not in alone.model_dump_json(), "the checkpoint of a run without shards is that of before"


def test_cursors_are_those_of_the_shards_in_order() -> None:
    position = trained(1, seed=0)
    assert position.cursors == tuple(chain.from_iterable(shard.cursors for shard in position.shards))
    assert len(position.lanes) == STREAM.lanes


def test_a_new_plan_begins_each_shard_and_keeps_what_was_counted() -> None:
    position = trained(1, seed=0)
    begun = position.begin_plan()
    assert begun.counters == position.counters
    assert all(shard.counters == Counters() for shard in begun.shards)
    assert begun.cursors == start_of(8, 4).cursors
    other = start_of(8, 2, position.counters)
    assert (other.counters, len(other.shards)) == (position.counters, 2)


def test_two_ranks_that_move_a_lane_are_refused() -> None:
    start, end = start_of(STREAM.lanes, STREAM.shards), trained(1, seed=0)
    growth = end.since(start)
    with pytest.raises(ValueError, match="moved by two ranks"):
        start.merged([growth, growth])


def test_the_source_is_that_of_the_shard_furthest_in_the_inventory() -> None:
    begun = start_of(8, 4)
    assert begun.source == m.Source()
    ranges, complete = m.Source(3, "three"), m.Source(2, "complete")
    of_shards = [StreamPosition.start(2).model_copy(update={"source": source}) for source in (m.Source(), ranges)]
    position = begun.with_shards(dict(enumerate(of_shards)))
    assert position.source == ranges
    later = StreamPosition.start(2).model_copy(update={"source": complete, "epoch": 1})
    assert position.with_shards({3: later}).source == complete
    assert read_position(position.model_dump_json()) == position
