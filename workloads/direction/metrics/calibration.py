"""Calibration of the predicted concentration κ: are the angles as large as κ says? Pure.

E events, B bins of κ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from workloads.base.report.metric import Floor
from workloads.direction.metrics import von_mises_fisher
from workloads.direction.metrics.angles import Float64

_MOST_BINS = 10
_EVENTS_OF_BIN = 20
"""Fewest events of a bin: the mean angle of 20 events is known to about 12 %."""
PULL_MEAN, PULL_MEDIAN = 2.0, float(np.log(4))
"""Mean and median of χ² with two degrees of freedom."""


@dataclass(frozen=True)
class KappaBins:
    """Events in bins of equal numbers by κ: deciles, fewer bins if there are fewer than 200 events."""

    kappa_B: Float64
    """Median κ."""
    angle_B: Float64
    """Mean angle, in radians."""
    expected_B: Float64
    """Mean angle that the von Mises-Fisher distributions of these κ have."""

    @property
    def ratio_B(self) -> Float64:
        """Real / expected mean angle: 1 for a calibrated model, above 1 where it is too sure of itself."""
        return self.angle_B / self.expected_B


def kappa_bins(angle_rad_E: Float64, kappa_E: Float64) -> KappaBins:
    """Mean angles by bins of κ. At least one event."""
    number = max(min(len(kappa_E) // _EVENTS_OF_BIN, _MOST_BINS), 1)
    bins = np.array_split(np.argsort(kappa_E, kind="stable"), number)
    expected_E = von_mises_fisher.mean_angle_rad(kappa_E)
    return KappaBins(
        np.array([np.median(kappa_E[chosen]) for chosen in bins]),
        np.array([angle_rad_E[chosen].mean() for chosen in bins]),
        np.array([expected_E[chosen].mean() for chosen in bins]),
    )


def calibration(angle_rad_E: Float64, kappa_E: Float64) -> dict[str, float]:
    """Figures of calibration by the names of their metrics. Empty without events."""
    if not len(kappa_E):
        return {}
    pull_E = von_mises_fisher.pull(kappa_E, angle_rad_E)
    ratio_B = kappa_bins(angle_rad_E, kappa_E).ratio_B
    return {
        "kappa_pull_mean": float(pull_E.mean()),
        "kappa_pull_median_ratio": float(np.median(pull_E) / PULL_MEDIAN),
        "kappa_decile_lowest_ratio": float(ratio_B.min()),
        "kappa_decile_highest_ratio": float(ratio_B.max()),
        "kappa_nll_mean": float(von_mises_fisher.negative_log_density(kappa_E, angle_rad_E).mean()),
    }


def calibrated(kappa_E: Float64, draws: int, random: np.random.Generator) -> dict[str, Floor]:
    """The same figures for a model that is right: angles drawn from its own distributions, mean over ``draws``."""
    many = [calibration(von_mises_fisher.drawn_angles_rad(kappa_E, random), kappa_E) for _ in range(draws)]
    found = {}
    for name in many[0]:
        values = np.array([one[name] for one in many])
        found[name] = Floor(float(values.mean()), error=float(values.std(ddof=1)) / math.sqrt(draws))
    return found
