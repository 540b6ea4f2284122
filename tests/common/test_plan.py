from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from common.config import StreamConfig
from common.errors import BadInputError
from common.messages import MAX_MESSAGE_BYTES, MAX_PARTS, Layout, Lease, Unit, encode
from common.plan import (
    Blocks,
    Footer,
    RowGroup,
    SlotCapacity,
    StagedFile,
    cut_spans,
    max_microbatches,
    plan_block,
)
from common.ragged import slot_bytes_needed
from workloads.muons.columns import MUONS

STREAM = StreamConfig(
    block_files=3, unit_events=40, batch_events=8, max_particles=50, max_particles_per_event=20, slot_mib=0.0157
)  # 4 pages
CAPACITY = SlotCapacity(MUONS, STREAM)

row_counts = st.lists(st.integers(0, 30), max_size=60)  # particles of each row of a row group
files = st.lists(st.none() | st.lists(row_counts, max_size=4), min_size=1, max_size=8)  # None: a bad file


def row_group(counts: list[int]) -> RowGroup:
    """As the footer's reader makes it: spans only where one unit can't hold the row group."""
    rows, particles = len(counts), sum(counts)
    return RowGroup(rows, particles, () if CAPACITY.fits(rows, particles) else cut_spans(counts, CAPACITY, STREAM))


def stage(file: int, groups: list[list[int]] | None) -> StagedFile:
    if groups is None:
        return StagedFile(file, f"f{file}", None, reason="broken", bad_rows=5)
    return StagedFile(file, f"f{file}", Footer(tuple(row_group(counts) for counts in groups)))


def plan(content: list[list[list[int]] | None], epochs: int, seed: int, stream: StreamConfig = STREAM) -> list[Unit]:
    blocks = Blocks(len(content), stream, seed, epochs)
    units: list[Unit] = []
    assert blocks.end is not None
    for block in range(blocks.end):
        staged = [stage(file, content[file]) for file in blocks.files(block)]
        units += plan_block(
            block, len(units), blocks.epoch_of(block), staged, capacity=CAPACITY, stream=stream, seed=seed
        )
    return units


@settings(deadline=None, max_examples=60)
@given(files, st.integers(0, 2**63 - 1), st.booleans())
def test_every_row_is_in_exactly_one_part_per_epoch(
    content: list[list[list[int]] | None], seed: int, shuffle: bool
) -> None:
    stream = STREAM.model_copy(update={"shuffle": shuffle})
    units = plan(content, 2, seed, stream)
    assert [unit.k for unit in units] == list(range(len(units)))
    rows = Counter(
        (unit.epoch, part.file, part.row_group, part.file_row + row)
        for unit in units
        for part in unit.parts
        for row in range(part.first_row, part.first_row + part.rows)
    )
    expected = Counter()
    for file, groups in enumerate(content):
        file_row = 0
        for index, counts in enumerate(groups or []):
            for row in range(len(counts)):
                expected.update((epoch, file, index, file_row + row) for epoch in range(2))
            file_row += len(counts)
    assert rows == expected
    quarantined = Counter((unit.epoch, bad.file) for unit in units for bad in unit.quarantined)
    assert quarantined == Counter((e, f) for e in range(2) for f, groups in enumerate(content) if groups is None)


@settings(deadline=None, max_examples=60)
@given(files, st.integers(0, 100))
def test_a_unit_always_fits_its_slot(content: list[list[list[int]] | None], seed: int) -> None:
    for unit in plan(content, 1, seed):
        rows = particles = 0
        for part in unit.parts:
            counts = (content[part.file] or [])[part.row_group][part.first_row : part.first_row + part.rows]
            # Any part of the particles may turn out to be fillers, so an outlier may come into the slot after all.
            particles += sum(min(count, STREAM.outlier_above) for count in counts)
            rows += part.rows
        assert CAPACITY.fits(rows, particles)
        assert len(unit.parts) <= MAX_PARTS


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=300))
def test_spans_cover_a_row_group_without_gap_and_each_fits(counts: list[int]) -> None:
    spans = cut_spans(counts, CAPACITY, STREAM)
    row = 0
    for span in spans:
        assert span.first_row == row
        assert 0 < span.rows <= STREAM.unit_events
        row += span.rows
        # An outlier may lose enough fillers to go into the slot after all.
        assert span.particles == sum(min(count, STREAM.outlier_above) for count in counts[span.first_row : row])
        assert CAPACITY.fits(span.rows, span.particles)
    assert row == len(counts)


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), max_size=200), st.integers(1, 20), st.one_of(st.just(0), st.integers(100, 5000)))
def test_no_decoder_makes_more_microbatches_than_the_plan_counts_on(
    counts: list[int], batch_events: int, max_squared: int
) -> None:
    limits = {"batch_events": batch_events, "max_squared_particles": max_squared, "max_particles_per_event": 0}
    stream = STREAM.model_copy(update=limits)
    counts = [count for count in counts if count <= stream.outlier_above]
    assume(counts)
    made = events = particles = squared = 0
    for number, count in enumerate(counts):  # the greedy cut, spelled out
        is_full = particles + count > stream.max_particles or 0 < max_squared < squared + count**2
        if not events or is_full or number % batch_events == 0:
            made += 1
            events = particles = squared = 0
        events += 1
        particles += count
        squared += count**2
    assert made <= max_microbatches(len(counts), sum(counts), stream)
    needed = slot_bytes_needed(MUONS, Layout(len(counts), sum(counts), made))
    assert SlotCapacity(MUONS, stream).bytes_needed(len(counts), sum(counts)) >= needed


def big(unit_events: int, **limits: object) -> StreamConfig:
    """Stream whose slots limit no unit."""
    return StreamConfig.model_validate({"unit_events": unit_events, "slot_mib": 8, **limits})


def unit_rows(files: list[list[int]], stream: StreamConfig) -> list[int]:
    """Rows of each unit of a block, given those of the row groups of its files."""
    capacity = SlotCapacity(MUONS, stream)
    staged = [
        StagedFile(number, f"f{number}", Footer(tuple(RowGroup(rows, 0) for rows in of_file)))
        for number, of_file in enumerate(files)
    ]
    return [unit.rows for unit in plan_block(0, 0, 0, staged, capacity=capacity, stream=stream, seed=1)]


@pytest.mark.parametrize(
    ("files", "unit_events", "expected"),
    [
        ([[10] * 8], 70, [40, 40]),  # a block of one file: not 70 and 10
        ([[10] * 7], 70, [70]),
        ([[10] * 15], 70, [50, 50, 50]),
        ([[10] * 30, [10] * 10, [10] * 24], 70, [70, 60, 70, 60, 70, 60, 70, 60, 60, 60]),
        ([[80_000], [80_000] * 6, [80_000]], 560_000, [320_000, 320_000]),
        ([[10]], 70, [10]),
    ],
)
def test_units_of_a_block_are_equal_parts_of_it(files: list[list[int]], unit_events: int, expected: list[int]) -> None:
    stream = big(unit_events, slot_mib=64)
    assert sorted(unit_rows(files, stream)) == sorted(expected)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(st.integers(1, 30), max_size=12), max_size=6), st.integers(60, 400), st.booleans())
def test_no_unit_is_smaller_or_larger_than_the_equal_part_by_more_than_a_row_group(
    files: list[list[int]], unit_events: int, shuffle: bool
) -> None:
    rows = [rows for of_file in files for rows in of_file]
    assume(rows)
    found = unit_rows(files, big(unit_events, shuffle=shuffle))
    num_units = -(-sum(rows) // unit_events)
    assert sum(found) == sum(rows)
    assume(max(rows) * num_units <= sum(rows))
    assert len(found) == num_units
    assert all(abs(one - sum(rows) / num_units) < max(rows) for one in found)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 5_000), st.integers(1, 600))
def test_the_spans_of_a_row_group_are_equal_parts_of_it(rows: int, unit_events: int) -> None:
    stream = big(unit_events)
    found = [span.rows for span in cut_spans(np.ones(rows, np.int64), SlotCapacity(MUONS, stream), stream)]
    assert sum(found) == rows
    assert len(found) == -(-rows // unit_events)
    assert max(found) - min(found) < len(found), "not 70 and 10"


def content_of(num_files: int) -> list[list[list[int]] | None]:
    return [[[3] * 10 for _ in range(4)] for _ in range(num_files)]


def order_of(units: list[Unit], epoch: int) -> list[tuple[int, int, int]]:
    return [(p.file, p.row_group, p.first_row) for unit in units if unit.epoch == epoch for p in unit.parts]


def test_the_order_depends_on_seed_and_epoch_and_nothing_else() -> None:
    units = plan(content_of(9), 2, seed=1)
    assert plan(content_of(9), 2, seed=1) == units
    assert order_of(units, 0) != order_of(units, 1)
    assert order_of(units, 0) != order_of(plan(content_of(9), 2, seed=2), 0)
    assert sorted(order_of(units, 0)) == sorted(order_of(units, 1))


def test_row_groups_are_shuffled_in_a_block_and_files_over_blocks() -> None:
    units = plan(content_of(30), 1, seed=1)
    first_files = {part.file for unit in units if unit.block == 0 for part in unit.parts}
    assert first_files != {0, 1, 2}
    in_block = [(part.file, part.row_group) for unit in units if unit.block == 0 for part in unit.parts]
    assert in_block != sorted(in_block)
    assert any(a[0] != b[0] for a, b in zip(in_block[::2], in_block[1::2], strict=False)), "files are interleaved"


def test_without_shuffle_the_order_is_the_sources() -> None:
    stream = STREAM.model_copy(update={"shuffle": False})
    units = plan(content_of(7), 2, seed=3, stream=stream)
    assert order_of(units, 0) == sorted(order_of(units, 0)) == order_of(units, 1)


def test_a_block_of_bad_files_only_gives_one_unit_that_tells_them() -> None:
    units = plan([None, None], 1, seed=0)
    assert len(units) == 1
    assert units[0].parts == ()
    assert [(bad.row_group, bad.rows, bad.reason) for bad in units[0].quarantined] == [(-1, 5, "broken")] * 2


def test_a_block_of_empty_files_gives_one_unit_too() -> None:
    (unit,) = plan([[], [[]]], 1, seed=0)
    assert unit.parts == ()
    assert unit.quarantined == ()


def test_a_bad_file_is_told_once_with_the_first_unit_of_its_block() -> None:
    content = content_of(9)
    content[4] = None
    told = [unit for unit in plan(content, 1, seed=0) if unit.quarantined]
    assert len(told) == 1
    assert told[0].k == told[0].block_first_unit
    assert [bad.file for bad in told[0].quarantined] == [4]


def test_a_reason_without_end_still_fits_a_message() -> None:
    staged = [StagedFile(file, "f", None, reason="x" * 100_000) for file in range(100)]
    (unit,) = plan_block(0, 0, 0, staged, capacity=CAPACITY, stream=STREAM, seed=0)
    assert len(encode(Lease(1, 0, unit))) < MAX_MESSAGE_BYTES


def test_the_order_in_which_files_were_staged_does_not_matter() -> None:
    # Files come to the planner in the block's order, whenever they were staged: the plan asks for them by number.
    staged = {file: stage(file, [[3] * 10, [2] * 9]) for file in random.Random(1).sample(range(6), 6)}
    blocks = Blocks(6, STREAM, 0, 1)
    plans = []
    for arrival in (sorted(staged), sorted(staged, reverse=True)):
        there = {file: staged[file] for file in arrival}
        plans.append(
            [
                plan_block(b, 0, 0, [there[f] for f in blocks.files(b)], capacity=CAPACITY, stream=STREAM, seed=0)
                for b in range(2)
            ]
        )
    assert plans[0] == plans[1]


def test_a_slot_that_holds_not_even_one_event_is_refused_with_the_size_that_would_do() -> None:
    stream = StreamConfig(max_particles=65_536, slot_mib=0.25)
    with pytest.raises(BadInputError, match=r"slot_mib to 1 or more.*max_particles_per_event.*max_particles"):
        SlotCapacity(MUONS, stream)
    SlotCapacity(MUONS, stream.model_copy(update={"slot_mib": 1.0}))


def test_blocks_without_end_have_none() -> None:
    blocks = Blocks(5, STREAM, 0, 0)
    assert blocks.end is None
    assert blocks.epoch_of(2 * 1000) == 1000
    assert len(blocks.files(2001)) == 2
