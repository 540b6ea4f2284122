"""Bootstrap of showers, as weights of their events. Pure.

B sets of weights, E events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from workloads.base.random_streams import numpy_stream
from workloads.muons.metrics.bundles import Float64, Int64
from workloads.muons.purposes import MuonPurpose

_WEIGHTS_AT_A_TIME = 1 << 22
"""Weights in memory at once: 32 MiB."""


@dataclass(frozen=True)
class WeightSets:
    """Sets of event weights: first the sample's, then those of bootstraps of its showers; equal in each iteration."""

    weight_E: Float64
    shower_E: Int64
    bootstraps: int
    seed: int

    def __len__(self) -> int:
        return 1 + self.bootstraps

    def __iter__(self) -> Iterator[Float64]:
        """Sets of weights, (B, E) at a time, because all may not fit in memory."""
        yield self.weight_E[None]
        rng = numpy_stream(MuonPurpose.BOOTSTRAPS, self.seed)
        most = max(_WEIGHTS_AT_A_TIME // len(self.weight_E), 1)
        for first in range(0, self.bootstraps, most):
            yield self.weight_E * resampled(self.shower_E, min(most, self.bootstraps - first), rng)

    def sample(self) -> WeightSets:
        """Weights of the sample only, for metrics without an error."""
        return replace(self, bootstraps=0)


def resampled(shower_E: Int64, num: int, rng: np.random.Generator) -> Float64:
    """Number of times that each event is drawn in each of ``num`` bootstraps. (num, E).

    Showers are drawn, not events: events of one shower are correlated, and errors would be too small.
    """
    names, index_E = np.unique(shower_E, return_inverse=True)
    size = len(names)
    times_BS = np.stack([np.bincount(rng.integers(0, size, size), minlength=size) for _ in range(num)])
    return times_BS[:, index_E].astype(np.float64)
