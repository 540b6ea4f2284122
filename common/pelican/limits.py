"""Limits on the number and the speed of transfers. Pure: time is passed in."""

from __future__ import annotations

_WINDOW_S = 2.0
_BETTER = 1.05


class Concurrency:
    """Adaptive number of transfers (1 to ``limit``) that maximises bytes per second.

    It starts at the limit, since a short run should not end before reaching it. Every window it moves by a step in the
    direction that helped, and reverses where it did not; failures halve it.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.target = limit
        """Current maximum of simultaneous transfers."""
        self._direction = -1
        self._began_s: float | None = None
        self._bytes = 0
        self._finished = self._failed = 0
        self._last_rate = 0.0

    def received(self, size_bytes: int) -> None:
        """Record received bytes."""
        self._bytes += size_bytes

    def finished(self, *, ok: bool, now_s: float) -> None:
        """Record the end of a transfer."""
        self._finished += ok
        self._failed += not ok
        self.tick(now_s)

    def tick(self, now_s: float) -> None:
        """Advance the time. A window ends once it has enough data for a decision."""
        if self._began_s is None:
            self._began_s = now_s
        enough = self._finished + self._failed >= self.target
        if now_s - self._began_s < _WINDOW_S or not enough:
            return
        rate = self._bytes / (now_s - self._began_s)
        if self._failed > self._finished:
            self.target = max(1, self.target // 2)
            self._direction = 1
        else:
            if rate < self._last_rate * _BETTER:
                self._direction = -self._direction
            # An eighth: a step of one among many would have no visible effect.
            step = max(1, self.target // 8) * self._direction
            self.target = min(self.limit, max(1, self.target + step))
        self._last_rate = rate
        self._began_s, self._bytes, self._finished, self._failed = now_s, 0, 0, 0


class Bandwidth:
    """Token bucket of one second: pause after received bytes. ``bytes_per_s`` 0: no pause."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._level = bytes_per_s
        self._then_s: float | None = None

    def received(self, size_bytes: int, now_s: float) -> float:
        """Seconds to wait before the next read."""
        if not self._bytes_per_s:
            return 0.0
        if self._then_s is not None:
            self._level = min(self._bytes_per_s, self._level + (now_s - self._then_s) * self._bytes_per_s)
        self._then_s = now_s
        self._level -= size_bytes
        return max(0.0, -self._level / self._bytes_per_s)
