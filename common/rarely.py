"""Rate limit for log lines caused by others: a few per minute."""

from __future__ import annotations

import logging
import time

_LINES = 5
_WINDOW_S = 60.0


class Rarely:
    """Rate limit of one kind of line: a million occurrences fill no disk, and hide no other line."""

    def __init__(self, logger: logging.Logger, level: int = logging.WARNING) -> None:
        self._logger = logger
        self._level = level
        self._window_s = -_WINDOW_S
        self._lines = self._unsaid = 0

    def log(self, text: str, *arguments: object) -> None:
        """Log the line, or count it."""
        now_s = time.monotonic()
        if now_s - self._window_s >= _WINDOW_S:
            self._window_s, self._lines = now_s, 0
        if self._lines == _LINES:
            self._unsaid += 1
            return
        self._lines += 1
        if self._unsaid:
            text, arguments = f"{text} (and %d more like it)", (*arguments, self._unsaid)
            self._unsaid = 0
        self._logger.log(self._level, text, *arguments)
