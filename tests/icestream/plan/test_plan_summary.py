from __future__ import annotations

from common.config import StreamConfig
from common.messages import Unit
from common.plan import Footer, RowGroup, SlotCapacity, SourceFile, Span, StagedFile, plan_block
from icestream.commands.plan.plan_summary import PlanSummary, summarise, summary_lines, unit_lines
from workloads.muons.columns import MUONS

STREAM = StreamConfig(block_files=4, unit_events=100, batch_events=10, max_particles=1000, slot_mib=0.25)


def blocks_of(
    files: list[StagedFile], stream: StreamConfig = STREAM, first_k: int = 0
) -> list[tuple[list[StagedFile], list[Unit]]]:
    capacity = SlotCapacity(MUONS, stream)
    blocks: list[tuple[list[StagedFile], list[Unit]]] = []
    for start in range(0, len(files), stream.block_files):
        staged = files[start : start + stream.block_files]
        block = len(blocks)
        units = plan_block(block, first_k, 0, staged, capacity=capacity, stream=stream, seed=0)
        first_k += len(units)
        blocks.append((staged, units))
    return blocks


def summary_of(files: list[StagedFile], stream: StreamConfig = STREAM, num_blocks: int | None = None) -> PlanSummary:
    blocks = blocks_of(files, stream)
    return summarise(
        [SourceFile(file.path, 1000) for file in files],
        "ab" * 16,
        epoch=0,
        num_blocks=num_blocks or len(blocks),
        blocks=blocks,
        stream=stream,
        capacity=SlotCapacity(MUONS, stream),
    )


def staged(file: int, *groups: RowGroup) -> StagedFile:
    return StagedFile(file, f"/f{file}", Footer(groups))


WHOLE = [staged(file, RowGroup(100, 300)) for file in range(8)]
MIXED = [staged(file, *[RowGroup(10, 30)] * 10) for file in range(8)]


def test_the_sums_are_those_of_the_units() -> None:
    summary = summary_of(WHOLE)
    assert (summary.files, summary.file_bytes, summary.files_planned) == (8, 8000, 8)
    assert (summary.events, summary.particles, summary.units) == (800, 2400, 8)
    assert (summary.unit_events.min, summary.unit_events.median, summary.unit_events.max) == (100, 100, 100)
    assert (summary.units_of_block.min, summary.units_of_block.max) == (4, 4)
    assert summary.unit_bytes.max == SlotCapacity(MUONS, STREAM).bytes_needed(100, 300)
    assert summary.arena_bytes == STREAM.slots * STREAM.slot_bytes
    assert [line.unit for line in summary.unit_lines] == list(range(8))


def test_units_of_one_file_each_are_not_mixed_and_the_reader_is_told_what_to_do() -> None:
    summary = summary_of(WHOLE)
    assert summary.unit_files.max == 1
    assert summary.mixing_in_block is not None
    assert summary.mixing_in_block > 0.9 * STREAM.batch_events
    assert "stream.unit_events" in "\n".join(summary_lines(summary))


def test_small_row_groups_mix_the_block_and_the_epoch_is_limited_by_the_block() -> None:
    summary = summary_of(MIXED, STREAM.model_copy(update={"unit_events": 400}))
    assert summary.unit_files.min == 4
    assert summary.mixing_in_block is not None
    assert summary.mixing_over_epoch is not None
    assert summary.mixing_in_block < 1.1
    assert 1.5 < summary.mixing_over_epoch < 3  # four of eight files in each block


def test_mixing_over_the_epoch_is_told_only_if_all_of_it_is_planned() -> None:
    assert summary_of(MIXED).mixing_over_epoch is not None
    summary = summary_of(MIXED, num_blocks=1000)
    assert summary.mixing_over_epoch is None
    assert "first 2 of 1,000 blocks" in "\n".join(summary_lines(summary))


def test_without_shuffle_mixing_is_that_of_the_source_order() -> None:
    stream = STREAM.model_copy(update={"shuffle": False, "unit_events": 400})
    mixing = summary_of(MIXED, stream).mixing_in_block
    assert mixing is not None
    assert mixing > 0.9 * stream.batch_events


def test_cut_row_groups_and_their_spans_are_counted() -> None:
    spans = (Span(0, 60, 100), Span(60, 40, 100))
    summary = summary_of([staged(0, RowGroup(100, 200, spans), RowGroup(5, 5)), staged(1, RowGroup(9, 9))])
    assert (summary.row_groups, summary.row_groups_cut, summary.spans) == (3, 1, 2)
    assert "1 of 3 row groups, into 2 spans" in "\n".join(summary_lines(summary))


def test_bad_files_are_named_with_their_events() -> None:
    bad = StagedFile(1, "/f1", None, reason="/f1: truncated", bad_rows=7)
    summary = summary_of([staged(0, RowGroup(10, 10)), bad])
    text = "\n".join(summary_lines(summary))
    assert "1 files, 7 events" in text
    assert "/f1: truncated" in text
    assert summary.events == 10


def test_units_are_counted_from_the_first_of_the_epoch() -> None:
    blocks = blocks_of(WHOLE, first_k=500)
    summary = summarise(
        [], "", epoch=3, num_blocks=2, blocks=blocks, stream=STREAM, capacity=SlotCapacity(MUONS, STREAM)
    )
    assert [line.unit for line in summary.unit_lines] == list(range(8))
    assert len(unit_lines(summary)) == 9


def test_a_block_without_events_has_nothing_to_mix() -> None:
    summary = summary_of([staged(0)])
    assert (summary.units, summary.events) == (1, 0)
    assert "nothing to mix" in "\n".join(summary_lines(summary))


def test_the_plan_shows_what_each_shard_gets_and_warns_where_they_differ() -> None:
    stream = STREAM.model_copy(update={"shards": 2, "block_files": 1})
    files = [staged(file, *[RowGroup(100, 300)] * (2 if file % 2 else 1)) for file in range(6)]
    summary = summary_of(files, stream)
    assert summary.shard_events == [300, 600]
    text = "\n".join(summary_lines(summary))
    assert "events 300, 600" in text
    assert "WARNING: they differ by 100%" in text
    even = "\n".join(summary_lines(summary_of(files[1::2] + files[1::2], stream)))
    assert "events 600, 600" in even
    assert "WARNING" not in even


def test_the_plan_names_a_shard_that_gets_nothing() -> None:
    stream = STREAM.model_copy(update={"shards": 3, "block_files": 4})
    text = "\n".join(summary_lines(summary_of(WHOLE, stream)))
    assert "ERROR: nothing for shard 2: set stream.shards to at most the 2 blocks of an epoch" in text
