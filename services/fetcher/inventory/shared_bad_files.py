"""Bad files of all shards of a run, for the failure budget: a file for each shard, with a number in each line."""

from __future__ import annotations

from pathlib import Path


class SharedBadFiles:
    """Numbers of bad files in ``folder``, which all shards share; each shard writes its own and reads all."""

    def __init__(self, folder: Path, shard: int) -> None:
        self._folder = folder
        self._path = folder / f"bad-{shard:03d}"

    def add(self, file: int) -> int:
        """Add a bad file of this shard; number of distinct ones of all shards.

        A shard adds its own before it counts: of two that do so at the same time, one counts both.
        """
        if file not in _read(self._path):
            with self._path.open("a") as sink:
                sink.write(f"\n{file}\n")  # on a new line whatever a crash of the machine left
        return len(set().union(*map(_read, self._folder.glob("bad-[0-9][0-9][0-9]"))))


def _read(path: Path) -> set[int]:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return {int(line) for line in lines if line.isdecimal()}
