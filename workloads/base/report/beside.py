"""Second run in a report, beside the one that is evaluated. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workloads.base.report.metric import Metric
from workloads.base.report.numbers import NOTHING, with_error
from workloads.base.report.verdict import verdict


@dataclass(frozen=True)
class Beside:
    """Run that is shown beside the one of the report: the same real events, the same floors."""

    provenance: Mapping[str, Any]
    """Its model: at least checkpoint, model and step."""
    metrics: Mapping[str, Metric]

    def named(self, model: str) -> str:
        """Name of its model in the heads of columns, beside the report's own ``model``."""
        name = str(self.provenance["model"])
        return name if name != model else f"{name} beside"

    def cells(self, metric: str) -> tuple[str, str]:
        """Value ± error, and verdict."""
        found = self.metrics.get(metric)
        return (with_error(found), verdict(found)) if found else (NOTHING, NOTHING)


def value_heads(model: str, beside: Beside | None) -> tuple[str, str]:
    """Heads of the columns of values: that of the report's own ``model``, and that of the run beside it."""
    return (f"{model} ± error", f"{beside.named(model)} ± error") if beside else ("value ± error", "")
