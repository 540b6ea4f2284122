"""Shards of a plan: every file of an epoch is in one block of one shard, whatever their number."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import StreamConfig
from common.plan import Blocks, Footer, RowGroup, SlotCapacity, StagedFile, plan_block
from workloads.muons.columns import MUONS

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


def test_one_shard_is_no_shard() -> None:
    stream = StreamConfig()
    assert (stream.shards, stream.shard, stream.of_shard(0).shard, stream.of_shard(0).block_of_run(7)) == (
        1,
        None,
        None,
        7,
    )


def test_a_shard_of_a_stream_keeps_its_settings_and_its_number_through_copies() -> None:
    stream = stream_of(4, batch_events=640).of_shard(3).model_copy(update={"slots": 20})
    assert (stream.shard, stream.shard_batch_events, stream.microbatch_events) == (3, 160, 10)
    assert "shard" not in stream.model_dump()
    with pytest.raises(ValueError, match="shard 4 is none of 4"):
        stream.of_shard(4)
