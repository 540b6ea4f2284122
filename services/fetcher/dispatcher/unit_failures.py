"""Failures of units: number of decoders lost or refusals for each unit, and the units skipped for it. Pure."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from common import messages as m

logger = logging.getLogger(__name__)


class UnitFailures:
    """Failure counts; a unit that failed ``most`` times is skipped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._failed: Counter[int] = Counter()
        self._skip: dict[int, str] = {}

    @property
    def counts(self) -> dict[int, int]:
        """Number of failures by unit."""
        return dict(self._failed)

    def add(self, k: int, reason: str) -> None:
        """Count a failure of unit ``k``."""
        self._failed[k] += 1
        logger.warning("unit %d failed %d time(s): %s", k, self._failed[k], reason)
        if self._failed[k] >= self._most:
            self._skip[k] = f"unit {k} failed {self._failed[k]} times, last: {reason}"

    def is_skipped(self, k: int) -> bool:
        """True if unit ``k`` failed too often."""
        return k in self._skip

    def skipped(self, unit: m.Unit) -> m.Tally:
        """Tally of a skipped unit: all its events are quarantined."""
        # One entry: any of its files may have killed the decoders, and none of them counts as bad twice.
        reason = self._skip[unit.k]
        bad = tuple(m.Quarantined(part.file, part.row_group, unit.rows, reason[:2000]) for part in unit.parts[:1])
        logger.error("skipping: %s", reason)
        return m.Tally(rows_read=unit.rows, quarantined=unit.rows, bad=bad)

    def forget(self, units: Iterable[int]) -> None:
        """Remove the counts of units that don't come again, except the skipped ones."""
        for k in units:
            self._failed.pop(k, None)
