"""Attempt number of a run on several nodes: keeps writers of older attempts off the shared folder.

Each start of all nodes is one attempt, with the next number. A node that was frozen, or cut off from the others, may
wake up after its run was started again elsewhere: whatever it publishes then must not take the place of newer files.
So the number of the newest attempt is in a lock file of the shared folder, and a writer compares it with its own while
it holds that lock: a later attempt begins either before (the writer fails) or after (it finds a complete file).
Writers of one attempt share the lock, and never wait for each other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from common.atomic_file import Publishing
from common.errors import IcestreamError, TryAgainError
from common.file_lock import LOCKS_FOLDER, NO_LOCKS, patience, try_lock

SHARED_VARIABLE = "_ICESTREAM_SHARED"
"""Variable with the shared folder, set by `icestream node` for its processes."""
ATTEMPT_VARIABLE = "_ICESTREAM_ATTEMPT"
"""Variable with the number of their attempt."""
LOCK_S = 10.0
"""Longest wait for writers of an older attempt, or for the begin of a later one: what takes longer is frozen."""

_LOCK = "attempt"
_NOTE_BYTES = 64
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
        note = json.dumps({"attempt": number}).ljust(_NOTE_BYTES - 1) + "\n"
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
        raise IcestreamError(
            f"{shared}: lies on a file system without locks ({error.strerror}), which keep a node of an older attempt"
            " out: mount it with them (Lustre: -o flock), or choose another --shared"
        ) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _path(shared: Path) -> Path:
    return shared / LOCKS_FOLDER / _LOCK
