"""Room for the particles of several pieces, which lie in it one after the other: joining them needs no copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.schema import Column
from common.unit_arrays import Array


class Room:
    """Arrays for one read, by column. Memory is reserved for all particles, and only used as far as it is filled."""

    def __init__(self, particles: int) -> None:
        """``particles``: of all pieces together, as promised by the files."""
        self._particles = particles
        self._arrays: dict[str, Array] = {}
        self._filled: dict[str, int] = {}

    def mark(self) -> dict[str, int]:
        """Position to which free_from() goes back."""
        return dict(self._filled)

    def free_from(self, mark: dict[str, int]) -> None:
        """Free what was taken since the mark."""
        self._filled = dict(mark)

    def empty(self, column: Column, particles: int) -> Array:
        """Uninitialised array of the next particles, (P, fields), behind those of the piece before.

        It lies elsewhere if the files have more than they promised.
        """
        if column.name not in self._arrays:
            self._arrays[column.name] = np.empty((self._particles, len(column.fields)), column.dtype)
        first = self._filled.get(column.name, 0)
        if first + particles > self._particles:
            return np.empty((particles, len(column.fields)), column.dtype)
        self._filled[column.name] = first + particles
        return self._arrays[column.name][first : first + particles]


def joined(pieces: Sequence[Array]) -> Array:
    """Rows of all pieces, (R, F): a view if they lie one after the other in a Room, else a copy."""
    pieces = [piece for piece in pieces if len(piece)] or pieces[:1]  # an empty one has no place
    first = pieces[0]
    if len(pieces) == 1:
        return first
    whole = first.base
    at = start = _address(first)
    for piece in pieces:
        if whole is None or piece.base is not whole or _address(piece) != at or not piece.flags.c_contiguous:
            return np.concatenate(pieces)
        at += piece.nbytes
    if not isinstance(whole, np.ndarray) or whole.shape[1:] != first.shape[1:] or whole.dtype != first.dtype:
        return np.concatenate(pieces)
    row = (start - _address(whole)) // max(first.strides[0], 1)
    view: Array = whole[row : row + sum(map(len, pieces))]
    return view


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
