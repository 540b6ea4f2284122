"""Second run in a report, beside the one that is evaluated. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workloads.base.checkpoint import run_dir_of
from workloads.base.report.metric import Metric
from workloads.base.report.numbers import NOTHING, verdict_text, with_error


@dataclass(frozen=True)
class Beside:
    """Run that is shown beside the one of the report: the same real events, the same floors."""

    provenance: Mapping[str, Any]
    """Its model: at least checkpoint, model and step."""
    metrics: Mapping[str, Metric]

    def cells(self, metric: str) -> tuple[str, str]:
        """Value ± error, and verdict."""
        found = self.metrics.get(metric)
        return (with_error(found), verdict_text(found)) if found else (NOTHING, NOTHING)


def with_those_beside(metrics: Mapping[str, Metric], beside: Beside | None) -> dict[str, Metric]:
    """The report's own metrics, then those that only the run beside it has, without a value."""
    others = beside.metrics.items() if beside else ()
    missing = {name: replace(one, value=math.nan, error=math.nan) for name, one in others if name not in metrics}
    return {**metrics, **missing}


def names(own: Mapping[str, Any], beside: Beside) -> tuple[str, str]:
    """Names of the report's ``own`` run and of the one beside: their models, or, if these are the same, their folders.

    If these are the same as well, names of the checkpoint files, or their paths.
    """
    both = (own, beside.provenance)
    first, second = (Path(str(one["checkpoint"])) for one in both)
    for name, other in (
        (str(own["model"]), str(beside.provenance["model"])),
        (_folder(first), _folder(second)),
        (first.name, second.name),
    ):
        if name != other:
            return name, other
    return str(first), str(second)


def _folder(checkpoint: Path) -> str:
    return (run_dir_of(checkpoint) or checkpoint.absolute().parent).name


def value_heads(own: Mapping[str, Any], beside: Beside | None) -> tuple[str, str]:
    """Heads of the columns of values: that of the report's ``own`` run, and that of the run beside it."""
    if beside is None:
        return "value ± error", ""
    name, other = names(own, beside)
    return f"{name} ± error", f"{other} ± error"
