"""Locks between processes, of one host or of several. The kernel or file server frees them when their holder dies.

All are flock on a *regular* file that is open for *writing*: an NFS client turns it into a byte-range lock at the
server, and Lustre mounted with `flock` asks its servers. For a directory neither asks a server: other hosts don't see
the lock. fcntl's byte-range locks of a process are unsuitable: they are released when it closes any descriptor of the
file. Those of an open file (F_OFD_SETLK) hold as long as flock's and are the same lock on NFS: no advantage.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args

from common.errors import BadInputError

logger = logging.getLogger(__name__)

MODE = 0o600
LOCKS_FOLDER = "locks"
"""Folder of locks in a run directory. Never deleted, not by --fresh either: a lock's file must stay the same one."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Error numbers of a file system without locks."""
RunPart = Literal["run", "fetcher", "trainer"]
RUN_PARTS: tuple[RunPart, ...] = get_args(RunPart)

_NOTE_BYTES = 1024
_PAUSE_S = 0.05
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Wait = Callable[[], bool]
"""Callback while another process holds a lock: it pauses, and returns False to give up."""


def try_lock(path: Path) -> int | None:
    """Descriptor that holds the lock until it is closed; None if another process holds it.

    The file is created if missing. Its holder may unlink it: a process that opened it before opens the path again.
    Raises FileNotFoundError if its folder is gone, OSError (see NO_LOCKS) where the file system has no locks.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_the_file(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its last holder has unlinked it


@contextmanager
def locked(path: Path, wait: Wait) -> Iterator[bool]:
    """Hold the lock, and unlink its file at the end. Yields False, without the lock, once ``wait`` returns False."""
    while (descriptor := try_lock(path)) is None:
        if not wait():
            yield False
            return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)  # while it is held: later, it would remove another's new file
        os.close(descriptor)


def patience(seconds: float) -> Wait:
    """Wait callback that gives up ``seconds`` from now."""
    deadline_s = time.monotonic() + seconds

    def wait() -> bool:
        time.sleep(_PAUSE_S)
        return time.monotonic() < deadline_s

    return wait


@dataclass(frozen=True)
class Holder:
    """Holder of a run's lock, as recorded in the lock's file."""

    host: str
    boot_id: str
    """Boot id of the kernel: shared by the containers of one host."""
    pid: int
    since: str
    what: str

    @classmethod
    def of_this_process(cls, what: str) -> Holder:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        return cls(os.uname().nodename, _BOOT_ID.read_text().strip(), os.getpid(), since, what)

    def __str__(self) -> str:
        return f"{self.host} since {self.since} ({self.what}, process {self.pid})"


class RunLock:
    """Exclusive lock on one part of a run. Its file names the holder; a lock of a dead holder excludes no process.

    Use it as a context manager, or close it. Raises BadInputError that names the holder, once ``wait`` gives up.
    """

    def __init__(self, run_dir: Path, part: RunPart, what: str, wait: Wait = lambda: False) -> None:
        self._path = _path_of(run_dir, part)
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            while (descriptor := try_lock(self._path)) is None:
                if not wait():
                    raise BadInputError(
                        f"{run_dir}: the run is in use by {_read(self._path) or 'another process'};"
                        " wait for its end, stop it, or choose another --run-dir"
                    )
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise BadInputError(
                f"{run_dir}: lies on a file system without locks ({error.strerror}), which keep a second host out:"
                " mount it with them (Lustre: -o flock), or choose another --run-dir"
            ) from None
        self._descriptor = descriptor
        former, mine = _read(self._path), Holder.of_this_process(what)
        if former is not None and former.host != mine.host and former.boot_id != mine.boot_id:
            logger.warning(
                "%s: last used by %s, which was killed. If it still runs, the locks of this file system don't reach"
                " other hosts: stop one of the two",
                run_dir,
                former,
            )
        self._write(json.dumps(asdict(mine)))

    def close(self) -> None:
        """Release the lock."""
        if self._descriptor >= 0:
            self._write("")
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, note: str) -> None:
        """Write the holder, for people only: the lock holds even if the disk is full."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, note.encode(), 0)
            os.fsync(self._descriptor)  # other hosts must see it


@contextmanager
def no_other_host(run_dir: Path, part: RunPart) -> Iterator[None]:
    """Exclude processes of other hosts meanwhile, for files that only one host may use, such as SQLite's ledger.

    Raises BadInputError if one of them holds the lock.
    """
    path = _path_of(run_dir, part)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor = try_lock(path)
    try:
        holder = _read(path) if descriptor is None else None
        if holder is not None and holder.boot_id != Holder.of_this_process("").boot_id:
            raise BadInputError(f"{run_dir}: the run is in use by {holder}: give this command there")
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _path_of(run_dir: Path, part: RunPart) -> Path:
    return run_dir / LOCKS_FOLDER / part


def _read(path: Path) -> Holder | None:
    """Holder in a lock file; None if it names none: released, or being written."""
    try:
        with path.open("rb") as file:  # opened again, so that NFS asks the server
            holder = Holder(**json.loads(file.read(_NOTE_BYTES)))
    except (OSError, ValueError, TypeError):
        return None
    texts = (holder.host, holder.boot_id, holder.since, holder.what)
    is_sound = isinstance(holder.pid, int) and all(isinstance(text, str) and text.isprintable() for text in texts)
    return holder if is_sound else None


def _is_the_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
