"""Resolution: the distribution of the angle between predicted and true direction. Pure."""

from __future__ import annotations

import numpy as np

from workloads.direction.metrics.angles import Float64
from workloads.direction.metrics.predicted import KINDS, PredictedEvents

QUANTILES = {"10": 0.10, "25": 0.25, "median": 0.50, "68": 0.68, "75": 0.75, "90": 0.90}
"""Quantiles of the angle, by their part of a metric's name."""
BASELINE_FIGURES = ("angle_mean_deg", "angle_median_deg", "angle_68_deg")
"""Figures that are told of baselines."""
SMALL_DEG = (1, 5, 20)
"""Angles below which the share of events is told."""


def resolution(angle_deg_E: Float64) -> dict[str, float]:
    """Mean, quantiles, and shares of small angles, by the names of their metrics. Empty without events."""
    if not len(angle_deg_E):
        return {}
    quantiles = np.quantile(angle_deg_E, list(QUANTILES.values()))
    return {
        "angle_mean_deg": float(angle_deg_E.mean()),
        **{f"angle_{name}_deg": float(value) for name, value in zip(QUANTILES, quantiles, strict=True)},
        **{f"angle_below_{limit}_deg_share": float((angle_deg_E < limit).mean()) for limit in SMALL_DEG},
    }


def resolutions(events: PredictedEvents) -> dict[str, float]:
    """Figures of the model for all events, tracks and cascades; of each baseline those of BASELINE_FIGURES."""
    found: dict[str, float] = {}
    for source, angle_deg_E in events.angles_deg().items():
        known_E = np.isfinite(angle_deg_E)
        for prefix, topology in KINDS.items():
            figures = resolution(angle_deg_E[known_E & events.of_kind(topology)])
            if source:
                figures = {name: value for name, value in figures.items() if name in BASELINE_FIGURES}
            found |= {f"{source}{'_' if source else ''}{prefix}{name}": value for name, value in figures.items()}
    return found
