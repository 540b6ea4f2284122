"""Training rate of a session: events a second after its first steps. Pure: the times are passed in."""

from __future__ import annotations

START_UP_STEPS = 5
"""Warm-up steps that don't count: they wait for data, fit the standardisation, and choose kernels."""


class Pace:
    """Training rate, which includes everything between two steps: the wait for data, logging, checkpoints.

    On CUDA a step has ended for the host when it is queued; the host is ahead by ``log_every`` steps at most.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._events = 0
        self._began_s = self._newest_s = 0.0

    def stepped(self, now_s: float, num_events: int) -> None:
        """Record the end of a step with ``num_events`` events."""
        self._steps += 1
        self._newest_s = now_s
        if self._steps <= START_UP_STEPS:
            self._began_s = now_s
        else:
            self._events += num_events

    @property
    def events_per_s(self) -> float:
        """Rate; 0 during warm-up."""
        seconds = self._newest_s - self._began_s
        return self._events / seconds if seconds > 0 else 0.0
