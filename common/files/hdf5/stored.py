"""Rows of datasets without filters, read at their place in the file: HDF5 copies chunks number by number."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import ceil, prod

import h5py
import numpy as np
import numpy.typing as npt

from common.unit_arrays import Array

_LEAST_CHUNK_BYTES = 8_192
"""Size of a chunk below which a call for each is slower than HDF5."""
_MOST_CHUNKS = 1 << 16


@dataclass(frozen=True)
class StoredRows:
    """Place of a dataset's numbers: in one piece, which is then the only chunk, or in chunks."""

    descriptor: int
    """Descriptor of the file, which HDF5 owns."""
    chunk_rows: int
    chunk_width: int
    starts: npt.NDArray[np.int64]
    """Offset in the file of each chunk: (chunks along the rows, chunks along a row)."""

    @classmethod
    def of(cls, dataset: h5py.h5d.DatasetID) -> StoredRows | None:
        """Place of the rows; None if only HDF5 can read them. Raises errors of HDF5."""
        properties, shape = dataset.get_create_plist(), dataset.shape
        file = h5py.h5i.get_file_id(dataset)
        if not dataset.dtype.isnative or properties.get_nfilters() or not prod(shape):
            return None
        if properties.get_layout() == h5py.h5d.CONTIGUOUS:
            start = dataset.get_offset()
            chunk, starts = shape, None if start is None else np.full((1,) * len(shape), start, np.int64)
        elif properties.get_layout() == h5py.h5d.CHUNKED and not file.get_create_plist().get_userblock():
            chunk = properties.get_chunk()
            starts = _chunk_starts(dataset, shape, chunk)
        else:
            return None
        if starts is None:
            return None
        return cls(file.get_vfd_handle(), chunk[0], prod(chunk[1:]), starts.reshape(len(starts), -1))

    def read(self, first: int, out: Array) -> bool:
        """Fill ``out`` with the rows from ``first`` on. (R,) or (R, width). False if the file ends before."""
        rows_RF = out.reshape(len(out), -1)
        end = first + len(out)
        for number in range(first // self.chunk_rows, ceil(end / self.chunk_rows)):
            of_chunk = number * self.chunk_rows
            start, stop = max(first, of_chunk), min(end, of_chunk + self.chunk_rows)
            for column, address in enumerate(self.starts[number].tolist()):
                left = column * self.chunk_width
                target = rows_RF[start - first : stop - first, left : left + self.chunk_width]
                is_whole = target.shape[1] == self.chunk_width and target.flags.c_contiguous
                stored = target if is_whole else np.empty((stop - start, self.chunk_width), out.dtype)
                at = address + (start - of_chunk) * self.chunk_width * out.itemsize
                if os.preadv(self.descriptor, [stored.data], at) != stored.nbytes:
                    return False
                if not is_whole:
                    target[...] = stored[:, : target.shape[1]]
        return True


def _chunk_starts(
    dataset: h5py.h5d.DatasetID, shape: tuple[int, ...], chunk: tuple[int, ...]
) -> npt.NDArray[np.int64] | None:
    """Offset of each chunk in the file; None if one is missing or of another size, or if they are small or many."""
    grid = tuple(ceil(n / size) for n, size in zip(shape, chunk, strict=True))
    chunk_bytes = prod(chunk) * dataset.dtype.itemsize
    if chunk_bytes < _LEAST_CHUNK_BYTES or prod(grid) > _MOST_CHUNKS or dataset.get_num_chunks() != prod(grid):
        return None
    starts = np.full(grid, -1, np.int64)

    def see(found: h5py.h5d.StoreInfo) -> None:
        place = tuple(offset // size for offset, size in zip(found.chunk_offset, chunk, strict=True))
        is_inside = all(0 <= one < most for one, most in zip(place, grid, strict=True))
        if is_inside and found.size == chunk_bytes:
            starts[place] = found.byte_offset

    dataset.chunk_iter(see)
    return None if (starts < 0).any() else starts
