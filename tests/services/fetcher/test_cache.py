"""Files in a cache directory that runs share. Every run here is a Cache of its own, as in another process."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.errors import BadInputError, TransientError
from common.file_lock import try_lock
from common.files.local_name import name_of
from common.plan import SourceFile
from services.fetcher.staging import cache as module
from services.fetcher.staging.cache import Cache, DiskFullError
from services.fetcher.staging.cache_layout import CacheLayout
from services.fetcher.staging.cache_sweep import sweep

BODY = bytes(range(256)) * 40
SOURCE = SourceFile("https://host/data/f.parquet", len(BODY))
NAME = name_of(SOURCE)
WAIT_S = 20.0


class Remote:
    """Writes a body, and counts."""

    def __init__(self, body: bytes = BODY) -> None:
        self.body = body
        self.fetches = 0

    def __call__(self, part: Path) -> None:
        self.fetches += 1
        part.write_bytes(self.body)


Make = Callable[[str], Cache]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Caches of runs, which have run directories."""
    made: list[Cache] = []

    def one(run: str) -> Cache:
        (tmp_path / run).mkdir(exist_ok=True)
        made.append(Cache(tmp_path / "cache", tmp_path / run))
        return made[-1]

    yield one
    for cache in made:
        cache.close()


@pytest.fixture
def remote() -> Remote:
    return Remote()


@pytest.fixture
def layout(tmp_path: Path) -> CacheLayout:
    return CacheLayout(tmp_path / "cache")


def files_in(folder: Path) -> list[str]:
    """Paths of all files below, but those that a run always has."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("lock", "run.json")]
    return sorted(str(path.relative_to(folder)) for path in found)


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


def test_nobody_else_may_read_what_is_cached(make: Make, remote: Remote, layout: CacheLayout) -> None:
    make("a").get(SOURCE, remote)
    for path in layout.folder.rglob("*"):
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


def test_a_dropped_file_is_deleted(make: Make, remote: Remote, layout: CacheLayout) -> None:
    cache = make("a")
    cache.get(SOURCE, remote)
    cache.drop(SOURCE)
    assert files_in(layout.folder) == []
    cache.drop(SOURCE)
    assert cache.get(SOURCE, remote).read_bytes() == BODY
    assert remote.fetches == 2


def test_two_runs_share_a_file_until_the_last_one_drops_it(make: Make, remote: Remote, layout: CacheLayout) -> None:
    a, b = make("a"), make("b")
    assert a.get(SOURCE, remote).samefile(b.get(SOURCE, remote))
    assert remote.fetches == 1
    a.drop(SOURCE)
    assert b.path(SOURCE).read_bytes() == BODY
    assert not a.path(SOURCE).exists()
    assert a.get(SOURCE, remote).samefile(b.path(SOURCE)), "it is in the pool still"
    assert remote.fetches == 1
    b.drop(SOURCE)
    a.drop(SOURCE)
    assert files_in(layout.folder) == []


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


def test_a_second_run_waits_for_the_first_ones_transfer_and_uses_it(make: Make, remote: Remote) -> None:
    a, b = make("a"), make("b")
    begun, go_on = threading.Event(), threading.Event()

    def slow(part: Path) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)
        remote(part)

    first = threading.Thread(target=a.get, args=(SOURCE, slow))
    second = threading.Thread(target=b.get, args=(SOURCE, remote))
    first.start()
    assert begun.wait(WAIT_S)
    second.start()
    go_on.set()
    for thread in (first, second):
        thread.join(WAIT_S)
    assert remote.fetches == 1
    assert b.path(SOURCE).samefile(a.path(SOURCE))


def test_a_run_that_stops_does_not_wait_for_another_ones_transfer(make: Make, layout: CacheLayout) -> None:
    cache = make("a")
    lock = try_lock(layout.locks / NAME)
    assert lock is not None
    stopped: list[str] = []

    def get() -> None:
        with pytest.raises(TransientError) as told:
            cache.get(SOURCE, Remote())
        stopped.append(str(told.value))

    thread = threading.Thread(target=get)
    thread.start()
    cache.stop()
    thread.join(WAIT_S)
    os.close(lock)
    assert stopped == ["the fetcher stops"]


def test_another_run_that_gets_nowhere_is_told_and_one_that_gets_further_is_waited_for(
    make: Make, layout: CacheLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    make("b")
    cache = make("a")
    lock = try_lock(layout.locks / NAME)
    assert lock is not None
    part = layout.run(tmp_path / "b").parts / NAME
    sizes = iter(range(1, 6))

    def size_bytes(path: Path) -> int:
        if path != part:
            return 0
        return next(sizes, 6)

    monkeypatch.setattr(module, "_size_bytes", size_bytes)
    with pytest.raises(TransientError, match="without its growing"):
        cache.get(SOURCE, Remote())
    assert next(sizes, None) is None
    os.close(lock)


def test_the_threads_of_a_run_share_one_transfer(make: Make, remote: Remote) -> None:
    cache = make("a")
    start = threading.Barrier(8)

    def get() -> None:
        start.wait(WAIT_S)
        cache.get(SOURCE, remote)

    threads = [threading.Thread(target=get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert remote.fetches == 1


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


def test_a_second_fetcher_of_the_same_run_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make("a")
    monkeypatch.setattr(module, "_START_S", 0.0)
    with pytest.raises(BadInputError, match=r"another fetcher of .*/a uses this cache directory"):
        make("a")
    cache.close()
    make("a")


def test_a_directory_that_others_may_write_to_is_refused(make: Make, layout: CacheLayout) -> None:
    layout.folder.mkdir(mode=0o700)
    layout.folder.chmod(0o770)
    with pytest.raises(BadInputError, match=r"fetcher\.cache_dir = .* can be written by others: chmod 700"):
        make("a")
    layout.folder.chmod(0o755)
    make("a")


def test_a_directory_of_somebody_else_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(BadInputError, match=r"fetcher\.cache_dir = .* belongs to user"):
        make("a")


def test_a_file_in_the_place_of_the_directory_is_refused(make: Make, layout: CacheLayout) -> None:
    layout.folder.touch()
    with pytest.raises(BadInputError, match="not a directory"):
        make("a")


@pytest.mark.parametrize(("call", "what"), [("link", "without hard links"), ("flock", "without locks")])
def test_a_file_system_that_lacks_what_is_needed_is_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch, call: str, what: str
) -> None:
    def unsupported(*args: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(f"os.{call}" if call == "link" else "fcntl.flock", unsupported)
    with pytest.raises(BadInputError, match=rf"fetcher\.cache_dir = .*{what}"):
        make("a")


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
