"""The feed against a real transport and dispatcher; units are filled in place of a decoder."""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from delayed_copier import DelayedCopier

from common import messages as m
from common.arena import Arena
from common.config import StreamConfig, TransportConfig
from common.errors import BadInputError
from common.ragged import SlotHeader, content_digest, slot_bytes_needed, unit_arrays, write_header
from common.schema import MUONS
from common.transport import Lost, Received, ServerTransport
from services.decoder.microbatch import microbatch_bounds
from services.fetcher.dispatcher import Action, Dispatcher, EndRun, Evict, Replan, Send
from services.trainer.stream.copier import copiers_for
from services.trainer.stream.feed import FedBatch, Feed
from services.trainer.stream.microbatch_copy import Copiers
from services.trainer.stream.position import StreamPosition

PLAN = "ab" * 16
STREAM = StreamConfig(batch_events=4, max_particles=6, slots=2, slot_mib=0.02)
CONFIG = TransportConfig(connect_timeout_s=20)
EVENTS = (10, 0, 7, 9, 1, 12)
"""Events of units 0, 1, …; event e of unit k has e % 3 particles."""


def unit(k: int) -> m.Unit:
    part = m.Part(k, "f", 0, 0, EVENTS[k], 99, 0) if EVENTS[k] else None
    return m.Unit(k=k, epoch=0, block=k // 2, block_first_unit=k - k % 2, parts=(part,) if part else ())


class Fetcher:
    """Dispatcher, transport and one imagined decoder in a thread.

    `skip`: units that can't be decoded; `wrong_headers`: for each such unit, the times that its slot gets another
    unit's header; `damaged`: units of which the last three events can't be read.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        plan: str = PLAN,
        skip: tuple[int, ...] = (),
        wrong_headers: dict[int, int] | None = None,
        damaged: tuple[int, ...] = (),
        stream: StreamConfig = STREAM,
        decodes: bool = True,
    ):
        self._decodes = decodes
        self.arena = Arena.create(stream.slots, stream.slot_bytes)
        self.dispatcher = Dispatcher(
            slots=stream.slots,
            plan_hash=plan,
            max_unit_deaths=1 if wrong_headers is None else 3,
            stall_timeout_s=1000,
            lanes=stream.lanes,
        )
        self._stream = stream
        self.transport = ServerTransport(run_dir, CONFIG, self.arena, plan)
        self.finished = threading.Event()
        self.evicted: list[int] = []
        self.committed = threading.Event()
        self.ask_for_commit = False
        self._plan = plan
        self._skip = skip
        self._wrong_headers = Counter(wrong_headers)
        self._damaged = damaged
        self.rejected: list[m.Reject] = []
        self.attached: list[m.Attach] = []
        self._leases: deque[m.Lease] = deque()
        self._stopped = False
        self._act(self.dispatcher.handle("decoder", m.Hello(1), 0.0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopped:
            for event in self.transport.poll(0.01):
                match event:
                    case Received(peer, message):
                        if isinstance(message, m.Reject):
                            self.rejected.append(message)
                        if isinstance(message, m.Attach):
                            self.attached.append(message)
                        for former in self.dispatcher.trainers if isinstance(message, m.Attach) else ():
                            if not self.transport.is_connected(former):
                                self._act(self.dispatcher.lose(former))  # as the service: its end may come later
                        self._act(self.dispatcher.handle(peer, message, 0.0))
                    case Lost(peer):
                        self._act(self.dispatcher.lose(peer))
            while self._leases and self._decodes:
                self._decode(self._leases.popleft())
            if self.ask_for_commit and self.dispatcher.trainers:
                self.ask_for_commit = False
                self.transport.send(self.dispatcher.trainers[0], m.CommitRequest())

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send("decoder", m.Lease() as lease):
                    self._leases.append(lease)
                case Send(peer, message):
                    self.transport.send(peer, message)
                case Replan(cursor):
                    units = [unit(k) for k in range(cursor.block_first_unit, len(EVENTS))]
                    self._act(self.dispatcher.add_units(units))
                    self._act(self.dispatcher.end_plan())
                case Evict(before_block):
                    self.evicted.append(before_block)
                    self.committed.set()
                case EndRun():
                    self.finished.set()

    def _decode(self, lease: m.Lease) -> None:
        k = lease.unit.k
        if k in self._skip:
            self._act(self.dispatcher.handle("decoder", m.Failed(k, lease.lease, "poison"), 0.0))
            return
        num_events = EVENTS[k] - 3 * (k in self._damaged)
        counts = np.arange(num_events) % 3
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        bounds = microbatch_bounds(offsets, self._stream.lane_batch_events, self._stream.max_particles)
        layout = m.Layout(num_events, int(offsets[-1]), len(bounds) - 1)
        assert slot_bytes_needed(MUONS, layout) <= STREAM.slot_bytes
        slot = self.arena.slot(lease.slot)
        slot[:] = 0xEE  # whoever still reads a former unit here sees rubbish
        arrays = unit_arrays(slot, MUONS, layout)
        arrays.offsets[:] = offsets
        arrays.microbatch_bounds[:] = bounds
        arrays.event_columns["source_row"][:, 0] = 100 * k + np.arange(num_events)
        arrays.particle_columns["muons"][:, 0] = np.repeat(100 * k + np.arange(num_events), counts)
        is_wrong = self._wrong_headers[k] > 0
        self._wrong_headers[k] -= is_wrong
        write_header(slot, SlotHeader(self._plan, k + is_wrong, lease.lease, layout))
        tally = m.Tally(rows_read=EVENTS[k], quarantined=EVENTS[k] - num_events)
        done = m.Done(k, lease.lease, layout, tally, content_digest(arrays))
        self._act(self.dispatcher.handle("decoder", done, 0.0))

    def close(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._thread.join(timeout=20)
            self.transport.close()
            self.arena.close()
            self.dispatcher.validate()


@pytest.fixture
def fetch(tmp_path: Path) -> Iterator[Callable[..., Fetcher]]:
    started: list[Fetcher] = []

    def start(**options: object) -> Fetcher:
        started.append(Fetcher(tmp_path, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for fetcher in started:
        fetcher.close()


@pytest.fixture(params=["on the CPU", "late, two batches ahead"])
def connect(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], Feed]]:
    feeds: list[Feed] = []
    copiers = copiers_for(torch.device("cpu"))
    if request.param != "on the CPU":
        copiers = Copiers(lambda arena: DelayedCopier(arena, torch.device("cpu")))

    def make(
        stopped: Callable[[], bool] = lambda: False, *, stream: StreamConfig = STREAM, rank: int = 0, ranks: int = 1
    ) -> Feed:
        feeds.append(
            Feed(
                tmp_path,
                MUONS,
                stream,
                CONFIG,
                copiers=copiers,
                prefetch_units=2,
                audit=True,
                stopped=stopped,
                rank=rank,
                ranks=ranks,
            )
        )
        return feeds[-1]

    yield make
    for feed in feeds:
        feed.close()


def rows(fed: FedBatch) -> list[int]:
    """The events of a batch, after a look at their particles."""
    found: list[int] = []
    for microbatch in fed.batch.microbatches:
        numbers = microbatch.event_columns["source_row"][:, 0].tolist()
        counts = microbatch.offsets_E1.diff()
        assert counts.tolist() == [number % 100 % 3 for number in numbers]
        energies = torch.repeat_interleave(torch.tensor(numbers), counts).float()
        assert torch.equal(microbatch.particle_columns["muons"][:, 0], energies)
        assert microbatch.num_particles <= STREAM.max_particles
        found += numbers
    return found


ALL_ROWS = [100 * k + e for k, events in enumerate(EVENTS) for e in range(events)]


def test_every_event_comes_once_in_order_in_batches_of_enough_events(
    fetch: Callable[..., Fetcher], connect: Callable[[], Feed]
) -> None:
    fetcher, feed = fetch(), connect()
    batches = list(feed.batches(StreamPosition()))
    assert [row for fed in batches for row in rows(fed)] == ALL_ROWS
    assert all(fed.batch.num_events >= STREAM.batch_events for fed in batches[:-1])
    assert feed.ended
    assert feed.position.cursors[0] == m.Cursor(2, 4, len(EVENTS), 0)
    assert feed.position.counters.adds_up()
    assert feed.position.counters.events_trained == len(ALL_ROWS)
    lines = [json.loads(line) for fed in batches for line in fed.audit_lines]
    assert [(line["unit"], line["microbatch"]) for line in lines] == sorted(
        (line["unit"], line["microbatch"]) for line in lines
    )
    feed.finished(feed.position)
    assert fetcher.finished.wait(20)


def test_a_run_resumed_after_any_batch_gets_exactly_the_rest(
    fetch: Callable[..., Fetcher], connect: Callable[[], Feed]
) -> None:
    fetch()
    feed = connect()
    batches = list(feed.batches(StreamPosition()))
    feed.close()
    assert any(fed.position.cursors[0].microbatch for fed in batches), "some batches end inside a unit"
    for number, fed in enumerate(batches):
        again = connect()
        rest = list(again.batches(fed.position))
        again.close()
        assert [rows(other) for other in rest] == [rows(other) for other in batches[number + 1 :]]
        assert again.position == feed.position


def test_a_feed_goes_on_with_the_next_batch_when_the_fetcher_comes_back(
    fetch: Callable[..., Fetcher], connect: Callable[[], Feed]
) -> None:
    first = fetch()
    feed = connect()
    found: list[int] = []
    for number, fed in enumerate(feed.batches(StreamPosition())):
        found += rows(fed)
        if number in (1, 4):
            first.close()
            first = fetch()
    assert found == ALL_ROWS
    assert feed.position.counters.events_trained == len(ALL_ROWS)


def test_a_fetcher_that_comes_back_with_another_plan_is_refused(
    fetch: Callable[..., Fetcher], connect: Callable[[], Feed]
) -> None:
    first = fetch()
    batches = connect().batches(StreamPosition())
    next(batches)
    first.close()
    fetch(plan="cd" * 16)
    with pytest.raises(BadInputError, match="came back with another plan"):
        list(batches)


def test_a_skipped_unit_is_counted_and_told(fetch: Callable[..., Fetcher], connect: Callable[[], Feed]) -> None:
    fetch(skip=(2,))
    feed = connect()
    found = [row for fed in feed.batches(StreamPosition()) for row in rows(fed)]
    assert found == [row for row in ALL_ROWS if row // 100 != 2]
    assert feed.position.skipped_units == (2,)
    assert feed.position.counters.events_quarantined == EVENTS[2]
    assert feed.position.counters.adds_up()


@pytest.mark.parametrize("wrong", [1, 2])
def test_a_slot_with_another_unit_is_decoded_again_and_training_goes_on(
    fetch: Callable[..., Fetcher], connect: Callable[[], Feed], wrong: int
) -> None:
    fetcher, feed = fetch(wrong_headers={0: wrong, 3: wrong}), connect()
    batches = list(feed.batches(StreamPosition()))
    assert [row for fed in batches for row in rows(fed)] == ALL_ROWS
    assert [reject.k for reject in fetcher.rejected] == [0] * wrong + [3] * wrong
    assert "but holds" in fetcher.rejected[0].reason


def test_a_slot_that_holds_another_unit_again_and_again_is_skipped_in_the_end(
    fetch: Callable[..., Fetcher], connect: Callable[[], Feed]
) -> None:
    fetcher, feed = fetch(wrong_headers={2: 1000}), connect()
    found = [row for fed in feed.batches(StreamPosition()) for row in rows(fed)]
    assert found == [row for row in ALL_ROWS if row // 100 != 2]
    assert len(fetcher.rejected) == 3
    assert feed.position.skipped_units == (2,)
    assert feed.position.counters.adds_up()


def test_an_attaching_trainer_names_the_bad_files_that_it_counted_and_those_that_its_lanes_depend_on(
    fetch: Callable[..., Fetcher], connect: Callable[[], Feed]
) -> None:
    fetcher, feed = fetch(), connect()
    journal = (m.Quarantined(9, -1, 3, "no footer"), m.Quarantined(2, 0, 3, "a row group"), m.Quarantined(4, -1, 0, ""))
    list(feed.batches(StreamPosition(quarantined=journal, bad_files=(4, 7))))
    assert [attach.bad_files for attach in fetcher.attached] == [(4, 7, 9)]


def open_positions(feed: Feed) -> dict[int, StreamPosition]:
    """Where the feed is inside of a unit, for each unit the last such place."""
    positions = [fed.position for fed in feed.batches(StreamPosition())]
    return {at.cursors[0].unit: at for at in positions if at.cursors[0].microbatch}


@pytest.mark.parametrize("restarts", [1, 3])
def test_no_event_is_trained_twice_when_a_half_trained_unit_comes_back_different(
    fetch: Callable[..., Fetcher], connect: Callable[[], Feed], restarts: int, caplog: pytest.LogCaptureFixture
) -> None:
    first = fetch()
    feed = connect()
    opened = open_positions(feed)
    feed.close()
    first.close()
    fetcher = fetch(damaged=tuple(opened))
    for k, position in opened.items():
        trained = position.lanes[0].open_unit_events
        for _ in range(restarts):  # none of them gets to a checkpoint
            again = connect()
            found = [row for fed in again.batches(position) for row in rows(fed)]
            again.close()
            readable = [row for row in ALL_ROWS if not (row // 100 in opened and row % 100 >= EVENTS[row // 100] - 3)]
            assert found == [row for row in readable if row // 100 > k]
            counters = again.position.counters
            assert counters.adds_up()
            assert counters.events_read == len(ALL_ROWS)
            assert counters.events_trained == position.counters.events_trained + len(found)
            (line,) = again.position.changed_units
            assert line.startswith(f"unit {k} came back with other events")
            assert f"{trained} of them were trained, {EVENTS[k] - trained} are quarantined" in line
            assert line in caplog.text
    assert len(opened) > 1
    assert fetcher.dispatcher.counts["unexpected_messages"] == 0


def test_a_half_trained_unit_that_comes_back_the_same_is_not_told(
    fetch: Callable[..., Fetcher], connect: Callable[[], Feed], caplog: pytest.LogCaptureFixture
) -> None:
    fetch()
    first = connect()
    opened = open_positions(first)
    first.close()
    for position in opened.values():
        feed = connect()
        list(feed.batches(position))
        feed.close()
        assert feed.position.changed_units == ()
        assert feed.position.counters.events_trained == len(ALL_ROWS)
    assert "came back" not in caplog.text


def test_a_second_trainer_is_refused(fetch: Callable[..., Fetcher], connect: Callable[[], Feed]) -> None:
    fetch()
    with closing(connect().batches(StreamPosition())) as first:
        next(first)
        with pytest.raises(BadInputError, match="a trainer is already attached"):
            next(connect().batches(StreamPosition()))


def test_a_commit_lets_files_go_and_a_request_for_one_is_heard(
    fetch: Callable[..., Fetcher], connect: Callable[[], Feed]
) -> None:
    fetcher, feed = fetch(), connect()
    asked: list[bool] = []

    def commit() -> None:
        asked.append(True)
        feed.committed(feed.position)

    feed.on_commit_request = commit
    for number, _ in enumerate(feed.batches(StreamPosition())):
        fetcher.ask_for_commit |= number == 0
    feed.committed(feed.position)
    feed.finished(feed.position)
    assert fetcher.finished.wait(20)
    assert fetcher.evicted[-1] == 3, "the last block is used up, too"
    assert len(fetcher.evicted) == len(asked) + 1


def test_a_trainer_with_nothing_left_to_do_ends_the_run_all_the_same(
    fetch: Callable[..., Fetcher], connect: Callable[[], Feed]
) -> None:
    fetcher = fetch()
    connect().finished(StreamPosition())
    assert fetcher.finished.wait(20)


def test_a_feed_that_is_asked_to_stop_ends_without_end(fetch: Callable[..., Fetcher], connect: Callable[..., Feed]):
    fetch()
    stop = False
    feed = connect(lambda: stop)
    found = []
    for fed in feed.batches(StreamPosition()):
        found += rows(fed)
        stop = True
    assert found == ALL_ROWS[: len(found)]
    assert 0 < len(found) < len(ALL_ROWS)
    assert not feed.ended


def delayed_copier(feed: Feed) -> DelayedCopier:
    copier = feed._copier
    assert isinstance(copier, DelayedCopier)
    return copier


@pytest.mark.parametrize("connect", ["late, two batches ahead"], indirect=True)
def test_two_batches_are_copied_ahead_and_the_position_is_that_of_the_trained_one(
    fetch: Callable[..., Fetcher], connect: Callable[..., Feed]
) -> None:
    fetch()
    feed = connect()
    before = StreamPosition()
    for fed in feed.batches(before):
        copier = delayed_copier(feed)
        assert copier.marked - copier.handed_over <= 2
        assert feed.position == before
        before = fed.position
    assert 1 <= copier.most_ahead <= 2, "the first unit holds more than one batch"
    assert copier.marked == copier.handed_over
    assert feed.position == before


def test_a_feed_that_finds_no_unit_says_so_again_and_again_and_counts_the_time(
    fetch: Callable[..., Fetcher], connect: Callable[..., Feed]
) -> None:
    fetch(decodes=False)
    told: list[float] = []
    feed = connect(stopped=lambda: len(told) >= 3)
    feed.on_wait = lambda: told.append(feed.waits.get_s)
    assert list(feed.batches(StreamPosition())) == []
    assert 0.0 < told[0] < told[1] < told[2]
    assert feed.waits.put_s == 0.0


# ------------------------------------------------------------------ lanes


def two_lanes(slots: int) -> StreamConfig:
    return STREAM.model_copy(update={"lanes": 2, "slots": slots})


def rows_of_lane(batches: list[FedBatch], lane: int) -> list[int]:
    return [row for fed in batches for row in rows(fed) if row // 100 % 2 == lane]


def rows_of_units(lane: int) -> list[int]:
    return [row for row in ALL_ROWS if row // 100 % 2 == lane]


@pytest.mark.parametrize("slots", [2, 3, 8])
def test_one_trainer_takes_its_share_of_every_lane_for_each_batch(
    fetch: Callable[..., Fetcher], connect: Callable[..., Feed], slots: int
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
    fetch: Callable[..., Fetcher], connect: Callable[..., Feed], slots: int
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
    fetch: Callable[..., Fetcher], connect: Callable[..., Feed], slots: int
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
    fetch: Callable[..., Fetcher], connect: Callable[..., Feed], slots: int
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


def test_ranks_that_cannot_share_the_lanes_are_refused(connect: Callable[..., Feed]) -> None:
    with pytest.raises(BadInputError, match=r"stream\.lanes = 2 must be a multiple of the number of trainers, 3"):
        connect(stream=two_lanes(2), rank=0, ranks=3)
