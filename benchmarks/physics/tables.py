"""Markdown tables of results: the median over seeds, with floor and limits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.physics.runs import ACCEPTANCE, LIMITS
from benchmarks.physics.spec import Row, Table

Results = Mapping[str, dict[str, Any]]
"""Results by the name of the run; those not made yet are missing."""

_NAMES = {
    "count_tv": "count TV",
    "log10_energy_w1": "lg E",
    "log10_radius_w1": "lg r",
    "radius_m_w1": "r [m]",
    "log10_bundle_energy_w1": "lg ΣE",
    "log10_leading_energy_w1": "lg E_max",
    "conditional_log10_energy_w1": "lg E given primary",
    "c2st_auc": "C2ST AUC",
    "log10_count_w1": "lg(1+N)",
    "nll_excess": "nats above truth",
    "count_mean_ratio": "mean N, generated / real",
    "count_empty_difference": "P(N=0), generated - real",
    "count_pit_ks": "PIT, KS",
    "energy_radius_correlation_difference": "corr(lg E, lg r) - real",
    "train_cpu_s": "training, CPU s",
    "events_per_s": "events/s",
}
_DIGITS = {"radius_m_w1": 2, "train_cpu_s": 0, "events_per_s": 0}
_NOT_COMPARED = ("train_cpu_s", "events_per_s")
_BEST_IS_NEAR = {"c2st_auc": 0.5, "count_mean_ratio": 1.0}


def markdown(table: Table, results: Results) -> str:
    """Table with its question above it; a dash for missing values."""
    columns = table.columns
    lines = [
        f"### {table.title}",
        "",
        table.question,
        "",
        f"| {' | '.join(['', *(_NAMES[name] for name in columns)])} |",
        f"| {' | '.join('---' for _ in range(len(columns) + 1))} |",
    ]
    values = {row.label: {name: _value(row, name, results) for name in columns} for row in table.rows}
    # Lines of single seeds get no verdict; nor does a table of one row.
    compared = [row.label for row in table.rows if ", seed " not in row.label]
    for row in table.rows:
        cells = []
        for name in columns:
            text = _text(values[row.label][name], name)
            best = len(compared) > 1 and name not in _NOT_COMPARED and _is_best(row.label, name, values, compared)
            cells.append(f"**{text}**" if best else text)
        lines.append(f"| {' | '.join([row.label, *cells])} |")
    floors = [_text(_floor(table, name, results), name) for name in columns]
    if any(text != "–" for text in floors):
        lines.append(f"| {' | '.join(['*floor*', *floors])} |")
    if table is ACCEPTANCE:
        lines.append(
            f"| {' | '.join(['*asked*', *(f'{LIMITS[name]:g}' if name in LIMITS else '' for name in columns)])} |"
        )
        lines += ["", " ".join(_verdict(label, values[label]) for label in compared).strip()]
    missing = sum(run.name not in results for run in table.runs)
    if missing:
        lines += ["", f"{missing} of {len(table.runs)} runs are not made yet."]
    return "\n".join(lines)


def _value(row: Row, name: str, results: Results) -> float:
    """Median over the runs of a row; NaN unless all exist."""
    found = [of_run(results[run.name], name, "value") for run in row.runs if run.name in results]
    return statistics.median(found) if len(found) == len(row.runs) else math.nan


def _floor(table: Table, name: str, results: Results) -> float:
    """Floor of the evaluation events of the table's runs. Rows with other events would each need their own."""
    found = [of_run(results[run.name], name, "floor") for run in table.runs if run.name in results]
    return statistics.median(found) if found else math.nan


def of_run(result: Mapping[str, Any], name: str, what: str) -> float:
    """Entry ``value`` or ``floor`` of a metric; NaN if a run has none, such as one without any muons."""
    if name in result["metrics"]:
        value = result["metrics"][name][what]
    else:
        value = result["extra"].get(name, math.nan) if what == "value" else math.nan
    return math.nan if value is None else float(value)


def _is_best(label: str, name: str, values: Mapping[str, Mapping[str, float]], among: Sequence[str]) -> bool:
    if label not in among or math.isnan(values[label][name]):
        return False
    aim = _BEST_IS_NEAR.get(name, 0.0)
    distances = [abs(values[other][name] - aim) for other in among if not math.isnan(values[other][name])]
    return abs(values[label][name] - aim) <= min(distances)


def _verdict(label: str, values: Mapping[str, float]) -> str:
    """Verdict on a row: its missed limits; empty as long as values are missing."""
    missed = [_NAMES[name] for name, limit in LIMITS.items() if not values[name] <= limit]
    if any(math.isnan(values[name]) for name in LIMITS):
        return ""
    return f"{label}: {', '.join(missed)} missed." if missed else f"{label}: every limit is met."


def _text(value: float, name: str) -> str:
    return "–" if math.isnan(value) else f"{value:,.{_DIGITS.get(name, 4)}f}"
