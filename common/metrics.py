"""Rates and shares over the last seconds, from counters that only grow. Time is passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from common.status import Hop, TimeShares

WINDOW_S = 5.0
HOUR_S = 3600.0
_MINUTE_S = 60.0


class Rate:
    """Growth rate of a counter over the last ``window_s`` seconds."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque()

    def update(self, now_s: float, value: float) -> float:
        """Record the counter and return its growth per second, 0 before the second sample."""
        self._samples.append((now_s, value))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - self._window_s:
            self._samples.popleft()
        first_s, first = self._samples[0]
        return (value - first) / (now_s - first_s) if now_s > first_s else 0.0


def seconds_each(per_s: float) -> float:
    """Inverse of a rate: seconds for one; 0 while the rate is 0."""
    return 1.0 / per_s if per_s > 0.0 else 0.0


class Shares:
    """Share of each of several named waits in the last seconds."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._rates: dict[str, Rate] = {}

    def update(self, now_s: float, seconds: Mapping[str, float]) -> dict[str, float]:
        """Record the seconds waited so far, by name, and return each as a part (0 to 1) of the last seconds."""
        return {
            name: self._rates.setdefault(name, Rate(self._window_s)).update(now_s, value)
            for name, value in seconds.items()
        }


class LastHour:
    """Share of each of several named waits in the last hour, from a sample a minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, float]]] = deque()

    def update(self, now_s: float, seconds: Mapping[str, float]) -> TimeShares:
        """Shares up to now, from the seconds waited so far, by name."""
        if not self._samples or now_s - self._samples[-1][0] >= _MINUTE_S:
            self._samples.append((now_s, dict(seconds)))
        while len(self._samples) > 1 and self._samples[1][0] <= now_s - HOUR_S:
            self._samples.popleft()
        first_s, first = self._samples[0]
        span_s = now_s - first_s
        if span_s <= 0.0:
            return TimeShares()
        shares = {name: (value - first.get(name, 0.0)) / span_s for name, value in seconds.items()}
        return TimeShares(seconds=span_s, shares={name: min(max(share, 0.0), 1.0) for name, share in shares.items()})


class HopMeter:
    """Sums of the three numbers of a hop (common.status.Hop), from spans of time in which nothing changed."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._wait_put_s = 0.0
        self._wait_get_s = 0.0
        self._filled_s = 0.0
        self._shares = Shares(window_s)

    def add(self, span_s: float, *, put: float = 0.0, get: float = 0.0, occupancy: float = 0.0) -> None:
        """Add a span of ``span_s`` seconds in which a part ``put`` of the producers waited, a part ``get`` of the
        consumers, and the queue between them was filled to ``occupancy``; each is 0 to 1."""
        self._wait_put_s += span_s * put
        self._wait_get_s += span_s * get
        self._filled_s += span_s * occupancy

    def hop(self, now_s: float) -> Hop:
        """Hop since the start, and over the last seconds."""
        waited = {"put": self._wait_put_s, "get": self._wait_get_s, "filled": self._filled_s}
        shares = {name: min(share, 1.0) for name, share in self._shares.update(now_s, waited).items()}
        return Hop(
            wait_put_s=self._wait_put_s,
            wait_get_s=self._wait_get_s,
            wait_put_share=shares["put"],
            wait_get_share=shares["get"],
            occupancy=shares["filled"],
        )
