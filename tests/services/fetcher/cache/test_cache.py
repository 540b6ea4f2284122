"""Files of one run in its cache directory."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from caches import BODY, NAME, SOURCE, Make, Remote, files_in

from common.errors import BadInputError, TransientError
from common.files.local_name import name_of
from common.plan import SourceFile
from services.fetcher.staging import cache as module
from services.fetcher.staging.cache import DiskFullError
from services.fetcher.staging.cache_layout import CacheLayout
from services.fetcher.staging.cache_sweep import sweep


def test_a_file_is_fetched_once_and_lies_in_the_pool_with_a_link_of_the_run(
    make: Make, remote: Remote, layout: CacheLayout, tmp_path: Path
) -> None:
    cache = make("a")
    for _ in range(3):
        path = cache.get(SOURCE, remote)
        assert path == cache.path(SOURCE)
        assert path.read_bytes() == BODY
    assert remote.fetches == 1
    assert path.samefile(layout.pool(NAME))
    run = layout.run(tmp_path / "a")
    expected = [path, layout.pool(NAME), layout.sum(NAME)]
    assert files_in(layout.folder) == sorted(str(path.relative_to(layout.folder)) for path in expected)
    assert json.loads(run.description.read_text()) == {"run_dir": str(tmp_path / "a")}
    assert cache.pinned() == {NAME}


def test_a_dropped_file_is_deleted(make: Make, remote: Remote, layout: CacheLayout) -> None:
    cache = make("a")
    cache.get(SOURCE, remote)
    cache.drop(SOURCE)
    assert files_in(layout.folder) == []
    cache.drop(SOURCE)
    assert cache.get(SOURCE, remote).read_bytes() == BODY
    assert remote.fetches == 2


def test_a_restarted_run_finds_its_files_and_drops_those_that_it_does_not_want(
    make: Make, remote: Remote, layout: CacheLayout
) -> None:
    other = SourceFile("https://host/data/g.parquet", len(BODY))
    cache = make("a")
    cache.get(SOURCE, remote)
    cache.get(other, remote)
    cache.close()
    cache = make("a")
    assert cache.pinned() == {NAME, name_of(other)}
    cache.drop_all_but([SOURCE])
    assert cache.pinned() == {NAME}
    assert not layout.pool(name_of(other)).exists()
    assert cache.get(SOURCE, remote).read_bytes() == BODY
    assert remote.fetches == 2


@pytest.mark.parametrize("damage", ["byte", "truncated", "no sum", "damaged sum"])
@pytest.mark.parametrize("run", ["a", "b"])
def test_a_damaged_file_is_found_out_before_its_use_and_fetched_again(
    make: Make, remote: Remote, layout: CacheLayout, damage: str, run: str
) -> None:
    first = make("a")
    path = first.get(SOURCE, remote)
    first.close()
    match damage:
        case "byte":
            path.write_bytes(BODY[:-1] + b"x")
        case "truncated":
            path.write_bytes(BODY[:-1])
        case "no sum":
            layout.sum(NAME).unlink()
        case "damaged sum":
            layout.sum(NAME).write_text("{")
    second = make(run)
    assert second.get(SOURCE, remote).read_bytes() == BODY
    assert remote.fetches == 2
    assert layout.pool(NAME).samefile(second.path(SOURCE))
    third = make("c")
    third.get(SOURCE, remote)
    assert remote.fetches == 2


def test_a_file_that_was_written_to_in_mid_run_is_checked_again(make: Make, remote: Remote) -> None:
    cache = make("a")
    path = cache.get(SOURCE, remote)
    path.write_bytes(b"x" * len(BODY))
    os.utime(path, ns=(1, 1))
    assert cache.get(SOURCE, remote).read_bytes() == BODY
    assert remote.fetches == 2


def test_a_sound_file_is_read_for_its_check_only_once_in_a_process(
    make: Make, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("a").get(SOURCE, remote)
    cache = make("b")
    cache.get(SOURCE, remote)
    monkeypatch.setattr(module.Sum, "of", None)
    cache.get(SOURCE, remote)


def test_another_token_names_the_same_file_another_size_or_checksum_another_one() -> None:
    with_token = SourceFile(f"{SOURCE.url}?authz=s3cret", len(BODY))
    assert name_of(with_token) == name_of(SourceFile(f"{SOURCE.url}?authz=other", len(BODY)))
    assert "s3cret" not in name_of(with_token)
    others = {name_of(SourceFile(SOURCE.url, 7)), name_of(SourceFile(SOURCE.url, len(BODY), "md5=0")), NAME}
    assert len(others) == 3


def test_what_arrived_with_another_size_is_not_kept(make: Make, layout: CacheLayout) -> None:
    with pytest.raises(TransientError, match=f"7 bytes arrived, the inventory says {len(BODY)}"):
        make("a").get(SOURCE, Remote(b"1234567"))
    assert files_in(layout.folder) == []


def test_a_transfer_that_broke_off_is_gone_on_with_also_by_another_run(make: Make, layout: CacheLayout) -> None:
    def broken(part: Path) -> None:
        part.write_bytes(BODY[:100])
        raise TransientError("the server is away")

    def rest(part: Path) -> None:
        assert part.read_bytes() == BODY[:100]
        part.write_bytes(BODY)

    with pytest.raises(TransientError, match="the server is away"):
        make("a").get(SOURCE, broken)
    b = make("b")
    assert b.get(SOURCE, rest).read_bytes() == BODY
    b.drop(SOURCE)
    assert files_in(layout.folder) == []


def test_of_a_file_that_can_not_be_had_nothing_is_kept(make: Make, layout: CacheLayout) -> None:
    def denied(part: Path) -> None:
        part.write_bytes(b"abc")
        raise BadInputError("the server refuses it")

    with pytest.raises(BadInputError, match="refuses"):
        make("a").get(SOURCE, denied)
    assert files_in(layout.folder) == []


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_gives_its_space_back_and_says_what_to_do(make: Make, layout: CacheLayout, reason: int) -> None:
    unused = layout.pool("ab-unused")

    def fetch(part: Path) -> None:
        part.write_bytes(BODY[:1000])
        unused.parent.mkdir(parents=True)
        unused.touch()
        raise OSError(reason, os.strerror(reason))

    cache = make("a")
    with pytest.raises(DiskFullError, match=r"MiB free, the file needs .* MiB; free some space") as told:
        cache.get(SOURCE, fetch)
    assert str(layout.folder) in str(told.value)
    assert isinstance(told.value, TransientError)
    assert (told.value.folder, told.value.bytes_needed) == (layout.folder, len(BODY))
    assert told.value.bytes_free > 0
    assert files_in(layout.folder) == [], "nor is anything left that nobody uses"
    assert cache.get(SOURCE, Remote()).read_bytes() == BODY


def test_a_file_that_can_not_fit_is_not_even_begun(make: Make, remote: Remote) -> None:
    with pytest.raises(DiskFullError):
        make("a").get(SourceFile("https://host/huge.parquet", 1 << 60), remote)
    assert remote.fetches == 0


def test_a_cache_directory_that_was_removed_is_built_again(make: Make, remote: Remote, layout: CacheLayout) -> None:
    cache = make("a")
    cache.get(SOURCE, remote)
    shutil.rmtree(layout.folder)
    assert cache.pinned() == frozenset()
    cache.drop(SOURCE)
    cache.drop_all_but([SOURCE])
    assert cache.get(SOURCE, remote).read_bytes() == BODY
    assert remote.fetches == 2
    assert make("b").get(SOURCE, remote).samefile(cache.path(SOURCE))
    sweep(layout)
    assert cache.path(SOURCE).exists()


def test_a_cache_directory_that_is_removed_in_mid_transfer_is_built_again(make: Make, layout: CacheLayout) -> None:
    calls: list[Path] = []

    def fetch(part: Path) -> None:
        calls.append(part)
        part.write_bytes(BODY)
        if len(calls) == 1:
            shutil.rmtree(layout.folder)

    assert make("a").get(SOURCE, fetch).read_bytes() == BODY
    assert len(calls) == 2
