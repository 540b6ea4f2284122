"""Paths that users give, checked before minutes of work and against changes by others; the folders of a run."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import BinaryIO

from common.errors import BadInputError

TRUST_VARIABLE = "ICESTREAM_TRUST_GROUP"
"""Variable with the groups, by name or number with commas between, whose members may decide, too. No setting: a
configuration in a folder that others may write to would say of itself that it can be trusted."""
EVERYBODY = "everybody"
"""Value of that variable for a container with no other users: nothing is checked."""
_MOST_LINKS = 40
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_file(path: Path) -> BinaryIO:
    """Regular file, open for reading. Never waits for a pipe's writer. Raises OSError, BadInputError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        check_regular(os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(status: os.stat_result) -> None:
    """Raise BadInputError, naming the kind, unless it is a regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise BadInputError(f"{_KINDS.get(stat.S_IFMT(status.st_mode), 'something else')}; expected a file")


def require_private(path: Path, name: str) -> None:
    """Raise BadInputError, and call the path by ``name``, unless only the user and root can change what is there.

    A part of the path that is missing raises FileNotFoundError: whoever may make it is to do so before.
    """
    if reason := changed_by_others(path):
        called = f"{name} {path}" if name else str(path)
        raise BadInputError(f"{called}: {reason}")


def make_for_owner(folder: Path) -> None:
    """Make the folder, and those above it that are missing, for the owner only, whatever the umask."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:  # mkdir(parents=True) would make those as the umask says
        make_for_owner(folder.parent)
        make_for_owner(folder)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Folder of icestream in the user's cache; it may be missing."""
    base = environment.get("XDG_CACHE_HOME", "")
    cache = Path(base) if base.startswith("/") else Path(environment.get("HOME") or Path.home()) / ".cache"
    return cache / "icestream"


def changed_by_others(path: Path) -> str:
    """Folder or file by which others can change what is read at ``path``, and the remedy; empty if there is none.

    Links are followed, and the folders that they lie in and lead to are looked at, too. By name, and from the root
    down: what was found to be the user's own can't be exchanged by anybody else afterwards.
    """
    trusted = os.environ.get(TRUST_VARIABLE, "")
    if trusted == EVERYBODY:
        return ""
    place, found, links = Path("/"), Path("/").stat(), 0
    rest = list(reversed(path.absolute().parts[1:]))
    is_open = False
    while True:
        if reason := _open_to(found, is_last=not rest, in_open=is_open, trusted=trusted):
            return f"{_described(place, found)} {reason}"
        if not rest:
            return ""
        is_open = _is_open(found, trusted)
        part = rest.pop()
        if part == "..":
            place = place.parent
            found = place.stat()
            continue
        below = place / part
        entry = below.lstat()
        if not stat.S_ISLNK(entry.st_mode):
            place, found = below, entry
            continue
        links += 1
        if links > _MOST_LINKS:
            return f"its links lead to no end: {below}"
        if is_open and not _is_trusted_owner(entry, in_open=True, trusted=trusted):
            return f"{_described(below, entry)} is a link of another user: use a folder of your own"
        target = below.readlink()
        if target.is_absolute():
            place, found = Path("/"), Path("/").stat()
        rest += reversed(target.parts[target.is_absolute() :])


def _open_to(found: os.stat_result, *, is_last: bool, in_open: bool, trusted: str) -> str:
    """Return who else can change a folder or file, and the remedy; empty if nobody can. ``in_open``: it lies in a
    folder that everybody may write to, so that its group is no sign of who made it."""
    mode = found.st_mode
    is_of_root = not is_last and found.st_uid == _unmapped_root()
    if not is_of_root and not _is_trusted_owner(found, in_open=in_open, trusted=trusted):
        return (
            "belongs to another user, who can choose what is read and run from there: use a folder of your own, or set"
            f" {TRUST_VARIABLE}={_group(found.st_gid)} if you trust all of that group"
        )
    # In a sticky folder only the owner of a file can exchange it.
    is_sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX and not is_last
    if is_sticky:
        return ""
    if mode & stat.S_IWOTH:
        return (
            "can be changed by every user, who can choose what is read and run from there: chmod go-w it, or use"
            f" another folder; in a container with no other users: {TRUST_VARIABLE}={EVERYBODY}"
        )
    if mode & stat.S_IWGRP and not _is_trusted_group(found.st_gid, trusted):
        return (
            "can be changed by its group, who can choose what is read and run from there: chmod g-w it, use another"
            f" folder, or set {TRUST_VARIABLE}={_group(found.st_gid)} if you trust all of that group"
        )
    return ""


def _is_trusted_owner(found: os.stat_result, *, in_open: bool, trusted: str) -> bool:
    return found.st_uid in (os.geteuid(), 0) or (not in_open and _is_named(found.st_gid, trusted))


def _is_open(folder: os.stat_result, trusted: str) -> bool:
    """True if others may make files in the folder, which is sticky then: it was found to be private otherwise."""
    mode = folder.st_mode
    return bool(mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _is_trusted_group(folder.st_gid, trusted)))


def _is_trusted_group(gid: int, trusted: str) -> bool:
    return _is_own_group(gid) or _is_named(gid, trusted)


def _is_named(gid: int, trusted: str) -> bool:
    return any(word in (str(gid), _group(gid)) for word in trusted.split(",") if word)


@cache
def _is_own_group(gid: int) -> bool:
    """True for a group that the user has alone: many systems make one for each, and let it write by default."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    is_theirs = user.pw_gid == gid and group.gr_name == user.pw_name
    return is_theirs and set(group.gr_mem) <= {user.pw_name}


@cache
def _unmapped_root() -> int:
    """Owner that root's folders seem to have in a user namespace without root, such as Apptainer's; else root."""
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    if any(line.split()[0] == "0" for line in lines):
        return 0
    return int(Path("/proc/sys/kernel/overflowuid").read_text())


def _described(place: Path, found: os.stat_result) -> str:
    mode = stat.S_IMODE(found.st_mode)
    return f"{place} (mode {mode:04o}, user {_user(found.st_uid)}, group {_group(found.st_gid)})"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def check_path(text: str) -> None:
    """Raise BadInputError for a text that can't be a path."""
    if "\0" in text:
        raise BadInputError(f"{text!r}: no path has a zero byte in it")


def user_path(text: str | os.PathLike[str]) -> Path:
    """Path with a leading ``~`` or ``~user`` resolved. Raises BadInputError."""
    check_path(os.fspath(text))
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise BadInputError(f"{text}: no home of that user is known; write the path in full") from None


def require_place(out: Path, remedy: str = "choose another place") -> None:
    """Raise BadInputError if no file or folder can be made at ``out``, with the folders above it. Leaves nothing there.

    A file is made nearby for a moment: permissions alone don't tell, for example, of a disk that is read-only.
    """
    place = out.absolute()
    try:
        there = next(path for path in (place, *place.parents) if _is_there(path))
        folder = there if there.is_dir() else there.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except NotADirectoryError:
        file = next(path for path in place.parents if path.exists())
        raise BadInputError(f"{out}: {file} is no folder; {remedy}") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInputError(f"{out}: nothing can be written there ({reason}); {remedy}") from None


def _is_there(path: Path) -> bool:
    """True for an existing path, False for a missing one; OSError for one that can't be."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


RUN_DIR_MODE = 0o700
CONFIG_FILE = "config.json"
"""Resolved configuration of the run."""
RUN_ID_FILE = "run-id"
"""File of the folder that several nodes share, with the random name of the run."""
NODE_FILE = "node.json"
"""File of a node's own run directory with the name of its run, and the folder that the nodes share."""
SHARDS_FOLDER = "shards"
INVENTORY_FOLDER = "inventory"
"""Folder of a run with several shards: its lists of files, which all shards read, and what each shard has planned."""


def own_files_only() -> None:
    """Restrict all new files and folders of this process, and of its children, to their owner."""
    os.umask(0o077)


def open_in_run(path: Path) -> BinaryIO:
    """File of a run directory, open for reading. It may be another user's, who put a pipe there: that never blocks.

    Raises OSError, and BadInputError that names it unless it is a regular file.
    """
    try:
        return open_file(path)
    except BadInputError as error:
        raise BadInputError(f"{path}: {error}") from None


def make_run_dir(run_dir: Path) -> None:
    """Make the directory, owner-only, if it is missing.

    Calls own_files_only(). Raises BadInputError if the directory can't be made, or if others can change what is there.
    """
    own_files_only()
    try:
        run_dir.mkdir(mode=RUN_DIR_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(
            f"{run_dir}: can't make this directory ({error.strerror}); choose another --run-dir"
        ) from None
    require_private(run_dir, "the run directory")


def shard_dir(run_dir: Path, shard: int | None) -> Path:
    """Run directory of a shard's fetcher and decoders; that of the run if it has no shards (None)."""
    return run_dir if shard is None else run_dir / SHARDS_FOLDER / f"{shard:03d}"


def shard_dirs(run_dir: Path) -> list[Path]:
    """Run directories of all fetchers that ran here, in order: those of the shards, or the run's own."""
    return sorted(path.parent for path in (run_dir / SHARDS_FOLDER).glob("[0-9][0-9][0-9]/status")) or [run_dir]
