"""Report: results from disk, and the files in the repository made from them."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.physics import figures
from benchmarks.physics.keys import ROOT, result_path
from benchmarks.physics.runs import BF16, QUALITY, TABLES, TUNING
from benchmarks.physics.spec import Run, Table
from benchmarks.physics.tables import NAMES, Results, floor_text, markdown, median, quality_markdown, text

BEGIN, END = "<!-- tables: begin (python -m benchmarks.physics) -->", "<!-- tables: end -->"
_PACKAGES = ("torch", "numpy", "scipy")
_OF_CHOICE = (
    *("log10_energy_w1", "log10_radius_w1", "radius_m_w1", "log10_bundle_energy_w1", "c2st_auc", "c2st_attention_auc"),
    *("muon_nats_excess", "radius_variance_ratio", "energy_above_10_tev_ratio", "energy_above_30_tev_ratio"),
    *("radius_above_100_m_ratio", "energy_below_cut_share", "train_cpu_s", "events_per_s"),
)
"""Metrics in the table of docs/explanation/models.md."""
_PROPERTIES = (
    ("score of a checkpoint", "held-out nats, comparable between runs", "distances on a block of events, in floors"),
)
"""Properties that no run measures: name, likelihood model, WGAN."""


def read_results(runs: Sequence[Run], folder: Path) -> dict[str, dict[str, Any]]:
    """Results by name, of runs that have one for this code and these settings."""
    found = {}
    for run in runs:
        path = result_path(run, folder)
        if path.exists():
            found[run.name] = json.loads(path.read_text())
    return found


def write_results(results: Results) -> Path:
    """Write the tables to benchmarks/results/DATE-physics.md, and all metrics to a JSON beside it (not in git)."""
    record = ROOT / "benchmarks" / "results" / f"{datetime.now(UTC):%Y-%m-%d}-physics.md"
    all_metrics = described("python -m benchmarks.physics", results)
    record.with_suffix(".json").write_text(json.dumps(all_metrics, indent=1, ensure_ascii=False) + "\n")
    tables = [shown(table, results) for table in TABLES]
    record.write_text("\n\n".join(["# Quality of the muon models", f"{about(results)}.", *tables]) + "\n")
    return record


def about(results: Results) -> str:
    """Return how many runs there are, what they cost, and the versions that made them."""
    cpu_s = sum(sum(result["values"].get("train_cpu_s", ())) for result in results.values())
    return (
        f"{len(results)} runs, {cpu_s:,.0f} s of training on one core, Python {platform.python_version()},"
        f" torch {version('torch')}"
    )


def described(command: str, results: Results) -> dict[str, Any]:
    """All metrics of the runs, without the histograms, with the command that made them, hardware and versions."""
    kept = {name: {key: result[key] for key in result if key != "histograms"} for name, result in results.items()}
    return {
        "command": command,
        "hardware": f"{os.cpu_count()} cores, {platform.machine()}; one thread a run",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "runs": {name: _rounded(result) for name, result in kept.items()},
    }


def draw_figures(results: Results, folder: Path) -> list[str]:
    """Draw the figure if there are results for it. Returns its lines of Markdown."""
    if not figures.distributions(results, folder / "physics.png"):
        return []
    return [f"![Distributions of the simulator and of the models](../{folder.name}/physics.png)"]


def shown(table: Table, results: Results) -> str:
    """Table as Markdown, the models side by side or in lines."""
    return (quality_markdown if table.key in (QUALITY.key, TUNING.key, BF16.key) else markdown)(table, results)


def write_page(page: Path, results: Results, record: Path, pictures: Sequence[str]) -> None:
    """Write pictures between the markers of docs/explanation/physics.md. Raises ValueError without them."""
    tables = f"{about(results)}; every table: [{record.name}](../../{record.relative_to(ROOT)})."
    replace_between(page, BEGIN, END, "\n\n".join([tables, *pictures]))


def write_choice(page: Path, results: Results) -> None:
    """Write the table of docs/explanation/models.md between its markers, likewise."""
    rows = QUALITY.rows[:2]
    lines = [f"| | {' | '.join(row.label for row in rows)} | *floor* |", f"|{' --- |' * (len(rows) + 2)}"]
    for name in _OF_CHOICE:
        cells = [text(median(row, name, results), name) for row in rows]
        lines.append(f"| {' | '.join([NAMES[name], *cells, floor_text(QUALITY, name, results)])} |")
    lines += [f"| {' | '.join(cells)} | |" for cells in _PROPERTIES]
    replace_between(page, BEGIN, END, "\n".join(lines))


def replace_between(page: Path, begin: str, end: str, content: str) -> None:
    """Write ``content`` between two lines of a page. Raises ValueError without them."""
    before, found, rest = page.read_text().partition(begin)
    _, last, after = rest.partition(end)
    if not (found and last):
        raise ValueError(f"{page}: needs a line {begin} and behind it a line {end}")
    page.write_text(f"{before}{begin}\n\n{content}\n\n{end}{after}")


def _rounded(value: Any) -> Any:
    """Value with six significant digits, which keeps diffs short. NaN becomes null, as JSON has none."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value
