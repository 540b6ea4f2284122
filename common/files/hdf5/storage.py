"""Check of an HDF5 file's storage: location and size of the bytes of its datasets.

HDF5 protects its structures by checksums only in files of its newer formats, and reads a chunk that it doesn't find as
zeros. So before any number is trusted: every chunk exists once, has a possible size, passes all of the dataset's
filters (checksums are one), and shares no byte with another. One chunk of each dataset is decoded.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, prod

import h5py
import numpy as np

from common.files.hdf5.tables import MOST_CACHE_BYTES, BadTables, Table, Tables, hdf5_errors
from common.input_errors import MachineError

_FILTERS = (h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32, h5py.h5z.FILTER_LZF)
"""Filters that are run: others (n-bit, scale-offset, plugins) end the process at some damaged bytes."""

_KEEPS_SIZE = {h5py.h5z.FILTER_SHUFFLE: 0, h5py.h5z.FILTER_FLETCHER32: 4}
"""Filters that keep the size of a chunk, up to the given number of added bytes."""
_MOST_COMPRESSION = 4096
"""Maximum compression accepted: no real table has more; beyond it a damaged chunk size would only take memory."""
_MOST_CHUNKS = 1 << 19
_MOST_CHUNK_BYTES = MOST_CACHE_BYTES // 2
"""Maximum size of a chunk: it is decompressed as a whole, and kept while slices of it are read."""


@dataclass(frozen=True, slots=True)
class _Extent:
    start: int
    end: int
    name: str
    row: int = 0
    """First row of the chunk."""


def check_storage(tables: Tables, size_bytes: int) -> None:
    """Raise BadTables if a dataset's bytes can't be those that were written."""
    rows = tables.counts.rows
    try:
        of_tables = [(table, _extents(table)) for table in (tables.counts, tables.events, tables.particles)]
        extents = [extent for _, of_table in of_tables for extent in of_table]
        extents.sort(key=lambda extent: extent.start)
        end, owner = 0, "the file's header"
        for extent in extents:
            if extent.start < end:
                raise BadTables(f"damaged: bytes of dataset {extent.name!r} are also those of {owner}")
            end, owner = extent.end, f"{extent.name!r}"
        if end > size_bytes:
            raise BadTables(f"truncated, or damaged: {owner} ends at byte {end}, the file at {size_bytes}")
    except BadTables as error:
        raise BadTables(str(error), rows) from None
    for table, of_table in of_tables:
        _decode_smallest(table, of_table)


def _decode_smallest(table: Table, extents: Sequence[_Extent]) -> None:
    """Decode the chunk of the fewest bytes: what ends a process does so here, where the file is known and named.

    Rows that can't be read are the decoder's to tell, and so is a machine without memory.
    """
    if not extents:
        return
    row = min(extents, key=lambda extent: extent.end - extent.start).row
    try:
        table.read(row, 1)
    except BadTables:
        pass
    except MachineError as error:
        if error.number != errno.ENOMEM:
            raise


def _extents(table: Table) -> list[_Extent]:
    with hdf5_errors(f"dataset {table.name!r} is damaged"):
        properties = table.dataset.get_create_plist()
        layout = properties.get_layout()
        if layout == h5py.h5d.CHUNKED:
            return _chunks(table, properties)
        num_bytes = table.rows * table.row_bytes
        if table.dataset.get_storage_size() != num_bytes:
            raise BadTables(
                f"dataset {table.name!r} is stored in {table.dataset.get_storage_size()} bytes; expected {num_bytes}"
            )
        if layout != h5py.h5d.CONTIGUOUS or not num_bytes:
            return []  # a compact one lies in its header
        start = table.dataset.get_offset()
        if start is None:
            raise BadTables(f"dataset {table.name!r} was never written")
        return [_Extent(start, start + num_bytes, table.name)]


def _bits(flags: Iterable[bool]) -> int:
    """Mask with bit i set where flag i is."""
    return sum(1 << i for i, flag in enumerate(flags) if flag)


def _chunks(table: Table, properties: h5py.h5p.PropDCID) -> list[_Extent]:
    shape = tuple(int(n) for n in properties.get_chunk())
    chunk_bytes = table.dtype.itemsize * prod(shape)
    filters, flags = [], []
    for i in range(properties.get_nfilters()):
        code, flag, *_ = properties.get_filter(i)
        if code not in _FILTERS:
            raise BadTables(
                f"dataset {table.name!r}: filter {code} is not read; expected gzip, lzf, shuffle or fletcher32: write"
                " the file anew with `h5repack -f GZIP=4`"
            )
        filters.append(code)
        flags.append(flag)
    # A compression may be left out for a chunk that it would not make smaller; nothing else may.
    compressions = [code not in _KEEPS_SIZE for code in filters]
    may_skip = _bits(c and bool(flag & h5py.h5z.FLAG_OPTIONAL) for c, flag in zip(compressions, flags, strict=True))
    stored_bytes = chunk_bytes + sum(_KEEPS_SIZE.get(one, 0) for one in filters)
    expected = prod(ceil(n / size) for n, size in zip(table.shape, shape, strict=True))
    if expected > _MOST_CHUNKS or chunk_bytes > _MOST_CHUNK_BYTES:
        raise BadTables(
            f"dataset {table.name!r} has {expected} chunks of {chunk_bytes} bytes; at most {_MOST_CHUNKS} of at most "
            f"{_MOST_CHUNK_BYTES} are read"
        )
    if table.dataset.get_num_chunks() != expected:
        raise BadTables(
            f"dataset {table.name!r} has {table.dataset.get_num_chunks()} of the {expected} chunks that make it up"
        )
    places: list[tuple[int, ...]] = []
    extents: list[_Extent] = []

    def see(chunk: h5py.h5d.StoreInfo) -> None:
        places.append(tuple(chunk.chunk_offset))
        extents.append(_Extent(chunk.byte_offset, chunk.byte_offset + chunk.size, table.name, places[-1][0]))
        if chunk.filter_mask & ~may_skip:
            raise BadTables(f"dataset {table.name!r}: a chunk says that it skips filters, as no writer of tables does")
        exact = not _bits(compressions) & ~chunk.filter_mask
        if (
            exact and chunk.size != stored_bytes
        ) or not stored_bytes - chunk_bytes < chunk.size <= stored_bytes + chunk_bytes // 2 + 4096:
            raise BadTables(f"dataset {table.name!r}: a chunk of {chunk.size} bytes; expected {stored_bytes}")
        if chunk_bytes > _MOST_COMPRESSION * chunk.size:
            raise BadTables(f"dataset {table.name!r}: a chunk of {chunk.size} bytes for {chunk_bytes}")

    table.dataset.chunk_iter(see)
    if not places:
        return []
    numbers = np.asarray(places) / np.asarray(shape)
    in_order = np.unique(numbers, axis=0)
    last = [ceil(n / size) - 1 for n, size in zip(table.shape, shape, strict=True)]
    if len(in_order) != expected or (numbers % 1).any() or (numbers < 0).any() or (numbers > last).any():
        raise BadTables(f"dataset {table.name!r}: its chunks don't cover it")
    return extents
