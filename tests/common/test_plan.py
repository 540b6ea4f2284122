"""The plan: every row in one unit of one shard, the same for the same settings; its name, its random numbers."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from common.config import SourceConfig, StreamConfig
from common.errors import BadInputError
from common.messages import MAX_PARTS, Layout, Unit
from common.plan import (
    Blocks,
    Footer,
    RowGroup,
    SlotCapacity,
    StagedFile,
    Stream,
    complete_digest,
    cut_spans,
    files_digest,
    generator,
    inventory_digest,
    is_held_out,
    max_microbatches,
    plan_block,
    plan_hash,
)
from common.unit_arrays import slot_bytes_needed
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


@settings(deadline=None, max_examples=40)
@given(files, st.integers(0, 2**63 - 1), st.booleans())
def test_every_row_is_in_exactly_one_part_per_epoch_and_every_unit_fits_its_slot(
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
    for unit in units:
        particles = 0
        for part in unit.parts:
            counts = (content[part.file] or [])[part.row_group][part.first_row : part.first_row + part.rows]
            # Any part of the particles may turn out to be fillers, so an outlier may come into the slot after all.
            particles += sum(min(count, STREAM.outlier_above) for count in counts)
        assert CAPACITY.fits(unit.rows, particles)
        assert len(unit.parts) <= MAX_PARTS


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


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(1, 30), max_size=12), max_size=6), st.integers(60, 400), st.booleans())
def test_no_unit_is_smaller_or_larger_than_the_equal_part_by_more_than_a_row_group(
    files: list[list[int]], unit_events: int, shuffle: bool
) -> None:
    rows = [rows for of_file in files for rows in of_file]
    assume(rows)
    stream = big(unit_events, shuffle=shuffle)
    staged = [StagedFile(i, f"f{i}", Footer(tuple(RowGroup(n, 0) for n in of_file))) for i, of_file in enumerate(files)]
    units = plan_block(0, 0, 0, staged, capacity=SlotCapacity(MUONS, stream), stream=stream, seed=1)
    found = [unit.rows for unit in units]
    num_units = -(-sum(rows) // unit_events)
    assert sum(found) == sum(rows)
    assume(max(rows) * num_units <= sum(rows))
    assert len(found) == num_units
    assert all(abs(one - sum(rows) / num_units) < max(rows) for one in found)


@settings(deadline=None, max_examples=40)
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


def test_without_shuffle_the_order_is_the_sources() -> None:
    stream = STREAM.model_copy(update={"shuffle": False})
    units = plan(content_of(7), 2, seed=3, stream=stream)
    assert order_of(units, 0) == sorted(order_of(units, 0)) == order_of(units, 1)


def test_a_slot_that_holds_not_even_one_event_is_refused_with_the_size_that_would_do() -> None:
    stream = StreamConfig(max_particles=65_536, slot_mib=0.25)
    with pytest.raises(BadInputError, match=r"slot_mib to 1 or more.*max_particles_per_event.*max_particles"):
        SlotCapacity(MUONS, stream)
    SlotCapacity(MUONS, stream.model_copy(update={"slot_mib": 1.0}))


INVENTORY = [("a", 1), ("b", 2)]


def name(seed: int = 0, **stream: object) -> str:
    return plan_hash(MUONS, STREAM.model_copy(update=stream), seed)


@pytest.mark.parametrize(
    "files", [[("a", 1)], [("a", 1), ("c", 2)], [("a", 1), ("b", 3)], [("b", 2), ("a", 1)], [("a", 1), ("b?file=2", 2)]]
)
def test_the_digest_changes_with_every_file(files: list[tuple[str, int]]) -> None:
    assert files_digest(files) != files_digest(INVENTORY)


def test_the_digest_of_an_inventory_is_that_of_all_its_ranges_in_order() -> None:
    a, b = files_digest(INVENTORY[:1]), files_digest(INVENTORY[1:])
    digests = ["", inventory_digest("", a), inventory_digest("", b)]
    digests += [inventory_digest(digests[1], b), inventory_digest(digests[2], a), inventory_digest(digests[1], a)]
    digests += [complete_digest(digests[3])]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    "stream",
    [
        *({"block_files": 4}, {"batch_events": 9}, {"max_particles": 51}, {"max_particles_per_event": 21}),
        *(
            {"where": "muons.count > 0"},
            {"part": "all"},
            {"transform": "a:b"},
            {"shuffle": False},
            {"slot_mib": 0.02},
            {"held_out": 0.1},
        ),
        *({"max_squared_particles": 900}, {"length_buckets": 2}, {"shards": 2}),
    ],
)
def test_it_changes_with_every_setting_that_a_units_bytes_depend_on(stream: dict[str, object]) -> None:
    assert name(**stream) != name()


def test_a_renewed_token_in_a_url_does_not_change_the_digest_but_another_query_does() -> None:
    def of(query: str) -> str:
        return files_digest([(f"https://host/a.parquet?{query}", 5)])

    assert of("token=old&file=1") == of("token=new&file=1") != of("token=new&file=2")
    assert of("file=1&X-Amz-Signature=old") == of("file=1&X-Amz-Signature=new")


def test_it_changes_with_every_rule_and_column_of_the_files() -> None:
    def of(**changes: object) -> str:
        return plan_hash(replace(MUONS, **changes), STREAM, 0)  # type: ignore[arg-type]

    bounded = (*MUONS.rules[:-1], replace(MUONS.rules[-1], maximum=1.0))
    renamed = (*MUONS.source_columns[:-1], replace(MUONS.source_columns[-1], name="event.muons"))
    plans = [
        of(),
        of(rules=MUONS.rules[1:]),
        of(rules=bounded),
        of(source_columns=renamed),
        of(source=SourceConfig(nulls="empty")),
        of(source=SourceConfig(max_invalid_share=0.0)),
    ]
    assert len(set(plans)) == len(plans)


def test_the_ids_are_part_of_the_plan_only_if_events_are_held_out_by_them() -> None:
    without_ids = replace(MUONS, identity=None)
    assert plan_hash(without_ids, STREAM, 0) == plan_hash(MUONS, STREAM, 0)
    some = STREAM.model_copy(update={"held_out": 0.1})
    assert plan_hash(without_ids, some, 0) != plan_hash(MUONS, some, 0)


ranges = st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any)
numbers = st.integers(2, 7)


def stream_of(shards: int, **settings: object) -> StreamConfig:
    return StreamConfig.model_validate({"block_files": 2, "shards": shards, **settings})


def blocks_of(stream: StreamConfig, num_files: list[int], epochs: int) -> Blocks:
    blocks = Blocks.of_ranges(len(num_files), stream, 5, epochs)
    for number in num_files:
        blocks.append(number)
    return blocks


@given(num_files=ranges, shards=numbers, epochs=st.integers(1, 3))
def test_the_blocks_of_all_shards_are_those_of_the_run(num_files: list[int], shards: int, epochs: int) -> None:
    stream = stream_of(shards)
    run = blocks_of(stream, num_files, epochs)
    assert run.end is not None
    found: dict[int, tuple[int, int, list[int]]] = {}
    for shard in range(shards):
        own = blocks_of(stream.of_shard(shard), num_files, epochs)
        assert own.end is not None
        assert not own.is_known(own.end)
        for block in range(own.end):
            assert own.is_known(block)
            number = stream.of_shard(shard).block_of_run(block)
            assert number % shards == shard
            found[number] = own.epoch_of(block), own.range_of(block), own.files(block)
    assert found == {block: (run.epoch_of(block), run.range_of(block), run.files(block)) for block in range(run.end)}
    files = Counter((epoch, file) for epoch, _, of_block in found.values() for file in of_block)
    assert files == {(epoch, file): 1 for epoch in range(epochs) for file in range(sum(num_files))}


@given(num_files=ranges, shards=numbers)
def test_a_shard_knows_its_blocks_of_the_ranges_listed_so_far(num_files: list[int], shards: int) -> None:
    stream = stream_of(shards)
    run = Blocks.of_ranges(len(num_files), stream, 5, 0)
    own = [Blocks.of_ranges(len(num_files), stream.of_shard(shard), 5, 0) for shard in range(shards)]
    for number in num_files:
        for blocks in (run, *own):
            blocks.append(number)
        for block in range(3 * shards):
            assert own[block % shards].is_known(block // shards) == run.is_known(block)


def test_a_blocks_row_groups_are_in_the_same_order_in_every_division() -> None:
    footer = Footer(tuple(RowGroup(10, 10) for _ in range(20)))
    staged = [StagedFile(0, "f", footer)]

    def parts(stream: StreamConfig, block: int) -> list[int]:
        units = plan_block(block, 0, 0, staged, capacity=SlotCapacity(MUONS, stream), stream=stream, seed=1)
        return [part.row_group for unit in units for part in unit.parts]

    whole = stream_of(1)
    orders = [parts(whole, block) for block in range(8)]
    assert len(set(map(tuple, orders))) == 8
    for shards in (2, 4):
        stream = stream_of(shards)
        assert [parts(stream.of_shard(block % shards), block // shards) for block in range(8)] == orders


def test_a_shard_of_a_stream_keeps_its_settings_and_its_number_through_copies() -> None:
    whole = stream_of(4, batch_events=640)
    stream = whole.of_shard(3).model_copy(update={"slots": 20})
    assert plan_hash(MUONS, stream, 0) == plan_hash(MUONS, whole, 0)
    assert (stream.shard, stream.shard_batch_events, stream.microbatch_events) == (3, 160, 10)
    assert "shard" not in stream.model_dump()
    with pytest.raises(ValueError, match="shard 4 is none of 4"):
        stream.of_shard(4)


def test_any_other_stream_seed_or_key_gives_other_numbers() -> None:
    seeds_and_keys = [(0,), (1,), (2**32, 0), (0, 0), (0, 1), (1, 0), (2**32 + 1,), (2**63 - 1,), (0, 1, 0), (0, 0, 1)]
    keys = [(stream, *rest) for stream in Stream for rest in seeds_and_keys]
    drawn = [generator(*key).random(8) for key in keys]
    for (i, a), (j, b) in itertools.combinations(enumerate(drawn), 2):
        assert not np.array_equal(a, b), (keys[i], keys[j])


def test_the_numbers_are_those_of_the_first_release() -> None:
    # A change here changes every plan: raise PLAN_VERSION with it.
    assert generator(Stream.FILES, 0, 0).permutation(8).tolist() == [4, 0, 7, 3, 5, 2, 1, 6]
    assert generator(Stream.EVENTS, 7, 1, 12).permutation(8).tolist() == [3, 4, 5, 1, 7, 0, 2, 6]


MASK = 2**64 - 1
KEPT = [10, 18, 21, 41, 48, 68, 82, 83]


def splitmix64(state: int) -> int:
    """Reference in Python's whole numbers."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_the_reference_is_splitmix64() -> None:
    states = [1234567 + i * 0x9E3779B97F4A7C15 for i in range(3)]  # as its authors' C code goes on
    assert [splitmix64(state) for state in states] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 2), max_size=20), st.floats(0, 1, exclude_max=True))
def test_the_choice_is_that_of_whole_numbers(ids: list[tuple[int, int]], share: float) -> None:
    expected = [splitmix64(splitmix64(a & MASK) ^ (b & MASK)) < int(share * 2**64) for a, b in ids]
    assert is_held_out(np.array(ids, np.int64).reshape(-1, 2), share).tolist() == expected


@pytest.mark.parametrize("dtype", ["<i2", "<i4", "<u4", "<i8", "<u8"])
def test_the_type_of_an_id_makes_no_difference(dtype: str) -> None:
    ids = np.arange(10_000).reshape(-1, 1)
    assert (is_held_out(ids.astype(dtype), 0.3) == is_held_out(ids, 0.3)).all()
    every_second = np.stack([ids[:, 0], ids[:, 0]], 1).astype(dtype)[:, ::2]
    assert (is_held_out(every_second, 0.3) == is_held_out(ids, 0.3)).all(), "also in a column with other strides"


def test_the_first_ids_that_are_held_out_are_kept_for_ever() -> None:
    found = np.flatnonzero(is_held_out(np.arange(100).reshape(-1, 1), 0.1)).tolist()
    assert found == [i for i in range(100) if splitmix64(i) < int(0.1 * 2**64)] == KEPT
    assert is_held_out(np.array([[2**64 - 1, 0]], np.uint64), 0.5).tolist() == [splitmix64(splitmix64(MASK)) < 2**63]


def test_the_share_is_met_for_ids_in_a_row_and_a_larger_one_includes_a_smaller_one() -> None:
    ids = np.arange(200_000, dtype=np.uint64).reshape(-1, 1) * np.uint64(1000)
    small, large = is_held_out(ids, 0.02), is_held_out(ids, 0.2)
    assert small.mean() == pytest.approx(0.02, abs=0.002)
    assert large.mean() == pytest.approx(0.2, abs=0.005)
    assert large[small].all()
    assert not is_held_out(ids, 0.0).any()
