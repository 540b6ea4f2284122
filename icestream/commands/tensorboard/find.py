"""Search for folders with TensorBoard's event files. Links are not followed: files outside must not be collected."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from common.errors import BadInputError
from common.tensorboard_names import run_and_rest

EVENT_FILE = "events.out.tfevents."


@dataclass(frozen=True)
class EventFile:
    """Event file with its current size; it may grow."""

    name: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class LogFolder:
    """Folder with event files: a run in TensorBoard's terms."""

    path: Path
    """Absolute path of the folder."""
    run: str
    rest: tuple[str, ...]
    """Path components below the run's TensorBoard folder."""
    parent: str
    """Name of the folder that contains the run."""
    files: tuple[EventFile, ...]

    @property
    def newest_s(self) -> float:
        """Time of the last write, in seconds since 1970."""
        return max(file.mtime_ns for file in self.files) / 1e9


def find(sources: Iterable[Path], out: Path) -> Iterator[LogFolder]:
    """Folders in and below ``sources``, each once, in order, without those of ``out``. Raises BadInputError."""
    seen: set[Path] = set()
    for source in sources:
        if not source.is_dir():
            raise BadInputError(f"{source}: no such directory; name run directories, or folders of them")
        root = source.resolve()
        for folder, subfolders, names in os.walk(root):
            path = Path(folder)
            if path == out:
                subfolders.clear()
                continue
            subfolders.sort()
            files = tuple(_event_files(path, names)) if path not in seen else ()
            seen.add(path)
            if files:
                run, rest = run_and_rest(root, path)
                yield LogFolder(path, run, rest, _parent(path, rest), files)


def _parent(folder: Path, rest: tuple[str, ...]) -> str:
    """Name of the folder above the run's."""
    run = folder.parents[len(rest) - 1] if rest else folder
    if run.name == "tensorboard":
        run = run.parent
    return run.parent.name


def _event_files(folder: Path, names: list[str]) -> Iterator[EventFile]:
    for name in sorted(names):
        if not name.startswith(EVENT_FILE):
            continue
        try:
            found = (folder / name).lstat()
        except FileNotFoundError:
            continue  # removed meanwhile
        if stat.S_ISREG(found.st_mode):
            yield EventFile(name, found.st_size, found.st_mtime_ns)
