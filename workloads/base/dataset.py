"""Data sets of simulated events: their request, their folder, and what was written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.errors import BadInputError
from common.output_place import require_place
from common.seed import checked_seed


@dataclass(frozen=True)
class Written:
    """Contents of one file, or of a whole data set."""

    num_files: int = 0
    num_events: int = 0
    num_particles: int = 0
    num_bytes: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(
            self.num_files + other.num_files,
            self.num_events + other.num_events,
            self.num_particles + other.num_particles,
            self.num_bytes + other.num_bytes,
        )


def check_request(num_events: int, num_files: int, seed: int) -> None:
    """Raise BadInputError for a data set that can't be."""
    if num_files < 1:
        raise BadInputError(f"files = {num_files}: need at least one")
    if num_events < num_files:
        raise BadInputError(f"events = {num_events}, files = {num_files}: every file needs at least one event")
    checked_seed(seed)


def share(total: int, num_files: int, file_index: int) -> int:
    """Equal share of one file; the first files take one more of a remainder."""
    each, rest = divmod(total, num_files)
    return each + (file_index < rest)


def prepare_folder(
    out: Path, *, overwrite: bool, own_file: re.Pattern[str], own_folder: re.Pattern[str], content: str
) -> None:
    """Make ``out`` an empty directory. Raises BadInputError.

    ``overwrite``: delete an earlier data set of the same writer, whose files and folders have names that match those
    patterns; with any other file among them nothing is deleted. ``content`` is what the writer writes, in words.
    """
    if out.exists() and not out.is_dir():
        raise BadInputError(f"{out} is a file: name a directory for the data set")
    require_place(out)
    if out.is_dir():
        files = [path for path in out.rglob("*") if not path.is_dir()]
        if files and not overwrite:
            raise BadInputError(f"{out} is not empty: choose another directory, or overwrite it with --force")
        foreign = [path for path in files if not own_file.fullmatch(path.name)]
        if foreign:
            raise BadInputError(
                f"{out} holds files that are no {content}, such as {foreign[0].name}: choose another directory"
            )
        for path in files:
            path.unlink()
        for directory in out.iterdir():
            # It held files of the writer only; one that the new data set lacks must not be left empty.
            if own_folder.fullmatch(directory.name):
                directory.rmdir()
    out.mkdir(parents=True, exist_ok=True)


def write_files(
    num_files: int, write_file: Callable[[int], Written], on_file: Callable[[Written], None] | None
) -> Written:
    """Write each file by its index; ``on_file`` gets the numbers of each once it is complete. Returns their sum."""
    total = Written()
    for file_index in range(num_files):
        written = write_file(file_index)
        total += written
        if on_file is not None:
            on_file(written)
    return total
