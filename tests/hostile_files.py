"""Small files that ask for much memory, each by one trick; for tests and benchmarks/bench_hostile_files.py.

``size``: numbers that a file stands for. A file is a few thousand times smaller.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from muon_files import make_events, make_table

NUMBERS = pa.list_(pa.list_(pa.float32()))


def _write(path: Path, muons: pa.Array, **options: Any) -> Path:
    """Events with good primaries and these muons."""
    table = make_table(make_events([0] * len(muons)))
    table = table.set_column(3, "muons", muons)
    pq.write_table(table, path, **options)
    return path


def muons_of(counts: Sequence[int], value: float = 0.0) -> pa.Array:
    """(R,) events with so many muons of that number."""
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), _one_row(3 * int(offsets[-1]), value).flatten())


def _one_row(size: int, value: float | None = 0.0) -> pa.Array:
    """(1,) an event of size / 3 muons, or of ``size`` null ones."""
    if value is None:
        return pa.ListArray.from_arrays(pa.array([0, size], pa.int32()), pa.nulls(size, NUMBERS.value_type))
    inner = pa.ListArray.from_arrays(
        pa.array(np.arange(0, size + 1, 3, np.int32)), pa.array(np.full(size, value, np.float32))
    )
    return pa.ListArray.from_arrays(pa.array([0, len(inner)], pa.int32()), inner)


def run_lengths(path: Path, size: int) -> Path:
    """One row: all its numbers are one run of an entry of the dictionary."""
    return _write(path, _one_row(size - size % 3), compression="zstd")


def dictionary(path: Path, size: int) -> Path:
    """A thousand large events that are entries of a dictionary."""
    events = pa.ListArray.from_arrays(
        pa.array(np.linspace(0, size // 3, 1001).astype(np.int32)), _one_row(size - size % 3).flatten()
    )
    return _write(path, events, compression="none")


def zstd(path: Path, size: int) -> Path:
    """Plain zeros, compressed."""
    return _write(path, _one_row(size - size % 3), compression="zstd", use_dictionary=False)


def nested_nulls(path: Path, size: int) -> Path:
    """One event of null muons, which have no numbers."""
    return _write(path, _one_row(size, None), compression="zstd")


def lying_metadata(path: Path, size: int) -> Path:
    """The metadata say that there are 30 numbers; a page has ``size``."""
    size -= size % 3
    raw = run_lengths(path, size).read_bytes()
    start = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    footer = raw[start:-8].replace(b"\x16" + varint(2 * size) + b"\x16", b"\x16" + varint(2 * 30) + b"\x16")
    assert len(footer) < len(raw) - 8 - start
    path.write_bytes(raw[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return path


def huge_strings(path: Path, size: int) -> Path:
    """The name of a column has ``size`` bytes."""
    table = make_table(make_events([1, 2]))
    pq.write_table(table.append_column("x" * size, pa.array([1, 2])), path)
    return path


def many_columns(path: Path, size: int) -> Path:
    """``size`` / 1000 columns that nobody reads."""
    table = make_table(make_events([1, 2]))
    columns = {name: table.column(name) for name in table.column_names}
    pq.write_table(pa.table({**columns, **{f"c{i}": pa.nulls(2) for i in range(size // 1000)}}), path)
    return path


def many_row_groups(path: Path, size: int) -> Path:
    """``size`` / 1000 row groups of one event."""
    pq.write_table(make_table(make_events([0] * (size // 1000))), path, row_group_size=1, write_statistics=False)
    return path


def empty_structs(path: Path, size: int) -> Path:
    """A footer that is a list of ``size`` row groups of one byte each."""
    size = min(size, 60 << 20)
    footer = b"\x49\xfc" + varint(size) + bytes(size) + b"\x00"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return path


def _hdf5(
    path: Path, tables: dict[str, tuple[tuple[int, ...], str, tuple[int, ...] | None]], stored: bytes = b""
) -> Path:
    """Tables (shape, dtype, chunks) whose chunks are zeros, or ``stored`` as they are."""
    with h5py.File(path, "w") as file:
        for name, (shape, dtype, chunks) in tables.items():
            made = file.create_dataset(name, shape, dtype, chunks=chunks, compression="gzip" if chunks else None)
            if chunks:
                raw = stored or zlib.compress(bytes(int(np.prod(chunks)) * np.dtype(dtype).itemsize), 1)
                for row in range(0, shape[0], chunks[0]):
                    made.id.write_direct_chunk((row, *(0 for _ in shape[1:])), raw)
            else:
                made[...] = 0
    return path


def gzip_zeros(path: Path, size: int) -> Path:
    """Events without muons, and nothing but zeros in them."""
    chunk = min(size, 1 << 18)
    tables = {"counts": ((size,), "<i8", (chunk,)), "primaries": ((size, 6), "<f4", (chunk, 6))}
    return _hdf5(path, {**tables, "muons": ((0, 5), "<f4", None)})


def gzip_longer_than_its_chunk(path: Path, size: int) -> Path:
    """A chunk of 1 MiB at most that is decompressed to 16 ``size`` bytes."""
    rows = min(size // 8, 1 << 17)
    compressor = zlib.compressobj(9)
    stored = b"".join(compressor.compress(bytes(1 << 20)) for _ in range(size >> 16)) + compressor.flush()
    path = _hdf5(path, {"counts": ((rows,), "<i8", (rows,))}, stored)
    with h5py.File(path, "a") as file:
        file["primaries"] = np.zeros((rows, 6), "<f4")
        file["muons"] = np.zeros((0, 5), "<f4")
    return path


def one_large_chunk(path: Path, size: int) -> Path:
    """All events in one chunk."""
    tables = {"counts": ((size,), "<i8", (size,)), "primaries": ((size, 6), "<f4", (min(size, 1 << 18), 6))}
    return _hdf5(path, {**tables, "muons": ((0, 5), "<f4", None)})


def many_chunks(path: Path, size: int) -> Path:
    """A chunk for every event; ``size`` / 40 of them."""
    rows = size // 40
    tables = {"counts": ((rows,), "<i8", (1,)), "primaries": ((rows, 6), "<f4", (min(rows, 1 << 18), 6))}
    return _hdf5(path, {**tables, "muons": ((0, 5), "<f4", None)})


def many_links(path: Path, size: int) -> Path:
    """``size`` / 100 links, and none to the tables."""
    with h5py.File(path, "w", libver="latest") as file:
        file["x"] = 1
        for i in range(size // 100):
            file[f"l{i}"] = file["x"]
    return path


Make = Callable[[Path, int], Path]

PARQUET: dict[str, Make] = {
    "run lengths": run_lengths,
    "dictionary": dictionary,
    "zstd": zstd,
    "nested nulls": nested_nulls,
    "lying metadata": lying_metadata,
    "huge strings": huge_strings,
    "many columns": many_columns,
    "many row groups": many_row_groups,
    "empty structs": empty_structs,
}
HDF5: dict[str, Make] = {
    "gzip zeros": gzip_zeros,
    "gzip longer than its chunk": gzip_longer_than_its_chunk,
    "one large chunk": one_large_chunk,
    "many chunks": many_chunks,
    "many links": many_links,
}


def varint(number: int) -> bytes:
    """A whole number of 64 bits, as Thrift writes it."""
    number &= (1 << 64) - 1
    raw = b""
    while number > 127:
        raw += bytes([number & 127 | 128])
        number >>= 7
    return raw + bytes([number])
