"""The hop `batches`, from the feed to the training step: who waited for whom. Pure: the times are passed in.

get: the loop waited, because no unit was there. put: a step ran, and what the next batch needed was at hand when it
ended; whether it was there all along is not known, so that such a step counts in full.
"""

from __future__ import annotations


class BatchWaits:
    """Adds up one trainer's seconds. In order, for each batch: any number of waited(), then given(), then taken()."""

    def __init__(self) -> None:
        self.put_s = 0.0
        self.get_s = 0.0
        self._given_s = 0.0
        self._step_s = 0.0
        self._was_late = False

    def waited(self, seconds: float) -> None:
        """The feed had nothing to give and waited for a unit this long."""
        self.get_s += seconds
        self._was_late = True

    def given(self, now_s: float) -> None:
        """The feed gives a batch: a step begins."""
        if not self._was_late:
            self.put_s += self._step_s
        self._given_s, self._step_s, self._was_late = now_s, 0.0, False

    def taken(self, now_s: float) -> None:
        """The loop asks for the next batch: the step has ended."""
        self._step_s = now_s - self._given_s
