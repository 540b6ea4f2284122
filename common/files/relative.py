"""Numbers of which only the differences within an event matter, such as times: made small before they are rounded.

P particles, E events with particles.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from common.files.gather import offsets_of
from common.files.parquet.lists import BadNumber
from common.schema import RelativeField
from common.unit_arrays import Array

_MOST_WHOLE = float(1 << 62)
"""Largest whole number: the difference of two such has 64 bits."""

Int64 = npt.NDArray[np.int64]


def counted_from_first(values: Array, counts: Int64, rule: RelativeField, dtype: str) -> Array:
    """Values as stored, or counted from the smallest one of their event, where ``dtype`` would round them too much.

    An event's result depends on nothing but that event. ``counts``: particles of each event. (P,) -> (P,).
    Raises BadNumber for the values that the type of the file itself has rounded too much.
    """
    target = np.dtype(dtype)
    is_float = values.dtype.kind == "f"
    if not len(values) or (is_float and values.dtype.itemsize <= target.itemsize):
        return values
    if -rule.most <= values.min() and values.max() <= rule.most:  # false for NaN
        return values
    if not is_float:
        values = values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)  # holds the differences
    filled = counts[counts > 0]
    firsts = offsets_of(filled)[:-1]
    with np.errstate(invalid="ignore"):
        least_E = np.minimum.reduceat(values, firsts)
        most_E = np.maximum.reduceat(values, firsts)
        is_large_E = (least_E < -rule.most) | (most_E > rule.most)
    if is_float:
        is_large_E &= np.isfinite(least_E) & np.isfinite(most_E)  # the others are reported as they are
    _check_digits(values, np.repeat(is_large_E, filled), rule, target)
    start_E = np.where(is_large_E, least_E, np.zeros_like(least_E))
    small: Array = values - np.repeat(start_E, filled)
    return small


def _check_digits(
    values: Array, is_large: npt.NDArray[np.bool_], rule: RelativeField, target: np.dtype[np.generic]
) -> None:
    """Raise BadNumber for the values that their own type holds no better than ``target`` holds ``rule.most``."""
    is_float = values.dtype.kind == "f"
    digits = np.finfo(values.dtype.str).nmant - np.finfo(target.str).nmant if is_float else 0
    most = rule.most * 2.0**digits if is_float else _MOST_WHOLE
    numbers = cast("npt.NDArray[np.float64]", values)
    bad = is_large & ~((numbers >= -most) & (numbers <= most))
    if bad.any():
        first = numbers[np.argmax(bad)]
        value = f"{first:.17g}" if is_float else str(first)
        expected = f"at most {most:g}, or numbers relative to the event"
        raise BadNumber(np.asarray(bad), f"is {value} as {values.dtype}", expected)
