"""The feeds of several trainers on one stream, against a real transport and dispatcher."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import pytest
from feeding import ALL_ROWS, STREAM, BatchFeed, Connect, Fetch, given_up, rows, with_other_events
from thread_ranks import ThreadRanks, together

from common import messages as m
from common.config import StreamConfig
from services.trainer.agreement import Agreement, ShardShare, Turn
from services.trainer.position import StreamPosition
from services.trainer.ranks import Ranks
from services.trainer.units import FedBatch

PATIENCE_S = 20.0


def trained(connect: Connect, stream: StreamConfig, num_ranks: int, at: StreamPosition) -> list[list[FedBatch]]:
    """Batches of each rank from a position to the end of the plan, made together."""

    feeds: list[BatchFeed] = []

    def train(ranks: ThreadRanks) -> list[FedBatch]:
        agreement = Agreement(ranks, lambda: False) if num_ranks > 1 else None
        feed = connect(stream=stream, rank=ranks.rank, ranks=num_ranks, agreement=agreement)
        feeds.append(feed)
        batches = list(feed.batches(at))
        feed.finished(feed.position)
        return batches

    taken = together(num_ranks, train)
    assert all(feed.ended for feed in feeds)
    assert len({feed.position.model_dump_json() for feed in feeds}) == 1, "all ranks know the same position"
    assert feeds[0].position.counters.adds_up()
    for feed in feeds:
        feed.close()
    return taken


def by_step(taken: Sequence[Sequence[FedBatch]]) -> list[list[str]]:
    """Lines of the audit of each step, of all ranks."""
    assert len({len(of_rank) for of_rank in taken}) == 1, "all ranks make the same steps"
    return [sorted(line for fed in step for _, line in fed.audit_lines) for step in zip(*taken, strict=True)]


@pytest.mark.parametrize(
    ("num_ranks", "slots", "batch_events"), [(2, 2, 4), (2, 3, 17), (2, 8, 20), (3, 2, 17), (3, 8, 4)]
)
def test_several_trainers_make_the_batches_that_one_makes(
    fetch: Fetch, connect: Connect, num_ranks: int, slots: int, batch_events: int
) -> None:
    stream = STREAM.model_copy(update={"slots": slots, "batch_events": batch_events})
    fetcher = fetch(stream=stream)
    alone = trained(connect, stream, 1, StreamPosition())
    assert [row for fed in alone[0] for row in rows(fed)] == ALL_ROWS
    fetcher.close()
    fetcher = fetch(stream=stream)
    of_all = trained(connect, stream, num_ranks, StreamPosition())
    alone_by_step = by_step(alone)
    assert by_step(of_all) == alone_by_step
    for step, lines in zip(zip(*of_all, strict=True), alone_by_step, strict=True):
        assert {fed.batch.total_events for fed in step} == {sum(fed.batch.num_events for fed in step)}
        places = sorted((line["unit"], line["microbatch"]) for line in map(json.loads, lines))
        for one in (one for fed in step for one in fed.batch.microbatches):
            assert one.number == places.index((one.unit, one.index)), "its place in the whole batch"
    assert all(any(fed.batch.num_events for fed in of_rank) for of_rank in of_all), "every trainer has work"
    assert fetcher.finished.wait(PATIENCE_S), "the run is over once all are through"


def test_trainers_for_whom_the_last_batch_is_too_small_take_part_without_events(fetch: Fetch, connect: Connect) -> None:
    fetch()
    of_all = trained(connect, STREAM, 4, StreamPosition())
    assert all(fed.batch.num_events == 1 for of_rank in of_all for fed in of_rank[:-1])
    last = [of_rank[-1] for of_rank in of_all]
    assert sorted(fed.batch.num_events for fed in last) == [0, 1, 1, 1]
    assert {fed.batch.total_events for fed in last} == {3}
    assert {fed.batch.total_particles for fed in last} == {sum(fed.batch.num_particles for fed in last)}
    (empty,) = [fed for fed in last if not fed.batch.num_events]
    assert (empty.batch.microbatches, empty.audit_lines) == ((), ())


@pytest.mark.parametrize("ranks", [(3, 2, 1), (1, 3)])
def test_a_run_goes_on_with_another_number_of_trainers_after_any_batch(
    fetch: Fetch, connect: Connect, ranks: tuple[int, ...]
) -> None:
    fetcher = fetch()
    expected = by_step(trained(connect, STREAM, 1, StreamPosition()))
    fetcher.close()
    for number in range(1, len(expected) - 1, 3):
        at = StreamPosition()
        for num_ranks in ranks:
            fetcher = fetch()
            taken = trained(connect, STREAM, num_ranks, at)
            fetcher.close()
            done = len(expected) - len(taken[0])
            assert by_step(taken) == expected[done:]
            if taken[0]:
                stopped_at = taken[0][min(number, len(taken[0])) - 1].position
                at = StreamPosition.model_validate_json(stopped_at.model_dump_json())


def test_a_wrong_slot_is_decoded_again_for_all_trainers(fetch: Fetch, connect: Connect) -> None:
    first = fetch()
    expected = by_step(trained(connect, STREAM, 1, StreamPosition()))
    first.close()
    fetcher = fetch(wrong_headers={3: 2})
    taken = trained(connect, STREAM, 2, StreamPosition())
    assert by_step(taken) == expected
    assert {reject.k for reject in fetcher.of(m.Reject)} == {3}


@pytest.mark.parametrize(("num_ranks", "k", "slots"), [(2, 0, 2), (2, 5, 8), (3, 3, 2)])
def test_a_slot_that_only_one_trainer_refuses_is_decoded_again_for_all(
    fetch: Fetch, connect: Connect, num_ranks: int, k: int, slots: int
) -> None:
    """It is not decoded before the others have let go of it, and they wait for the one that refused it."""
    stream = STREAM.model_copy(update={"slots": slots})
    of_another_unit = {k: lambda unit: replace(unit, lease=unit.lease + 1000)}
    fetcher = fetch(stream=stream, wrong_headers={}, as_seen=of_another_unit)
    of_all = trained(connect, stream, num_ranks, StreamPosition())
    assert [reject.k for reject in fetcher.of(m.Reject)] == [k]
    assert sorted(row for of_rank in of_all for fed in of_rank for row in rows(fed)) == ALL_ROWS
    fetcher.close()
    fetch()
    assert by_step(of_all) == by_step(trained(connect, STREAM, 1, StreamPosition()))


@pytest.mark.parametrize("as_seen", [given_up, with_other_events])
@pytest.mark.parametrize(("num_ranks", "k", "slots"), [(2, 0, 2), (2, 5, 8), (3, 3, 2)])
def test_trainers_that_were_given_different_events_begin_the_batch_again_and_train_each_event_once(
    fetch: Fetch,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    num_ranks: int,
    k: int,
    as_seen: Callable[[m.DeliveredUnit], m.DeliveredUnit],
    slots: int,
) -> None:
    """With two slots the one that is ahead may wait for a slot that the other, ready, holds."""
    stream = STREAM.model_copy(update={"slots": slots})
    fetcher = fetch(stream=stream, as_seen={k: as_seen})
    of_all = trained(connect, stream, num_ranks, StreamPosition())
    assert not fetcher.as_seen, "the trainers were given different events"
    assert caplog.text.count("made different batches") == num_ranks, "all of them begin again, once"
    assert sorted(row for of_rank in of_all for fed in of_rank for row in rows(fed)) == ALL_ROWS
    fetcher.close()
    fetch()
    assert by_step(of_all) == by_step(trained(connect, STREAM, 1, StreamPosition()))
    position = of_all[0][-1].position
    assert (position.skipped_units, position.changed_units) == ((), ())
    assert position.counters.events_trained == len(ALL_ROWS)


class BeforeTheOthers(Ranks):
    """A rank while the others have no batch yet."""

    def gather(self, text: str) -> list[str]:
        return [text, Turn().model_dump_json()]


@pytest.mark.parametrize("connect", ["on a fake GPU"], indirect=True)
def test_a_trainer_that_waits_for_the_others_holds_no_unit_unread(fetch: Fetch, connect: Connect) -> None:
    """One that is late may need its slot: another trainer may hold the other one, further on."""
    fetcher = fetch()
    feed = connect(rank=0, ranks=3, agreement=Agreement(BeforeTheOthers(0, 3), lambda: False))
    with closing(feed.stream(StreamPosition())) as waits:
        deadline_s = time.monotonic() + PATIENCE_S
        while [unit.k for unit in fetcher.of(m.Release)] != [0, 1]:
            assert next(waits) is None
            assert time.monotonic() < deadline_s


class CountedTurns(Agreement):
    turns = 0

    def waiting(self, taken: StreamPosition, shards: Sequence[ShardShare]) -> None:
        self.turns += 1


def test_the_others_get_a_turn_however_many_units_without_events_arrive(
    fetch: Fetch, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.trainer.feed._POLL_S", 0.0)
    plan = [m.Unit(k, k // 2, block=k // 2, block_first_unit=k - k % 2, parts=()) for k in range(200)]
    fetcher = fetch(plan_of_units=plan)
    agreement = CountedTurns(Ranks.alone(), lambda: False)
    looks = 0
    with closing(connect(agreement=agreement).stream(StreamPosition())) as waits:
        while not fetcher.dispatcher.places.has_barren_epoch:
            assert next(waits) is None
            looks += 1
    assert agreement.turns == looks > 0
