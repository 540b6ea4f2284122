"""Failures of the attempts of a run, as lines in the shared folder: an error that each start repeats has to end them.

An attempt that was lost with a machine, or ended by an error of the machine, leaves no mark.
"""

from __future__ import annotations

import json
import os

from common.locks import RunAttempt
from services.supervisor.child import RepeatedFailure, without_numbers
from services.supervisor.nodes.notes import NODES_FOLDER

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
                file.write(f"\n{line}\n")  # on a new line whatever a killed process left
        return self._times_in_a_row(error)

    def _times_in_a_row(self, error: str) -> int:
        """Judgement of this attempt's first line with ``error``: other nodes may have added lines since."""
        failure, known, times = RepeatedFailure(), set(), 0
        for text in self._path.read_text(errors="replace").splitlines():
            try:
                attempt, step, exit_code, of_line = json.loads(text)
                one = attempt, without_numbers(of_line)
            except (ValueError, TypeError):
                continue  # two nodes wrote it at the same time, perhaps: NFS has no appends
            if one in known:
                continue  # trainers of several nodes had it
            known.add(one)
            is_enough = failure.again(exit_code, of_line, step)
            if one == (self._attempt.number, without_numbers(error)):
                times = failure.times if is_enough else 0
        return times
