"""Page and JSON of a measurement, for benchmarks/results/, with rates and shares of the ceilings."""

from __future__ import annotations

import json
import re
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.gpu.processes import Finding, Row, Setting, new_finding
from common.errors import BadInputError

ROOT = Path(__file__).resolve().parents[2]
READING = """\
Times are medians, ceilings the best of many. `host`: until the call of a step returned; where the device is the limit,
the host waits for its queue. Operators and bytes are counted on the eager code, bytes as whole inputs and outputs of
each operator; compiled code moves fewer, which are not counted, and its products are those of `shipped`. Ceilings were
measured here. `× plain`: against the plain step of `benchmarks/reference_step.py` in that precision."""
COLUMNS = {
    "seconds": ("ms", 1e-3),
    "events_per_s": ("events/s", 1),
    "plain_float32": ("× plain float32", 1),
    "plain_tf32": ("× plain tf32", 1),
    "flop_per_s": ("TFLOP/s", 1e12),
    "flop_share": ("% of the matmul ceiling", 0.01),
    "bytes_per_s": ("GB/s", 1e9),
    "bytes_share": ("% of the memory ceiling", 0.01),
    "bytes_per_particle": ("KiB a particle", 1024),
    "_bytes": (" MiB", 1 << 20),
    "_share": (" %", 0.01),
    "_s": (" ms", 1e-3),
    "_mib": (" MiB", 1),
}
"""Key of a number, or its ending -> heading, or the end of it, and unit. All others are shown as they are."""


@dataclass
class Measurement:
    """Everything that a page shows."""

    command: str
    commit: str
    setting: Setting
    is_quick: bool
    earlier: list[Row]  # of an earlier page: its ceilings and plain steps hold here, too
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    path: Path | None = None  # of the page, once the machine is known

    def write(self, folder: Path) -> None:
        """Write page and JSON to ``folder``, the first time under a name that isn't there."""
        known = [*self.earlier, *(row for one in self.findings for row in one["rows"])]
        findings = [one | {"rows": with_rates(one["rows"], known)} for one in self.findings]
        if not findings or not findings[0]["rows"]:  # of the machine
            return
        if self.path is None:
            name = findings[0]["rows"][0]["device"].lower() if self.setting.is_cuda else "cpu"
            stem = f"{date.today()}-gpu-{re.sub(r'[^a-z0-9]+', '-', name)}{'-quick' * self.is_quick}"
            paths = (folder / f"{stem}{f'-{number}' * (number > 1)}.md" for number in count(1))
            self.path = next(path for path in paths if not path.exists())
        sizes = {name: value for name, value in asdict(self.setting).items() if name != "known"}
        about = {"command": self.command, "commit": self.commit, "seconds": self.seconds, "setting": sizes}
        texts = {".md": page(self, findings), ".json": json.dumps(about | {"findings": findings}, indent=1)}
        for suffix, text in texts.items():
            # A page is for others: it says nothing of the machine's folders.
            for place in sorted({str(ROOT), *sysconfig.get_paths().values()}, key=len, reverse=True):
                text = text.replace(f"{place}/", "")
            part = self.path.with_suffix(".part")  # whoever kills the command finds the newest complete one
            part.write_text(text + "\n")
            part.replace(self.path.with_suffix(suffix))


def read_findings(path: Path) -> list[Finding]:
    """Return the findings of an earlier JSON. Raises BadInputError for any other file."""
    try:
        findings = [new_finding(one["name"]) | one for one in json.loads(path.read_text())["findings"]]
        with_rates([], [row for one in findings for row in one["rows"]])
    except (OSError, ValueError, KeyError, TypeError):
        raise BadInputError(f"--again {path}: expected the JSON that this command wrote beside its page") from None
    return findings


def with_rates(rows: Iterable[Row], known: Sequence[Row]) -> list[Row]:
    """Return rows with events/s, rates of products and bytes, their shares of the ceilings and × the plain step, as far
    as ceilings and steps are among the ``known`` rows."""
    flop_ceilings = {row["precision"]: row["flop_per_s"] for row in known if row.get("what") == "matmul"}
    bytes_ceiling = next((row["bytes_per_s"] for row in known if row.get("what") == "device memory"), None)
    steps = {(row["variant"], row["precision"], row["events"]): row for row in known if row["table"] == "step"}

    def rates(row: Row) -> Row:
        seconds, flops, found = row["seconds"], row.get("flops"), {}
        if "events" in row and "kernel" not in row:
            found["events_per_s"] = row["events"] / seconds
        if row["table"] == "step":
            flops = flops or steps.get(("shipped", row["precision"], row["events"]), {}).get("flops")
            for precision in ("float32", "tf32"):
                if plain := steps.get(("plain", precision, row["events"])):
                    found[f"plain_{precision}"] = plain["seconds"] / seconds
        if flops:
            found["flop_per_s"] = flops / seconds
            if ceiling := flop_ceilings.get(row["precision"]):
                found["flop_share"] = found["flop_per_s"] / ceiling
        if num_bytes := row.get("bytes"):
            found |= {"bytes_per_s": num_bytes / seconds, "bytes_per_particle": num_bytes / max(row["particles"], 1)}
            if bytes_ceiling:
                found["bytes_share"] = found["bytes_per_s"] / bytes_ceiling
        return {key: row[key] for key in ("events", "seconds") if key in row} | found

    return [(rates(row) if row.get("seconds") else {}) | row for row in rows]


def page(measurement: Measurement, findings: Sequence[Finding]) -> str:
    """Return the page, but for its last line's end."""
    tables: dict[str, list[Row]] = {}
    for row in (row for one in findings for row in one["rows"]):
        tables.setdefault(row["table"], []).append(row)
    (machine,) = tables.pop("machine")
    parts = [f"# First hour on a GPU: {machine['device']}{', quick' * measurement.is_quick}, {date.today()}"]
    if not measurement.setting.is_cuda:
        parts.append("**Measured on a CPU: these figures say nothing about a GPU.**")
    about = {"command": f"`{measurement.command}` ({measurement.seconds:.0f} s)", "icestream": measurement.commit}
    about |= {name.replace("_", " "): value for name, value in machine.items() if name != "table"}
    state = ("name", "state", "seconds", "reason")
    parts += [
        _table(["", ""], about.items()),
        _table(state, ([one[key] for key in state] for one in findings)),
        READING,
    ]
    for name, rows in tables.items():
        parts += [f"## {name.capitalize()}", _of_rows(rows)]
    for heading, name in (("Failed", "failures"), ("Left out", "left_out"), ("Notes", "notes")):
        lines = [f"- {one['name']}: {_text(text)}" for one in findings for text in one[name]]
        parts += [f"## {heading}", "\n".join(lines)] if lines else []
    return "\n\n".join(parts)


def _of_rows(rows: Sequence[Row]) -> str:
    """Return a table of rows: texts, then numbers, each in the order of their first appearance."""
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in ("table", "flops", "bytes")]
    keys.sort(key=lambda key: not any(isinstance(row.get(key), str) for row in rows))
    headings, units = [], {}
    for key in keys:
        known = next((one for one in COLUMNS if key.endswith(one)), "")
        heading, units[key] = COLUMNS.get(known, ("", 1))
        headings.append(key.removesuffix(known).replace("_", " ") + heading)
    return _table(headings, ([_text(row.get(key), units[key]) for key in keys] for row in rows))


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *([_text(value) for value in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _text(value: Any, unit: float = 1) -> str:
    """Return a cell: a number in its unit with four digits, a text in one line."""
    if not isinstance(value, int | float):
        return "–" if value in (None, "") else " ".join(str(value).replace("|", "/").split())
    scaled = value if unit == 1 else value / unit
    return f"{scaled:,.0f}" if abs(scaled) >= 1000 or float(scaled).is_integer() else f"{scaled:.4g}"
