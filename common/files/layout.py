"""The Parquet layout that is read fastest, and ragged rows as tables of it.

Chosen by measurement (docs/files.md): lists of which none may be null, since Arrow then has fewer levels to decode; no
dictionary, since floats hardly repeat; BYTE_STREAM_SPLIT under zstd, which is smaller than Snappy and as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.files.gather import offsets_of
from common.files.rows import RaggedRows
from common.ragged import Array
from common.schema import SourceColumn, Workload

Compression = Literal["zstd", "snappy", "none"]
_LEVELS = {"zstd": 1}


def schema_of(workload: Workload) -> pa.Schema:
    """The production schema, with nothing nullable."""
    return pa.schema([pa.field(source.name, _type(source, workload), False) for source in workload.source_columns])


def writer_options(schema: pa.Schema, compression: Compression) -> dict[str, Any]:
    """Keyword arguments of pq.ParquetWriter."""
    return {
        "compression": compression,
        "compression_level": _LEVELS.get(compression),
        "use_dictionary": False,
        "use_byte_stream_split": [] if compression == "none" else _float_leaves(schema),
        "write_page_checksum": True,
        "write_statistics": True,
    }


def to_table(pieces: Sequence[RaggedRows], workload: Workload) -> pa.Table:
    """The rows of the pieces as one table of schema_of(workload). Rows that hold no event must be gone."""
    columns: list[pa.Array] = []
    for source in workload.source_columns:
        kind = _type(source, workload)
        per_particle = source.nesting == 2
        arrays = [(p.particle_columns if per_particle else p.event_columns)[source.into] for p in pieces]
        values = np.concatenate(arrays)
        if source.nesting == 0:
            columns.append(pa.array(values[:, source.field]))
        elif source.nesting == 1:
            columns.append(_lists(values, kind))
        else:
            offsets = offsets_of(np.concatenate([piece.counts for piece in pieces]))
            lists = _lists(values, kind.value_type)
            columns.append(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), lists, type=kind))
    return pa.Table.from_arrays(columns, schema=schema_of(workload))


def _type(source: SourceColumn, workload: Workload) -> pa.DataType:
    kind = pa.from_numpy_dtype(np.dtype(workload.column(source.into).dtype))
    for _ in range(source.nesting):
        kind = pa.list_(pa.field("element", kind, False))
    return kind


def _lists(values: Array, kind: pa.DataType) -> pa.ListArray:
    """(N, width) as N lists."""
    offsets = np.arange(len(values) + 1, dtype=np.int32) * np.int32(values.shape[1])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.reshape(-1)), type=kind)


def _float_leaves(schema: pa.Schema) -> list[str]:
    """Parquet's names of the columns of floats."""
    parquet = pq.ParquetFile(_empty_file(schema)).schema
    leaves = [parquet.column(i) for i in range(len(parquet.names))]
    return [leaf.path for leaf in leaves if leaf.physical_type in ("FLOAT", "DOUBLE")]


def _empty_file(schema: pa.Schema) -> pa.BufferReader:
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    return pa.BufferReader(sink.getvalue())
