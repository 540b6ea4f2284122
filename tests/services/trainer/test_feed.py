"""The feed of one trainer alone, against a real transport and dispatcher."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from fake_cuda import FakeCuda, WatchedCopier
from feeding import ALL_ROWS, EVENTS, STREAM, BatchFeed, Connect, Fetch, rows
from proc import wait_for

from common import messages as m
from common.errors import BadInputError
from services.trainer.position import StreamPosition
from services.trainer.units import BatchWaits
from workloads.muons.columns import MUONS


def test_every_event_comes_once_in_order_in_batches_of_enough_events(fetch: Fetch, connect: Connect) -> None:
    fetcher, feed = fetch(), connect()
    batches = list(feed.batches(StreamPosition()))
    assert [row for fed in batches for row in rows(fed)] == ALL_ROWS
    assert all(fed.batch.num_events >= STREAM.batch_events for fed in batches[:-1])
    assert feed.ended
    assert feed.position.cursor == m.Cursor(2, 4, len(EVENTS), 0)
    assert feed.position.counters.adds_up()
    assert feed.position.counters.events_trained == len(ALL_ROWS)
    lines = [json.loads(line) for fed in batches for _, line in fed.audit_lines]
    assert [(line["unit"], line["microbatch"]) for line in lines] == sorted(
        (line["unit"], line["microbatch"]) for line in lines
    )
    feed.finished(feed.position)
    assert fetcher.finished.wait(20)


def test_a_run_resumed_after_any_batch_gets_exactly_the_rest(fetch: Fetch, connect: Connect) -> None:
    fetch()
    feed = connect()
    batches = list(feed.batches(StreamPosition()))
    feed.close()
    assert any(fed.position.cursor.microbatch for fed in batches), "some batches end inside a unit"
    for number, fed in enumerate(batches):
        again = connect()
        rest = list(again.batches(fed.position))
        again.close()
        assert [rows(other) for other in rest] == [rows(other) for other in batches[number + 1 :]]
        assert again.position == feed.position


def test_a_feed_goes_on_with_the_next_batch_when_the_fetcher_comes_back(
    fetch: Fetch, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """No warning: under `icestream.stream` it would precede the user's error that ended the fetcher."""
    caplog.set_level("INFO", "services.trainer.feed")
    first = fetch()
    feed = connect()
    found: list[int] = []
    for number, fed in enumerate(feed.batches(StreamPosition())):
        found += rows(fed)
        if number in (1, 4):
            first.close()
            first = fetch()
    lost = [record.levelname for record in caplog.records if "the fetcher is gone" in record.message]
    assert set(lost) == {"INFO"}
    assert found == ALL_ROWS
    assert feed.position.counters.events_trained == len(ALL_ROWS)


def test_a_fetcher_that_comes_back_with_another_plan_is_refused(fetch: Fetch, connect: Connect) -> None:
    first = fetch()
    batches = connect().batches(StreamPosition())
    next(batches)
    first.close()
    fetch(plan="cd" * 16)
    with pytest.raises(BadInputError, match="came back with another plan"):
        list(batches)


def test_a_slot_with_another_unit_is_decoded_again_and_skipped_in_the_end(fetch: Fetch, connect: Connect) -> None:
    fetcher, feed = fetch(wrong_headers={0: 2, 2: 1000}), connect()
    found = [row for fed in feed.batches(StreamPosition()) for row in rows(fed)]
    assert found == [row for row in ALL_ROWS if row // 100 != 2]
    assert [reject.k for reject in fetcher.of(m.Reject)] == [0, 0, 2, 2, 2]
    assert "but holds" in fetcher.of(m.Reject)[0].reason
    assert feed.position.skipped_units == (2,)
    assert feed.position.counters.adds_up()


def test_an_attaching_trainer_names_the_bad_files_that_it_counted(fetch: Fetch, connect: Connect) -> None:
    fetcher, feed = fetch(), connect()
    journal = (m.Quarantined(9, -1, 3, "no footer"), m.Quarantined(2, 0, 3, "a row group"), m.Quarantined(4, -1, 0, ""))
    list(feed.batches(StreamPosition(quarantined=journal)))
    assert [attach.bad_files for attach in fetcher.of(m.Attach)] == [(4, 9)]


def open_positions(feed: BatchFeed) -> dict[int, StreamPosition]:
    """Where the feed is inside of a unit, for each unit the last such place."""
    positions = [fed.position for fed in feed.batches(StreamPosition())]
    return {at.cursor.unit: at for at in positions if at.cursor.microbatch}


@pytest.mark.parametrize("restarts", [1, 3])
def test_no_event_is_trained_twice_when_a_half_trained_unit_comes_back_different(
    fetch: Fetch, connect: Connect, restarts: int, caplog: pytest.LogCaptureFixture
) -> None:
    first = fetch()
    feed = connect()
    opened = open_positions(feed)
    feed.close()
    first.close()
    fetcher = fetch(damaged=tuple(opened))
    for k, position in opened.items():
        trained = position.open_unit_events
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
            assert line.startswith(f"unit {k} has changed since it was begun")
            assert f"{trained} of its events were trained, {EVENTS[k] - trained} are quarantined" in line
            assert line in caplog.text
    assert len(opened) > 1
    assert fetcher.dispatcher.counts["unexpected_messages"] == 0


def test_a_second_trainer_is_refused(fetch: Fetch, connect: Connect) -> None:
    fetch()
    with closing(connect().batches(StreamPosition())) as first:
        next(first)
        with pytest.raises(BadInputError, match="a trainer is already attached"):
            next(connect().batches(StreamPosition()))


def test_a_commit_lets_files_go_and_a_request_for_one_is_heard(fetch: Fetch, connect: Connect) -> None:
    fetcher, feed = fetch(), connect()
    asked = 0
    for number, fed in enumerate(feed.stream(StreamPosition())):
        if feed.agreement.take_commit_request():
            asked += 1
            feed.committed(feed.position if fed is None else fed.position)
        fetcher.ask_for_commit |= number == 0
    feed.committed(feed.position)
    feed.finished(feed.position)
    assert fetcher.finished.wait(20)
    assert fetcher.evicted[-1] == 3, "the last block is used up, too"
    assert len(fetcher.evicted) == asked + 1 == 2


def test_a_trainer_with_nothing_left_to_do_ends_the_run_all_the_same(fetch: Fetch, connect: Connect) -> None:
    fetcher = fetch()
    connect().finished(StreamPosition())
    assert fetcher.finished.wait(20)


@pytest.mark.parametrize(("stops", "end"), [(True, "left"), (False, "is gone")])
def test_a_feed_that_is_asked_to_stop_takes_its_leave_and_one_that_fails_does_not(
    fetch: Fetch, connect: Connect, caplog: pytest.LogCaptureFixture, stops: bool, end: str
) -> None:
    caplog.set_level("INFO", "services.fetcher.dispatcher")
    fetcher = fetch()
    stop: list[bool] = []
    feed = connect(lambda: bool(stop))
    found = []
    for fed in feed.batches(StreamPosition()):
        found += rows(fed)
        stop += [True] * stops
        if not stops:
            break
    assert found == ALL_ROWS[: len(found)]
    assert 0 < len(found) < len(ALL_ROWS)
    assert not feed.ended
    feed.close()
    wait_for(lambda: not fetcher.dispatcher.trainers, "its end")
    assert [message.split(maxsplit=2)[2] for message in caplog.messages if message.endswith(("left", "gone"))] == [end]


def watched_copier(feed: BatchFeed) -> WatchedCopier:
    copier = feed._links[0].copier
    assert isinstance(copier, WatchedCopier)
    return copier


on_a_fake_gpu = pytest.mark.parametrize("connect", ["on a fake GPU"], indirect=True)


@on_a_fake_gpu
def test_two_batches_are_copied_ahead_and_the_position_is_that_of_the_trained_one(
    fetch: Fetch, connect: Connect
) -> None:
    fetch()
    feed = connect()
    before = StreamPosition()
    for fed in feed.batches(before):
        copier = watched_copier(feed)
        assert copier.marked - copier.handed_over <= 2
        assert feed.position == before
        before = fed.position
    assert 1 <= copier.most_ahead <= 2, "the first unit holds more than one batch"
    assert copier.marked == copier.handed_over
    assert feed.position == before


@on_a_fake_gpu
def test_a_slot_is_released_when_its_copy_is_complete_and_before_the_step(
    fetch: Fetch, connect: Connect, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No further message, and no further turn of the feed, is needed for that. The order is that of the plan."""
    fetcher, feed = fetch(), connect()
    order: list[str] = []
    send = feed._links[0].transport.send
    cuda.before_wait = lambda: order.append("wait for a copy")

    def watched_send(message: m.Message) -> None:
        order.extend([f"release {message.k}"] if isinstance(message, m.Release) else [])
        send(message)

    monkeypatch.setattr(feed._links[0].transport, "send", watched_send)
    released: list[int] = []
    for fed in feed.batches(StreamPosition()):
        while len(released) < fed.position.cursor.unit:  # the feed stands still: the messages are on their way
            released.append(fetcher.released.get(timeout=20))
    waits = [[] if events == 0 else ["wait for a copy"] for events in EVENTS]
    assert order == [word for k, wait in enumerate(waits) for word in (*wait, f"release {k}")]


@on_a_fake_gpu
def test_a_feed_that_is_closed_with_copies_begun_completes_them_and_releases_nothing_more(
    fetch: Fetch, connect: Connect, cuda: FakeCuda
) -> None:
    fetcher = fetch()
    feed = connect()
    stream = feed.batches(StreamPosition())
    next(stream)
    (copies,) = cuda.streams
    assert copies.work, "batches ahead are being copied"
    num_waits = cuda.waits
    stream.close()
    feed.close()
    assert not copies.work, "nobody reads the arena any more"
    assert cuda.waits == num_waits
    fetcher.close()
    found = {fetcher.released.get() for _ in range(fetcher.released.qsize())}
    assert found <= {0, 1}, "what was copied before"


@pytest.mark.parametrize("keep_ids", [True, False])
def test_ids_come_beside_the_batch_only_if_somebody_needs_them(
    fetch: Fetch, connect: Connect, *, keep_ids: bool
) -> None:
    fetch()
    found: list[list[int]] = []
    feed = connect(columns=MUONS.step_columns, audit=False, keep_ids=keep_ids)
    for fed in feed.batches(StreamPosition()):
        parts = fed.batch.microbatches
        assert all(part.event_columns.keys() == {"primary"} for part in parts)
        assert [len(ids["primary_id"]) if ids else 0 for ids in fed.ids] == [
            part.num_events * keep_ids for part in parts
        ]
        found += [one for ids in fed.ids if ids for one in ids["primary_id"].tolist()]
    assert found == ([[row // 100, row % 100] for row in ALL_ROWS] if keep_ids else [])


def test_a_feed_that_finds_no_unit_says_so_again_and_again_and_counts_the_time(fetch: Fetch, connect: Connect) -> None:
    fetch(decodes=False)
    told: list[float] = []
    feed = connect(stopped=lambda: len(told) >= 3)
    for fed in feed.stream(StreamPosition()):
        assert fed is None
        told += [feed.waits.get_s] if feed.waits.get_s > max(told, default=0.0) else []
    assert 0.0 < told[0] < told[1] < told[2]
    assert feed.waits.put_s == 0.0


def test_a_step_kept_the_feed_waiting_if_the_next_batch_was_at_hand_at_its_end() -> None:
    waits = BatchWaits()
    waits.waited(5.0)
    waits.given(5.0)
    waits.taken(6.0)  # the lateness is forgotten with the next batch
    waits.given(6.0)
    waits.taken(8.0)
    waits.given(8.0)
    assert (waits.put_s, waits.get_s) == (3.0, 5.0)
    waits.taken(11.0)
    waits.waited(0.25)
    waits.given(11.25)
    assert (waits.put_s, waits.get_s) == (3.0, 5.25), "the loop had to wait"
