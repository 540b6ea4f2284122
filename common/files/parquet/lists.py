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


class BadList(Exception):
    """Error for a list that can't be used: its index and its problem."""

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(problem)
        self.index = index


class BadNumber(BadList):
    """Error for a number that can't be used: index of its list, its position among the wanted numbers, its problem."""

    def __init__(self, index: int, problem: str, column: int = 0) -> None:
        super().__init__(index, problem)
        self.column = column


def null_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """True where a value is null; None if no value is. (N,)."""
    if not array.null_count:
        return None
    mask: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
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
            wrong = int(np.argmax(lengths != width))
            raise BadList(wrong, f"a list has {lengths[wrong]} numbers; expected {width}")
    elif lists.type.list_size != width:
        raise BadList(0, f"a list has {lists.type.list_size} numbers; expected {width}")
    values = flattened(lists)
    null = null_mask(values)
    if null is not None:
        raise BadList(int(np.argmax(null)) // width, "a number is null; expected none")
    stored: Array = values.to_numpy(zero_copy_only=False).reshape(-1, width)[:, columns]
    return stored


def converted(values: Array, dtype: str) -> Array:
    """Numbers as ``dtype``: integers exactly, floats rounded. (N,) or (N, F). Raises BadNumber for too large ones."""
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
            index, column = _first(bad)
            problem = f"is inf as {target} ({values[bad][0]:g} in the file); expected a finite number"
            raise BadNumber(index, problem, column) from None
    if not np.can_cast(values.dtype, target) and values.size:
        limits = np.iinfo(target)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            bad = np.asarray((values < limits.min) | (values > limits.max))  # type: ignore[operator]
            index, column = _first(bad)
            raise BadNumber(index, f"is {values[bad][0]}; expected {limits.min} to {limits.max} ({target})", column)
    return values.astype(target)


def _first(bad: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Row and column of the first True. (N,) or (N, F)."""
    width = 1 if bad.ndim == 1 else bad.shape[1]
    return divmod(int(np.argmax(bad)), width)


@lru_cache(maxsize=8)
def _multiples_of(width: int, dtype: str, length: int) -> Array:
    return np.arange(0, length * width, width, dtype=dtype)


def _multiples(length: int, width: int, dtype: str) -> Array:
    """Multiples 0, width, 2 width, … (length,)."""
    return _multiples_of(width, dtype, 1 << max(length - 1, 1).bit_length())[:length]
