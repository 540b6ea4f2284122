"""Parquet layout for the fastest reading, and ragged rows as tables of it.

Chosen by measurement (docs/reference/file-formats.md): non-nullable lists, since Arrow then has fewer levels to
decode; no dictionary, since floats hardly repeat; BYTE_STREAM_SPLIT under zstd, which is smaller than Snappy and as
fast. Integers of up to 32 bits are stored in four bytes, of which the upper ones are mostly zeros: split, they are
smaller and faster, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.files.parquet.columns import lists_of
from common.files.rows import RaggedRows, offsets_of
from common.schema import EventSchema, SourceColumn
from common.unit_arrays import Array


def schema_of(workload: EventSchema) -> pa.Schema:
    """Production schema, with nothing nullable: values per particle are a list of numbers or structs."""
    return pa.schema([_field(name, sources, 0, workload) for name, sources in _by_name(workload.source_columns, 0)])


def writer_options(schema: pa.Schema, compression: Literal["zstd"]) -> dict[str, Any]:
    """Keyword arguments of pq.ParquetWriter."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)  # only a file knows the names of its leaves
    parquet = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    leaves = [parquet.column(i) for i in range(len(parquet.names))]
    split = [leaf.path for leaf in leaves if leaf.physical_type in ("FLOAT", "DOUBLE", "INT32")]
    return {
        "compression": compression,
        "compression_level": 1,
        "use_dictionary": False,
        "use_byte_stream_split": split,
        "write_page_checksum": True,
        "write_statistics": True,
    }


def to_table(pieces: Sequence[RaggedRows], workload: EventSchema) -> pa.Table:
    """Table of schema_of(workload) with the rows of all pieces. Rows without an event must have been dropped."""
    schema = schema_of(workload)
    counts = np.concatenate([piece.counts for piece in pieces])
    columns: list[pa.Array] = []
    for field, (_, sources) in zip(schema, _by_name(workload.source_columns, 0), strict=True):
        per_particle = workload.per(sources[0]) == "particle"
        values = {
            source.into: np.concatenate(
                [(piece.particle_columns if per_particle else piece.event_columns)[source.into] for piece in pieces]
            )
            for source in sources
        }
        if per_particle:
            array = _array(field.type.value_type, sources, 0, values)
            columns.append(pa.ListArray.from_arrays(pa.array(offsets_of(counts), pa.int32()), array, type=field.type))
        else:
            columns.append(_array(field.type, sources, 0, values))
    return pa.Table.from_arrays(columns, schema=schema)


def _by_name(sources: Sequence[SourceColumn], depth: int) -> list[tuple[str, list[SourceColumn]]]:
    """Sources grouped by the name in their paths at ``depth``."""
    found: dict[str, list[SourceColumn]] = {}
    for source in sources:
        found.setdefault(source.path[depth], []).append(source)
    return list(found.items())


def _field(name: str, sources: Sequence[SourceColumn], depth: int, workload: EventSchema) -> pa.Field:
    """Column, or field of a struct, at that depth of the sources' paths."""
    source = sources[0]
    kind: pa.DataType
    if len(source.path) > depth + 1:
        kind = pa.struct([_field(inner, some, depth + 1, workload) for inner, some in _by_name(sources, depth + 1)])
    else:
        kind = pa.from_numpy_dtype(np.dtype(workload.column(source.into).dtype))
        kind = _list_of(kind) if source.is_list else kind
    return pa.field(name, _list_of(kind) if depth == 0 and workload.per(source) == "particle" else kind, False)


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, False))


def _array(kind: pa.DataType, sources: Sequence[SourceColumn], depth: int, values: Mapping[str, Array]) -> pa.Array:
    """Array of that type filled by those sources, without the lists of particles around it."""
    source = sources[0]
    if len(source.path) > depth + 1:
        parts = [
            _array(kind.field(i).type, some, depth + 1, values)
            for i, (_, some) in enumerate(_by_name(sources, depth + 1))
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind))
    if source.is_list:
        return lists_of(values[source.into], kind)
    return pa.array(values[source.into][:, source.field])
