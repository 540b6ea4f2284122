"""Random numbers of an evaluation: one seed, and a separate stream for each purpose. Pure."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """Purpose of a stream. Values are far from the small ones with which ``splits.halves`` begins."""

    EVENTS = 1001
    BOOTSTRAPS = 1002
    PAIRS_REAL = 1003
    PAIRS_GENERATED = 1004
    PARTS = 1005
    SET_MUONS = 1006
    TEST_HALVES = 1007
    BATCHES = 1008
    ATTENTION_EVENTS = 1009


def stream(seed: int, purpose: Purpose) -> np.random.Generator:
    """Generator for ``purpose``, with the same numbers each time."""
    return np.random.default_rng([seed, purpose])
