"""Thresholds of an evaluation: a TOML file with a line for each metric.

one_metric = 0.02                     # at most; where 0, 1 or 2 is best: at most so far from it
another = { max = 0.52 }              # the value itself
a_third = { min = 0.98, max = 1.02 }
a_fourth = { floors = 3 }             # its ratio in the table is at most 3
"""

from __future__ import annotations

import math
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.errors import BadInputError
from workloads.base.report.metric import TARGETS, Metric
from workloads.base.report.numbers import plain
from workloads.base.report.verdict import ratio, verdict

_KEYS = ("max", "min", "floors")


@dataclass(frozen=True)
class Threshold:
    """Limits of one metric; None: no limit of that kind."""

    plain: float | None = None
    """Limit of the value where lower is better, and of an AUC; else of its distance from the best value."""
    max: float | None = None
    min: float | None = None
    floors: float | None = None


def read_thresholds(path: Path, known: Collection[str]) -> dict[str, Threshold]:
    """Thresholds by metric, each one of ``known``. Raises BadInputError that names the file and the key."""
    try:
        stored = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise BadInputError(f"{path}: no such threshold file") from None
    except OSError as error:
        raise BadInputError(f"{path}: can't be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: not TOML ({error})") from None
    if not stored:
        raise BadInputError(f"{path}: no threshold in it; write lines such as `{next(iter(known))} = 0.02`")
    return {name: _threshold(path, name, value, known) for name, value in stored.items()}


def missed(thresholds: Mapping[str, Threshold], metrics: Mapping[str, Metric]) -> dict[str, str]:
    """Missed thresholds by metric: value and limit. A metric without a number misses all of its own."""
    found = {}
    for name, threshold in thresholds.items():
        metric = metrics.get(name)
        if metric is None or not math.isfinite(metric.value):
            found[name] = "it could not be measured"
        elif reasons := list(_missed(threshold, metric)):
            found[name] = "; ".join(reasons)
    return found


def _missed(threshold: Threshold, metric: Metric) -> Iterator[str]:
    value = metric.value
    if threshold.plain is not None:
        best = None if metric.better == "half" else TARGETS.get(metric.better)
        looked_at = value if best is None else abs(value - best)
        if looked_at > threshold.plain:
            yield f"{plain(looked_at)}{'' if best is None else f' away from {best:g}'}, limit {threshold.plain:g}"
    if threshold.max is not None and value > threshold.max:
        yield f"{plain(value)}, limit {threshold.max:g}"
    if threshold.min is not None and value < threshold.min:
        yield f"{plain(value)}, at least {threshold.min:g} wanted"
    is_at_floor = math.isnan(ratio(metric)) and verdict(metric) == "at floor"  # both are 0
    if threshold.floors is not None and not (ratio(metric) <= threshold.floors or is_at_floor):
        yield f"ratio {plain(ratio(metric))}, limit {threshold.floors:g}"


def _threshold(path: Path, name: str, value: object, known: Collection[str]) -> Threshold:
    if name not in known:
        raise BadInputError(f"{path}: unknown metric {name!r}{_nearest(name, known)}")
    if _is_number(value):
        return Threshold(plain=float(value))  # type: ignore[arg-type]
    if isinstance(value, dict) and value and all(key in _KEYS and _is_number(one) for key, one in value.items()):
        return Threshold(**{key: float(one) for key, one in value.items()})
    raise BadInputError(f"{path}: {name} = {value!r}: expected a number, or a table with {', '.join(_KEYS)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _nearest(name: str, known: Collection[str]) -> str:
    import difflib

    words = set(name.split("_"))
    close = difflib.get_close_matches(name, known, n=1)
    close = close or difflib.get_close_matches(name, [one for one in known if words & set(one.split("_"))], 3, cutoff=0)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else ""
    return f"; {hint or f'the report.json of an evaluation has all {len(known)} names'}"
