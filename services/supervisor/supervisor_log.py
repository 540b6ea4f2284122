"""Log of the supervisor, `logs/supervisor.log`: starts, ends, restarts and stops of a run's processes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common.process import LOG_DATES, log_format
from common.redacted_log import RedactingFormatter
from services.supervisor.names import LOGS_FOLDER

SUPERVISOR_LOG = "supervisor.log"


@contextmanager
def supervisor_log(run_dir: Path) -> Iterator[logging.Logger]:
    """Append all records of this package to the log meanwhile; yields the package's logger."""
    folder = run_dir / LOGS_FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    handler = _PatientHandler(folder / SUPERVISOR_LOG)
    handler.setFormatter(RedactingFormatter(log_format("supervisor"), LOG_DATES))
    logger = logging.getLogger(__package__)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


class _PatientHandler(logging.FileHandler):
    """Handler that drops what a full disk doesn't take: the run continues."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass

    def close(self) -> None:
        with suppress(OSError):
            super().close()
