"""The cache of one run: whole and sound files, or none; what a kill or a full disk leaves."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from common.errors import BadInputError, TransientError
from common.files.remotes import name_of
from common.plan import SourceFile
from services.fetcher.cache import Cache

BODY = bytes(range(256)) * 40
SOURCE = SourceFile("https://host/data/f.parquet", len(BODY))
NAME = name_of(SOURCE)
MIB = 1 << 20

Make = Callable[[], Cache]


class Remote:
    """Writes a body, and counts."""

    def __init__(self, body: bytes = BODY) -> None:
        self.body = body
        self.fetches = 0

    def __call__(self, part: Path) -> None:
        self.fetches += 1
        part.write_bytes(self.body)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda: Cache(tmp_path / "cache", tmp_path / "run")


@pytest.fixture
def remote() -> Remote:
    return Remote()


def kinds_in(folder: Path) -> list[str]:
    """Return the kinds of files below a cache directory: its folders' names."""
    return sorted(path.parent.name for path in folder.rglob("*") if path.is_file())


def test_a_file_is_fetched_once_and_lies_there_with_its_sum(make: Make, remote: Remote, tmp_path: Path) -> None:
    cache = make()
    for _ in range(3):
        path = cache.get(SOURCE, remote)
        assert path == cache.path(SOURCE)
        assert path.read_bytes() == BODY
        assert path.stat().st_mode & 0o777 == 0o600
    assert remote.fetches == 1
    assert kinds_in(tmp_path) == ["files", "sums"]
    assert cache.names() == {NAME}


def test_a_dropped_file_is_deleted_and_an_empty_cache_leaves_nothing(
    make: Make, remote: Remote, tmp_path: Path
) -> None:
    cache = make()
    cache.get(SOURCE, remote)
    cache.drop(SOURCE)
    assert kinds_in(tmp_path) == []
    cache.drop(SOURCE)
    assert cache.get(SOURCE, remote).read_bytes() == BODY
    assert remote.fetches == 2
    cache.drop(SOURCE)
    cache.close()
    assert not list((tmp_path / "cache").iterdir())


def test_a_restarted_run_finds_its_files_and_drops_those_that_it_does_not_want(
    make: Make, remote: Remote, tmp_path: Path
) -> None:
    other = SourceFile("https://host/data/g.parquet", len(BODY))
    cache = make()
    cache.get(SOURCE, remote)
    cache.get(other, remote)
    cache.close()
    cache = make()
    assert cache.names() == {NAME, name_of(other)}
    cache.drop_all_but([SOURCE])
    assert cache.names() == {NAME}
    assert kinds_in(tmp_path) == ["files", "sums"]
    assert cache.get(SOURCE, remote).read_bytes() == BODY
    assert remote.fetches == 2


def test_runs_that_name_one_directory_do_not_meet(remote: Remote, tmp_path: Path) -> None:
    first, second = (Cache(tmp_path / "cache", tmp_path / run) for run in "ab")
    assert first.get(SOURCE, remote) != second.get(SOURCE, remote)
    second.drop_all_but([])
    assert first.path(SOURCE).exists()


@pytest.mark.parametrize("damage", ["byte", "truncated", "no sum", "damaged sum"])
def test_a_damaged_file_is_found_out_before_its_use_and_fetched_again(make: Make, remote: Remote, damage: str) -> None:
    first = make()
    path = first.get(SOURCE, remote)
    first.close()
    noted = path.parent.with_name("sums") / NAME
    match damage:
        case "byte":
            path.write_bytes(BODY[:-1] + b"x")
        case "truncated":
            path.write_bytes(BODY[:-1])
        case "no sum":
            noted.unlink()
        case "damaged sum":
            noted.write_text("{")
    cache = make()
    assert cache.get(SOURCE, remote).read_bytes() == BODY
    assert remote.fetches == 2
    path.write_bytes(b"x" * len(BODY))
    os.utime(path, ns=(1, 1))
    assert cache.get(SOURCE, remote).read_bytes() == BODY, "in mid run, too"
    assert remote.fetches == 3


def test_a_transfer_that_broke_off_is_gone_on_with_by_the_next_fetcher(make: Make, tmp_path: Path) -> None:
    def broken(part: Path) -> None:
        part.write_bytes(BODY[:100])
        raise TransientError("the server is away")

    def rest(part: Path) -> None:
        assert part.read_bytes() == BODY[:100]
        part.write_bytes(BODY)

    with pytest.raises(TransientError, match="the server is away"):
        make().get(SOURCE, broken)
    cache = make()
    assert cache.get(SOURCE, rest).read_bytes() == BODY
    cache.drop(SOURCE)
    assert kinds_in(tmp_path) == []


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(BadInputError("the server refuses it"), "refuses"), (None, f"3 bytes arrived, the inventory says {len(BODY)}")],
)
def test_of_a_file_that_can_not_be_had_or_has_another_size_nothing_is_kept(
    make: Make, tmp_path: Path, outcome: BadInputError | None, reason: str
) -> None:
    def fetch(part: Path) -> None:
        part.write_bytes(b"abc")
        if outcome is not None:
            raise outcome

    with pytest.raises(BadInputError if outcome else TransientError, match=reason):
        make().get(SOURCE, fetch)
    assert kinds_in(tmp_path) == []


def test_threads_that_want_one_file_fetch_it_once(make: Make, remote: Remote) -> None:
    cache = make()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: cache.get(SOURCE, remote), range(32)))
    assert remote.fetches == 1


# -------------------------------------------------------------- disks


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_gives_its_space_back_and_says_what_to_do(make: Make, tmp_path: Path, reason: int) -> None:
    def fetch(part: Path) -> None:
        part.write_bytes(BODY[:1000])
        raise OSError(reason, os.strerror(reason))

    cache = make()
    with pytest.raises(TransientError, match=r"/cache has .* MiB free, the file needs 0\.0 MiB; free some space"):
        cache.get(SOURCE, fetch)
    assert kinds_in(tmp_path) == []
    remote = Remote()
    assert cache.get(SOURCE, remote).read_bytes() == BODY
    with pytest.raises(TransientError, match="the disk is full"):
        cache.get(SourceFile("https://host/huge.parquet", 1 << 60), remote)
    assert remote.fetches == 1, "what can't fit is not even begun"


@pytest.mark.parametrize("when", ["before", "in mid transfer"])
def test_a_cache_directory_that_was_removed_is_built_again(make: Make, tmp_path: Path, when: str) -> None:
    cache = make()
    parts: list[Path] = []

    def fetch(part: Path) -> None:
        parts.append(part)
        part.write_bytes(BODY)
        if when != "before" and len(parts) == 1:
            shutil.rmtree(tmp_path / "cache")

    if when == "before":
        cache.get(SOURCE, Remote())
        shutil.rmtree(tmp_path / "cache")
        assert cache.names() == frozenset()
        cache.drop(SOURCE)
        cache.drop_all_but([SOURCE])
    assert cache.get(SOURCE, fetch).read_bytes() == BODY
    assert len(parts) == (1 if when == "before" else 2)


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(BadInputError, match=r"fetcher\.cache_dir = .* can be changed by every user.*chmod go-w"):
        Cache(tmp_path / "cache", tmp_path / "run")
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match=r"fetcher\.cache_dir = .*file: not a directory; name another one"):
        Cache(tmp_path / "file", tmp_path / "run")
