"""The feed with several lanes, of one trainer or of several, against a real transport and dispatcher."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing

import pytest
from feeding import ALL_ROWS, STREAM, BatchFeed, Fetcher, rows

from common import messages as m
from common.config import StreamConfig
from common.errors import BadInputError
from services.trainer.stream.fed_batch import FedBatch
from services.trainer.stream.position import StreamPosition

PATIENCE_S = 20.0


def two_lanes(slots: int) -> StreamConfig:
    return STREAM.model_copy(update={"lanes": 2, "slots": slots})


def rows_of_lane(batches: list[FedBatch], lane: int) -> list[int]:
    return [row for fed in batches for row in rows(fed) if row // 100 % 2 == lane]


def rows_of_units(lane: int) -> list[int]:
    return [row for row in ALL_ROWS if row // 100 % 2 == lane]


@pytest.mark.parametrize("slots", [2, 3, 8])
def test_one_trainer_takes_its_share_of_every_lane_for_each_batch(
    fetch: Callable[..., Fetcher], connect: Callable[..., BatchFeed], slots: int
) -> None:
    stream = two_lanes(slots)
    fetcher, feed = fetch(stream=stream), connect(stream=stream)
    batches = list(feed.batches(StreamPosition.start(2)))
    for lane in (0, 1):
        assert rows_of_lane(batches, lane) == rows_of_units(lane), "each lane is in order, whatever the slots"
    lanes_of_first = [microbatch.unit % 2 for microbatch in batches[0].batch.microbatches]
    assert lanes_of_first == sorted(lanes_of_first)
    assert set(lanes_of_first) == {0, 1}
    assert all(sum(mb.num_events for mb in fed.batch.microbatches) >= 4 for fed in batches[:3])
    assert feed.ended
    assert feed.position.counters.adds_up()
    assert feed.position.counters.events_trained == len(ALL_ROWS)
    lines = [json.loads(line) for fed in batches for line in fed.audit_lines]
    assert all(line["lane"] == line["unit"] % 2 for line in lines)
    feed.finished(feed.position)
    assert fetcher.finished.wait(20)


@pytest.mark.parametrize("slots", [2, 4])
def test_lanes_resumed_after_any_batch_give_exactly_the_rest(
    fetch: Callable[..., Fetcher], connect: Callable[..., BatchFeed], slots: int
) -> None:
    stream = two_lanes(slots)
    fetch(stream=stream)
    feed = connect(stream=stream)
    batches = list(feed.batches(StreamPosition.start(2)))
    feed.close()
    for number, fed in enumerate(batches):
        again = connect(stream=stream)
        rest = list(again.batches(StreamPosition.model_validate_json(fed.position.model_dump_json())))
        again.close()
        assert [rows(other) for other in rest] == [rows(other) for other in batches[number + 1 :]]
        assert again.position == feed.position


@pytest.mark.parametrize("slots", [2, 5])
def test_two_ranks_get_what_one_gets_lane_by_lane(
    fetch: Callable[..., Fetcher], connect: Callable[..., BatchFeed], slots: int
) -> None:
    stream = two_lanes(slots)
    fetcher = fetch(stream=stream)
    one = connect(stream=stream)
    lines = sorted(line for fed in one.batches(StreamPosition.start(2)) for line in fed.audit_lines)
    one.close()
    ranks = [connect(stream=stream, rank=rank, ranks=2) for rank in range(2)]
    taken: list[list[FedBatch]] = [[], []]

    def train(rank: int) -> None:
        taken[rank].extend(ranks[rank].batches(StreamPosition.start(2)))
        ranks[rank].finished(ranks[rank].position)

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(line for batches in taken for fed in batches for line in fed.audit_lines) == lines
    assert rows_of_lane(taken[0], 1) == rows_of_lane(taken[1], 0) == []
    assert fetcher.finished.wait(20), "the run is over once both are through"


@pytest.mark.parametrize("slots", [2, 3])
def test_ranks_that_wait_for_each_other_in_every_step_get_to_the_end(
    fetch: Callable[..., Fetcher], connect: Callable[..., BatchFeed], slots: int
) -> None:
    stream = two_lanes(slots)
    fetch(stream=stream)
    ranks = [connect(stream=stream, rank=rank, ranks=2) for rank in range(2)]
    all_reduce = threading.Barrier(2, timeout=20)
    has_batch = [True, True]
    taken: list[list[FedBatch]] = [[], []]

    def train(rank: int) -> None:
        batches = ranks[rank].batches(StreamPosition.start(2))
        try:
            while any(has_batch):
                all_reduce.wait()
                fed = next(batches, None)
                taken[rank] += [fed] if fed else []
                has_batch[rank] = fed is not None
                all_reduce.wait()
        except threading.BrokenBarrierError:
            batches.close()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [rows_of_lane(taken[rank], rank) for rank in range(2)] == [rows_of_units(0), rows_of_units(1)]


def epochs_of_one_unit_each_lane(num_epochs: int, events: Mapping[int, int]) -> list[m.Unit]:
    """Plan for two lanes: ``events`` of some units, and the others are empty."""
    units = []
    for k in range(2 * num_epochs):
        parts = (m.Part(k, "f", 0, 0, events[k], 99, 0),) if k in events else ()
        units.append(m.Unit(k, k // 2, block=k // 2, block_first_unit=k - k % 2, parts=parts))
    return units


def test_an_endless_plan_without_events_is_noticed_although_one_trainer_reads_several_lanes(
    fetch: Callable[..., Fetcher], connect: Callable[..., BatchFeed]
) -> None:
    stream = two_lanes(4)
    fetcher = fetch(stream=stream, plan_of_units=epochs_of_one_unit_each_lane(100, {}))
    with closing(connect(stream=stream).stream(StreamPosition.start(2))) as waits:
        deadline_s = time.monotonic() + PATIENCE_S
        while not fetcher.dispatcher.lanes.barren_epochs:
            assert next(waits) is None
            assert time.monotonic() < deadline_s, "a lane waits for its turn for ever"


def test_a_lane_without_events_for_some_epochs_changes_no_batch(
    fetch: Callable[..., Fetcher], connect: Callable[..., BatchFeed]
) -> None:
    """Lane 0 has none before epoch 4, lane 1 none in epochs 2 to 6, inside of a batch."""
    stream = two_lanes(4)
    events = {8: 4, 10: 4, 12: 5, 14: 4, 18: 5, 1: 6, 3: 5, 15: 4, 19: 9}
    fetch(stream=stream, plan_of_units=epochs_of_one_unit_each_lane(12, events))
    batches = connect(stream=stream).batches(StreamPosition.start(2))
    found = [[(mb.unit, mb.num_events) for mb in fed.batch.microbatches] for fed in itertools.islice(batches, 8)]
    batches.close()
    rest = [deque(unit for unit in events if unit % 2 == lane for _ in range(events[unit])) for lane in (0, 1)]
    for batch in found:
        assert [unit % 2 for unit, _ in batch] == sorted(unit % 2 for unit, _ in batch), "lane by lane"
        for lane in (0, 1):
            of_lane = [unit for unit, num_events in batch if unit % 2 == lane for _ in range(num_events)]
            assert of_lane == [rest[lane].popleft() for _ in of_lane]
            assert stream.lane_batch_events <= len(of_lane) < 2 * stream.lane_batch_events
    assert {unit for unit, _ in found[5]} == {12, 3, 15}


def test_ranks_that_cannot_share_the_lanes_are_refused(connect: Callable[..., BatchFeed]) -> None:
    with pytest.raises(BadInputError, match=r"stream\.lanes = 2 must be a multiple of the number of trainers, 3"):
        connect(stream=two_lanes(2), rank=0, ranks=3)
