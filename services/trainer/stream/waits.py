"""Waiting times and bytes at the hop `batches`, from the feed to the training step. Pure: the times are passed in.

get: the loop waited for a unit. put: a step ran, and the data of the next batch were present at its end; such a step
counts in full, since the time of their arrival is unknown.
"""

from __future__ import annotations


class BatchWaits:
    """Sums of one trainer. For each batch, in order: any number of waited(), given(), taken()."""

    def __init__(self) -> None:
        self.put_s = 0.0
        self.get_s = 0.0
        self.copied_bytes = 0
        """Bytes of the microbatches copied to the device."""
        self._given_s = 0.0
        self._step_s = 0.0
        self._was_late = False

    def waited(self, seconds: float) -> None:
        """Add the time that the feed waited for a unit."""
        self.get_s += seconds
        self._was_late = True

    def given(self, now_s: float) -> None:
        """Record that the feed yields a batch: a step begins."""
        if not self._was_late:
            self.put_s += self._step_s
        self._given_s, self._step_s, self._was_late = now_s, 0.0, False

    def taken(self, now_s: float) -> None:
        """Record that the loop requests the next batch: the step has ended."""
        self._step_s = now_s - self._given_s
