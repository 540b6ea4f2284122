"""Numbers as text for readers. Pure."""

from __future__ import annotations

import math

from workloads.base.report.metric import Metric
from workloads.base.report.verdict import ratio

NOTHING = "–"


def with_error(metric: Metric) -> str:
    """Value ± error as text, both to the second digit of the error."""
    if not math.isfinite(metric.value):
        return NOTHING
    if not (math.isfinite(metric.error) and metric.error > 0):
        return plain(metric.value)
    decimals = min(max(1 - math.floor(math.log10(metric.error)), 0), 9)
    if decimals > 6:
        return f"{metric.value:.3g} ± {metric.error:.2g}"
    return f"{metric.value:.{decimals}f} ± {metric.error:.{decimals}f}"


def plain(value: float) -> str:
    """Number with three digits."""
    return f"{value:#.3g}".rstrip(".") if math.isfinite(value) else NOTHING


def ratio_text(metric: Metric) -> str:
    """Value in units of the floor."""
    found = ratio(metric)
    return f"{found:.3g}" if abs(found) >= 10 else f"{found:.2f}" if math.isfinite(found) else NOTHING
