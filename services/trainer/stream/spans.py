"""Spans of memory that hold several arrays, each to be copied at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from common.unit_arrays import Array

GAP_BYTES = 4096
"""Arrays no further apart are in one span: these bytes take less time than another transfer's call."""
_ALIGNMENT_BYTES = 64


class Spans:
    """Spans that hold ``arrays``, contiguous ones of one slot. A span's size and the places in it are multiples of 64
    bytes, as the places in a slot are: tensors of every type may begin there."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.merged: list[tuple[int, int]] = []
        """First address and end of each span, in order."""
        for first, num_bytes in sorted((_address(array), array.nbytes) for array in arrays if array.nbytes):
            end = first - (-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            if self.merged and first <= self.merged[-1][1] + GAP_BYTES:
                self.merged[-1] = self.merged[-1][0], max(end, self.merged[-1][1])
            else:
                self.merged.append((first, end))

    def place(self, array: Array) -> tuple[int, int]:
        """Number of the span that holds ``array``, and the array's first byte there."""
        if not array.nbytes:
            return 0, 0  # numpy gives an empty view any address
        address = _address(array)
        number = max(number for number, (first, _) in enumerate(self.merged) if first <= address)
        return number, address - self.merged[number][0]


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
