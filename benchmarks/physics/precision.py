"""Comparison of precisions: runs in bfloat16 beside those in float32 that are recorded for the same seeds.

Writes benchmarks/results/DATE-bf16.md and .json, and the section "In bfloat16" of docs/explanation/physics.md.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.physics.keys import ROOT
from benchmarks.physics.report import described, replace_between
from benchmarks.physics.runs import BF16
from benchmarks.physics.spec import Run
from benchmarks.physics.tables import Results, quality_markdown

COMMAND = "python -m benchmarks.physics --precision"
BEGIN, END = f"<!-- bf16: begin ({COMMAND}) -->", "<!-- bf16: end -->"
_RESULTS = ROOT / "benchmarks" / "results"


def runs_in_bf16() -> list[Run]:
    """Runs of the comparison that no other table has."""
    return [run for run in BF16.runs if run.bf16]


def recorded() -> tuple[str, Results]:
    """Name of the newest record of all tables, and its results by the name of the run."""
    path = max(_RESULTS.glob("*-physics.json"))
    results: Results = json.loads(path.read_text())["runs"]
    return path.name, results


def table(in_bf16: Results) -> str:
    """Table as Markdown, with the recorded runs."""
    return quality_markdown(BF16, {**recorded()[1], **in_bf16})


def write(page: Path, in_bf16: Results, results: Path = _RESULTS) -> Path:
    """Write the record in ``results``, and the table between the markers of ``page``. Returns the record's path."""
    name, path = recorded()[0], results / f"{datetime.now(UTC):%Y-%m-%d}-bf16.json"
    path.write_text(json.dumps(described(COMMAND, in_bf16), indent=1, ensure_ascii=False) + "\n")
    shown = table(in_bf16)
    record = path.with_suffix(".md")
    about = f"Float32: [{name}]({name}), made before. Bfloat16: [{path.name}]({path.name}), `{COMMAND}`."
    record.write_text(f"# Muon models in bfloat16, {path.name[:10]}\n\n{about}\n\n{shown}\n")
    replace_between(page, BEGIN, END, shown)
    return path
