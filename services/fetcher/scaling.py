"""Autoscaling of the number of decoders (local.decoders = "auto"). Pure: the time and the load are passed in.

One more while units wait for decoders, one fewer while more than one decoder's time is idle. The two thresholds are far
apart: after a removal the others still have idle time, so the removed decoder is not requested again.
"""

from __future__ import annotations

from dataclasses import dataclass

GROW_ABOVE = 0.5
"""Part of the last seconds in which units waited for a decoder, from which on another decoder helps."""
STEADY_ABOVE = 0.3
"""The same part, below which no more decoders are needed."""
GROW_AFTER_S = 3.0
"""Time for which the need must last."""
SHRINK_ABOVE = 1.25
"""Idle decoders, averaged over time, from which on one can go without a shortage. Above 1, so that the last stays."""
SHRINK_AFTER_S = 20.0
"""Time for which the surplus must last; longer, because a decoder too many costs little."""
COOL_DOWN_S = 6.0
"""Pause after a change: the load of the last seconds (common.metrics.WINDOW_S) still includes the former number."""


@dataclass(frozen=True)
class Load:
    """Load of the decoders in the last seconds."""

    decoders: int
    """Connected decoders, without those that were asked to leave."""
    no_credit: float
    """Part of the time (0 to 1) in which units waited for a decoder."""
    idle: float
    """Mean part (0 to 1) of idle decoders."""


class DecoderScaling:
    """Number of decoders wanted: 1 at first, ``most`` at most, except for those that join by themselves."""

    def __init__(self, most: int) -> None:
        self.wanted = 1
        self._most = max(1, most)
        self._grow_since_s: float | None = None
        self._shrink_since_s: float | None = None
        self._changed_s: float | None = None

    def update(self, now_s: float, load: Load | None) -> int:
        """Number of decoders wanted after this load (None: nothing flows)."""
        if load is not None and load.decoders > self.wanted:
            self._change(now_s, load.decoders)  # a decoder started by hand is kept
        if load is None or self._is_cooling(now_s):
            self._grow_since_s = self._shrink_since_s = None
            return self.wanted
        self._note(now_s, load)
        if self._lasts(self._grow_since_s, now_s, GROW_AFTER_S) and self.wanted < self._most:
            self._change(now_s, self.wanted + 1)
        elif self._lasts(self._shrink_since_s, now_s, SHRINK_AFTER_S):
            self._change(now_s, self.wanted - 1)
        return self.wanted

    def _note(self, now_s: float, load: Load) -> None:
        idle = load.idle * load.decoders
        missing = max(0, self.wanted - load.decoders)
        if missing or load.no_credit < STEADY_ABOVE or idle >= 1.0:
            # Decoders still to come will change the load; an idle decoder waits for one late unit, as another would.
            self._grow_since_s = None
        elif load.no_credit >= GROW_ABOVE and self._grow_since_s is None:
            self._grow_since_s = now_s
        if idle + missing < SHRINK_ABOVE or load.no_credit >= STEADY_ABOVE:
            self._shrink_since_s = None
        elif self._shrink_since_s is None:
            self._shrink_since_s = now_s

    def _is_cooling(self, now_s: float) -> bool:
        return self._changed_s is not None and now_s - self._changed_s < COOL_DOWN_S

    @staticmethod
    def _lasts(since_s: float | None, now_s: float, long_s: float) -> bool:
        return since_s is not None and now_s - since_s >= long_s

    def _change(self, now_s: float, wanted: int) -> None:
        self.wanted, self._changed_s = wanted, now_s
        self._grow_since_s = self._shrink_since_s = None
