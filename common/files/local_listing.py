"""Local files of a directory or a glob.

Unlike pathlib and glob, a directory that can't be listed is an error and never "nothing there", and an entry named
like a data file that is none (a pipe, a link to nothing, a directory without data) is listed too: staging reports it.
Names that begin with "." or "_" are left out (`common/hidden_names.py`).
"""

from __future__ import annotations

import fnmatch
import glob
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from common.errors import TransientError
from common.files.suffixes import SUFFIXES
from common.hidden_names import HIDDEN
from common.input_errors import GONE, OF_THE_PATH, REFUSED, reason_of

_OF_THE_FILE_SYSTEM = "lost+found"
"""Directory without data that only root may list."""


def status_of(path: Path, *, follow_symlinks: bool = True) -> os.stat_result | None:
    """Status of a path; None if it doesn't exist. Raises TransientError."""
    try:
        return path.stat(follow_symlinks=follow_symlinks)
    except OSError as error:
        if error.errno in GONE | OF_THE_PATH:
            return None
        raise TransientError(f"{path}: {reason_of(error.errno)}") from None


def files_below(folder: Path, hidden: list[Path] | None = None) -> Iterator[Path]:
    """Yield the entries named like a data file, in a folder and those below it. Links to folders aren't followed.

    What is left out for its hidden name is appended to ``hidden``: data files, and folders. Raises TransientError
    naming the folder that can't be listed.
    """
    for entry in _entries(folder):
        path = Path(entry.path)
        if path.name.startswith(HIDDEN):
            if hidden is not None and (path.name.endswith(SUFFIXES) or _is_own_folder(entry)):
                hidden.append(path)
        elif _is_own_folder(entry):
            yield from _data_of(path, hidden)
        elif path.name.endswith(SUFFIXES):
            yield path


def files_matching(pattern: Path) -> list[Path]:
    """Paths of each_match(), sorted."""
    return sorted(each_match(pattern))


def each_match(pattern: Path, hidden: list[Path] | None = None) -> Iterator[Path]:
    """Yield the paths that match an absolute glob, as in `glob.glob(recursive=True)`, each once; for a directory named
    like a data file, the data in it. ``hidden``: as for files_below(). Raises TransientError.
    """
    found: set[Path] = set()
    for path in _matches(Path("/"), pattern.parts[1:], (), hidden):
        status = status_of(path)
        is_file = status is None or not stat.S_ISDIR(status.st_mode)
        for file in (path,) if is_file else _data_of(path, hidden) if path.name.endswith(SUFFIXES) else ():
            if file not in found:
                found.add(file)
                yield file


def _data_of(folder: Path, hidden: list[Path] | None) -> Iterator[Path]:
    """Data files below a folder, or the folder itself if it is named like data and has none."""
    is_empty = True
    for path in files_below(folder, hidden):
        is_empty = False
        yield path
    if is_empty and folder.name.endswith(SUFFIXES):
        yield folder


def _matches(
    folder: Path, parts: tuple[str, ...], above: tuple[tuple[int, int], ...], hidden: list[Path] | None
) -> Iterator[Path]:
    """Paths that match the remaining parts. ``above``: device and inode of the folders passed by `**`, since links can
    form a cycle."""
    head, rest = parts[0], parts[1:]
    if head == "**":
        status = status_of(folder)
        if status is None or (status.st_dev, status.st_ino) in above:
            return
        above = (*above, (status.st_dev, status.st_ino))
        if rest:
            yield from _matches(folder, rest, (), hidden)
        for entry in _entries(folder):
            if not entry.name.startswith(HIDDEN):
                if not rest:
                    yield Path(entry.path)
                if _is_folder(Path(entry.path)):
                    yield from _matches(Path(entry.path), parts, above, hidden)
        return
    for path in _named(folder, head, hidden):
        if not rest:
            yield path
        elif _is_folder(path):
            yield from _matches(path, rest, (), hidden)


def _named(folder: Path, pattern: str, hidden: list[Path] | None) -> Iterator[Path]:
    if not glob.has_magic(pattern):
        path = folder / pattern
        if status_of(path, follow_symlinks=False) is not None:
            yield path
        return
    for entry in _entries(folder):
        if not fnmatch.fnmatchcase(entry.name, pattern):
            continue
        if entry.name.startswith(HIDDEN) and entry.name[0] != pattern[0]:
            if hidden is not None and entry.name.endswith(SUFFIXES):
                hidden.append(Path(entry.path))
        else:
            yield Path(entry.path)


def _is_folder(path: Path) -> bool:
    status = status_of(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    """True for a folder that is no link to one. Most file systems give the type in the listing."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError as error:
        if error.errno in GONE | OF_THE_PATH:
            return False
        raise TransientError(f"{entry.path}: {reason_of(error.errno)}") from None


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        if error.errno in GONE | OF_THE_PATH:  # removed since it was seen
            return []
        if error.errno in REFUSED and folder.name == _OF_THE_FILE_SYSTEM:
            return []
        raise TransientError(f"{folder}: can't be listed: {reason_of(error.errno)}") from None
