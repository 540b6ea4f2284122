"""A cache directory that several runs or threads use at once, or that is refused."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest
from caches import BODY, NAME, SOURCE, WAIT_S, Make, Remote, files_in
from token_places import another_user

from common.errors import BadInputError, TransientError
from common.file_lock import try_lock
from services.fetcher.staging import cache as module
from services.fetcher.staging.cache_layout import CacheLayout


def test_nobody_else_may_read_what_is_cached(make: Make, remote: Remote, layout: CacheLayout) -> None:
    make("a").get(SOURCE, remote)
    for path in layout.folder.rglob("*"):
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


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


def test_a_second_fetcher_of_the_same_run_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make("a")
    monkeypatch.setattr(module, "_START_S", 0.0)
    with pytest.raises(BadInputError, match=r"another fetcher of .*/a uses this cache directory"):
        make("a")
    cache.close()
    make("a")


def test_a_directory_that_others_may_write_to_is_refused(make: Make, layout: CacheLayout) -> None:
    layout.folder.mkdir(mode=0o700)
    layout.folder.chmod(0o777)
    with pytest.raises(BadInputError, match=r"fetcher\.cache_dir = .* can be changed by every user.*chmod go-w"):
        make("a")
    layout.folder.chmod(0o755)
    make("a")


def test_a_directory_of_somebody_else_is_refused(
    make: Make, layout: CacheLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout.folder.mkdir(mode=0o700)
    with (
        another_user(monkeypatch, layout.folder),
        pytest.raises(BadInputError, match=r"fetcher\.cache_dir = .* belongs to another user"),
    ):
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
