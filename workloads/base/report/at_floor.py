"""Conclusion of a report: number of metrics at their floor, of each run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple

from workloads.base.checkpoint import CHECKPOINT_FOLDER
from workloads.base.report.beside import names
from workloads.base.report.metric import Metric
from workloads.base.report.outcome import Outcome
from workloads.base.report.verdict import in_order, verdict
from workloads.base.report.words import ReportWords


class FloorCount(NamedTuple):
    """Metrics at their floor among those that have one."""

    at_floor: int
    of: int

    def __str__(self) -> str:
        return f"{self.at_floor} of {self.of}"


class RunAtFloor(NamedTuple):
    """Counts of one run."""

    name: str
    """Name in the heads of columns; empty if it is the only run."""
    headline: FloorCount
    all: FloorCount


def at_floor(outcome: Outcome, words: ReportWords) -> list[RunAtFloor]:
    """Counts of each run; nothing if no headline metric has a floor."""
    runs = {"": outcome.report.metrics}
    if beside := outcome.beside:
        runs = dict(zip(names(outcome.provenance, beside), (outcome.report.metrics, beside.metrics), strict=True))
    found = [
        RunAtFloor(name, _count(in_order(metrics, words.headline)[0]), _count(metrics))
        for name, metrics in runs.items()
    ]
    return [one for one in found if one.headline.of]


def conclusion(outcome: Outcome, words: ReportWords) -> list[str]:
    """Last lines of a report in plain text."""
    runs = at_floor(outcome, words)
    if not runs:
        return []
    totals = {one.all.of for one in runs}
    every = [str(one.all) for one in runs] if len(totals) > 1 else [str(one.all.at_floor) for one in runs]
    end = "" if len(totals) > 1 else f" of {totals.pop()}"
    headline = ", ".join(f"{one.name} {one.headline}".lstrip() for one in runs)
    told = f"headline metrics at floor: {headline} (all: {' and '.join(every)}{end})"
    return [told, *([words.which_model] if outcome.beside and words.which_model else [])]


def not_at_floor(outcome: Outcome, words: ReportWords) -> str:
    """Headline metrics that are off or near their floor, in one line: the first thing to read. Empty without floors."""
    headline, _ = in_order(outcome.report.metrics, words.headline)
    found = {word: [name for name in headline if verdict(headline[name]) == word] for word in ("off", "near")}
    told = [f"{word}: {', '.join(names)}" for word, names in found.items() if names]
    if told:
        return "; ".join(told)
    return "all headline metrics are at their floor" if _count(headline).of else ""


def title(outcome: Outcome) -> str:
    """Title of a report: the run, or the checkpoint outside of one, and its step."""
    provenance = outcome.provenance
    path = PurePath(str(provenance["checkpoint"]))
    run = path.parent.parent if path.parent.name == CHECKPOINT_FOLDER else path
    return f"Evaluation: {run}, step {provenance['step']:,}"


def _count(metrics: Mapping[str, Metric]) -> FloorCount:
    verdicts = [found for metric in metrics.values() if (found := verdict(metric)) != "no floor"]
    return FloorCount(verdicts.count("at floor"), len(verdicts))
