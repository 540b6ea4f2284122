"""Results of an evaluation, and their files: `report.json`, `report.html`, pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.atomic_file import AS_UMASK_SAYS, replace_file
from workloads.base.report.beside import Beside
from workloads.base.report.metric import Floor, Metric
from workloads.base.report.verdict import ratio, verdict

FORMAT = 1
REPORT_JSON = "report.json"
REPORT_HTML = "report.html"


@dataclass(frozen=True)
class MetricReport:
    """All metrics by name, in the order in which they are shown, and the size of their sample."""

    metrics: Mapping[str, Metric]
    sizes: Mapping[str, int]
    """Numbers of events and particles by their keys in `report.json`; at least `events`."""
    floor_kind: str
    """Method of finding the floors: a key of ReportWords.floors."""
    notes: tuple[str, ...] = ()
    """Remarks that a reader must know, a line each."""
    floors: Mapping[str, Floor] = field(default_factory=dict)
    """Floors that depend on real events alone: for a report on another model, also of metrics that this one lacks."""


@dataclass(frozen=True)
class Picture:
    """One picture of a report."""

    name: str
    """Name of the file, without its suffix."""
    title: str
    caption: str
    png: bytes


@dataclass(frozen=True)
class Outcome:
    """Results of one evaluation."""

    report: MetricReport
    pictures: Sequence[Picture]
    provenance: Mapping[str, Any]
    """Model, data and programs of the evaluation, without secrets: at least checkpoint, model, step and date."""
    missed: Mapping[str, str]
    """Missed thresholds, by metric."""
    warnings: Sequence[str]
    """Reasons not to believe the numbers."""
    beside: Beside | None = None


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Contents of `report.json`. A number that is not finite is null."""
    report = outcome.report
    return {
        "format": FORMAT,
        **outcome.provenance,
        **report.sizes,
        "floor_kind": report.floor_kind,
        "warnings": list(outcome.warnings),
        "notes": list(report.notes),
        "thresholds_missed": dict(outcome.missed),
        "pictures": [f"{picture.name}.png" for picture in outcome.pictures],
        "metrics": _metrics(report.metrics),
        **({"beside": _beside(outcome.beside)} if outcome.beside else {}),
    }


def store(folder: Path, outcome: Outcome, html: str) -> None:
    """Write pictures, `report.html` and, last, `report.json`: if it exists, all the others do."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT_JSON).unlink(missing_ok=True)
    for picture in outcome.pictures:
        (folder / f"{picture.name}.png").write_bytes(picture.png)
    (folder / REPORT_HTML).write_text(html, encoding="utf-8")
    text = json.dumps(as_json(outcome), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    replace_file(folder / REPORT_JSON, text, durable=False, mode=AS_UMASK_SAYS)


def _beside(beside: Beside) -> dict[str, Any]:
    return {"provenance": dict(beside.provenance), "metrics": _metrics(beside.metrics)}


def _metrics(metrics: Mapping[str, Metric]) -> dict[str, dict[str, Any]]:
    return {name: _metric(metric) for name, metric in metrics.items()}


def _metric(metric: Metric) -> dict[str, Any]:
    return {
        "value": _finite(metric.value),
        "error": _finite(metric.error),
        "floor": _finite(metric.floor),
        "floor_error": _finite(metric.floor_error),
        "floor_spread": _finite(metric.floor_spread),
        "ratio": _finite(ratio(metric)),
        "unit": metric.unit,
        "better": metric.better,
        "verdict": verdict(metric),
        "meaning": metric.meaning,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
