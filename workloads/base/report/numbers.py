"""Numbers as text for readers. Pure."""

from __future__ import annotations

import math

from workloads.base.report.metric import TARGETS, Metric
from workloads.base.report.verdict import SIGMAS, ratio, verdict

NOTHING = "–"
_MOST_FLOORS = 100
"""Largest ratio that is told: a larger one says no more."""


def with_error(metric: Metric) -> str:
    """Value ± error as text, both to the second digit of the error."""
    return _with_error(metric.value, metric.error)


def floor_with_error(metric: Metric) -> str:
    """Floor ± standard deviation of a perfect model's value from it, or ± the floor's own error if that is unknown."""
    known = [one for one in (metric.floor_spread, metric.floor_error) if math.isfinite(one)]
    return _with_error(metric.floor, math.hypot(*known))


def _with_error(value: float, error: float) -> str:
    if not math.isfinite(value):
        return NOTHING
    if not (math.isfinite(error) and error > 0):
        return plain(value)
    decimals = min(max(1 - math.floor(math.log10(error)), 0), 9)
    if decimals > 6:
        return f"{value:.3g} ± {error:.2g}"
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def plain(value: float) -> str:
    """Number with three digits."""
    return f"{value:#.3g}".rstrip(".") if math.isfinite(value) else NOTHING


def ratio_text(metric: Metric) -> str:
    """Value in units of the floor; nothing for a floor that is not seen to be above 0: its multiples mean nothing."""
    known = [one for one in (metric.floor_spread, metric.floor_error) if math.isfinite(one)]
    if metric.better not in TARGETS and known and metric.floor <= SIGMAS * math.hypot(*known):
        return NOTHING
    found = ratio(metric)
    if found > _MOST_FLOORS:
        return f"> {_MOST_FLOORS}"
    return f"{found:.3g}" if abs(found) >= 10 else f"{found:.2f}" if math.isfinite(found) else NOTHING


def verdict_text(metric: Metric) -> str:
    """Verdict, if there is a value."""
    return verdict(metric) if math.isfinite(metric.value) else NOTHING
