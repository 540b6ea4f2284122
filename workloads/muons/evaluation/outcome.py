"""Everything that an evaluation hands on, and its `report.json`."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.redact import without_secrets
from workloads.base.report.verdict import ratio, verdict
from workloads.muons.evaluation.plots.gallery import Picture
from workloads.muons.generation.load import Trained
from workloads.muons.metrics.report import Metric, MetricReport

FORMAT = 1
REPORT_JSON = "report.json"
REPORT_HTML = "report.html"
_PACKAGES = ("icestream", "torch", "numpy", "scipy", "pyarrow", "matplotlib")


@dataclass(frozen=True)
class Outcome:
    """One evaluation."""

    report: MetricReport
    pictures: Sequence[Picture]
    provenance: Mapping[str, Any]
    """What was evaluated, on what, by what: without secrets."""
    missed: Mapping[str, str]
    """Thresholds that are not kept, by metric."""
    warnings: Sequence[str]
    """Reasons not to believe the numbers."""


def provenance(trained: Trained, **more: object) -> dict[str, Any]:
    """Of a checkpoint, and whatever else is told."""
    configuration = without_secrets(trained.config.model_dump_json())
    return {
        "checkpoint": str(trained.path),
        "model": trained.config.trainer.model,
        "step": trained.step,
        "events_trained": trained.events_trained,
        "config_digest": hashlib.sha256(configuration.encode()).hexdigest()[:16],
        **more,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # run from its sources
            found[package] = "unknown"
    return found


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The contents of `report.json`. What is not a finite number is null."""
    report = outcome.report
    return {
        "format": FORMAT,
        **outcome.provenance,
        "events": report.num_events,
        "muons_real": report.num_muons_real,
        "muons_generated": report.num_muons_generated,
        "floor_kind": report.floor_kind,
        "warnings": list(outcome.warnings),
        "notes": list(report.notes),
        "thresholds_missed": dict(outcome.missed),
        "pictures": [f"{picture.name}.png" for picture in outcome.pictures],
        "metrics": {name: _metric(metric) for name, metric in report.metrics.items()},
    }


def store(folder: Path, outcome: Outcome, html: str) -> None:
    """Pictures, `report.html` and `report.json`, the last one last: it is there only if all is."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT_JSON).unlink(missing_ok=True)
    for picture in outcome.pictures:
        (folder / f"{picture.name}.png").write_bytes(picture.png)
    (folder / REPORT_HTML).write_text(html, encoding="utf-8")
    part = folder / f"{REPORT_JSON}.part"
    part.write_text(
        json.dumps(as_json(outcome), indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )
    part.replace(folder / REPORT_JSON)


def _metric(metric: Metric) -> dict[str, Any]:
    return {
        "value": _finite(metric.value),
        "error": _finite(metric.error),
        "floor": _finite(metric.floor),
        "ratio": _finite(ratio(metric)),
        "unit": metric.unit,
        "better": metric.better,
        "verdict": verdict(metric),
        "meaning": metric.meaning,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
