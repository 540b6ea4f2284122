"""Table of the trainings, in Markdown."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

_HEADER = (
    *("model", "parameters", "seeds", "mean / median / 68 %, °", "tracks / cascades, mean, °", "pull"),
    *("κ: real / expected angle by decile", "events trained", "CPU s", "events/s: step", "forward"),
)


def rows_in(folder: Path) -> list[Row]:
    """Return the rows of all finished trainings of the peers, by model and seed."""
    rows = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(rows, key=lambda row: (row["name"], row["seed"]))


def rows_of_ours(output: Path) -> list[Row]:
    """Return the rows of benchmarks.bench_direction_quality: the last line of what it prints."""
    results = json.loads(output.read_text().strip().splitlines()[-1])["results"]
    return [row | {"name": f"`{row['model']}`"} for row in results]


def table(rows: Iterable[Row]) -> str:
    """Return the medians over the seeds of each model; behind them the lowest and highest, where there are more."""
    of_names: dict[str, list[Row]] = {}
    for row in rows:
        of_names.setdefault(row["name"], []).append(row)
    lines: list[Sequence[str]] = [_HEADER, ["---"] * len(_HEADER)]
    lines += [_line(name, of_name) for name, of_name in of_names.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _line(name: str, rows: Sequence[Row]) -> list[str]:
    def metrics(*names: str, digits: int = 2) -> str:
        return " / ".join(_spread([row["metrics"].get(name) for row in rows], digits) for name in names)

    def numbers(name: str) -> str:
        return _spread([row.get(name) for row in rows], 0)

    deciles = (
        ("kappa_decile_lowest_ratio", min),
        ("kappa_decile_highest_ratio", max),
    )
    lowest, highest = (pick(row["metrics"].get(one, float("nan")) for row in rows) for one, pick in deciles)
    return [
        name,
        numbers("parameters"),
        ", ".join(str(row["seed"]) for row in rows),
        metrics("angle_mean_deg", "angle_median_deg", "angle_68_deg"),
        metrics("track_angle_mean_deg", "cascade_angle_mean_deg"),
        metrics("kappa_pull_mean"),
        f"{lowest:.2f} to {highest:.2f}",
        numbers("events_trained"),
        numbers("trainer_cpu_s"),
        numbers("step_events_per_s"),
        numbers("forward_events_per_s"),
    ]


def _spread(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle = f"{statistics.median(known):,.{digits}f}"
    lowest, highest = f"{min(known):,.{digits}f}", f"{max(known):,.{digits}f}"
    return middle if lowest == highest else f"{middle} ({lowest}-{highest})"
