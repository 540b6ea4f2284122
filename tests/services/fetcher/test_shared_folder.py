"""What the fetchers of several shards share: one list of files, and one failure budget."""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from common.attempt import OutdatedAttemptError, begin_attempt
from common.errors import BadInputError
from common.files.inputs import NothingFound
from common.plan import SourceFile
from common.published import num_files, publish, published_path, read_published
from services.fetcher.inventory.published import PublishedInventory, list_path
from services.fetcher.inventory.ranges import InputRange
from services.fetcher.inventory.shared_bad_files import SharedBadFiles
from services.fetcher.inventory.shared_epochs import SharedEpochs
from services.fetcher.inventory.shared_folder import SharedFolder

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


def test_the_first_shard_lists_and_the_others_wait_and_read_the_same(tmp_path: Path) -> None:
    lists, never = Lists(FILES), Lists([])
    first, first_may = SharedFolder(tmp_path, 0).listing(lists, skips=True)
    other, other_may = SharedFolder(tmp_path, 3).listing(never, skips=True)
    assert first_may(RANGE)
    assert not other_may(RANGE)
    assert first(RANGE) == FILES
    assert other_may(RANGE)
    assert other(RANGE) == FILES
    assert (lists.times, never.times) == (1, 0)
    (path,) = tmp_path.iterdir()
    assert "secret" not in path.name
    assert path.stat().st_mode & 0o077 == 0


def test_a_list_that_was_published_stays_although_the_files_have_changed(tmp_path: Path) -> None:
    PublishedInventory(tmp_path, Lists(FILES), lists=True, skips=True).expand(RANGE)
    again = PublishedInventory(tmp_path, Lists(FILES[:1]), lists=True, skips=True)
    assert again.expand(RANGE) == FILES
    publish(again.path(RANGE), FILES[:1])  # by one that did not see the other's in time
    assert again.expand(RANGE) == FILES
    assert [path.suffix for path in tmp_path.iterdir()] == [".jsonl"]


@pytest.fixture(params=[errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def no_links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without hard links (FUSE, exFAT, some exports of NFS)."""

    def refuse(*paths: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("no_links")
def test_without_hard_links_the_first_list_stays_too(tmp_path: Path) -> None:
    path = published_path(tmp_path, "x")
    publish(path, FILES)
    publish(path, FILES[:1])
    assert read_published(path) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["files-x.jsonl"]


@pytest.mark.usefixtures("no_links")
def test_without_hard_links_a_list_is_complete_whenever_it_is_seen_and_one_of_many_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = published_path(tmp_path, "x")
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
        publish(published_path(tmp_path, "x"), FILES)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "skips"), [("", True), (RANGE.name, False)])
def test_inputs_that_the_user_has_to_mend_are_not_published(tmp_path: Path, name: str, skips: bool) -> None:
    inventory = PublishedInventory(tmp_path, Lists([]), lists=True, skips=skips)
    with pytest.raises(NothingFound, match="no such folder"):
        inventory.expand(InputRange(name, RANGE.inputs))
    assert not list(tmp_path.iterdir())


def test_a_range_that_is_skipped_is_skipped_by_all_shards(tmp_path: Path) -> None:
    for shard in range(2):
        expand, _ = SharedFolder(tmp_path, shard).listing(Lists([]), skips=True)
        with pytest.raises(NothingFound, match="no such folder"):
            expand(RANGE)
    assert num_files(list_path(tmp_path, RANGE)) == 0
    assert list_path(tmp_path, RANGE).exists()


@pytest.mark.parametrize("damage", ["file", "count", "version", "text"])
def test_a_damaged_list_is_named(tmp_path: Path, damage: str) -> None:
    path = published_path(tmp_path, "x")
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


def test_the_files_of_a_list_are_counted(tmp_path: Path) -> None:
    assert num_files(published_path(tmp_path, "one")) == 0
    publish(published_path(tmp_path, "one"), FILES)
    assert num_files(published_path(tmp_path, "one")) == 2


def test_a_bad_file_of_several_shards_counts_once(tmp_path: Path) -> None:
    shards = [SharedBadFiles(tmp_path, shard) for shard in range(3)]
    assert [shards[0].add(5), shards[1].add(7), shards[0].add(5), shards[2].add(5), shards[2].add(1)] == [1, 2, 2, 2, 3]
    assert SharedBadFiles(tmp_path, 0).add(8) == 4, "after a restart"


def test_what_a_crash_of_the_machine_left_of_a_line_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "bad-000").write_text("5\n\0\0\0")
    (tmp_path / "epochs-000").write_text("1 7\n2")
    assert [SharedBadFiles(tmp_path, 0).add(file) for file in (7, 5)] == [2, 2]
    assert not SharedEpochs(tmp_path, 0, 1).is_barren({2: 3})
    assert SharedEpochs(tmp_path, 0, 1).is_barren({3: 0})


def test_an_epoch_is_barren_once_no_shard_delivered_an_event_of_it(tmp_path: Path) -> None:
    shards = [SharedEpochs(tmp_path, shard, 3) for shard in range(3)]
    assert not shards[0].is_barren({}), "nothing is complete yet"
    assert not shards[0].is_barren({1: 0})
    assert not shards[1].is_barren({1: 0})
    assert not shards[2].is_barren({1: 5})
    assert not shards[0].is_barren({1: 0, 2: 0})
    assert not shards[2].is_barren({1: 5, 2: 0, 3: 0})
    assert shards[1].is_barren({1: 0, 2: 0})
    again = SharedEpochs(tmp_path, 1, 3)
    assert not again.is_barren({3: 7}), "after a restart"


def test_a_run_without_shards_shares_nothing() -> None:
    alone, lists = SharedFolder(), Lists(FILES)
    expand, may_list = alone.listing(lists, skips=True)
    assert may_list(RANGE)
    assert expand(RANGE) == FILES
    assert alone.bad_files is None
    assert alone.record is None
    assert alone.begun("plan") is None
    assert alone.epochs is None


def test_a_fetcher_of_an_older_attempt_adds_no_record(tmp_path: Path) -> None:
    """It was frozen while its run was started again, perhaps with other inputs, and wakes up."""
    folder = tmp_path / "inventory"
    folder.mkdir()
    older = SharedFolder(folder, 1, 2, begin_attempt(tmp_path).publishing)
    newer = SharedFolder(folder, 1, 2, begin_attempt(tmp_path).publishing)
    for one in (older, newer):
        assert one.record is not None
        assert one.bad_files is not None
        assert one.epochs is not None
        additions = (partial(one.record.append, "[0, 1, 5]"), partial(one.bad_files.add, 3))
        for add in (*additions, partial(one.epochs.is_barren, {0: 7}), partial(one.begun, "plan")):
            with pytest.raises(OutdatedAttemptError) if one is older else nullcontext():
                add()
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "planned-001.jsonl": "\n[0, 1, 5]\n",
        "bad-001": "\n3\n",
        "epochs-001": "\n0 7\n",
        "begun-001.jsonl": '"plan"\n',
    }
