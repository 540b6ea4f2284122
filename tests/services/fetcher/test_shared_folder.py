"""What the fetchers of several shards share: one list of files, and one failure budget."""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

import pytest

from common.errors import BadInputError
from common.files.inputs import NothingFound
from common.locks import OutdatedAttemptError, begin_attempt
from common.messages import Cursor, Quarantined
from common.plan import Footer, RowGroup, SourceFile, Span, StagedFile, plan_hash
from services.config.root import Config
from services.config.settings import InputRange
from services.fetcher.service import FetcherService
from services.fetcher.shared_folder import (
    BegunBlocks,
    PublishedInventory,
    SharedEpochs,
    SharedFolder,
    add_bad_file,
    list_path,
    num_files,
    publish,
    read_published,
)

RANGE = InputRange("0000000-0000999", ("data/secret-token/*.parquet",))
FILES = [SourceFile("/data/b", 7, "md5=1"), SourceFile("/data/a", 0)]


class Lists:
    """Lists what it was given, and counts how often."""

    def __init__(self, files: list[SourceFile]) -> None:
        self.files = files
        self.times = 0

    def __call__(self, one: InputRange) -> list[SourceFile]:
        self.times += 1
        if not self.files:
            raise NothingFound("no such folder")
        return self.files


def published(tmp_path: Path, shard: int, expand: Lists) -> PublishedInventory:
    return PublishedInventory(SharedFolder(tmp_path, shard), expand)


def test_the_first_shard_lists_and_the_others_wait_and_read_the_same(tmp_path: Path) -> None:
    lists, never = Lists(FILES), Lists([])
    first, other = published(tmp_path, 0, lists), published(tmp_path, 3, never)
    assert first.is_there(RANGE)
    assert not other.is_there(RANGE)
    assert first.expand(RANGE) == FILES
    assert other.is_there(RANGE)
    assert other.expand(RANGE) == FILES
    assert (lists.times, never.times) == (1, 0)
    (path,) = tmp_path.iterdir()
    assert "secret" not in path.name
    assert path.stat().st_mode & 0o077 == 0


def test_a_list_that_was_published_stays_although_the_files_have_changed(tmp_path: Path) -> None:
    published(tmp_path, 0, Lists(FILES)).expand(RANGE)
    again = published(tmp_path, 0, Lists(FILES[:1]))
    assert again.expand(RANGE) == FILES
    publish(list_path(tmp_path, RANGE), FILES[:1])  # by one that did not see the other's in time
    assert again.expand(RANGE) == FILES
    assert [path.suffix for path in tmp_path.iterdir()] == [".jsonl"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_without_hard_links_a_list_is_complete_whenever_it_is_seen_and_one_of_many_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As on FUSE, exFAT, and some exports of NFS."""

    def refuse(*paths: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "files-x.jsonl"
    replace, seen = Path.replace, []

    def seen_before_and_after(part: Path, target: Path) -> Path:
        assert not target.exists()
        seen.append(read_published(part))
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", seen_before_and_after)
    lists = [[SourceFile(f"/data/{writer}/{file}", file) for file in range(200)] for writer in range(8)]
    with ThreadPoolExecutor(len(lists)) as writers:
        for written in [writers.submit(publish, path, files) for files in lists]:
            written.result()
    assert [read_published(path)] == seen
    assert [path.name for path in tmp_path.iterdir()] == ["files-x.jsonl"]


def test_an_error_of_the_disk_is_no_lack_of_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*paths: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OSError, match="Input/output error"):
        publish(tmp_path / "files-x.jsonl", FILES)
    assert not list(tmp_path.iterdir())


def test_a_range_that_is_skipped_is_skipped_by_all_shards(tmp_path: Path) -> None:
    with pytest.raises(NothingFound, match="no such folder"):
        published(tmp_path, 0, Lists([])).expand(InputRange("", RANGE.inputs))
    assert not list(tmp_path.iterdir()), "inputs that the user has to mend are not published"
    for shard in range(2):
        with pytest.raises(NothingFound, match="no such folder"):
            published(tmp_path, shard, Lists([])).expand(RANGE)
    assert num_files(list_path(tmp_path, RANGE)) == 0
    assert list_path(tmp_path, RANGE).exists()


@pytest.mark.parametrize("damage", ["file", "count", "version", "text"])
def test_a_damaged_list_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "files-x.jsonl"
    publish(path, FILES)
    head, *lines = path.read_text().splitlines()
    changed = {
        "file": [head, lines[0].replace("7", "8"), lines[1]],
        "count": [head, lines[0]],
        "version": [json.dumps(json.loads(head) | {"version": 99}), *lines],
        "text": [head, "[", lines[1]],
    }[damage]
    path.write_text("\n".join(changed))
    with pytest.raises(BadInputError, match=r"files-x\.jsonl: damaged list of files.*--fresh"):
        read_published(path)


def test_a_bad_file_of_several_shards_counts_once(tmp_path: Path) -> None:
    added = ((0, 5), (1, 7), (0, 5), (2, 5), (2, 1), (0, 8))
    assert [add_bad_file(SharedFolder(tmp_path, shard), file) for shard, file in added] == [1, 2, 2, 2, 3, 4]


def test_what_a_crash_of_the_machine_left_of_a_line_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "bad-000").write_text("5\n\0\0\0")
    (tmp_path / "epochs-000").write_text("1 7\n2")
    shared = SharedFolder(tmp_path)
    assert [add_bad_file(shared, file) for file in (7, 5)] == [2, 2]
    assert not SharedEpochs(shared).is_barren({2: 3})
    assert SharedEpochs(shared).is_barren({3: 0})


def test_an_epoch_is_barren_once_no_shard_delivered_an_event_of_it(tmp_path: Path) -> None:
    shards = [SharedEpochs(SharedFolder(tmp_path, shard, 3)) for shard in range(3)]
    assert not shards[0].is_barren({}), "nothing is complete yet"
    assert not shards[0].is_barren({1: 0})
    assert not shards[1].is_barren({1: 0})
    assert not shards[2].is_barren({1: 5})
    assert not shards[0].is_barren({1: 0, 2: 0})
    assert not shards[2].is_barren({1: 5, 2: 0, 3: 0})
    assert shards[1].is_barren({1: 0, 2: 0})
    again = SharedEpochs(SharedFolder(tmp_path, 1, 3))
    assert not again.is_barren({3: 7}), "after a restart"


def test_a_fetcher_of_an_older_attempt_adds_no_record(tmp_path: Path) -> None:
    """It was frozen while its run was started again, perhaps with other inputs, and wakes up."""
    folder = tmp_path / "inventory"
    folder.mkdir()
    older = SharedFolder(folder, 1, 2, begin_attempt(tmp_path).publishing)
    newer = SharedFolder(folder, 1, 2, begin_attempt(tmp_path).publishing)
    for shared in (older, newer):
        for add in (
            partial(shared.append_planned, "[0, 1, 5]"),
            partial(add_bad_file, shared, 3),
            partial(SharedEpochs(shared).is_barren, {0: 7}),
            partial(BegunBlocks, shared, "plan"),
        ):
            with pytest.raises(OutdatedAttemptError) if shared is older else nullcontext():
                add()
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "planned-001.jsonl": "\n[0, 1, 5]\n",
        "bad-001": "\n3\n",
        "epochs-001": "\n0 7\n",
        "begun-001.jsonl": '"plan"\n',
    }


# -------------------------------------------------------------- begun blocks

GOOD = SourceFile("/data/a", 7, "md5=1")
BAD = SourceFile("/data/b", 8)
FOOTER = Footer((RowGroup(9, 99), RowGroup(5, 50, (Span(0, 2, 20), Span(2, 3, 30, 1)))))
STAGED = [
    (GOOD, StagedFile(0, "/cache/a", FOOTER, "https://host/a")),
    (BAD, StagedFile(1, "/data/b", None, reason="/data/b: column 'muons' is missing", bad_rows=12)),
]


def test_files_come_back_as_they_were_planned(tmp_path: Path) -> None:
    BegunBlocks(SharedFolder(tmp_path), "plan").add(3, STAGED)
    again = BegunBlocks(SharedFolder(tmp_path), "plan")
    assert again.blocks == [3]
    assert again.files(3) == {
        ("/data/a", 7): StagedFile(0, "", FOOTER),
        ("/data/b", 8): StagedFile(1, "", None, reason="/data/b: column 'muons' is missing", bad_rows=12),
    }


def test_blocks_are_kept_until_they_are_forgotten_and_the_newest_plan_of_one_counts(tmp_path: Path) -> None:
    begun = BegunBlocks(SharedFolder(tmp_path), "plan")
    for block in (0, 1, 2, 1):
        begun.add(block, STAGED[: block + 1])
    begun.add(0, STAGED)
    begun.forget(1)
    begun.forget(1)
    again = BegunBlocks(SharedFolder(tmp_path), "plan")
    assert again.blocks == [1, 2]
    assert len(again.files(1)) == 2
    again.add(4, [])
    assert BegunBlocks(SharedFolder(tmp_path), "plan").blocks == [1, 2, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["begun-000.jsonl"]


def test_what_a_killed_process_left_of_a_line_is_skipped(tmp_path: Path) -> None:
    BegunBlocks(SharedFolder(tmp_path), "plan").add(0, STAGED)
    with (tmp_path / "begun-000.jsonl").open("a") as file:
        file.write('\n[1, [["/data/a", 7')
    again = BegunBlocks(SharedFolder(tmp_path), "plan")
    again.add(2, STAGED)
    assert BegunBlocks(SharedFolder(tmp_path), "plan").blocks == [0, 2]


def test_a_begun_block_is_planned_as_it_was_although_an_older_ledger_has_its_file_as_bad(tmp_path: Path) -> None:
    """Another machine had the shard in the meantime: the file was whole there, and the block was begun with it."""
    stream = {"slots": 2, "slot_mib": 1, "shards": 2, "block_files": 1, "shuffle": False}
    config = Config.model_validate({"input": ["x.parquet"], "stream": stream})
    shared = SharedFolder(tmp_path, 0, 2)
    settings = plan_hash(config.stored_workload(), config.of_shard(0).stream, config.seed)
    begun = BegunBlocks(shared, settings)
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
