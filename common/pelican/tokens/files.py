"""Token files on disk: checked when read, written for the owner only."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from common.atomic_file import replace_file
from common.pelican.answers import json_object
from common.pelican.tokens.claims import what_is_wrong
from common.pelican.tokens.errors import BadTokenError
from common.private_path import changed_by_others, make_for_owner

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 65_536

Signature = tuple[int, int, int, int] | None
"""Device, inode, size and time of the last change; None: no such file. A changed signature means a changed file."""

_warned: set[str] = set()


def signature(path: Path) -> Signature:
    """Signature of a file, which changes with the file."""
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def read_token(path: Path, *, shared_folder: bool = False) -> str:
    """Token in a file: plain text, or JSON with ``access_token``.

    Raises FileNotFoundError, and BadTokenError for an invalid token or a file that isn't the user's own.
    """
    text = read_private(path, shared_folder=shared_folder).strip()
    if text.startswith("{"):
        text = _from_json(path, text)
    wrong = what_is_wrong(text)
    if wrong:
        raise BadTokenError(f"{path}: this is no token: {wrong}; expected plain text, or JSON with access_token")
    return text


def read_private(path: Path, *, shared_folder: bool = False) -> str:
    """Content of a small file of the user (or root), which nobody else can change. Warns, once, if others can read it.

    ``shared_folder``: every user can create files there, so no link is followed, symbolic or hard: it may lead to one
    of the user's files that was never meant to be sent to a server.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if shared_folder else 0)
    try:
        descriptor = os.open(path, flags)  # O_NONBLOCK: a named pipe must not block
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadTokenError(f"{path}: can't be read ({error.strerror}); expected a token file of your own") from None
    try:
        content = _read_ours(path, descriptor, shared_folder=shared_folder)
    finally:
        os.close(descriptor)
    if reason := changed_by_others(path):
        raise BadTokenError(f"{path}: {reason}")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadTokenError(f"{path}: this is no token: it isn't text") from None


def _read_ours(path: Path, descriptor: int, *, shared_folder: bool) -> bytes:
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        raise BadTokenError(f"{path}: not a file; name a file that holds the token: it is read again and again")
    if info.st_uid not in (os.geteuid(), 0):
        raise BadTokenError(
            f"{path}: belongs to user {info.st_uid}, not to you ({os.geteuid()}), and is not used; copy it to a"
            " file of your own, with mode 0600"
        )
    if shared_folder and (info.st_nlink != 1 or info.st_mode & 0o022):
        what = f"has {info.st_nlink} names" if info.st_nlink != 1 else "can be written by others"
        raise BadTokenError(f"{path}: {what}, so anybody may have put it there; create it again, with mode 0600")
    if info.st_size > MAX_FILE_BYTES:
        raise BadTokenError(f"{path}: {info.st_size} bytes are too many for a token")
    if info.st_mode & 0o044 and str(path) not in _warned:
        _warned.add(str(path))
        mode = stat.S_IMODE(info.st_mode)
        logger.warning("%s: others can read this token (mode %04o); close it: chmod 600 %s", path, mode, path)
    return os.read(descriptor, MAX_FILE_BYTES)


def write_private(path: Path, text: str) -> None:
    """Write atomically, mode 0600, in a folder of mode 0700."""
    make_private_folder(path.parent)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    replace_file(path, text, durable=True, part=part)  # a rotated refresh token exists nowhere else


def make_private_folder(folder: Path) -> None:
    """Make the folder for the owner only; an existing one is restricted to its owner, which must be the user."""
    make_for_owner(folder)
    info = folder.stat()
    if info.st_uid != os.geteuid():
        raise BadTokenError(
            f"{folder}: belongs to user {info.st_uid}, not to you; set XDG_CACHE_HOME to another folder"
        )
    if info.st_mode & 0o077:
        folder.chmod(0o700)
    if reason := changed_by_others(folder):
        raise BadTokenError(f"{folder}: {reason}; or set XDG_CACHE_HOME to another folder")


def _from_json(path: Path, text: str) -> str:
    content = json_object(text)
    if content is None:
        raise BadTokenError(f"{path}: this is no token: neither plain text nor JSON")
    token = content.get("access_token")
    if not isinstance(token, str):
        raise BadTokenError(f"{path}: JSON without the text access_token; expected one, or the token as plain text")
    return token
