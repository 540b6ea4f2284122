"""Owner-only run directories: another user able to replace config.json there would choose the files a run reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from common.errors import BadInputError
from common.files.file_kind import open_file
from common.private_path import require_private

MODE = 0o700
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
        run_dir.mkdir(mode=MODE, parents=True, exist_ok=True)
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
