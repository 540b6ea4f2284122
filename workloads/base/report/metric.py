"""Metric of an evaluation: its definition, value, floor, verdict, threshold, and all of these as text. Pure."""

from __future__ import annotations

import difflib
import math
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from common.errors import BadInputError

TARGETS = {"zero": 0.0, "half": 0.5, "one": 1.0, "two": 2.0}
"""Best value of a two-sided metric, by `better`."""
NOTHING = "–"
"""Text in place of a number that is not known."""

SIGMAS = 2.0
_NEAR = 2.0
_MOST_FLOORS = 100
"""Largest multiple that is shown: a larger one says no more."""

Verdict = Literal["at floor", "near", "off", "no floor"]
MEANINGS: Mapping[Verdict, str] = {
    "at floor": f"up to {SIGMAS:g} σ: no difference from a perfect model is seen",
    "near": f"up to {_NEAR:g} × floor, or of differences, ratios, AUCs and logarithms up to {_NEAR * SIGMAS:g} σ",
    "off": "more than that",
    "no floor": "there is no floor to compare with",
}
BETTER_SIGMAS = 3.0
"""Standard deviations by which a metric of one model must be nearer to its floor than another's to count."""
Fault = tuple[str, str, str]
"""Subject of a metric, in the plural; words for values of the model that are too small, and for too large ones."""


@dataclass(frozen=True)
class Definition:
    """The definition of a metric, without values."""

    unit: str
    better: str
    """See Metric.better."""
    meaning: str
    """One line for a reader."""


@dataclass(frozen=True)
class Floor:
    """The value of a metric for a perfect model; NaN: unknown."""

    value: float = math.nan
    error: float = math.nan
    """See Metric.floor_error."""
    spread: float = math.nan
    """See Metric.floor_spread."""


@dataclass(frozen=True)
class Metric:
    """The value of a metric, with error and floor."""

    value: float
    error: float
    """Standard deviation over bootstraps."""
    floor: float
    """Value of the same metric for a perfect model, in the mean; NaN if unknown."""
    unit: str = ""
    better: str = "lower"
    """Best values: ``lower``; ``zero``: nearest to 0, of either sign; ``half``, ``one`` and ``two`` likewise."""
    meaning: str = ""
    """One line for a reader."""
    floor_error: float = math.nan
    """Standard deviation of ``floor``, which is measured, too; NaN if unknown, 0 if the floor is exact."""
    floor_spread: float = math.nan
    """Standard deviation of the value of one perfect model on these events; NaN if unknown."""
    shift: float = math.nan
    """Mean of the model's values minus that of the true ones, of a distance of distributions; NaN if unknown."""
    draws: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    """Values over bootstraps, if draw k has the same events for every model; else empty."""

    @classmethod
    def of(cls, definition: Definition, value: float, error: float, floor: Floor, **more: Any) -> Metric:
        """Return the metric with this definition; ``more``: shift and draws."""
        return cls(
            value,
            error,
            floor.value,
            definition.unit,
            definition.better,
            definition.meaning,
            floor_error=floor.error,
            floor_spread=floor.spread,
            **more,
        )

    @property
    def is_distance(self) -> bool:
        """True if multiples of the floor have a meaning: not of differences, ratios and AUCs, nor of a logarithm."""
        return self.better not in TARGETS and self.unit != "nat"


def bootstrap_error(values: npt.NDArray[np.float64]) -> float:
    """Return the standard deviation of the finite values of bootstraps; NaN if these are fewer than two."""
    finite = values[np.isfinite(values)]
    return float(finite.std(ddof=1)) if len(finite) > 1 else math.nan


def ratio(metric: Metric) -> float:
    """Return the value of a distance in units of its floor; of other metrics see sigmas. NaN without a floor."""
    if not metric.is_distance:
        return sigmas(metric)
    return metric.value / metric.floor if metric.floor > 0 else math.nan


def sigmas(metric: Metric) -> float:
    """Return the distance of the value from the floor in standard deviations of a perfect model's. NaN without one."""
    excess, deviation = _excess(metric), null_deviation(metric)
    if excess <= 0:
        return 0.0
    return excess / deviation if deviation > 0 else excess * math.inf


def _excess(metric: Metric) -> float:
    """Return the distance of the value from the floor, where chance or better is the floor not below it."""
    excess = metric.value - metric.floor
    return excess if metric.better in ("lower", "half") else abs(excess)


def null_deviation(metric: Metric) -> float:
    """Return the standard deviation of value - floor for a perfect model: spread of its values, error of the floor.

    The error of the value takes the place of a spread that is unknown.
    """
    spread = metric.floor_spread if math.isfinite(metric.floor_spread) else metric.error
    return math.hypot(*(part for part in (spread, metric.floor_error) if math.isfinite(part)))


def verdict(metric: Metric) -> Verdict:
    """Return the verdict on a metric; see MEANINGS."""
    excess, limit = _excess(metric), SIGMAS * null_deviation(metric)
    if not math.isfinite(excess):
        return "no floor"
    if excess <= limit:
        return "at floor"
    near = metric.value <= _NEAR * metric.floor if metric.is_distance else excess <= _NEAR * limit
    return "near" if near else "off"


def lead(metric: Metric, other: Metric) -> tuple[float, float]:
    """Return by how much the value is nearer to its floor, or to the best value, than another model's, and the error.

    The error is that of paired bootstraps where both models have them: what the same events share cancels.
    """
    pair = (metric, other)
    nearer, farther = (
        max(_excess(one), 0.0) if math.isfinite(one.floor) else abs(one.value - TARGETS.get(one.better, 0.0))
        for one in pair
    )
    error = math.hypot(*(one.error for one in pair if math.isfinite(one.error)))
    if 1 < len(metric.draws) == len(other.draws):
        are_opposite = (metric.value - metric.floor) * (other.value - other.floor) < 0
        error = bootstrap_error(metric.draws + other.draws if are_opposite else metric.draws - other.draws)
    return farther - nearer, error


def is_nearer(metric: Metric, other: Metric) -> bool:
    """Return True if the value is nearer to its floor, or to the best value, than another model's, beyond chance."""
    difference, error = lead(metric, other)
    return difference > BETTER_SIGMAS * error


def fault_words(metric: Metric, less: str, more: str) -> str:
    """Return what is wrong with a metric, in words of physics: "2 % too low". See Fault.

    A distance of distributions is a shift if more than half of it is.
    """
    if metric.better == "half":
        return f"{more} (AUC {metric.value:.2f})"
    change = metric.value - metric.floor
    word = less if change < 0 else more
    if metric.better in ("one", "two"):
        change /= metric.floor
    elif abs(metric.shift) > metric.value / 2:
        change, word = metric.shift, less if metric.shift < 0 else more
    elif math.isfinite(metric.shift):
        word = "off in shape"
    if metric.unit == "dex":
        change = 10**change - 1
    if metric.unit in ("", "dex"):
        size = f"a factor of {_short(1 + change)}" if change >= 1 else f"{_short(100 * abs(change))} %"
    else:
        size = f"{_short(abs(change))} {metric.unit}".replace(" °", "°")
    return f"{size} {word}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def in_order(metrics: Mapping[str, Metric], headline: Iterable[str]) -> tuple[dict[str, Metric], dict[str, Metric]]:
    """Return the headline metrics that exist, in the order of ``headline``, and the others."""
    first = {name: metrics[name] for name in headline if name in metrics}
    return first, {name: metric for name, metric in metrics.items() if name not in first}


def with_error(value: float, error: float) -> str:
    """Return "value ± error", both to the second digit of the error."""
    if not math.isfinite(value):
        return NOTHING
    if not (math.isfinite(error) and error > 0):
        return plain(value)
    decimals = max(1 - math.floor(math.log10(error)), 0)
    if decimals > 6:
        return f"{value:.3g} ± {error:.2g}"
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def floor_with_error(metric: Metric) -> str:
    """Return the floor ± the deviation of a perfect model's value from it, or ± its own error if that is unknown."""
    return with_error(metric.floor, _floor_deviation(metric))


def plain(value: float) -> str:
    """Return the number with three digits."""
    return f"{value:#.3g}".rstrip(".") if math.isfinite(value) else NOTHING


def multiples(metric: Metric) -> tuple[str, str]:
    """Return a distance in floors, and any metric's distance from its floor in standard deviations; see sigmas.

    Empty where there is none, and for a floor that is not seen to be above 0: its multiples mean nothing.
    """
    is_unsure = metric.floor <= SIGMAS * _floor_deviation(metric)
    floors = ratio(metric) if metric.is_distance and not is_unsure else math.nan
    return _multiple(floors), _multiple(sigmas(metric))


def _multiple(value: float) -> str:
    if value > _MOST_FLOORS:
        return f"> {_MOST_FLOORS}"
    return "" if math.isnan(value) else f"{value:.3g}" if value >= 10 else f"{value:.2f}"


def verdict_text(metric: Metric) -> str:
    """Return the verdict, if there is a value."""
    return verdict(metric) if math.isfinite(metric.value) else NOTHING


def _floor_deviation(metric: Metric) -> float:
    """Return spread and error of the floor together; NaN if neither is known."""
    known = [part for part in (metric.floor_spread, metric.floor_error) if math.isfinite(part)]
    return math.hypot(*known) if known else math.nan


@dataclass(frozen=True)
class Threshold:
    """The limits of one metric, a line of a TOML file; None: no limit of that kind.

    one_metric = 0.02                     # at most; where 0, 1 or 2 is best: at most so far from it
    another = { max = 0.52 }              # the value itself
    a_third = { min = 0.98, max = 1.02 }
    a_fourth = { floors = 3 }             # its ratio in the table is at most 3
    """

    plain: float | None = None
    """Limit of the value where lower is better, and of an AUC; else of its distance from the best value."""
    max: float | None = None
    min: float | None = None
    floors: float | None = None


_KEYS = ("max", "min", "floors")


def read_thresholds(path: Path, known: Collection[str]) -> dict[str, Threshold]:
    """Return thresholds by metric, each one of ``known``. Raises BadInputError that names the file and the key."""
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


def _threshold(path: Path, name: str, value: object, known: Collection[str]) -> Threshold:
    if name not in known:
        close = [f"did you mean {one!r}?" for one in difflib.get_close_matches(name, known, n=1)]
        hint = (*close, f"the report.json of an evaluation has all {len(known)} names")[0]
        raise BadInputError(f"{path}: unknown metric {name!r}; {hint}")
    if _is_number(value):
        return Threshold(plain=float(value))  # type: ignore[arg-type]
    if isinstance(value, dict) and value and all(key in _KEYS and _is_number(limit) for key, limit in value.items()):
        return Threshold(**{key: float(limit) for key, limit in value.items()})
    raise BadInputError(f"{path}: {name} = {value!r}: expected a number, or a table with {', '.join(_KEYS)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def missed(thresholds: Mapping[str, Threshold], metrics: Mapping[str, Metric]) -> dict[str, str]:
    """Return missed thresholds by metric: value and limit. A metric without a number misses all of its own."""
    reasons = {}
    for name, threshold in thresholds.items():
        metric = metrics.get(name)
        if metric is None or not math.isfinite(metric.value):
            reasons[name] = "it could not be measured"
        elif why := list(_missed(threshold, metric)):
            reasons[name] = "; ".join(why)
    return reasons


def _missed(threshold: Threshold, metric: Metric) -> Iterator[str]:
    value = metric.value
    if threshold.plain is not None:
        best = None if metric.better == "half" else TARGETS.get(metric.better)
        distance = value if best is None else abs(value - best)
        if distance > threshold.plain:
            yield f"{plain(distance)}{'' if best is None else f' away from {best:g}'}, limit {threshold.plain:g}"
    if threshold.max is not None and value > threshold.max:
        yield f"{plain(value)}, limit {threshold.max:g}"
    if threshold.min is not None and value < threshold.min:
        yield f"{plain(value)}, at least {threshold.min:g} wanted"
    is_at_floor = math.isnan(ratio(metric)) and verdict(metric) == "at floor"  # both are 0
    if threshold.floors is not None and not (ratio(metric) <= threshold.floors or is_at_floor):
        yield f"ratio {plain(ratio(metric))}, limit {threshold.floors:g}"
