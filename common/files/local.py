"""Local files: found in directories, globs and lists of inputs, opened, and their kind by their first bytes.

Unlike pathlib and glob, a directory that can not be listed is an error and never "nothing there", and an entry named
like a data file that is none (a pipe, a link to nothing, a directory without data) is listed too: staging reports it.
Names that begin with "." or "_" are left out (`common/text.py`).

Imports no numpy: a decoder opens its configuration before it is imported.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from common.errors import GONE, OF_THE_PATH, REFUSED, BadInputError, TransientError, reason_of
from common.paths import open_file, user_path
from common.pelican.url import GlobWalk, Places
from common.text import HIDDEN

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FileKind = Literal["Parquet", "HDF5"]
_PARQUET = b"PAR1"
_PARQUET_ENCRYPTED = b"PARE"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_HDF5_FIRST_PLACE = 512
"""First offset of HDF5's signature after a user block: 512, 1024, 2048, … bytes; without one it is at 0."""


class BadFileError(BadInputError):
    """Error for a file that can't be used, with its number of events as far as known."""

    def __init__(self, reason: str, rows: int = 0) -> None:
        super().__init__(reason)
        self.rows = rows


def none_usable(reasons: Sequence[str]) -> BadInputError:
    """Error for inputs without a usable file: the reason that most of them share. ``reasons``: `name: text` of each."""
    texts = [reason.partition(": ")[2] for reason in reasons]
    text, num_same = Counter(texts).most_common(1)[0]
    many = f" ({num_same} of the {len(reasons)} files for this reason)" if len(reasons) > 1 else ""
    return BadInputError(f"no file is usable: {reasons[texts.index(text)]}{many}")


def check_largest(counts: npt.NDArray[np.integer], most: int, where: str) -> None:
    """Raise BadFileError for an event that is too large even for an outlier: see SlotCapacity.largest_event."""
    if counts.max(initial=0) > most:
        row = int((counts > most).argmax())
        raise BadFileError(
            f"{where}: the event in row {row} of these has {counts[row]} particles; at most {most} are read, which "
            "follows from stream.slot_mib"
        )


def file_kind(path: Path) -> FileKind:
    """Kind of a local file. Raises OSError, and BadInputError that shows the file's first bytes."""
    with open_file(path) as file:
        head = file.read(8)
        if head.startswith(_PARQUET):
            return "Parquet"
        if head.startswith(_PARQUET_ENCRYPTED):
            raise BadInputError("an encrypted Parquet file; decrypt it first")
        if not head:
            raise BadInputError("the file is empty; expected Parquet or HDF5")
        size_bytes, place = file.seek(0, 2), 0
        while place + len(_HDF5) <= size_bytes:
            file.seek(place)
            if file.read(len(_HDF5)) == _HDF5:
                return "HDF5"
            place = 2 * place or _HDF5_FIRST_PLACE
    raise BadInputError(f"truncated, or neither Parquet nor HDF5: the file begins with {head!r}")


# -------------------------------------------------------------- directories, globs, lists


SUFFIXES = (".parquet", ".h5", ".hdf5")

_OF_THE_FILE_SYSTEM = "lost+found"
"""Directory without data that only root may list."""


_NUMBERS = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
_MOST_NUMBERS = 100_000


def numbered(inputs: Iterable[str]) -> tuple[str, ...]:
    """Return the inputs, with one for each number of a range in braces: `{1..650}`, or `{001..650}` with its zeros.

    Raises BadInputError. Lines of a list (@FILE) stay as they are.
    """
    found: list[str] = []
    for text in inputs:
        if not (match := _NUMBERS.search(text)):
            found.append(text)
            continue
        first, last = int(match[1]), int(match[2])
        if not 0 <= last - first < _MOST_NUMBERS:
            raise BadInputError(f"{text}: expected {{FIRST..LAST}}, rising, with at most {_MOST_NUMBERS:,} numbers")
        width = len(match[1]) if match[1].startswith("0") else 0
        start, end = text[: match.start()], text[match.end() :]
        found += numbered(f"{start}{number:0{width}d}{end}" for number in range(first, last + 1))
        if len(found) > _MOST_NUMBERS:
            raise BadInputError(f"{text}: more than {_MOST_NUMBERS:,} inputs")
    return tuple(found)


def list_entries(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and columns of each entry of a list. Raises OSError, UnicodeDecodeError."""
    for line_number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield line_number, line.strip(" ").rstrip().split("\t")


def expand_lists(inputs: Sequence[str]) -> Iterator[str]:
    """Yield the inputs, with each ``@file`` replaced by its entries."""
    for text in inputs:
        if not text.startswith("@"):
            yield text
            continue
        try:
            entries = list(list_entries(user_path(text[1:])))
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError(f"{text}: can't be read as a list of inputs ({error})") from None
        yield from [columns[0] for _, columns in entries]


def named_inputs(inputs: Iterable[str]) -> Iterator[str]:
    """Yield the inputs as expand_lists() does. An unreadable list gives none: it may have been removed."""
    for text in inputs:
        with contextlib.suppress(BadInputError):
            yield from list(expand_lists([text]))


def status_of(path: Path) -> os.stat_result | None:
    """Status of a path; None if it doesn't exist. Raises TransientError."""
    try:
        return path.stat()
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


def each_match(pattern: Path, hidden: list[Path] | None = None) -> Iterator[Path]:
    """Yield the paths that match an absolute glob, as in `glob.glob(recursive=True)`, each once; for a directory named
    like a data file, the data in it. ``hidden``: as for files_below(). Raises TransientError.
    """
    walk = GlobWalk(str(pattern))
    found: set[Path] = set()
    for path in _walk(walk, Path(walk.root), walk.start, (), hidden):
        is_data = path.name.endswith(SUFFIXES)
        for file in (path,) if not _is_folder(path) else _data_of(path, hidden) if is_data else ():
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


def _walk(
    walk: GlobWalk, folder: Path, places: Places, above: tuple[object, ...], hidden: list[Path] | None
) -> Iterator[Path]:
    """Yield the files and folders of a folder that match. ``above``: the folders above it, with their places in the
    pattern, since links can form a cycle."""
    status = status_of(folder)
    if status is None or (here := (status.st_dev, status.st_ino, places)) in above:
        return
    for entry in _entries(folder):
        if walk.takes(places, entry.name):
            yield Path(entry.path)
        elif hidden is not None and entry.name.endswith(SUFFIXES) and walk.leaves_out(places, entry.name):
            hidden.append(Path(entry.path))
        below = walk.into(places, entry.name)
        if below and _is_folder(Path(entry.path)):
            yield from _walk(walk, Path(entry.path), below, (*above, here), hidden)


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
