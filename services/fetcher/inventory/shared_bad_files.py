"""Bad files of all shards of a run, for the failure budget: a file for each shard, with a number in each line."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from common.atomic_file import Publishing
from services.fetcher.inventory.own_record import OwnRecord


class SharedBadFiles:
    """Numbers of bad files in ``folder``, which all shards share; each shard writes its own and reads all."""

    def __init__(self, folder: Path, shard: int, publishing: Publishing = nullcontext) -> None:
        self._folder = folder
        self._own = OwnRecord(folder / f"bad-{shard:03d}", publishing)

    def add(self, file: int) -> int:
        """Add a bad file of this shard; number of distinct ones of all shards.

        A shard adds its own before it counts: of two that do so at the same time, one counts both.
        """
        if file not in _read(self._own.path):
            self._own.append(str(file))
        return len(set().union(*map(_read, self._folder.glob("bad-[0-9][0-9][0-9]"))))


def _read(path: Path) -> set[int]:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return {int(line) for line in lines if line.isdecimal()}
