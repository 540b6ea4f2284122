"""Rates and shares over the last seconds, from counters that only grow. Time is passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

WINDOW_S = 5.0


class Rate:
    """How fast a counter grows, over the last ``window_s`` seconds."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque()

    def update(self, now_s: float, value: float) -> float:
        """Note the counter; its growth per second, 0 before the second sample."""
        self._samples.append((now_s, value))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - self._window_s:
            self._samples.popleft()
        first_s, first = self._samples[0]
        return (value - first) / (now_s - first_s) if now_s > first_s else 0.0


class Shares:
    """How much of the last seconds went into each of several named waits."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._rates: dict[str, Rate] = {}

    def update(self, now_s: float, seconds: Mapping[str, float]) -> dict[str, float]:
        """Note the seconds waited so far, by name; each as a part (0 to 1) of the last seconds."""
        return {
            name: self._rates.setdefault(name, Rate(self._window_s)).update(now_s, value)
            for name, value in seconds.items()
        }
