"""Checkpoint requests that let files be evicted from a full disk: when to send them, when they don't help. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from common import messages as m
from common.errors import BadInputError

_PAUSE_S = 1.0
"""Pause between two requests."""
_PAUSE_AT_WORK_S = 10.0
"""Pause while the trainer has data: each checkpoint costs it time."""
_USELESS_ANSWERS = 3
"""Commits in a row at the same place from which a checkpoint is no help."""


class CommitRequests:
    """State of one open request at a time, which all trainers answer with a commit. ``budget``: the setting, for the
    error."""

    def __init__(self, budget: str) -> None:
        self._budget = budget
        self._asked = False
        self._answers: dict[str, m.Cursor] = {}
        self._last_answer: frozenset[m.Cursor] = frozenset()
        self._is_awaited = False
        self._useless = 0
        self._next_s = 0.0

    def due(self, now_s: float, trainers: Sequence[str], *, at_work: bool, missing_bytes: int = 0) -> Sequence[str]:
        """Trainers to ask for a checkpoint now, while used but uncommitted files fill the disk.

        ``at_work``: some have units in hand. ``missing_bytes``: for the next block beside those on the disk.
        Raises BadInputError if the newest checkpoints did not help.
        """
        if self._useless >= _USELESS_ANSWERS:
            raise BadInputError(
                f"{self._budget} is too small: a batch needs more blocks than it holds; raise it by"
                f" {math.ceil(missing_bytes / 2**30 * 1000) / 1000:g} GiB or more, or lower"
                " stream.block_files or stream.batch_events"
            )
        if self._asked or now_s < self._next_s:
            return ()
        self._next_s = now_s + (_PAUSE_AT_WORK_S if at_work else _PAUSE_S)
        self._answers.clear()
        self._is_awaited = False
        self._asked = bool(trainers)
        return trainers

    def committed(self, peer: str, committed: m.Committed, trainers: Collection[str], *, units_ahead: int) -> None:
        """Record a commit. It counts once all ``trainers`` have committed.

        One answer may come from a checkpoint that was due anyway, or from a time with data still to be trained:
        several in a row at the same place show that nothing moves, if a trainer waits for this fetcher and no other.
        """
        if not self._asked:
            return
        self._answers[peer] = committed.cursor
        self._is_awaited |= committed.waits
        if not self._answers.keys() >= set(trainers):
            return
        answer = frozenset(self._answers.values())
        moved = answer != self._last_answer or units_ahead > 0 or not self._is_awaited
        self._useless = 0 if moved else self._useless + 1
        self._last_answer, self._asked = answer, False

    def wanted(self) -> None:
        """Record that a trainer wants more units: it made progress."""
        self._useless = 0

    def attached(self) -> None:
        """Record a new trainer: it has received no request."""
        self._asked, self._useless = False, 0
