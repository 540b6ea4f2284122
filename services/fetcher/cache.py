"""Cache of one run: remote files on local disk, each with its size and digest, compared before it is used again.

CACHE_DIR/RUN/files/NAME   the complete files; RUN follows from the run directory, so that runs don't meet
CACHE_DIR/RUN/sums/NAME    size and digest of each, written before the file appears
CACHE_DIR/RUN/parts/NAME   files in transfer; the next fetcher continues them

A run has one fetcher at a time (its RunLock), so that the folder needs no lock of its own.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.atomic_file import OWNER_ONLY, replace_file
from common.errors import BadInputError, TransientError
from common.files.remotes import name_of
from common.paths import make_for_owner, require_private, user_path
from common.plan import SourceFile
from common.text import shown

logger = logging.getLogger(__name__)

_SETTING = "fetcher.cache_dir"
_REBUILDS = 5

Fetch = Callable[[Path], None]
"""Function that writes the whole file at a path; it may continue from a partial file there.

Raises TransientError (the partial file is kept, for the next try), BadInputError (it is removed), OSError (ENOSPC).
"""


def _sum_of(path: Path) -> bytes:
    """Return size and digest of a file, which is read in full, in the form in which they are stored."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")  # the fastest that hashlib has: 1.8 GB/s, blake2b 0.9
        return json.dumps({"size_bytes": file.tell(), "sha256": digest.hexdigest()}).encode()


class Cache:
    """The files of one run in a cache directory, used by the worker threads of its fetcher."""

    def __init__(self, cache_dir: Path, run_dir: Path) -> None:
        """Make the folders. Raises BadInputError if others could change what lies there."""
        self._cache_dir = user_path(cache_dir).resolve()
        run = hashlib.blake2b(os.fsencode(run_dir.resolve()), digest_size=8).hexdigest()
        self.folder = self._cache_dir / run
        self._files, self._parts, self._sums = (self.folder / kind for kind in ("files", "parts", "sums"))
        self._sound: dict[str, tuple[int, int]] = {}  # name -> inode and time of change, checked by this process
        self._busy: set[str] = set()  # names at which a thread is at work
        self._turn = threading.Condition()
        self._undropped: set[str] = set()
        try:
            make_for_owner(self._cache_dir)
            require_private(self._cache_dir, f"{_SETTING} =")
            self._make_folders()
        except (FileExistsError, NotADirectoryError):
            raise BadInputError(f"{_SETTING} = {self._cache_dir}: not a directory; name another one") from None
        except PermissionError as error:
            raise BadInputError(
                f"{_SETTING} = {self._cache_dir}: {error.strerror}; name a directory that you may write to"
            ) from None

    def path(self, source: SourceFile) -> Path:
        """Return the path of the file, which is there once get() has returned."""
        return self._files / name_of(source)

    def names(self) -> frozenset[str]:
        """Return the names (see `name_of`) of the complete files, including those of a former fetcher."""
        return frozenset(path.name for path in _paths_in(self._files))

    def get(self, source: SourceFile, fetch: Fetch) -> Path:
        """Return the path of the file, sound and whole; it is fetched unless it is there.

        Raises the errors of ``fetch``; a full disk is a TransientError, and the partial file is deleted.
        """
        self._undropped.discard(name_of(source))
        for _ in range(_REBUILDS):
            try:
                with self._at_work(name_of(source)):
                    return self._get(source, fetch)
            except FileNotFoundError as error:  # the cache directory was removed, or is being removed
                missing = error.filename
                self._make_folders()
        raise TransientError(f"{self.folder}: is removed again and again ({missing})")

    def drop(self, source: SourceFile) -> None:
        """Delete a file that the run doesn't need any more. If that fails it is tried again with the next."""
        for name in (name_of(source), *self._undropped):
            try:
                self._drop(name)
                self._undropped.discard(name)
            except OSError as error:
                self._undropped.add(name)
                logger.warning("%s: can't be deleted yet: %s", name, error.strerror)

    def drop_all_but(self, sources: Iterable[SourceFile]) -> None:
        """Delete every other file, including half-fetched ones, but none that is being fetched."""
        wanted = {name_of(source) for source in sources}
        present = {path.name for kind in (self._files, self._parts, self._sums) for path in _paths_in(kind)}
        for name in present - wanted:
            self._drop(name)

    def close(self) -> None:
        """Remove the folders if nothing is in them; files stay for the next fetcher."""
        for folder in (self._files, self._parts, self._sums, self.folder):
            with contextlib.suppress(OSError):
                folder.rmdir()

    # -------------------------------------------------------------- one file

    def _get(self, source: SourceFile, fetch: Fetch) -> Path:
        name, path = name_of(source), self.path(source)
        part = self._parts / name
        if self._is_sound(source, path):
            part.unlink(missing_ok=True)
            return path
        path.unlink(missing_ok=True)
        try:
            self._fetch(source, part, fetch)
        except BadInputError:
            part.unlink(missing_ok=True)
            raise
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            part.unlink(missing_ok=True)
            free_bytes = shutil.disk_usage(self._cache_dir).free
            reason = "the disk is full" if error.errno == errno.ENOSPC else "the disk quota is used up"
            raise TransientError(
                f"{reason}: {self._cache_dir} has {free_bytes / 2**20:,.1f} MiB free, the file needs "
                f"{source.size_bytes / 2**20:,.1f} MiB; free some space, or lower fetcher.disk_budget_gib"
            ) from None
        return path

    def _fetch(self, source: SourceFile, part: Path, fetch: Fetch) -> None:
        bytes_needed = source.size_bytes - (part.stat().st_size if part.exists() else 0)
        if shutil.disk_usage(part.parent).free < bytes_needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(part))
        fetch(part)
        arrived_bytes = part.stat().st_size
        if arrived_bytes != source.size_bytes:
            part.unlink()
            raise TransientError(f"{arrived_bytes} bytes arrived, the inventory says {source.size_bytes}")
        part.chmod(OWNER_ONLY)
        replace_file(self._sums / part.name, _sum_of(part), durable=False)
        part.replace(self.path(source))
        self._note_checked(self.path(source))

    def _drop(self, name: str) -> None:
        """Delete what is there of a file; if a thread is at work on it, that one's part stays."""
        self._sound.pop(name, None)
        (self._files / name).unlink(missing_ok=True)
        if name not in self._busy:
            (self._sums / name).unlink(missing_ok=True)
            (self._parts / name).unlink(missing_ok=True)

    @contextmanager
    def _at_work(self, name: str) -> Iterator[None]:
        """Keep other threads away from a file: one that is gone from the disk may be asked for twice."""
        with self._turn:
            self._turn.wait_for(lambda: name not in self._busy)
            self._busy.add(name)
        try:
            yield
        finally:
            with self._turn:
                self._busy.discard(name)
                self._turn.notify_all()

    def _is_sound(self, source: SourceFile, path: Path) -> bool:
        """Return True if the file's bytes are the fetched ones. It is read in full, once per process and change."""
        try:
            status = path.stat()
        except FileNotFoundError:
            return False
        if self._sound.get(path.name) == (status.st_ino, status.st_mtime_ns):
            return True
        with contextlib.suppress(FileNotFoundError):
            if status.st_size == source.size_bytes and (self._sums / path.name).read_bytes() == _sum_of(path):
                self._note_checked(path)
                return True
        logger.warning("%s: damaged in the cache (%s); fetching it again", shown(source.url), path)
        return False

    def _note_checked(self, path: Path) -> None:
        status = path.stat()
        self._sound[path.name] = (status.st_ino, status.st_mtime_ns)

    def _make_folders(self) -> None:
        for folder in (self._files, self._parts, self._sums):
            make_for_owner(folder)


def _paths_in(folder: Path) -> list[Path]:
    """Return the content of a folder; nothing if it is gone."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
