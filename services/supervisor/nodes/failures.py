"""Failures of the attempts of a run, as lines in the shared folder: an error that each start repeats has to end them.

An attempt that was lost with a machine, or ended by an error of the machine, leaves no mark.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from common.attempt import RunAttempt
from services.supervisor.nodes.notes import NODES_FOLDER
from services.supervisor.restart import RepeatedFailure

_FILE = "failures.jsonl"


class AttemptFailures:
    """Failures up to one attempt."""

    def __init__(self, attempt: RunAttempt) -> None:
        self._attempt = attempt
        self._path = attempt.shared / NODES_FOLDER / _FILE

    def times(self, exit_code: int, error: str, step: int) -> int:
        """Record that trainers of this attempt ended with ``error``; number of attempts in a row that did, 0 if these
        are too few to give up.

        ``step``: of the newest checkpoint. Raises OSError, and TryAgainError.
        """
        line = json.dumps([self._attempt.number, step, exit_code, error])
        with self._attempt.publishing():
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(line + "\n")
        return _times_in_a_row(self._path)


def _times_in_a_row(path: Path) -> int:
    failure, known, is_enough = RepeatedFailure(), set(), False
    for text in path.read_text().splitlines():
        attempt, step, exit_code, error = json.loads(text)
        if (attempt, error) not in known:  # once, if trainers of several nodes had it
            known.add((attempt, error))
            is_enough = failure.again(exit_code, error, step)
    return failure.times if is_enough else 0
