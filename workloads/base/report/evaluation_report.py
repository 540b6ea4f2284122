"""Report of an evaluation, as Python gets it: metrics by name, the table as text, the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.python_paths import PathText, given_path
from workloads.base.report.html import page
from workloads.base.report.metric import Metric
from workloads.base.report.outcome import REPORT_HTML, Outcome, store
from workloads.base.report.text import lines
from workloads.base.report.words import ReportWords


@dataclass(frozen=True, eq=False)
class EvaluationReport(Mapping[str, Metric]):
    """Metrics by name: `report["n_mean"].value`, `.error`, `.floor`, `.unit`, `.meaning`. Printed, it is the table."""

    outcome: Outcome
    words: ReportWords

    def __getitem__(self, name: str) -> Metric:
        return self.outcome.report.metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outcome.report.metrics)

    def __len__(self) -> int:
        return len(self.outcome.report.metrics)

    def __str__(self) -> str:
        warnings = (f"WARNING: {warning}" for warning in self.warnings)
        return "\n".join([*lines(self.outcome, self.words), *warnings])

    __repr__ = __str__

    @property
    def warnings(self) -> Sequence[str]:
        """Reasons not to believe the numbers."""
        return self.outcome.warnings

    @property
    def missed(self) -> Mapping[str, str]:
        """Missed thresholds, by metric."""
        return self.outcome.missed

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Checkpoint, data, settings and versions of programs."""
        return self.outcome.provenance

    def write(self, folder: PathText) -> Path:
        """Write `report.html`, `report.json` and the plots, as `icestream evaluate` does. Returns the page's path."""
        place = given_path(folder, "folder")
        store(place, self.outcome, page(self.outcome, self.words))
        return place / REPORT_HTML
