"""Choice of the events that are held out of training, by a hash of their ids. Pure.

It depends on the id and on the share alone: not on the run's seed, files, order or platform. Events with equal ids are
together, and a larger share holds out all that a smaller one does.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Which = Literal["trained", "held out", "all"]
"""Choice of events: those for training, those held out of it, or both."""

_STEP, _FIRST, _SECOND = (np.uint64(one) for one in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def is_held_out(ids: npt.NDArray[Any], share: float) -> npt.NDArray[np.bool_]:
    """True for the events that are held out if ``share`` (0 ≤ share < 1) of all are.

    ``ids`` are integers of any type, (E, F). -> (E,). Held out are hashes below share · 2⁶⁴. The hash starts at 0; with
    each number of an id, as 64 bits in two's complement, h becomes splitmix64(h xor number) (Steele, Lea, Flood, "Fast
    splittable pseudorandom number generators", OOPSLA 2014).
    """
    hashes = np.zeros(len(ids), np.uint64)
    for field in range(ids.shape[1]):
        hashes = _splitmix64(hashes ^ ids[:, field].astype(np.int64, copy=False).view(np.uint64))
    return hashes < np.uint64(int(share * 2**64))


def _splitmix64(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Next output of the generator at ``state``; unsigned integers wrap around."""
    mixed = state + _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))
