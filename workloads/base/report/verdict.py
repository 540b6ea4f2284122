"""Verdict on a metric: comparison of its value with its floor. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from workloads.base.report.metric import TARGETS, Metric

Verdict = Literal["at floor", "near", "off", "no floor"]

_SIGMAS = 2.0
_NEAR = 2.0

MEANINGS: Mapping[Verdict, str] = {
    "at floor": f"not more than {_SIGMAS:g} standard deviations above the floor: no difference from a perfect model is"
    " seen",
    "near": f"up to {_NEAR:g} times the floor",
    "off": "more than that",
    "no floor": "there is no floor to compare with",
}


def distance(metric: Metric, value: float) -> float:
    """Distance of a value of the metric from a perfect one: the value itself where lower is better."""
    target = TARGETS.get(metric.better)
    return value if target is None else abs(value - target)


def ratio(metric: Metric) -> float:
    """Distance in units of the floor: about 1 for a perfect generator; NaN without a floor above 0."""
    floor = distance(metric, metric.floor)
    return distance(metric, metric.value) / floor if math.isfinite(floor) and floor > 0 else math.nan


def null_deviation(metric: Metric) -> float:
    """Standard deviation of value - floor for a perfect model: the spread of its values, and the error of the floor.

    The error of the value takes the place of a spread that is unknown.
    """
    spread = metric.floor_spread if math.isfinite(metric.floor_spread) else metric.error
    return math.hypot(*(one for one in (spread, metric.floor_error) if math.isfinite(one)))


def verdict(metric: Metric) -> Verdict:
    """Verdict on a metric; see MEANINGS."""
    floor, value = distance(metric, metric.floor), distance(metric, metric.value)
    if not (math.isfinite(floor) and math.isfinite(value)):
        return "no floor"
    if value <= floor + _SIGMAS * null_deviation(metric):
        return "at floor"
    return "near" if value <= _NEAR * floor else "off"


def in_order(metrics: Mapping[str, Metric], headline: Sequence[str]) -> tuple[dict[str, Metric], dict[str, Metric]]:
    """Headline metrics that exist, in the order of ``headline``, and the others."""
    first = {name: metrics[name] for name in headline if name in metrics}
    return first, {name: metric for name, metric in metrics.items() if name not in first}
