"""Permutation of ragged arrays: whole events move, each with its particles.

R rows in pieces, E of them in the order wanted, P particles.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from common.files.native import FILES, address
from common.files.room import joined
from common.unit_arrays import Array

_ROWS_AT_A_TIME = 16_384
"""Rows copied at a time: Arrow's `take` can't write into the slot, so its temporary copies are kept small."""

Int64 = npt.NDArray[np.int64]


def offsets_of(counts: Int64 | npt.NDArray[np.bool_]) -> Int64:
    """First particle of each row, then the total number of particles. (R,) -> (R + 1,)."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def take_rows(pieces: Sequence[Array], order: Int64, out: Array) -> None:
    """Rows in the given order: out[i] = row order[i] of all pieces together. (R, F) -> (E, F)."""
    rows = joined(pieces)
    library = FILES.used
    if library is not None and rows.flags.c_contiguous and out.flags.c_contiguous:
        order = np.ascontiguousarray(order)
        width = rows.itemsize * rows.shape[1]
        if library.take_rows(address(rows), len(rows), width, address(order), len(order), address(out)) == 0:
            return
    # `clip` only saves a buffer.
    np.take(as_items(rows), order, out=as_items(out), mode="clip")


def take_particles(pieces: list[Array], counts: Sequence[Int64], order: Int64, out: Array) -> None:
    """Particles of rows order[0], order[1], … of all pieces together, concatenated. (P, F).

    Empties ``pieces``, whose memory is that of a whole unit and not needed once they are joined.

    Arrow's `take` of byte strings is a memcpy a row, three times as fast as any index per particle in numpy, and needs
    no such indices: a row's particles are taken as one string of bytes.
    """
    if not out.size:
        return
    particles = joined(pieces)
    pieces.clear()
    offsets = offsets_of(np.concatenate(counts) if len(counts) > 1 else counts[0])
    if FILES.used is not None and _taken(FILES.used, particles, offsets, order, out):
        return
    rows = _as_strings(particles, offsets)
    del particles
    indices, target = pa.array(order), out.reshape(-1).view(np.uint8)
    filled = 0
    for first in range(0, len(order), _ROWS_AT_A_TIME):
        taken = pc.take(rows, indices.slice(first, _ROWS_AT_A_TIME), boundscheck=False)
        offsets = np.frombuffer(taken.buffers()[1], np.int64, len(taken) + 1, taken.offset * 8)
        num_bytes = int(offsets[-1] - offsets[0])
        target[filled : filled + num_bytes] = np.frombuffer(taken.buffers()[2], np.uint8, num_bytes, int(offsets[0]))
        filled += num_bytes


def _taken(library: ctypes.CDLL, particles: Array, offsets: Int64, order: Int64, out: Array) -> bool:
    """True if the particles were taken in C++."""
    if not (particles.flags.c_contiguous and out.flags.c_contiguous) or offsets[-1] != len(particles):
        return False
    order = np.ascontiguousarray(order)
    width = particles.itemsize * particles.shape[1]
    code: int = library.take_particles(
        *(address(particles), address(offsets), len(offsets) - 1, width, address(order), len(order)),
        *(address(out), len(out)),
    )
    return code == 0


def as_items(rows: Array) -> Array:
    """Contiguous rows as one item each: numpy moves it at once instead of number by number. (R, F) -> (R,)."""
    return rows.view(f"V{rows.itemsize * rows.shape[1]}")[:, 0]


def _as_strings(particles: Array, offsets: Int64) -> pa.Array:
    """Particles of each row as one string of bytes: no copy. The offsets become offsets in bytes."""
    width = particles.itemsize * particles.shape[1]
    offsets *= width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(particles))]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
