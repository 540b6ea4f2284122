"""Failures of units: how often each cost a decoder or was refused, and which are skipped for it. Pure."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from common import messages as m

logger = logging.getLogger(__name__)


class UnitFailures:
    """A unit that failed ``most`` times is skipped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._failed: Counter[int] = Counter()
        self._skip: dict[int, str] = {}

    @property
    def counts(self) -> dict[int, int]:
        """Failures by unit."""
        return dict(self._failed)

    def add(self, k: int, reason: str) -> None:
        """Unit ``k`` is to blame for a failure."""
        self._failed[k] += 1
        logger.warning("unit %d failed %d time(s): %s", k, self._failed[k], reason)
        if self._failed[k] >= self._most:
            self._skip[k] = f"unit {k} failed {self._failed[k]} times, last: {reason}"

    def is_skipped(self, k: int) -> bool:
        """True if unit ``k`` failed too often."""
        return k in self._skip

    def skipped(self, unit: m.Unit) -> m.Tally:
        """The tally of a unit that is skipped: all its events are quarantined."""
        # One entry: what killed the decoders may be any of its files, and none of them counts as bad for it twice.
        reason = self._skip[unit.k]
        bad = tuple(m.Quarantined(part.file, part.row_group, unit.rows, reason[:2000]) for part in unit.parts[:1])
        logger.error("skipping: %s", reason)
        return m.Tally(rows_read=unit.rows, quarantined=unit.rows, bad=bad)

    def forget(self, units: Iterable[int]) -> None:
        """These units don't come again: the counts of those that are not skipped."""
        for k in units:
            self._failed.pop(k, None)
