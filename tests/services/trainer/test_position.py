"""Where the weights are in the stream, and what became of every event before."""

from __future__ import annotations

import random
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import messages as m
from common.config import StreamConfig
from common.status import Counters
from common.unit_arrays import SlotMismatch
from services.trainer.agreement import Turn, shares_of_rank
from services.trainer.position import ShardedPosition, StreamPosition, read_position, start_of


def unit(
    k: int = 4, *, events: int = 7, slot: int = 0, tally: m.Tally | None = None, **changes: object
) -> m.DeliveredUnit:
    fields = {"k": k, "epoch": 1, "block": 2, "block_first_unit": 3, "slot": slot, "lease": 9, "block_quarantined": ()}
    fields |= {"layout": m.Layout(events, 20, 2), "tally": tally or m.Tally(rows_read=events)}
    return m.DeliveredUnit(**(fields | changes))  # type: ignore[arg-type]


def test_the_sums_add_up_after_every_microbatch_and_every_unit() -> None:
    tally = m.Tally(rows_read=26, outliers=2, empty=3, quarantined=8, held_out=6, particles_dropped=5)
    first = StreamPosition().after_microbatches(unit(), 1, 4, 11)
    second = first.after_microbatches(unit(), 2, 3, 9)
    done = second.after_unit(unit(tally=tally))
    assert (first.cursor, first.epoch) == (m.Cursor(2, 3, 4, 1), 1)
    assert (first.counters.events_read, first.counters.events_trained) == (4, 4)
    assert (first.counters.particles_trained, first.counters.microbatches) == (11, 1)
    assert first.counters.adds_up()
    assert second.counters.adds_up()
    assert done.counters.adds_up()
    assert done.counters.events_read == 26
    assert done.counters.events_held_out == 6
    assert (done.counters.events_outlier, done.counters.events_empty, done.counters.events_quarantined) == (2, 3, 8)
    assert done.counters.particles_dropped == 5
    assert done.cursor == m.Cursor(2, 3, 5, 0)


def test_a_unit_whose_tally_does_not_add_up_is_refused() -> None:
    with pytest.raises(SlotMismatch, match="doesn't add up"):
        StreamPosition().after_unit(unit(tally=m.Tally(rows_read=8)))


def test_a_skipped_unit_is_journaled_with_its_reason() -> None:
    bad = m.Quarantined(0, 1, 7, "it killed three decoders")
    tally = m.Tally(rows_read=7, quarantined=7, bad=(bad,))
    skipped = unit(slot=-1, tally=tally, layout=m.Layout(0, 0, 0))
    position = StreamPosition().after_unit(skipped)
    assert position.skipped_units == (4,)
    assert position.cursor.unit > 4, "so it is never asked for again, and no Attach has to name it"
    assert position.quarantined == (bad,)
    assert position.counters.events_quarantined == 7


def test_files_that_gave_no_units_are_counted_once_with_the_first_that_is_seen_of_their_block() -> None:
    bad = m.Quarantined(5, -1, 30, "a column is missing")
    first = unit(block_quarantined=(bad,))
    started = StreamPosition().after_microbatches(first, 1, 4, 11)
    done = started.after_microbatches(first, 2, 3, 9).after_unit(first)
    for position in (started, done):
        assert position.counters.events_quarantined == 30
        assert position.quarantined == (bad,)
        assert position.counters.adds_up()
    assert done.counters.events_read == 37
    empty = unit(block_quarantined=(bad,), layout=m.Layout(0, 0, 0), tally=m.Tally())
    assert StreamPosition().after_unit(empty).counters.events_quarantined == 30


def test_what_is_bad_in_every_epoch_stands_in_the_journal_once() -> None:
    bad = m.Quarantined(5, 2, 7, "row group 2: nan")
    tally = m.Tally(rows_read=7, quarantined=7, bad=(bad,))
    once = StreamPosition().after_unit(unit(tally=tally, layout=m.Layout(0, 0, 0)))
    twice = once.after_unit(unit(9, tally=tally, layout=m.Layout(0, 0, 0)))
    assert twice.quarantined == (bad,)
    assert twice.counters.events_quarantined == 14


OLD, NEW = "0d" * 16, "1e" * 16


def open_position(unit: m.DeliveredUnit, events: int = 4) -> StreamPosition:
    """One microbatch of ``unit`` was trained, and a checkpoint written and read."""
    position = StreamPosition().after_unit(empty_unit(0)).after_microbatches(unit, 1, events, 11)
    return StreamPosition.model_validate_json(position.model_dump_json())


def empty_unit(k: int) -> m.DeliveredUnit:
    return unit(k, tally=m.Tally(), layout=m.Layout(0, 0, 0))


@st.composite
def tallies(draw: st.DrawFn, rows: int) -> tuple[m.Layout, m.Tally]:
    """What a decoder makes of a unit of ``rows`` rows."""
    bounds = sorted(draw(st.lists(st.integers(0, rows), min_size=5, max_size=5)))
    fates = [b - a for a, b in zip([0, *bounds], [*bounds, rows], strict=True)]
    events, outliers, empty, quarantined, held_out, invalid = fates
    tally = m.Tally(rows, outliers, empty, quarantined, held_out=held_out, invalid=invalid)
    return m.Layout(events, 3 * events, min(events, 5)), tally


@settings(max_examples=150, deadline=None)
@given(data=st.data(), rows=st.integers(1, 40), skipped=st.booleans())
def test_the_sums_are_those_of_the_rows_whatever_a_half_trained_unit_comes_back_as(
    data: st.DataObject, rows: int, skipped: bool
) -> None:
    (layout, tally), (new_layout, new_tally) = data.draw(tallies(rows)), data.draw(tallies(rows))
    begun = unit(1, layout=layout, tally=tally, content=OLD)
    trained = data.draw(st.integers(0, layout.events))
    position = open_position(begun, trained)
    if skipped:
        back = unit(1, slot=-1, layout=m.Layout(0, 0, 0), tally=m.Tally(rows_read=rows, quarantined=rows))
    else:
        back = unit(1, layout=new_layout, tally=new_tally, content=NEW)
        assert position.is_changed(back)
    counters = position.after_unit(back).counters
    assert position.after_unit(back).open_unit_events == 0
    assert counters.adds_up()
    assert counters.events_read == rows
    assert counters.events_trained == trained, "nothing of the new content counts as trained"
    assert min(counters.events_outlier, counters.events_empty, counters.events_quarantined) >= 0
    assert counters.events_held_out >= 0
    aside = new_tally.outliers + new_tally.empty + new_tally.held_out
    if not skipped and trained + aside <= rows:
        assert counters.events_outlier == new_tally.outliers, "as many as stand in the outliers' file"
        assert counters.events_held_out == new_tally.held_out
        assert counters.events_quarantined == rows - trained - aside


def test_a_unit_that_comes_back_as_it_was_goes_on() -> None:
    begun = unit(1, content=OLD)
    position = open_position(begun)
    assert position.content == OLD
    assert not position.is_changed(begun)
    done = position.after_microbatches(begun, 2, 3, 9).after_unit(begun)
    assert done.content == ""
    assert (done.counters.events_trained, done.counters.events_quarantined) == (7, 0)
    assert done.changed_units == ()


def test_a_unit_that_comes_back_different_is_told_with_its_number_and_its_sums() -> None:
    bad = m.Quarantined(5, 0, 3, "row group 0: damaged")
    back = unit(1, events=4, tally=m.Tally(rows_read=7, quarantined=3, bad=(bad,)), content=NEW)
    done = open_position(unit(1, content=OLD)).after_unit(back)
    (line,) = done.changed_units
    assert line.startswith("unit 1 has changed since it was begun: 4 of its events were trained, 3")
    assert done.set_aside == ("row group 0: damaged", line)
    assert done.cursors == (m.Cursor(2, 3, 2, 0),)
    assert done.skipped_units == (), "the unit is behind the cursor: nobody skips it again"


def test_a_position_that_grows_by_what_was_told_is_that_of_the_rank_that_told_it() -> None:
    bad = m.Quarantined(5, 0, 3, "row group 0: damaged")
    file = m.Quarantined(7, -1, 30, "no footer")
    first = unit(4, block_quarantined=(file,), source=m.Source(2, "bb"))
    with_bad = unit(5, events=4, tally=m.Tally(rows_read=7, quarantined=3, bad=(bad,)), content=OLD)
    skipped = unit(6, slot=-1, layout=m.Layout(0, 0, 0), tally=m.Tally(rows_read=7, quarantined=7))
    position = told = StreamPosition()
    for step in (
        lambda at: at.after_microbatches(first, 1, 4, 11),
        lambda at: at.after_microbatches(first, 2, 3, 9).after_unit(first).after_microbatches(with_bad, 1, 4, 8),
        lambda at: at.after_unit(unit(5, events=3, content=NEW)),
        lambda at: at.after_unit(with_bad).after_unit(skipped),
    ):
        before, position = position, step(position)
        growth = StreamPosition.model_validate_json(position.since(before).model_dump_json(exclude_defaults=True))
        told = told.grown(growth)
        assert told == position
        assert told.counters.adds_up()
    assert told.bad_files == (7,), "only files that are bad as a whole change the plan"
    assert told.skipped_units == (6,)
    assert len(told.changed_units) == 1


def with_invalid(k: int, number: int, **changes: object) -> m.DeliveredUnit:
    """Three invalid events: two of a rule that every unit's break, and one of a rule of its own."""
    own = m.InvalidEvents(f"rule {number}", 1, (f"{number} at its own",))
    rules = m.InvalidEvents("rule", 2, tuple(f"{number}: {i}" for i in range(2))), own
    return unit(k, tally=m.Tally(rows_read=10, invalid=3, broken_rules=rules), **changes)  # type: ignore[arg-type]


def test_invalid_events_are_counted_by_the_rule_that_they_break_and_told_to_other_ranks() -> None:
    position = told = StreamPosition()
    for number in (0, 1):
        done = with_invalid(4 + number, number)
        before, position = position, position.after_microbatches(done, 2, 7, 20).after_unit(done)
        growth = StreamPosition.model_validate_json(position.since(before).model_dump_json(exclude_defaults=True))
        told = told.grown(growth)
        assert told == position
        assert told.counters.adds_up()
    assert {one.rule: (one.events, one.examples) for one in told.broken_rules} == {
        "rule": (4, ("0: 0", "0: 1", "1: 0")),
        "rule 0": (1, ("0 at its own",)),
        "rule 1": (1, ("1 at its own",)),
    }
    assert told.counters.events_invalid == 6
    assert StreamPosition.model_validate_json(told.model_dump_json()) == told


def test_invalid_events_of_a_unit_that_changed_are_quarantined_with_the_rest_of_it() -> None:
    done = open_position(unit(1, content=OLD)).after_unit(with_invalid(1, 0, content=NEW))
    counters = done.counters
    assert (counters.events_trained, counters.events_invalid, counters.events_quarantined) == (4, 0, 6)
    assert done.broken_rules == ()
    assert counters.adds_up()


STREAM = StreamConfig(shards=4)
UNITS = (5, 8, 0, 3)
"""Units of each shard."""


def unit_of_shard(shard: int, k: int) -> m.DeliveredUnit:
    bad = (m.Quarantined(100 + shard, -1, 3, f"bad {shard}"),) if not k else ()
    tally = m.Tally(rows_read=10, outliers=k % 3)
    places = {"epoch": 0, "block": k, "block_first_unit": k, "source": m.Source(1, "digest"), "content": "content"}
    return unit(k, layout=m.Layout(10 - k % 3, 20, 2), tally=tally, block_quarantined=bad, **places)


def trained(ranks: int, seed: int) -> StreamPosition:
    """Position after ``ranks`` trainers have trained all units of all shards, in random order."""
    rng = random.Random(seed)
    position: StreamPosition = start_of(STREAM)
    shares = [shares_of_rank(STREAM, rank, ranks) for rank in range(ranks)]
    for k in range(max(UNITS)):
        growths: dict[int, StreamPosition] = {}
        for of in rng.sample(shares, ranks):
            mine = position
            for share in rng.sample(of, len(of)):
                if k < UNITS[share.shard]:
                    arrived = unit_of_shard(share.shard, k)
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


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    position = trained(2, seed=3)
    assert isinstance(position, ShardedPosition)
    assert position.cursors == tuple(chain.from_iterable(shard.cursors for shard in position.shards))
    assert read_position(position.model_dump_json()) == position
    alone = StreamPosition()
    assert read_position(alone.model_dump_json()) == alone
    assert "shards" not in alone.model_dump_json(), "the checkpoint of a run without shards is that of before"


def test_a_new_plan_begins_each_shard_and_keeps_what_was_counted() -> None:
    position = trained(1, seed=0)
    begun = start_of(StreamConfig(shards=4), position)
    assert begun.counters == position.counters
    assert all(shard.counters == Counters() for shard in begun.shards)
    assert begun.cursors == start_of(StreamConfig(shards=4)).cursors
    other = start_of(StreamConfig(shards=2), position)
    assert (other.counters, len(other.shards)) == (position.counters, 2)


def test_a_new_plan_of_any_number_of_shards_keeps_the_reasons_of_invalid_events() -> None:
    rules = (m.InvalidEvents("a rule", 3, ("where",)),)
    former = StreamPosition(counters=Counters(events_read=3, events_invalid=3), broken_rules=rules)
    for shards in (1, 2):
        begun = start_of(StreamConfig(shards=shards), start_of(StreamConfig(shards=shards), former))
        assert (begun.broken_rules, begun.counters.events_invalid) == (rules, 3)
        assert read_position(begun.model_dump_json()) == begun
    again = start_of(StreamConfig(shards=2), begun.with_shards({1: StreamPosition(broken_rules=rules)}))
    assert [one.events for one in again.broken_rules] == [6]


def test_the_source_is_that_of_the_shard_furthest_in_the_inventory() -> None:
    begun = start_of(StreamConfig(shards=4))
    assert begun.source == m.Source()
    ranges, complete = m.Source(3, "three"), m.Source(2, "complete")
    of_shards = [StreamPosition().model_copy(update={"source": source}) for source in (m.Source(), ranges)]
    position = begun.with_shards(dict(enumerate(of_shards)))
    assert position.source == ranges
    later = StreamPosition().model_copy(update={"source": complete, "epoch": 1})
    assert position.with_shards({3: later}).source == complete
    assert read_position(position.model_dump_json()) == position


def test_sets_are_in_the_epoch_of_the_slowest_and_number_files_of_their_own() -> None:
    bad = m.Quarantined(0, -1, 5, "cut off")
    slow, fast = (StreamPosition(epoch=epoch, quarantined=(bad,)) for epoch in (1, 7))
    for weights, epoch, times in (((3, 1), 1, 2), ((), 7, 1)):
        position = start_of(StreamConfig(shards=2, weights=weights)).with_shards({0: slow, 1: fast})
        assert (position.epoch, len(position.set_aside)) == (epoch, times)
        assert read_position(position.model_dump_json()) == position
