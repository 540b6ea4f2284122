"""Layout of a cache directory, which may be shared by the runs of one user on one node.

pool/ab/NAME            the complete files
sums/ab/NAME            size and digest of each, written before it appears in the pool
locks/NAME              held by the run that works on the file; unlinked afterwards
runs/RUN/lock           held by a living fetcher
runs/RUN/run.json       path of the run directory
runs/RUN/files/NAME     hard links into the pool: files that the run uses. The link count is the pin
runs/RUN/parts/NAME     files that the run is fetching
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from common.atomic_file import NO_LINKS
from common.errors import BadInputError
from common.private_path import make_for_owner, require_private

FILE_MODE = 0o600
NEW_SUM = "sum-"
"""Prefix of an incomplete note of a sum in a run's folder."""
_SETTING = "fetcher.cache_dir"


@dataclass(frozen=True)
class RunFolder:
    """Folder of one run in a cache directory."""

    folder: Path

    @property
    def lock(self) -> Path:
        """Lock held while the run's fetcher lives."""
        return self.folder / "lock"

    @property
    def description(self) -> Path:
        """File with the path of the run directory."""
        return self.folder / "run.json"

    @property
    def files(self) -> Path:
        """Hard links into the pool."""
        return self.folder / "files"

    @property
    def parts(self) -> Path:
        """Files in transfer."""
        return self.folder / "parts"

    def run_dir(self) -> Path | None:
        """Run directory; None if it is not recorded."""
        try:
            return Path(json.loads(self.description.read_bytes())["run_dir"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True)
class CacheLayout:
    """Paths in one cache directory."""

    folder: Path

    @property
    def locks(self) -> Path:
        """Locks of single files."""
        return self.folder / "locks"

    @property
    def runs(self) -> Path:
        """Folder with one folder for each run."""
        return self.folder / "runs"

    def pool(self, name: str) -> Path:
        """Path of the file itself."""
        return self.folder / "pool" / name[:2] / name

    def sum(self, name: str) -> Path:
        """Path of the file's size and digest."""
        return self.folder / "sums" / name[:2] / name

    def run(self, run_dir: Path) -> RunFolder:
        """Folder of the run with this run directory."""
        return RunFolder(self.runs / hashlib.blake2b(os.fsencode(run_dir.resolve()), digest_size=8).hexdigest())

    def all_runs(self) -> list[RunFolder]:
        """Folders of all runs."""
        return [RunFolder(folder) for folder in names_in(self.runs)]


def names_in(folder: Path) -> list[Path]:
    """Content of a folder; empty if it is gone."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def check_cache_dir(folder: Path) -> None:
    """Raise BadInputError if another user could put files into the cache directory."""
    try:
        make_for_owner(folder)
        require_private(folder, f"{_SETTING} =")
    except (FileExistsError, NotADirectoryError):
        raise BadInputError(f"{_SETTING} = {folder}: not a directory; name another one") from None
    except PermissionError as error:
        raise BadInputError(
            f"{_SETTING} = {folder}: {error.strerror}; name a directory that you may write to"
        ) from None


def check_links(folder: Path) -> None:
    """Raise BadInputError if the file system supports no hard links."""
    probe, second = folder / f".probe-{os.getpid()}", folder / f".probe-{os.getpid()}-link"
    try:
        probe.touch(FILE_MODE)
        os.link(probe, second)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        raise BadInputError(
            f"{_SETTING} = {folder.parent.parent} lies on a file system without hard links ({error.strerror}), by "
            "which runs share files: name a directory on a local disk"
        ) from None
    finally:
        probe.unlink(missing_ok=True)
        second.unlink(missing_ok=True)
