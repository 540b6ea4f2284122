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
from benchmarks.physics.runs import TABLES
from benchmarks.physics.spec import Run
from benchmarks.physics.tables import Results, markdown

BEGIN, END = "<!-- tables: begin (python -m benchmarks.physics) -->", "<!-- tables: end -->"
_PACKAGES = ("torch", "numpy", "scipy")


def read_results(runs: Sequence[Run], folder: Path) -> dict[str, dict[str, Any]]:
    """Results by name, of runs that have one for this code and these settings."""
    found = {}
    for run in runs:
        path = result_path(run, folder)
        if path.exists():
            found[run.name] = json.loads(path.read_text())
    return found


def write_results(results: Results) -> Path:
    """Write all metrics of all runs, without the histograms, to benchmarks/results/DATE-physics.json."""
    path = ROOT / "benchmarks" / "results" / f"{datetime.now(UTC):%Y-%m-%d}-physics.json"
    kept = {name: {key: result[key] for key in result if key != "histograms"} for name, result in results.items()}
    told = {
        "command": "python -m benchmarks.physics",
        "hardware": f"{os.cpu_count()} cores, {platform.machine()}; one thread a run",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "runs": {name: _rounded(result) for name, result in kept.items()},
    }
    path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return path


def draw_figures(results: Results, folder: Path) -> list[str]:
    """Draw the figures for which there are results. Returns their lines of Markdown."""
    lines = []
    for draw, name, text in (
        (figures.distributions, "physics.png", "Distributions of the simulator and of three models"),
        (figures.ablations, "ablations.png", "Ablations: distances in units of the floor"),
    ):
        if draw(results, folder / name):
            lines.append(f"![{text}]({folder.name}/{name})")
    return lines


def write_page(page: Path, results: Results, written: Path, pictures: Sequence[str]) -> None:
    """Write pictures and tables between the two markers of the page. Raises ValueError if these are missing."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page}: needs a line {BEGIN} and behind it a line {END}")
    cpu_s = sum(result["extra"]["train_cpu_s"] for result in results.values())
    about = (
        f"{len(results)} runs, {cpu_s:,.0f} s of training on one core, Python {platform.python_version()},"
        f" torch {version('torch')}; all metrics of all runs:"
        f" [{written.name}](../{written.relative_to(ROOT)})."
    )
    shown = "\n\n".join([about, *pictures, *(markdown(table, results) for table in TABLES)])
    page.write_text(f"{before}{begin}\n\n{shown}\n\n{end}{after}")


def _rounded(value: Any) -> Any:
    """Value with six significant digits, which keeps diffs short. NaN becomes null, as JSON has none."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value
