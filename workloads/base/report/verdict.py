"""Verdict on a metric: comparison of its value with its floor. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from workloads.base.report.metric import TARGETS, Metric

Verdict = Literal["at floor", "near", "off", "no floor"]

SIGMAS = 2.0
_NEAR = 2.0

MEANINGS: Mapping[Verdict, str] = {
    "at floor": f"not more than {SIGMAS:g} standard deviations above the floor, or of differences and ratios on either"
    " side of it: no difference from a perfect model is seen",
    "near": f"up to {_NEAR:g} times the floor, or of differences, ratios and AUCs up to {_NEAR * SIGMAS:g} standard"
    " deviations from it",
    "off": "more than that",
    "no floor": "there is no floor to compare with",
}


def ratio(metric: Metric) -> float:
    """Value in units of the floor; of two-sided metrics, its distance from the floor in standard deviations.

    Both are about 1 for a perfect model. NaN without a floor, or a deviation, above 0.
    """
    unit = null_deviation(metric) if metric.better in TARGETS else metric.floor
    length = max(_excess(metric), 0.0) if metric.better in TARGETS else metric.value
    return length / unit if math.isfinite(unit) and unit > 0 else math.nan


def _excess(metric: Metric) -> float:
    """Distance of the value from the floor: on either side of it, but not below it where that is chance or better."""
    excess = metric.value - metric.floor
    return excess if metric.better in ("lower", "half") else abs(excess)


def null_deviation(metric: Metric) -> float:
    """Standard deviation of value - floor for a perfect model: the spread of its values, and the error of the floor.

    The error of the value takes the place of a spread that is unknown.
    """
    spread = metric.floor_spread if math.isfinite(metric.floor_spread) else metric.error
    return math.hypot(*(one for one in (spread, metric.floor_error) if math.isfinite(one)))


def verdict(metric: Metric) -> Verdict:
    """Verdict on a metric; see MEANINGS."""
    excess, limit = _excess(metric), SIGMAS * null_deviation(metric)
    if not math.isfinite(excess):
        return "no floor"
    if excess <= limit:
        return "at floor"
    near = excess <= _NEAR * limit if metric.better in TARGETS else metric.value <= _NEAR * metric.floor
    return "near" if near else "off"


def in_order(metrics: Mapping[str, Metric], headline: Sequence[str]) -> tuple[dict[str, Metric], dict[str, Metric]]:
    """Headline metrics that exist, in the order of ``headline``, and the others."""
    first = {name: metrics[name] for name in headline if name in metrics}
    return first, {name: metric for name, metric in metrics.items() if name not in first}
