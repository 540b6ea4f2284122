"""Sum over the shards of a run, from the files that its fetchers share."""

from __future__ import annotations

from pathlib import Path

from common.plan import SourceFile
from common.planned import PlannedBlock, epochs_line, planned_line, planned_name
from common.status import Counters, TrainerStatus
from icestream.commands.shards_sum import imbalance_of_shards
from services.config.root import Config, load_config
from services.fetcher.inventory.published import PublishedInventory
from services.fetcher.inventory.ranges import make_ranges

FILES = [SourceFile("/data/a.parquet", 7, ""), SourceFile("/data/b.parquet", 8, "")]
SHARDS = (Counters(events_read=60, events_trained=60), Counters(events_read=40, events_trained=40))


def config(*inputs: str) -> Config:
    return load_config({}, assignments=("stream.shards=2",), flags={"input": inputs}, environment={})


def listed(folder: Path, of: Config, files: list[SourceFile]) -> None:
    for one in make_ranges(of.input, of.fetcher.ranges, of.fetcher.done):
        PublishedInventory(folder, lambda one: files, lists=True, skips=True).expand(one)


def finished() -> TrainerStatus:
    return TrainerStatus(state="finished", step=9, shards=SHARDS)


def test_a_list_of_inputs_that_the_run_refused_counts_no_files(tmp_path: Path) -> None:
    mine = config("/data")
    listed(tmp_path, mine, FILES)
    listed(tmp_path, config("/mistyped"), FILES[:1])
    for shard, counters in enumerate(SHARDS):
        (tmp_path / planned_name(shard)).write_text(planned_line(PlannedBlock(0, 1, counters.events_read)))
    assert imbalance_of_shards(tmp_path, mine, finished()) == ""
    (tmp_path / planned_name(1)).write_text(planned_line(PlannedBlock(0, 0, 40)))
    assert imbalance_of_shards(tmp_path, mine, finished()).startswith("2 files in all epochs, but 1 planned")


def test_blocks_planned_ahead_do_not_count_once_the_epochs_are_fewer(tmp_path: Path) -> None:
    of_three = config("/data").model_copy(update={"epochs": 3})
    listed(tmp_path, of_three, FILES)
    one_block_an_epoch = of_three.stream.block_files >= len(FILES)
    assert one_block_an_epoch, "shard 0 has blocks 0 and 2 of the run, shard 1 block 1"
    ahead, end = (PlannedBlock(0, 2, 60), PlannedBlock(1, 2, 60)), (PlannedBlock(0, 2, 40),)
    for shard, blocks in enumerate((ahead, end)):
        text = "\n".join([epochs_line(3), *map(planned_line, blocks), epochs_line(2)])
        (tmp_path / planned_name(shard)).write_text(text)
    assert imbalance_of_shards(tmp_path, of_three.model_copy(update={"epochs": 2}), finished()) == ""
    assert "shard 0: 120 planned, but 60 read" in imbalance_of_shards(tmp_path, of_three, finished())
    with (tmp_path / planned_name(0)).open("a") as lines:
        lines.write("\n" + planned_line(PlannedBlock(7, 1, 5)))
    lost = imbalance_of_shards(tmp_path, of_three.model_copy(update={"epochs": 2}), finished())
    assert "shard 0: 65 planned, but 60 read" in lost, "a block behind the end, of this number of epochs"


def test_a_run_that_was_further_than_its_epochs_has_planned_more_than_it_read(tmp_path: Path) -> None:
    fewer = config("/data")
    listed(tmp_path, fewer, FILES)
    blocks = [planned_line(PlannedBlock(block, 2, 40)) for block in range(2)]
    text = "\n".join([epochs_line(3), *blocks, epochs_line(1)])
    for shard in range(2):
        (tmp_path / planned_name(shard)).write_text(text)
    assert imbalance_of_shards(tmp_path, fewer, finished().model_copy(update={"epoch": 2})) == ""
    assert "80 planned" not in imbalance_of_shards(tmp_path, fewer, finished())
