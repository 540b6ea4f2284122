"""Outputs process: copies at intervals and at the end, with retries while the destination is unavailable."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from common.errors import BadInputError, IcestreamError, TransientError
from common.process import StopFlag
from common.redact import shown
from common.status import OutputsStatus
from common.status_files import write_status
from services.config.root import Config
from services.outputs.destinations import Destination, open_destination
from services.outputs.sync import Sync

logger = logging.getLogger(__name__)

_POLL_S = 0.2
_MAX_PAUSE_S = 300.0


def serve(run_dir: Path, config: Config, stop: StopFlag, *, take_over: bool) -> None:
    """Copy until ``stop`` is set, then the remaining files. Raises BadInputError for an error that only the user can
    fix."""
    where = config.outputs.destination
    destination = open_destination(config, run_dir)
    try:
        _Copies(run_dir, config, destination, where, take_over=take_over).run(stop)
    finally:
        destination.close()


class _Copies:
    """Loop around Sync."""

    def __init__(self, run_dir: Path, config: Config, destination: Destination, where: str, *, take_over: bool) -> None:
        self._run_dir = run_dir
        self._config = config.outputs
        self._destination = destination
        self._where = shown(where)
        self._take_over = take_over
        self._sync: Sync | None = None
        self._files = 0

    def run(self, stop: StopFlag) -> None:
        failures = 0
        while not stop:
            problem = self._turn()
            failures = failures + 1 if problem else 0
            pause_s = self._config.every_s
            if failures:
                pause_s = min(max(pause_s, 5.0) * 2.0 ** min(failures - 1, 10), max(_MAX_PAUSE_S, pause_s))
            self._wait(pause_s, stop)
        self._finish()

    def _turn(self) -> str:
        """Copy changed files; the reason of a failure, or an empty text."""
        problem = ""
        try:
            if self._sync is None:
                self._sync = Sync(
                    self._run_dir,
                    self._destination,
                    self._where,
                    self._config.keep_checkpoints,
                    take_over=self._take_over,
                )
            copied = self._sync.turn()
            self._files += copied
            if copied:
                logger.info("%d files copied to %s", copied, self._where)
        except (TransientError, OSError) as error:
            problem = shown(f"{self._where}: {error}")
            logger.warning("not copied: %s", problem)
        except IcestreamError as error:
            if self._sync is None:
                raise  # the start: the user must see the error at once
            problem = shown(f"{self._where}: {error}")
            logger.error("not copied: %s", problem)
        bytes_copied = self._sync.bytes_copied if self._sync is not None else 0
        write_status(
            self._run_dir,
            "outputs",
            OutputsStatus(files_copied=self._files, bytes_copied=bytes_copied, problem=problem),
        )
        return problem

    def _wait(self, pause_s: float, stop: StopFlag) -> None:
        end_s = time.monotonic() + pause_s
        while not stop and time.monotonic() < end_s:
            time.sleep(_POLL_S)

    def _finish(self) -> None:
        """Make the last copies. Raises BadInputError, for the exit code, if they can't be made in time."""
        end_s = time.monotonic() + self._config.final_sync_s
        while problem := self._turn():
            if time.monotonic() + 2.0 > end_s:
                raise BadInputError(f"the newest outputs were not copied: {problem}")
            time.sleep(2.0)
