"""Files that are there in full or not at all: written under another name, then renamed."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

OWNER_ONLY = 0o600
AS_UMASK_SAYS = 0o666
"""Mode of what a user asked for by its name."""

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
"""Error numbers of a file system without hard links."""

Publishing = Callable[[], AbstractContextManager[object]]
"""Context in which a file takes its name, which may forbid it by an exception."""


@contextmanager
def replacing(
    path: Path, *, durable: bool, mode: int = OWNER_ONLY, part: Path | None = None, publishing: Publishing = nullcontext
) -> Iterator[Path]:
    """An empty file to write to, which takes the name ``path`` after the block.

    It is given as the name of its descriptor in this process (`/proc/self/fd/N`): in a folder that others may write to,
    the name ``part`` may be a link to any of the user's files a moment later. If the block fails, the file is deleted,
    and what was at ``path`` stays. ``durable``: the content and the name are on disk when the block is left. ``part``:
    the file's name until then, ``path`` with the suffix `.part` by default; what a killed process left there is
    deleted. Two writers of one ``path`` need two names (part_of_one_writer).
    """
    part = part or path.with_suffix(".part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    opened = Path(f"/proc/self/fd/{descriptor}")
    try:
        try:
            yield opened
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with publishing():
            part.replace(path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(opened):
            error.filename = str(part)
        raise
    if durable:
        sync_folder(path.parent)


def replace_file(
    path: Path, content: bytes | str, *, durable: bool, mode: int = OWNER_ONLY, part: Path | None = None
) -> None:
    """Replace the file at ``path``, or make it; text is UTF-8. The rest is as in replacing()."""
    with replacing(path, durable=durable, mode=mode, part=part) as new:
        new.write_bytes(content.encode() if isinstance(content, str) else content)


def part_of_one_writer(path: Path) -> Path:
    """A hidden name beside ``path`` that no other writer has."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def sync_folder(folder: Path) -> None:
    """Returns once the names in the folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
