"""Floors: metrics of a perfect generator, with their errors. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from workloads.base.report.metric import TARGETS, Floor
from workloads.muons.metrics.bundles import Float64
from workloads.muons.metrics.definitions import DEFINITIONS


def chance_floor(name: str, deviation: float) -> Floor:
    """Floor of a two-sided metric that is off its best value by chance alone, with this standard deviation."""
    return Floor(TARGETS[DEFINITIONS[name].better], 0.0, deviation) if math.isfinite(deviation) else Floor()


def null_floor(distances: Float64) -> Floor:
    """Floor from independent values of the distance without a difference. Two at least, else nothing is known."""
    if len(distances) < 2:
        return Floor()
    spread = float(distances.std(ddof=1))
    return Floor(float(distances.mean()), spread / math.sqrt(len(distances)), spread)


def floors_of(told: Sequence[Mapping[str, float]], averaged: int) -> dict[str, Floor]:
    """Floors by name from comparisons of real events with real ones; names that are not in all are left out.

    Mean over the comparisons, also of two-sided metrics: redraws share the real sample, and so does a perfect
    generator, which is where they are and not at the best value. ``averaged``: number of independent comparisons
    whose mean is the value of the generator.
    """
    names = [name for name in told[0] if all(name in one for one in told)]
    return {name: _floor(np.array([one[name] for one in told]), averaged) for name in names}


def without_spread(floors: Mapping[str, Floor]) -> dict[str, Floor]:
    """Floors from halves of the same events of the metrics that few events rule: fpd and kpd.

    These events are in all halvings: the spread of the halvings is too small.
    """
    return {name: replace(floors[name], spread=math.nan) for name in ("fpd", "kpd") if name in floors}


def _floor(values: Float64, averaged: int) -> Floor:
    spread = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    return Floor(float(values.mean()), spread / math.sqrt(len(values)), spread / math.sqrt(averaged))
