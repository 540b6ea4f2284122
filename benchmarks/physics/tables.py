"""Markdown tables of results: the median over seeds, with floor and limits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.physics.runs import LIMITS, LIMITS_OF_EACH
from benchmarks.physics.spec import Limit, Row, Table

Results = Mapping[str, dict[str, Any]]
"""Results by the name of the run; those not made yet are missing."""

NAMES = {
    "count_tv": "count TV",
    "count_mean_ratio": "mean N, generated / expected",
    "log10_energy_w1": "lg E",
    "log10_radius_w1": "lg r",
    "radius_m_w1": "r [m]",
    "log10_bundle_energy_w1": "lg ΣE",
    "log10_leading_energy_w1": "lg E_max",
    "conditional_log10_energy_w1": "lg E given primary",
    "c2st_auc": "C2ST AUC",
    "c2st_attention_auc": "C2ST AUC, attention",
    "log10_count_w1": "lg(1+N)",
    "count_nats_excess": "counts: nats an event above truth",
    "muon_nats_excess": "muons: nats a muon above truth",
    "count_empty_difference": "P(N=0), generated - real",
    "radius_variance_ratio": "variance of mean lg r, N ≥ 100, ratio",
    "energy_above_1_tev_ratio": "P(E > 1 TeV), ratio",
    "energy_above_10_tev_ratio": "P(E > 10 TeV), ratio",
    "energy_above_30_tev_ratio": "P(E > 30 TeV), ratio",
    "radius_above_100_m_ratio": "P(r > 100 m), ratio",
    "energy_below_cut_share": "P(E < 1 GeV)",
    "train_cpu_s": "training, CPU s",
    "events_per_s": "generation, events/s",
    "num_parameters": "parameters",
}
_DIGITS = {
    "radius_m_w1": 3,
    "train_cpu_s": 0,
    "events_per_s": 0,
    "num_parameters": 0,
    **{name: 3 for name in NAMES if name.endswith("_ratio")},
}
_NOT_COMPARED = ("train_cpu_s", "events_per_s")
_CHANCE = {name: f"{name}_chance" for name in ("c2st_auc", "c2st_attention_auc")}
"""AUCs, and the results' names of their standard deviations for events that are alike."""
_KIND_OF_ROW = {"likelihood": "likelihood", "WGAN": "wgan"}


def best(name: str) -> float:
    """Value of a perfect model, apart from chance."""
    return 0.5 if name in _CHANCE else 1.0 if name.endswith("_ratio") else 0.0


def markdown(table: Table, results: Results) -> str:
    """Table with its question above it, a line for each row; a dash for missing values."""
    columns = table.columns
    lines = [_head(table, [NAMES[name] for name in columns])]
    values = {row.label: {name: median(row, name, results) for name in columns} for row in table.rows}
    for row in table.rows:
        cells = []
        for name in columns:
            cell = text(values[row.label][name], name)
            is_best = len(table.rows) > 1 and name not in _NOT_COMPARED and _is_best(row.label, name, values)
            cells.append(f"**{cell}**" if is_best else cell)
        lines.append(f"| {' | '.join([row.label, *cells])} |")
    floors = [floor_text(table, name, results) for name in columns]
    if any(cell != "–" for cell in floors):
        lines.append(f"| {' | '.join(['*floor*', *floors])} |")
    return "\n".join([*lines, *_not_made(table, results)])


def quality_markdown(table: Table, results: Results) -> str:
    """Table of the models side by side, a line for each metric: median, range over seeds, floor, limits; verdicts."""
    lines = [_head(table, [*(row.label for row in table.rows), "*floor*", "*must*", "*should*", "*WGAN: must*"])]
    for name in table.columns:
        cells = [_with_range(row, name, results) for row in table.rows]
        limit, of_wgan = LIMITS["likelihood"].get(name), LIMITS["wgan"].get(name)
        should = limit.wanted(floor(table, name, results)[0]) if limit else None
        asked = (
            _limit_text(limit, limit.must if limit else None, name),
            _limit_text(limit, should, name),
            _limit_text(of_wgan, of_wgan.must if of_wgan else None, name),
        )
        lines.append(f"| {' | '.join([NAMES[name], *cells, floor_text(table, name, results), *asked])} |")
    verdicts = [verdict(table, row, results) for row in table.rows]
    return "\n".join([*lines, "", *(one for one in verdicts if one), *_not_made(table, results)]).strip()


def verdict(table: Table, row: Row, results: Results) -> str:
    """Limits that a row misses; empty if it has none, or as long as values are missing."""
    kind = _KIND_OF_ROW.get(row.label)
    if kind is None:
        return ""
    limits = LIMITS[kind]
    values = {name: median(row, name, results) for name in limits}
    if any(math.isnan(value) for value in values.values()):
        return ""
    missed = [name for name, limit in limits.items() if not limit.met(values[name], limit.must)]
    wanted = {name: limit.wanted(floor(table, name, results)[0]) for name, limit in limits.items()}
    wished = [
        name
        for name, limit in limits.items()
        if name not in missed and (value := wanted[name]) is not None and not limit.met(values[name], value)
    ]
    alone = LIMITS_OF_EACH if kind == "wgan" else limits
    of_seeds = {run.seed: _missed_alone(results[run.name], alone) for run in row.runs}
    lines = [f"- **{row.label}**: of *must*, {f'missed: {_named(missed)}' if missed else 'every limit is met'}"]
    lines += [f"  - of *should*, missed: {_named(wished)}"] if wished else []
    for seed, names in of_seeds.items():
        beyond = "; ".join(f"{NAMES[name]} ({_limit_text(alone[name], alone[name].must, name)})" for name in names)
        of = "a single seed" if kind == "wgan" else "the median"
        lines += [f"  - seed {seed} alone is beyond the limits of {of}: {beyond}"] if names else []
    return "\n".join(lines)


def _missed_alone(result: Mapping[str, Any], limits: Mapping[str, Limit]) -> list[str]:
    return [name for name, limit in limits.items() if not limit.met(of_run(result, name), limit.must)]


def median(row: Row, name: str, results: Results) -> float:
    """Median over the runs of a row; NaN unless all exist."""
    found = [of_run(results[run.name], name) for run in row.runs if run.name in results]
    return statistics.median(found) if len(found) == len(row.runs) else math.nan


def of_run(result: Mapping[str, Any], name: str) -> float:
    """Mean over the generations of a run; NaN if it has no such value."""
    values = [value for value in result["values"].get(name, []) if value is not None]
    return statistics.fmean(values) if values else math.nan


def floor(table: Table, name: str, results: Results) -> tuple[float, float]:
    """Value of a perfect model, and its spread over independent draws; NaN if unknown."""
    if name in _CHANCE:
        found = [of_run(results[run.name], _CHANCE[name]) for run in table.runs if run.name in results]
        known = [value for value in found if not math.isnan(value)]
        return (best(name), statistics.fmean(known)) if known else (math.nan, math.nan)
    values = results[table.floor.name]["values"].get(name, []) if table.floor and table.floor.name in results else []
    return (statistics.fmean(values), statistics.stdev(values)) if len(values) > 1 else (math.nan, math.nan)


def text(value: float, name: str) -> str:
    """Value with the digits of its metric; a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:,.{_DIGITS.get(name, 4)}f}"


def _head(table: Table, columns: Sequence[str]) -> str:
    cells = ["", *columns]
    return "\n".join(
        [f"### {table.title}", "", table.question, "", f"| {' | '.join(cells)} |", f"|{' --- |' * len(cells)}"]
    )


def _with_range(row: Row, name: str, results: Results) -> str:
    value = median(row, name, results)
    if math.isnan(value) or len(row.runs) == 1:
        return text(value, name)
    values = [of_run(results[run.name], name) for run in row.runs]
    low, high = text(min(values), name), text(max(values), name)
    return text(value, name) if low == high else f"{text(value, name)} ({low} to {high})"


def floor_text(table: Table, name: str, results: Results) -> str:
    """Floor and its spread; a dash if it is unknown."""
    mean, spread = floor(table, name, results)
    return "–" if math.isnan(mean) else f"{text(mean, name)} ± {text(spread, name)}"


def _limit_text(limit: Limit | None, value: float | None, name: str) -> str:
    if limit is None or value is None or math.isnan(value):
        return ""
    if limit.kind == "around one":
        return f"1 ± {value:g}"
    shown = f"{value:,.0f}" if value >= 100 else text(value, name) if limit.should_floors else f"{value:g}"
    return f"{'≥' if limit.kind == 'at least' else '≤'} {shown}"


def _named(names: Sequence[str]) -> str:
    return "; ".join(NAMES[name] for name in names)


def _is_best(label: str, name: str, values: Mapping[str, Mapping[str, float]]) -> bool:
    if math.isnan(values[label][name]):
        return False
    distances = [abs(row[name] - best(name)) for row in values.values() if not math.isnan(row[name])]
    return abs(values[label][name] - best(name)) <= min(distances)


def _not_made(table: Table, results: Results) -> list[str]:
    missing = sum(run.name not in results for run in table.runs)
    return ["", f"{missing} of {len(table.runs)} runs are not made yet."] if missing else []
