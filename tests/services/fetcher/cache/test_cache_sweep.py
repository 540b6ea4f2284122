"""Deletion of what dead runs left in a cache directory."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from caches import BODY, NAME, SOURCE, Make, Remote, files_in

from common.file_lock import try_lock
from common.plan import SourceFile
from services.fetcher.staging import cache as module
from services.fetcher.staging.cache_layout import CacheLayout


def test_a_run_lives_while_its_cache_is_open_even_if_the_directory_was_removed_once(
    make: Make, remote: Remote, layout: CacheLayout, tmp_path: Path
) -> None:
    cache = make("a")
    shutil.rmtree(layout.folder)
    cache.get(SOURCE, remote)
    (tmp_path / "a").rmdir()
    make("b")
    assert cache.path(SOURCE).exists()


def test_the_pins_of_a_run_go_with_its_run_directory_once_its_fetcher_is_dead(
    make: Make, remote: Remote, layout: CacheLayout, tmp_path: Path
) -> None:
    a = make("a")
    a.get(SOURCE, remote)
    a.close()
    make("b").close()
    assert layout.pool(NAME).exists(), "it may be resumed"
    (tmp_path / "a").rmdir()
    b = make("b")
    assert not layout.run(tmp_path / "a").folder.exists()
    assert files_in(layout.folder) == []
    assert b.pinned() == frozenset()


def test_what_a_killed_fetcher_left_is_removed_by_the_next_one(make: Make, layout: CacheLayout, tmp_path: Path) -> None:
    a, b = layout.run(tmp_path / "a"), layout.run(tmp_path / "b")
    left = [a.parts / NAME, layout.locks / NAME, a.folder / "sum-7", layout.pool(NAME), layout.sum("cd-x")]
    for path in (*left, b.parts / NAME):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("left")
    (layout.runs / "half-made").mkdir()
    (layout.runs / "no-run").touch()
    cache = make("a")
    assert not (b.parts / NAME).exists(), "that of another run which is dead"
    cache.drop_all_but([SOURCE])
    assert a.parts.joinpath(NAME).exists(), "it may be gone on with"
    cache.drop_all_but([])
    assert not any(path.exists() for path in left)
    assert not (layout.runs / "half-made").exists()


def test_a_half_fetched_file_is_dropped_also_while_another_run_is_at_work_on_it(
    make: Make, layout: CacheLayout, tmp_path: Path
) -> None:
    cache = make("a")
    part = layout.run(tmp_path / "a").parts / NAME
    part.write_bytes(b"half")
    lock = try_lock(layout.locks / NAME)
    assert lock is not None
    cache.drop_all_but([])
    os.close(lock)
    assert not part.exists()


def test_a_file_that_is_being_fetched_is_not_dropped(make: Make) -> None:
    cache = make("a")

    def fetch(part: Path) -> None:
        part.write_bytes(BODY)
        cache.drop_all_but([])

    assert cache.get(SOURCE, fetch).read_bytes() == BODY


def test_a_kill_between_the_link_and_the_pool_loses_nothing(
    make: Make, remote: Remote, layout: CacheLayout, tmp_path: Path
) -> None:
    a = make("a")
    path = a.get(SOURCE, remote)
    part = layout.run(tmp_path / "a").parts / NAME
    layout.pool(NAME).replace(part)
    a.close()
    b = make("b")
    assert b.get(SOURCE, remote).samefile(path)
    a = make("a")
    a.get(SOURCE, remote)
    assert remote.fetches == 1
    assert not part.exists()
    b.drop(SOURCE)
    a.drop(SOURCE)
    assert files_in(layout.folder) == []


def test_a_run_that_pins_nothing_leaves_nothing(make: Make, remote: Remote, layout: CacheLayout) -> None:
    cache = make("a")
    cache.get(SOURCE, remote)
    cache.drop(SOURCE)
    cache.close()
    assert not [path for path in layout.folder.rglob("*") if path.is_file()]
    assert not list(layout.runs.iterdir())


def test_a_fetcher_that_begins_while_its_folder_is_swept_has_all_its_folders(
    make: Make, remote: Remote, layout: CacheLayout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = layout.run(tmp_path / "a")

    def swept_before(path: Path) -> int | None:
        for folder in (run.files, run.parts):
            if folder.exists() and not run.description.exists():
                folder.rmdir()
        return try_lock(path)

    monkeypatch.setattr(module, "try_lock", swept_before)
    make("a")
    assert run.files.is_dir()
    assert run.parts.is_dir()


def test_the_lock_of_a_run_is_the_last_thing_that_is_swept(
    make: Make, layout: CacheLayout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = layout.run(tmp_path / "a")
    cache = make("a")
    left: list[list[Path]] = []
    unlink = Path.unlink

    def watched(path: Path, missing_ok: bool = False) -> None:
        if path == run.lock:
            left.append(sorted(run.folder.iterdir()))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", watched)
    cache.close()
    assert left == [[run.lock]]


def test_a_file_that_the_machine_does_not_let_go_of_is_deleted_with_the_next(
    make: Make, remote: Remote, layout: CacheLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make("a")
    path = cache.get(SOURCE, remote)
    unlink = Path.unlink

    def failing(self: Path, missing_ok: bool = False) -> None:
        if self == path:
            raise OSError(errno.EIO, "Input/output error")
        unlink(self, missing_ok)

    monkeypatch.setattr(module.Path, "unlink", failing)
    cache.drop(SOURCE)
    assert path.exists()
    monkeypatch.undo()
    cache.drop(SourceFile("https://host/data/other.parquet", 1))
    assert files_in(layout.folder) == []
