"""Begun blocks of a shard: what a fetcher without its former ledger reads of them."""

from __future__ import annotations

from pathlib import Path

from common.plan import Footer, RowGroup, SourceFile, Span, StagedFile
from services.fetcher.inventory.begun_blocks import BegunBlocks
from services.fetcher.inventory.own_record import OwnRecord

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
