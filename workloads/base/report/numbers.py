"""Numbers as text for readers. Pure."""

from __future__ import annotations

import math

from workloads.base.report.metric import Metric
from workloads.base.report.verdict import ratio

NOTHING = "–"


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
    """Value in units of the floor."""
    found = ratio(metric)
    return f"{found:.3g}" if abs(found) >= 10 else f"{found:.2f}" if math.isfinite(found) else NOTHING
