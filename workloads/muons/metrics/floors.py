"""Floors: metrics of a perfect generator, with their errors. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from workloads.base.report.metric import TARGETS, Floor
from workloads.muons.metrics.bundles import Float64
from workloads.muons.metrics.definitions import DEFINITIONS

_HALF_NORMAL = math.sqrt(1 - 2 / math.pi)
"""Standard deviation of |z|, z normal with standard deviation 1."""


def chance_floor(name: str, deviation: float) -> Floor:
    """Floor of a two-sided metric that is normal about its best value, with this standard deviation."""
    return Floor(TARGETS[DEFINITIONS[name].better] + deviation, 0.0, _HALF_NORMAL * deviation)


def null_floor(distances: Float64) -> Floor:
    """Floor from independent values of the distance without a difference. Two at least, else nothing is known."""
    if len(distances) < 2:
        return Floor()
    spread = float(distances.std(ddof=1))
    return Floor(float(distances.mean()), spread / math.sqrt(len(distances)), spread)


def floors_of(told: Sequence[Mapping[str, float]], averaged: int) -> dict[str, Floor]:
    """Floors by name from comparisons of real events with real ones; names that are not in all are left out.

    Mean over the comparisons; for two-sided metrics the RMS distance from the best value, and the errors are those of
    this distance. ``averaged``: number of independent comparisons whose mean is the value of the generator.
    """
    names = [name for name in told[0] if all(name in one for one in told)]
    return {name: _floor(name, np.array([one[name] for one in told]), averaged) for name in names}


def without_spread(floors: Mapping[str, Floor]) -> dict[str, Floor]:
    """Floors from halves of the same events of the metrics that few events rule: fpd and kpd.

    These events are in all halvings: the spread of the halvings is too small.
    """
    return {name: replace(floors[name], spread=math.nan) for name in ("fpd", "kpd") if name in floors}


def _floor(name: str, values: Float64, averaged: int) -> Floor:
    target = TARGETS.get(DEFINITIONS[name].better)
    if target is None:
        floor, distances = values.mean(), values
    else:
        distances = np.abs(values - target)
        floor = target + np.sqrt(np.mean(distances**2))
    spread = distances.std(ddof=1) if len(values) > 1 else math.nan
    return Floor(float(floor), float(spread) / math.sqrt(len(values)), float(spread) / math.sqrt(averaged))
