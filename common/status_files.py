"""Status files: small JSON files in the run directory, replaced atomically.

Readers are the progress view, people and monitors; no service waits for a reader.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from common.atomic_file import replace_file
from common.fetchers_together import fetchers_together
from common.rarely import Rarely
from common.run_dir import open_in_run, shard_dirs
from common.status import FetcherStatus, Status

STATUS_FOLDER = "status"
StatusType = TypeVar("StatusType", bound=Status)

_reserve: list[int] = []
_reserve_lock = threading.Lock()
os.register_at_fork(after_in_child=_reserve.clear)  # a child may have closed it, or opened a file under its number
_not_written = Rarely(logging.getLogger(__name__))


def write_status(run_dir: Path, name: str, status: Status) -> None:
    """Replace the status file of the service ``name``. An error of the machine doesn't end the service.

    Two descriptors are kept in reserve, so that a service without free descriptors can still report it.
    """
    path = run_dir / STATUS_FOLDER / f"{name}.json"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _reserve_lock:
        while _reserve:
            os.close(_reserve.pop())
        try:
            replace_file(path, status.model_dump_json(), durable=False)
        except OSError as error:
            _not_written.log("%s: can't be written (%s); it shows the former status", path, error.strerror)
        with contextlib.suppress(OSError):
            while len(_reserve) < 2:  # the file is opened twice: see replacing()
                _reserve.append(os.open(os.devnull, os.O_RDONLY))


def read_status(run_dir: Path, name: str, kind: type[StatusType]) -> StatusType | None:
    """Newest status of the service ``name``; None before its first. Raises OSError, BadInputError."""
    try:
        with open_in_run(run_dir / STATUS_FOLDER / f"{name}.json") as file:
            return kind.model_validate_json(file.read())
    except (FileNotFoundError, ValidationError):
        return None


def read_fetchers(run_dir: Path) -> FetcherStatus | None:
    """Newest status of a run's fetcher; with shards, of the fetchers of all of them together. As read_status()."""
    found = [read_status(folder, "fetcher", FetcherStatus) for folder in shard_dirs(run_dir)]
    return fetchers_together([status for status in found if status is not None])
