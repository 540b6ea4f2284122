"""Requests for a checkpoint, so that files of a full disk can be evicted: when, and when they are no help. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from common import messages as m
from common.errors import BadInputError

_PAUSE_S = 1.0
"""Pause between two requests."""
_PAUSE_AT_WORK_S = 10.0
"""The same while the trainer has data: each checkpoint costs it something."""
_USELESS_ANSWERS = 3
"""So many in a row at the same place, and a checkpoint is no help."""


class CommitRequests:
    """One open request at a time, which all trainers answer with a commit. ``budget_gib`` is for the error's text."""

    def __init__(self, budget_gib: float) -> None:
        self._budget_gib = budget_gib
        self._asked = False
        self._answers: dict[str, tuple[m.Cursor, ...]] = {}
        self._last_answer: tuple[tuple[str, tuple[m.Cursor, ...]], ...] = ()
        self._useless = 0
        self._next_s = 0.0

    def due(self, now_s: float, trainers: Sequence[str], *, at_work: bool) -> Sequence[str]:
        """The disk is full of files that the trainers have used but not committed: those of them to ask now.

        ``at_work``: some have units in hand. Raises BadInputError if the newest checkpoints did not help.
        """
        if self._useless >= _USELESS_ANSWERS:
            raise BadInputError(
                f"fetcher.disk_budget_gib = {self._budget_gib:g} is too small: a batch needs "
                "more blocks than it holds; raise it, or lower stream.block_files or stream.batch_events"
            )
        if self._asked or now_s < self._next_s:
            return ()
        self._next_s = now_s + (_PAUSE_AT_WORK_S if at_work else _PAUSE_S)
        self._answers.clear()
        self._asked = bool(trainers)
        return trainers

    def committed(
        self, peer: str, cursors: tuple[m.Cursor, ...], trainers: Collection[str], *, units_ahead: int
    ) -> None:
        """A trainer committed. Its answer counts once all ``trainers`` have: no lane's files can go before.

        One answer may be of a checkpoint that was due anyway, or of a time when data was still to be trained: several
        in a row at the same place show that nothing moves.
        """
        if not self._asked:
            return
        self._answers[peer] = cursors
        if not self._answers.keys() >= set(trainers):
            return
        answer = tuple(sorted(self._answers.items()))
        moved = answer != self._last_answer or units_ahead > 0
        self._useless = 0 if moved else self._useless + 1
        self._last_answer, self._asked = answer, False

    def wanted(self) -> None:
        """A trainer wants more units: it got further."""
        self._useless = 0

    def attached(self) -> None:
        """A trainer came: it knows of no request."""
        self._asked, self._useless = False, 0
