"""Predicted events for tests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from workloads.direction.metrics.predicted import PredictedEvents, unit_and_norm
from workloads.direction.metrics.von_mises_fisher import drawn_angles_rad


def rotated(unit_E3: np.ndarray, angle_E: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Unit vectors at given angles from others, to a random side."""
    side_E3 = np.cross(unit_E3, random.normal(size=unit_E3.shape))
    side_E3 /= np.linalg.norm(side_E3, axis=1)[:, None]
    return np.cos(angle_E)[:, None] * unit_E3 + np.sin(angle_E)[:, None] * side_E3


def events_at(
    angle_deg: np.ndarray | list[float],
    kappa: np.ndarray | list[float],
    topology: np.ndarray | list[int],
    baselines: Mapping[str, np.ndarray] | None = None,
) -> PredictedEvents:
    """Events whose predictions are so far from the truth, which lies anywhere."""
    random = np.random.default_rng(5)
    angle_E = np.radians(np.asarray(angle_deg, np.float64))
    true_E3 = unit_and_norm(random.normal(size=(len(angle_E), 3)))[0]
    return PredictedEvents(
        rotated(true_E3, angle_E, random),
        np.asarray(kappa, np.float64),
        true_E3,
        np.asarray(topology, np.int8),
        random.uniform(100, 1e5, len(angle_E)),
        random.integers(3, 60, len(angle_E)),
        {name: rotated(true_E3, np.radians(far), random) for name, far in (baselines or {}).items()},
    )


def calibrated_events(number: int, seed: int = 0, too_sure: float = 1.0) -> PredictedEvents:
    """Tracks (large κ) and cascades (small κ) whose angles follow their κ; above 1: κ is told too large by that."""
    random = np.random.default_rng(seed)
    topology_E = (random.random(number) < 0.6).astype(np.int8)
    kappa_E = np.where(topology_E == 1, 800.0, 3.0) * random.lognormal(0, 0.5, number)
    angle_E = np.degrees(drawn_angles_rad(kappa_E, random))
    return events_at(angle_E, kappa_E * too_sure, topology_E, {"line": np.minimum(3 * angle_E + 1, 170.0)})
