"""Page and JSON of a measurement, for benchmarks/results/."""

from __future__ import annotations

import json
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.channel import Finding, Row, Value
from benchmarks.gpu.columns import COLUMNS, Column
from benchmarks.gpu.derived import ceilings_of, with_rates
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.stages import STAGES

ROOT = Path(__file__).resolve().parents[2]
READING = """\
Times are medians, ceilings the best of many. `host`: until the call of a step returned; where the device is the limit,
the host waits for its queue. Operators and bytes are counted on the eager code, bytes as whole inputs and outputs of
each operator; compiled code moves fewer, which are not counted. `of the roofline`: least time for the step's matrix
products, or for its bytes, at the ceilings measured here, over its time. `× plain`: against the plain step of
`benchmarks/reference_step.py` in the same precision (for bf16: tf32)."""


@dataclass(frozen=True)
class Measurement:
    """Everything that a page shows."""

    date: str
    command: str
    commit: str
    setting: Setting
    machine: Row
    findings: Sequence[Finding]
    seconds: float
    is_quick: bool = False
    was_interrupted: bool = False

    @property
    def title(self) -> str:
        """Device, as the page's title and its name have it."""
        return f"{self.machine['device']}{', quick' if self.is_quick else ''}"


def write(measurement: Measurement, folder: Path) -> tuple[Path, Path]:
    """Paths of page and JSON, written to ``folder`` under a name that wasn't there."""
    folder.mkdir(parents=True, exist_ok=True)
    device = "cpu" if not measurement.setting.is_cuda else slug(str(measurement.machine["device"]))
    stem = f"{measurement.date}-gpu-{device}{'-quick' if measurement.is_quick else ''}"
    number = 1
    while (path := folder / f"{stem}{f'-{number}' if number > 1 else ''}.md").exists():
        number += 1
    path.write_text(without_places(page(measurement)))
    data = path.with_suffix(".json")
    data.write_text(without_places(json.dumps(as_json(measurement), indent=1)) + "\n")
    return path, data


def without_places(text: str) -> str:
    """Return the text with files of this checkout and of Python's packages named from there on: a page is for others,
    and says nothing of the machine's folders."""
    for place in sorted({str(ROOT), *sysconfig.get_paths().values()}, key=len, reverse=True):
        text = text.replace(f"{place}/", "")
    return text


def slug(name: str) -> str:
    """Name of a card in a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def as_json(measurement: Measurement) -> dict[str, Any]:
    """All rows, with the derived figures."""
    rows = rows_of(measurement.findings)
    findings = [asdict(one) | {"rows": rows[one.name]} for one in measurement.findings]
    return asdict(measurement) | {"benchmark": "gpu", "findings": findings}


def rows_of(findings: Sequence[Finding]) -> dict[str, list[Row]]:
    """Rows by stage, with rates and shares where they have seconds and bytes."""
    rows = {one.name: list(one.rows) for one in findings}
    ceilings = ceilings_of(rows.get("ceilings", []))
    steps = with_rates([*rows.get("step", []), *rows.get("compiled", [])], ceilings)
    for name in ("step", "compiled"):
        if name in rows:
            rows[name], steps = steps[: len(rows[name])], steps[len(rows[name]) :]
    if "segments" in rows:
        rows["segments"] = [row | _rate(row, ceilings.bytes_per_s) for row in rows["segments"]]
    return rows


def _rate(row: Row, most_bytes_per_s: float) -> Row:
    """Bytes a second of a row with bytes and seconds, and their share of the ceiling."""
    if not (row.get("bytes") and row.get("seconds")):
        return {}
    rate = float(row["bytes"] or 0) / float(row["seconds"] or 1)
    return {"bytes_per_s": rate, "bytes_share": rate / most_bytes_per_s if most_bytes_per_s else None}


def page(measurement: Measurement) -> str:
    """The whole page."""
    about = {
        "command": f"`{measurement.command}` ({measurement.seconds:.0f} s"
        + (", interrupted" if measurement.was_interrupted else "")
        + ")",
        **{name.replace("_", " "): value for name, value in measurement.machine.items()},
        "icestream": measurement.commit,
    }
    lines = [f"# First hour on a GPU: {measurement.title}, {measurement.date}"]
    if not measurement.setting.is_cuda:
        lines.append("**Measured on a CPU: these figures say nothing about a GPU.**")
    lines += [_table(["", ""], [[name, _cell(value)] for name, value in about.items()]), _states(measurement.findings)]
    lines.append(READING)
    rows = rows_of(measurement.findings)
    for finding in measurement.findings:
        if finding.rows or finding.left_out or finding.failures:
            lines.append(_section(finding, rows[finding.name]))
    return "\n\n".join(lines) + "\n"


def _states(findings: Sequence[Finding]) -> str:
    rows = []
    for one in findings:
        state = "**failed**" if one.is_bad else one.state
        reason = "; ".join([one.reason, *one.failures] if one.reason else one.failures)
        rows.append([one.name, state, f"{one.seconds:.0f}", _cell(reason)])
    return _table(["stage", "state", "seconds", "reason"], rows)


def _section(finding: Finding, rows: Sequence[Row]) -> str:
    title = next(stage.title for stage in STAGES if stage.name == finding.name)
    parts = [f"## {title}"]
    columns = [column for column in COLUMNS[finding.name] if any(row.get(column.key) is not None for row in rows)]
    if rows:
        parts.append(_table([one.heading for one in columns], [[_shown(row, one) for one in columns] for row in rows]))
    parts += _list("Failed:", finding.failures) + _list("Not measured:", finding.left_out)
    return "\n\n".join(parts)


def _list(heading: str, lines: Sequence[str]) -> list[str]:
    return [heading, "\n".join(f"- {' '.join(line.split())}" for line in lines)] if lines else []


def _shown(row: Row, column: Column) -> str:
    value = row.get(column.key)
    return "–" if value is None or value == "" else column.form(value)


def _cell(value: Value) -> str:
    return " ".join(str(value).replace("|", "/").split())


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *rows])
