"""Locks between processes, of one host or several, and the attempt number that keeps older writers off a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from common.atomic_file import OWNER_ONLY, Publishing
from common.errors import BadInputError, IcestreamError, TryAgainError
from common.paths import open_in_run
from common.process import stat_fields

logger = logging.getLogger(__name__)

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


def try_lock(path: Path, *, shared: bool = False) -> int | None:
    """Descriptor that holds the lock until it is closed; None if another process holds it. ``shared``: with others
    that share it.

    The file is created if missing. Its holder may unlink it: a process that opened it before opens the path again.
    Raises FileNotFoundError if its folder is gone, OSError (see NO_LOCKS) where the file system has no locks.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, OWNER_ONLY)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
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
    start_ticks: int = 0
    """Start of the process in clock ticks since boot: with the pid, it names one process. 0: unknown."""
    pid_namespace: str = ""
    """Name of the container's or host's table of process ids."""

    @classmethod
    def of_this_process(cls, what: str) -> Holder:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        boot_id, pid = _BOOT_ID.read_text().strip(), os.getpid()
        return cls(os.uname().nodename, boot_id, pid, since, what, start_ticks(pid), _pid_namespace())

    def is_alive(self) -> bool | None:
        """True if the process runs, False if it has ended; None: it can't be seen from here (another host, say)."""
        if not self.start_ticks or not self.pid_namespace:
            return None
        if self.boot_id != _BOOT_ID.read_text().strip():
            return False if self.host == os.uname().nodename else None  # since then this host was started again
        if self.pid_namespace != _pid_namespace():
            return None
        return start_ticks(self.pid) == self.start_ticks

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this process and to no other that has its pid now; False if it has ended or can't be seen.

        Raises PermissionError if it is another user's.
        """
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.is_alive():  # checked while the descriptor holds on to the process
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def __str__(self) -> str:
        return f"{self.host} since {self.since} ({self.what}, process {self.pid})"

    @property
    def who(self) -> str:
        """Command, process id and host, for people."""
        return f"{self.what}, process {self.pid} on {self.host}"


class RunLock(AbstractContextManager["RunLock"]):
    """Exclusive lock on one part of a run. Its file names the holder; a lock of a dead holder excludes no process.

    Use it as a context manager, or close it. Raises BadInputError that names the holder, once ``wait`` gives up.
    """

    def __init__(self, run_dir: Path, part: RunPart, what: str, wait: Wait = lambda: False) -> None:
        self._path = _path_of(run_dir, part)
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            waits = False
            while (descriptor := try_lock(self._path)) is None:
                holder = _read(self._path)
                if not wait():
                    raise BadInputError(
                        f"{run_dir}: the run is in use by {holder or 'another process'};"
                        " wait for its end, stop it, or choose another --run-dir"
                    )
                if not waits:
                    waits = True
                    logger.info("%s: waiting for the end of %s", run_dir, holder or "another process")
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise BadInputError(_without_locks(run_dir, error, "a second host", "--run-dir")) from None
        self._descriptor = descriptor
        former, mine = _read(self._path), Holder.of_this_process(what)
        if former is not None and former.host != mine.host and former.boot_id != mine.boot_id:
            logger.warning(
                "%s: last used by %s, which was killed. If it still runs, the locks of this file system don't reach"
                " other hosts: stop one of the two",
                run_dir,
                former,
            )
        self._owner = os.getpid()
        self._write(json.dumps(asdict(mine)))

    def close(self) -> None:
        """Release the lock; in a forked child of the holder, only the child's descriptor of it."""
        if self._descriptor >= 0:
            if os.getpid() == self._owner:
                self._write("")
                # A forked child has the descriptor, too: closing ours alone would leave the lock to it.
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1

    def __exit__(self, *_: object) -> None:
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


def holder_of(run_dir: Path, part: RunPart) -> Holder | None:
    """Process that holds the lock, or was killed while it held it; None if it was released, or never held.

    A copy of a run directory has the note of a living process, too, but nobody holds its lock.
    """
    holder = _read(_path_of(run_dir, part))
    if holder is not None and holder.is_alive() and not _is_held(_path_of(run_dir, part)):
        return None
    return holder


def is_held_by(run_dir: Path, part: RunPart, holder: Holder) -> bool:
    """True if this process has the file of the lock open: the note alone may be forged, to have another one stopped.

    Raises PermissionError if it is another user's process.
    """
    path = _path_of(run_dir, part)
    if path.parent.is_symlink():  # to the locks of another run, perhaps
        return False
    try:
        wanted = path.lstat()
        with os.scandir(f"/proc/{holder.pid}/fd") as descriptors:
            return any(_is_open_as(descriptor.path, wanted) for descriptor in descriptors)
    except FileNotFoundError:
        return False


def _is_open_as(descriptor: str, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(Path(descriptor).stat(), wanted)
    except OSError:  # closed meanwhile
        return False


def start_ticks(pid: int) -> int:
    """Start of a process in clock ticks since boot; 0 if it has ended."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def parent_of(pid: int) -> int:
    """Process id of a process's parent; 0 if it has ended, or its parent is the first process of all."""
    try:
        parent = int(stat_fields(pid)[1])
    except OSError:
        return 0
    return parent if parent > 1 else 0


def _pid_namespace() -> str:
    return Path("/proc/self/ns/pid").readlink().name


def _path_of(run_dir: Path, part: RunPart) -> Path:
    return run_dir / LOCKS_FOLDER / part


def _read(path: Path) -> Holder | None:
    """Holder in a lock file; None if it names none: released, or being written. Raises BadInputError."""
    try:
        with open_in_run(path) as file:  # opened again, so that NFS asks the server
            holder = Holder(**json.loads(file.read(_NOTE_BYTES)))
    except (OSError, ValueError, TypeError):
        return None
    texts = (holder.host, holder.boot_id, holder.since, holder.what, holder.pid_namespace)
    are_texts = all(isinstance(text, str) and text.isprintable() for text in texts)
    is_sound = are_texts and all(isinstance(number, int) for number in (holder.pid, holder.start_ticks))
    return holder if is_sound else None


def _is_held(path: Path) -> bool:
    """True if a process holds the lock. Asked only where a living one should: a start at that moment would fail."""
    try:
        with open_in_run(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        return error.errno in NO_LOCKS
    return False


def _without_locks(folder: Path, error: OSError, kept_out: str, option: str) -> str:
    return (
        f"{folder}: lies on a file system without locks ({error.strerror}), which keep {kept_out} out:"
        f" mount it with them (Lustre: -o flock), or choose another {option}"
    )


def _is_the_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


SHARED_VARIABLE = "_ICESTREAM_SHARED"
"""Variable with the shared folder, set by a node for its processes."""
ATTEMPT_VARIABLE = "_ICESTREAM_ATTEMPT"
"""Variable with the number of their attempt."""
LOCK_S = 10.0
"""Longest wait for writers of an older attempt, or for the begin of a later one: what takes longer is frozen."""

_LOCK = "attempt"
_ATTEMPT_BYTES = 64
"""Length of the file: written in one piece, so that a reader without the lock sees one number or the other."""


class OutdatedAttemptError(TryAgainError):
    """A later attempt of the run has begun."""


@dataclass(frozen=True)
class RunAttempt:
    """One start of all nodes of a run."""

    shared: Path
    """Folder that all nodes see: checkpoints, and all other results."""
    number: int
    """1 for the first start."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the processes of a node, read by attempt_of()."""
        return {SHARED_VARIABLE: str(self.shared), ATTEMPT_VARIABLE: str(self.number)}

    def check(self) -> None:
        """Raise OutdatedAttemptError once a later attempt has begun. Without the lock: it may begin at any time."""
        newest = newest_number(self.shared)
        if newest != self.number:
            raise OutdatedAttemptError(
                f"this is attempt {self.number} of the run in {self.shared}, and attempt {newest} has begun: nothing"
                " more is written"
            )

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """No later attempt begins meanwhile. Raises OutdatedAttemptError if one has begun, and TryAgainError."""
        with _locked(self.shared, shared_lock=True):
            self.check()
            yield


def begin_attempt(shared: Path) -> RunAttempt:
    """Begin the next attempt: from now on no writer of an older one publishes anything. Raises TryAgainError."""
    path = _path(shared)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(shared) as descriptor:
        number = newest_number(shared) + 1
        note = json.dumps({"attempt": number}).ljust(_ATTEMPT_BYTES - 1) + "\n"
        os.pwrite(descriptor, note.encode(), 0)
        os.fsync(descriptor)  # other hosts must see it
    return RunAttempt(shared, number)


def attempt_of(environment: Mapping[str, str]) -> RunAttempt | None:
    """Attempt that this process belongs to; None unless it is one of a node."""
    shared = environment.get(SHARED_VARIABLE)
    return RunAttempt(Path(shared), int(environment[ATTEMPT_VARIABLE])) if shared else None


def publishing_of(attempt: RunAttempt | None) -> Publishing:
    """Context of each change of a file that several nodes share; of a run on one machine (None) there is none."""
    return nullcontext if attempt is None else attempt.publishing


def newest_number(shared: Path) -> int:
    """Number of the newest attempt; 0 before the first."""
    try:
        text = _path(shared).read_bytes()  # opened again, so that NFS asks the server
    except FileNotFoundError:
        return 0
    try:
        return int(json.loads(text)["attempt"]) if text.strip() else 0
    except (ValueError, KeyError, TypeError):
        raise IcestreamError(
            f"{_path(shared)}: not the number of an attempt; end all nodes, then write"
            f' {{"attempt": N}} there, with N larger than any in their logs'
        ) from None


@contextmanager
def _locked(shared: Path, *, shared_lock: bool = False) -> Iterator[int]:
    path, wait = _path(shared), patience(LOCK_S)
    try:
        while (descriptor := try_lock(path, shared=shared_lock)) is None:
            if not wait():
                raise TryAgainError(
                    f"{path}: locked for {LOCK_S:g} s by a node that is frozen while it writes a file: end that node"
                )
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise IcestreamError(_without_locks(shared, error, "a node of an older attempt", "--shared")) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _path(shared: Path) -> Path:
    return shared / LOCKS_FOLDER / _LOCK
