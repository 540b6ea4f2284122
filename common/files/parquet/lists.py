"""Counts and matrices from Arrow lists of every layout: through their offsets and values, never row by row.

A list column may be list, large_list or fixed_size_list, whole or sliced, with or without nulls.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.unit_arrays import Array

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class BadList(Exception):
    """Error for lists that can't be used: which ones, the problem of the first, and what was expected of all."""

    def __init__(self, bad: Bool, found: str, expected: str) -> None:
        super().__init__(f"{found}; expected {expected}")
        self.bad = bad
        """(N,) with at least one."""
        self.found = found
        self.expected = expected

    @property
    def index(self) -> int:
        """First of the lists."""
        return int(np.argmax(self.bad))


class BadNumber(BadList):
    """Error for numbers that can't be used: their lists, and the position among the wanted numbers of the first."""

    def __init__(self, bad: Bool, found: str, expected: str) -> None:
        """``bad``: (N,) or (N, F)."""
        super().__init__(bad if bad.ndim == 1 else np.asarray(bad.any(axis=1)), found, expected)
        self.column = 0 if bad.ndim == 1 else int(np.argmax(bad)) % bad.shape[1]

    def at_field(self, place: int, fields: int) -> BadNumber:
        """Same error of lists of so many ``fields``, with the numbers at ``place``."""
        bad = np.zeros((len(self.bad), fields), np.bool_)
        bad[:, place] = self.bad
        return BadNumber(bad, self.found, self.expected)


def null_mask(array: pa.Array) -> Bool | None:
    """True where a value is null; None if no value is. (N,)."""
    if not array.null_count:
        return None
    mask: Bool = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def list_lengths(lists: pa.Array) -> Int64:
    """Number of values in each list, 0 for a null one. (N,)."""
    if pa.types.is_fixed_size_list(lists.type):
        lengths = np.full(len(lists), lists.type.list_size, np.int64)
    else:
        lengths = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    null = null_mask(lists)
    if null is not None:
        lengths[null] = 0
    return lengths


def flattened(lists: pa.Array) -> pa.Array:
    """Values of all lists, concatenated: no copy if no list is null."""
    if lists.null_count or pa.types.is_fixed_size_list(lists.type):
        return lists.flatten()
    offsets = lists.offsets
    first = offsets[0].as_py()
    return lists.values.slice(first, offsets[-1].as_py() - first)


def matrix(lists: pa.Array, width: int, columns: slice | list[int], dtype: str) -> Array:
    """Chosen columns of N lists, none of them null, that must have ``width`` numbers each: (N, columns) of ``dtype``.

    The result is a view of Arrow's buffer if dtype and columns are the stored ones. Raises BadList.
    """
    return np.ascontiguousarray(converted(stored_matrix(lists, width, columns), dtype))


def stored_matrix(lists: pa.Array, width: int, columns: slice | list[int]) -> Array:
    """The same numbers in the type of the file. Raises BadList."""
    if not pa.types.is_fixed_size_list(lists.type):
        offsets = lists.offsets.to_numpy()
        # One comparison instead of a difference and a comparison: the offsets of lists of one length are multiples.
        expected = _multiples(len(offsets), width, offsets.dtype.str)
        if not np.array_equal(offsets - offsets[0] if offsets[0] else offsets, expected):
            lengths = np.diff(offsets)
            wrong = lengths != width
            raise BadList(wrong, f"a list has {lengths[np.argmax(wrong)]} numbers", f"{width}")
    elif len(lists) and lists.type.list_size != width:
        raise BadList(np.ones(len(lists), np.bool_), f"a list has {lists.type.list_size} numbers", f"{width}")
    values = flattened(lists)
    null = null_mask(values)
    if null is not None:
        raise BadList(np.asarray(null.reshape(-1, width).any(axis=1)), "a number is null", "none")
    stored: Array = values.to_numpy(zero_copy_only=False).reshape(-1, width)[:, columns]
    return stored


def converted(values: Array, dtype: str) -> Array:
    """Numbers as ``dtype``: integers exactly, floats rounded. (N,) or (N, F). Raises BadNumber for too large ones, and
    for floats that are no whole numbers if ``dtype`` is one of integers."""
    target = np.dtype(dtype)
    if values.dtype == target:
        return values
    if target.kind == "f":
        try:
            with np.errstate(over="raise"):
                return values.astype(target)
        except FloatingPointError:
            with np.errstate(over="ignore"):
                bad = np.isinf(values.astype(target)) & ~np.isinf(values)
            found = f"is inf as {target} ({values[bad][0]:g} in the file)"
            raise BadNumber(bad, found, "a finite number") from None
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # a number that is none is changed by the cast, and so detected
            whole = values.astype(target)
        bad = np.asarray(whole.astype(values.dtype) != values)
        if bad.any():
            raise BadNumber(bad, f"is {values[bad][0]:g}", "a whole number")
        return whole
    if not np.can_cast(values.dtype, target) and values.size:
        limits = np.iinfo(target)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            bad = np.asarray((values < limits.min) | (values > limits.max))  # type: ignore[operator]
            raise BadNumber(bad, f"is {values[bad][0]}", f"{limits.min} to {limits.max} ({target})")
    return values.astype(target)


@lru_cache(maxsize=8)
def _multiples_of(width: int, dtype: str, length: int) -> Array:
    return np.arange(0, length * width, width, dtype=dtype)


def _multiples(length: int, width: int, dtype: str) -> Array:
    """Multiples 0, width, 2 width, … (length,)."""
    return _multiples_of(width, dtype, 1 << max(length - 1, 1).bit_length())[:length]
