"""Begun blocks of a shard: what a fetcher without its former ledger reads of them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from common.messages import Cursor, Quarantined
from common.plan import Footer, RowGroup, SourceFile, Span, StagedFile
from common.plan_hash import plan_hash
from services.config.root import Config
from services.fetcher.inventory.begun_blocks import BegunBlocks
from services.fetcher.inventory.own_record import OwnRecord
from services.fetcher.inventory.shared_folder import SharedFolder
from services.fetcher.service import FetcherService

GOOD = SourceFile("/data/a", 7, "md5=1")
BAD = SourceFile("/data/b", 8)
FOOTER = Footer((RowGroup(9, 99), RowGroup(5, 50, (Span(0, 2, 20), Span(2, 3, 30, 1)))))
STAGED = [
    (GOOD, StagedFile(0, "/cache/a", FOOTER, "https://host/a")),
    (BAD, StagedFile(1, "/data/b", None, reason="/data/b: column 'muons' is missing", bad_rows=12)),
]


def test_files_come_back_as_they_were_planned(tmp_path: Path) -> None:
    BegunBlocks(OwnRecord(tmp_path / "begun"), "plan").add(3, STAGED)
    again = BegunBlocks(OwnRecord(tmp_path / "begun"), "plan")
    assert again.blocks == [3]
    assert again.files(3) == {
        ("/data/a", 7): StagedFile(0, "", FOOTER),
        ("/data/b", 8): StagedFile(1, "", None, reason="/data/b: column 'muons' is missing", bad_rows=12),
    }


def test_blocks_are_kept_until_they_are_forgotten_and_the_newest_plan_of_one_counts(tmp_path: Path) -> None:
    begun = BegunBlocks(OwnRecord(tmp_path / "begun"), "plan")
    for block in (0, 1, 2, 1):
        begun.add(block, STAGED[: block + 1])
    begun.add(0, STAGED)
    begun.forget(1)
    begun.forget(1)
    again = BegunBlocks(OwnRecord(tmp_path / "begun"), "plan")
    assert again.blocks == [1, 2]
    assert len(again.files(1)) == 2
    again.add(4, [])
    assert BegunBlocks(OwnRecord(tmp_path / "begun"), "plan").blocks == [1, 2, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["begun"]


def test_what_a_killed_process_left_of_a_line_is_skipped(tmp_path: Path) -> None:
    BegunBlocks(OwnRecord(tmp_path / "begun"), "plan").add(0, STAGED)
    with (tmp_path / "begun").open("a") as file:
        file.write('\n[1, [["/data/a", 7')
    again = BegunBlocks(OwnRecord(tmp_path / "begun"), "plan")
    again.add(2, STAGED)
    assert BegunBlocks(OwnRecord(tmp_path / "begun"), "plan").blocks == [0, 2]


def test_a_record_of_another_plan_is_dropped(tmp_path: Path) -> None:
    BegunBlocks(OwnRecord(tmp_path / "begun"), "plan").add(0, STAGED)
    other = BegunBlocks(OwnRecord(tmp_path / "begun"), "another")
    assert other.blocks == []
    other.add(5, STAGED)
    assert BegunBlocks(OwnRecord(tmp_path / "begun"), "another").blocks == [5]


def test_a_begun_block_is_planned_as_it_was_although_an_older_ledger_has_its_file_as_bad(tmp_path: Path) -> None:
    """Another machine had the shard in the meantime: the file was whole there, and the block was begun with it."""
    stream = {"slots": 2, "slot_mib": 1, "shards": 2, "block_files": 1, "shuffle": False}
    config = Config.model_validate({"input": ["x.parquet"], "stream": stream})
    shared = SharedFolder(tmp_path, 0, 2)
    begun = shared.begun(plan_hash(config.stored_workload(), config.of_shard(0).stream, config.seed))
    assert begun is not None
    begun.add(0, STAGED[:1])
    begun.add(1, STAGED[1:])
    with closing(FetcherService(tmp_path, config.of_shard(0), shared)) as service:
        ledger, inventory = service._ledger, service._inventory
        inventory.freeze([GOOD, SourceFile("/data/of another shard", 1), BAD])
        ledger.quarantine(Quarantined(0, -1, 14, "/data/a: truncated"))
        service._planner.restart(Cursor())
        assert (ledger.footer(0), ledger.whole_file(0)) == (FOOTER, None)
        assert ledger.whole_file(2) == Quarantined(2, -1, 12, "/data/b: column 'muons' is missing")
        assert ledger.num_bad_files() == 1
