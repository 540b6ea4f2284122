"""Cache directory: remote files on local disk, each fetched once for all runs that share it on this node.

A run pins a file by a hard link of its own: no lock is held while files are used, and none is left by a kill. Fetching,
checking and deleting the last link, for which links are not enough, take the file's lock.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from common.errors import BadInputError, TransientError
from common.file_lock import NO_LOCKS, locked, try_lock
from common.files.local_name import name_of
from common.plan import SourceFile
from common.private_path import make_for_owner
from common.redact import shown
from common.user_path import user_path
from services.fetcher.staging.cache_layout import (
    FILE_MODE,
    NEW_SUM,
    CacheLayout,
    check_cache_dir,
    check_links,
    names_in,
)
from services.fetcher.staging.cache_sweep import remove_if_unpinned, remove_run, sweep
from services.fetcher.staging.sums import Sum

logger = logging.getLogger(__name__)

_START_S = 10.0
"""Time that a fetcher waits for the end of the run's former fetcher."""
_PATIENCE_S = 300.0
"""Time that another run may hold a file without its growing."""
_DROP_S = 1.0
"""Time that drop() waits for another run that holds the file."""
_REBUILDS = 5

Fetch = Callable[[Path], None]
"""Function that writes the whole file at a path; it may continue from a partial file there.

Raises TransientError (the partial file is kept, for the next try), BadInputError (it is removed), OSError (ENOSPC).
"""


class DiskFullError(TransientError):
    """Error: no room for a file. Its partial copy is deleted."""

    def __init__(self, folder: Path, bytes_needed: int, bytes_free: int, reason: str = "the disk is full") -> None:
        super().__init__(
            f"{reason}: {folder} has {bytes_free / 2**20:,.1f} MiB free, the file needs "
            f"{bytes_needed / 2**20:,.1f} MiB; free some space, or lower fetcher.disk_budget_gib"
        )
        self.folder = folder
        self.bytes_needed = bytes_needed
        self.bytes_free = bytes_free


class Cache:
    """Cache directory as used by one run. Its fetcher's worker threads share it.

    Use stop() to end waits for other runs, and close() once the threads have ended.
    """

    def __init__(self, cache_dir: Path, run_dir: Path) -> None:
        """Raises BadInputError if the directory is unsafe, or in use by another fetcher of this run."""
        self._layout = CacheLayout(user_path(cache_dir).resolve())
        self._run_dir = run_dir.resolve()
        self._run = self._layout.run(run_dir)
        self._stopped = threading.Event()
        self._sound: dict[str, tuple[int, int]] = {}  # name -> inode and time of change, checked by this process
        self._at_work: Counter[str] = Counter()  # names that this run's threads are fetching
        self._undropped: set[str] = set()
        self._run_lock: int | None = None
        self._mutex = threading.Lock()
        check_cache_dir(self._layout.folder)
        try:
            if not self._build():
                raise BadInputError(
                    f"{self._run.folder}: another fetcher of {self._run_dir} uses this cache directory; stop it first"
                )
            check_links(self._run.folder)
            for path in names_in(self._run.folder):
                if path.name.startswith(NEW_SUM):
                    path.unlink(missing_ok=True)
            sweep(self._layout)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and error.errno in NO_LOCKS:
                raise BadInputError(
                    f"fetcher.cache_dir = {self._layout.folder} lies on a file system without locks "
                    f"({error.strerror}): name a directory on a local disk"
                ) from None
            raise

    def path(self, source: SourceFile) -> Path:
        """Path of the file for this run, once get() has returned."""
        return self._run.files / name_of(source)

    def pinned(self) -> frozenset[str]:
        """Names (see `name_of`) of the files that this run has pinned, including those of a former fetcher."""
        return frozenset(path.name for path in names_in(self._run.files))

    def get(self, source: SourceFile, fetch: Fetch) -> Path:
        """Path of the file, pinned, sound and whole; fetched if no run of this directory has it.

        Raises the errors of ``fetch``, DiskFullError, and TransientError if another run makes no progress with the
        file.
        """
        name = name_of(source)
        self._undropped.discard(name)
        for _ in range(_REBUILDS):
            try:
                return self._get(name, source, fetch)
            except FileNotFoundError as error:  # the cache directory was removed, or is being removed
                missing = error.filename
            if self._stopped.is_set() or not self._build():
                raise TransientError("the fetcher stops")
        raise TransientError(f"{self._layout.folder}: is removed again and again ({missing})")

    def drop(self, source: SourceFile) -> None:
        """Unpin a file that this run doesn't need any more; it is deleted if no other run uses it.

        A file that can't be deleted now is tried again with the next one.
        """
        for name in (name_of(source), *self._undropped):
            try:
                self._drop(name, _DROP_S)
                self._undropped.discard(name)
            except OSError as error:
                self._undropped.add(name)
                logger.warning("%s: can't be deleted yet: %s", name, error.strerror)

    def drop_all_but(self, sources: Iterable[SourceFile]) -> None:
        """Drop every other file, including half-fetched ones, but none that is being fetched."""
        wanted = {name_of(source) for source in sources}
        for name in {path.name for path in (*names_in(self._run.files), *names_in(self._run.parts))} - wanted:
            self._drop(name, 0.0)

    def stop(self) -> None:
        """End every wait for another run: get() raises TransientError."""
        self._stopped.set()

    def close(self) -> None:
        """Release the run for another fetcher. The pins stay for that one."""
        self.stop()
        with self._mutex:
            if self._run_lock is not None:
                if not names_in(self._run.files) and not names_in(self._run.parts):
                    remove_run(self._run)
                os.close(self._run_lock)
                self._run_lock = None

    # -------------------------------------------------------------- one file

    def _get(self, name: str, source: SourceFile, fetch: Fetch) -> Path:
        link = self._run.files / name
        if self._was_checked(name, link):
            return link
        part = self._run.parts / name
        with self._mutex:
            self._at_work[name] += 1
        try:
            with locked(self._layout.locks / name, self._wait(name, _PATIENCE_S, while_it_grows=True)) as mine:
                if not mine:
                    raise TransientError(
                        "the fetcher stops"
                        if self._stopped.is_set()
                        else f"another run has been at work on it for {_PATIENCE_S:g} s without its growing "
                        f"(its parts/ is in a folder of {self._layout.runs}, whose run.json names the run)"
                    )
                try:
                    if not self._adopt(name, source, link, part):
                        self._fetch(name, source, link, part, fetch)
                except BadInputError:
                    part.unlink(missing_ok=True)
                    raise
                except OSError as error:
                    if _is_full(error):
                        part.unlink(missing_ok=True)
                    raise
                finally:
                    if not link.exists():
                        remove_if_unpinned(self._layout, name)
        except OSError as error:
            if not _is_full(error):
                raise
            sweep(self._layout)
            free_bytes = shutil.disk_usage(self._layout.folder).free
            reason = "the disk is full" if error.errno == errno.ENOSPC else "the disk quota is used up"
            raise DiskFullError(self._layout.folder, source.size_bytes, free_bytes, reason) from None
        finally:
            with self._mutex:
                self._at_work[name] -= 1
        return link

    def _adopt(self, name: str, source: SourceFile, link: Path, part: Path) -> bool:
        """Reuse an existing copy: this run's own link, the pool's file, or another run's link. Damaged copies are
        deleted."""
        pool = self._layout.pool(name)
        # A fetcher that is killed between its own link and the pool's leaves only the first.
        others = (run.files / name for run in self._layout.all_runs() if run != self._run)
        for found in (link, pool, *(() if pool.exists() else others)):
            if not self._is_sound(name, found, source):
                if found in (link, pool):
                    found.unlink(missing_ok=True)
                continue
            if found != link:
                os.link(found, link)
            if not pool.exists():
                os.link(link, pool)
            part.unlink(missing_ok=True)
            self._note_checked(name, link)
            return True
        return False

    def _fetch(self, name: str, source: SourceFile, link: Path, part: Path, fetch: Fetch) -> None:
        """Fetch into this run's part, continuing from another run's; link first, so that no kill leaves it unpinned."""
        make_for_owner(self._layout.sum(name).parent)
        make_for_owner(self._layout.pool(name).parent)
        parts = [part, *(run.parts / name for run in self._layout.all_runs() if run != self._run)]
        for other in parts:
            if other.exists():
                other.replace(part)  # no other process writes it: a writer holds the lock
                if part.stat().st_nlink > 1:  # it was finished, linked, and found damaged since
                    part.unlink()
                break
        bytes_needed = source.size_bytes - (part.stat().st_size if part.exists() else 0)
        if shutil.disk_usage(part.parent).free < bytes_needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(part))
        fetch(part)
        told = Sum.of(part)
        if told.size_bytes != source.size_bytes:
            part.unlink()
            raise TransientError(f"{told.size_bytes} bytes arrived, the inventory says {source.size_bytes}")
        part.chmod(FILE_MODE)
        told.note(self._layout.sum(name), self._run.folder / f"{NEW_SUM}{threading.get_native_id()}")
        os.link(part, link)
        part.replace(self._layout.pool(name))
        self._note_checked(name, link)

    def _drop(self, name: str, patience_s: float) -> None:
        self._sound.pop(name, None)
        (self._run.files / name).unlink(missing_ok=True)
        if not self._at_work[name]:  # no other process writes it, whichever holds the lock
            (self._run.parts / name).unlink(missing_ok=True)
        try:
            # A run that holds the lock longer is about to pin the file, or deletes it if that fails.
            with locked(self._layout.locks / name, self._wait(name, patience_s)) as mine:
                if mine:
                    remove_if_unpinned(self._layout, name)
        except FileNotFoundError:
            return  # the cache directory was removed
        except OSError as error:
            if not _is_full(error):
                raise
            remove_if_unpinned(self._layout, name)  # no room for a lock: at worst another run fetches it once more

    def _wait(self, name: str, patience_s: float, *, while_it_grows: bool = False) -> Callable[[], bool]:
        """Wait function for a file's lock held by another run: see locked()."""
        pause_s, size_bytes, give_up_s = 0.001, -1, time.monotonic() + patience_s

        def wait() -> bool:
            nonlocal pause_s, size_bytes, give_up_s
            if time.monotonic() >= give_up_s:
                grown = sum(_size_bytes(run.parts / name) for run in self._layout.all_runs())
                if grown == size_bytes or not while_it_grows:
                    return False
                size_bytes, give_up_s = grown, time.monotonic() + patience_s
            pause_s = min(2 * pause_s, 0.25)
            return not self._stopped.wait(min(pause_s, patience_s))

        return wait

    # -------------------------------------------------------------- check of files

    def _is_sound(self, name: str, path: Path, source: SourceFile) -> bool:
        """True if the file's bytes are the fetched ones. The file is read in full, once per process."""
        if self._was_checked(name, path):
            return True
        try:
            size_bytes = path.stat().st_size
        except FileNotFoundError:
            return False
        noted = Sum.noted(self._layout.sum(name))
        if size_bytes == source.size_bytes and noted is not None and Sum.of(path) == noted:
            return True
        logger.warning("%s: damaged in the cache (%s); fetching it again", shown(source.url), path)
        return False

    def _was_checked(self, name: str, path: Path) -> bool:
        try:
            status = path.stat()
        except FileNotFoundError:
            return False
        return self._sound.get(name) == (status.st_ino, status.st_mtime_ns)

    def _note_checked(self, name: str, path: Path) -> None:
        status = path.stat()
        self._sound[name] = (status.st_ino, status.st_mtime_ns)

    # -------------------------------------------------------------- folders

    def _build(self) -> bool:
        """Create the missing parts of this run's folder. False if another fetcher holds it."""
        deadline_s = time.monotonic() + _START_S
        with self._mutex:
            while True:
                self._make_folders()
                try:
                    if self._lock_run():
                        self._make_folders()  # a sweep may have removed some before our lock, as those of a dead run
                        self._run.description.touch(FILE_MODE)
                        self._run.description.write_text(json.dumps({"run_dir": str(self._run_dir)}))
                        return True
                except FileNotFoundError:  # swept between the two, as the folder of a dead run
                    continue
                if time.monotonic() >= deadline_s:
                    return False
                time.sleep(0.05)

    def _make_folders(self) -> None:
        for folder in (self._layout.locks, self._run.files, self._run.parts):
            make_for_owner(folder)

    def _lock_run(self) -> bool:
        if self._run_lock is not None:
            try:
                if os.path.samestat(os.fstat(self._run_lock), self._run.lock.stat()):
                    return True
            except FileNotFoundError:
                pass
            os.close(self._run_lock)
            self._run_lock = None
        self._run_lock = try_lock(self._run.lock)
        return self._run_lock is not None


def _is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
