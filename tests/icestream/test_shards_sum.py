"""Sum over the shards of a run, from the files that its fetchers share."""

from __future__ import annotations

from pathlib import Path

from common.plan import SourceFile
from common.planned import PlannedBlock, planned_line, planned_name
from common.status import Counters, TrainerStatus
from icestream.commands.shards_sum import imbalance_of_shards
from services.config.root import Config, load_config
from services.fetcher.inventory.published import PublishedInventory
from services.fetcher.inventory.ranges import make_ranges

FILES = [SourceFile("/data/a.parquet", 7, ""), SourceFile("/data/b.parquet", 8, "")]
SHARDS = (Counters(events_read=60, events_trained=60), Counters(events_read=40, events_trained=40))


def config(*inputs: str) -> Config:
    settings = ("stream.shards=2", "stream.lanes=2")
    return load_config({}, assignments=settings, flags={"input": inputs}, environment={})


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
