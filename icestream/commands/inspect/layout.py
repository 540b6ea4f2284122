"""Storage layout of a file: types, lists, compression, chunks. Available even if the pipeline can't use the file."""

from __future__ import annotations

from pathlib import Path

import h5py
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from common.errors import BadInputError
from common.files.hdf5.tables import BadTables, hdf5_errors
from common.files.parquet.footer import DamagedFooter, parse_footer
from common.schema import EventSchema

_CODECS = {0: "uncompressed", 1: "snappy", 2: "gzip", 3: "lzo", 4: "brotli", 5: "lz4", 6: "zstd", 7: "lz4"}


class ColumnLayout(BaseModel):
    """Column or dataset of a file."""

    name: str
    type: str
    storage: str
    """Compression, or chunks and filters."""
    is_read: bool
    """True if the workload reads it."""


def layout_of(path: Path, kind: str, workload: EventSchema) -> list[ColumnLayout]:
    """Columns of a Parquet file, or datasets of an HDF5 file. Raises BadInputError."""
    return _parquet(path, workload) if kind == "Parquet" else _hdf5(path, workload)


def _parquet(path: Path, workload: EventSchema) -> list[ColumnLayout]:
    try:
        footer = parse_footer(path)
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
    except DamagedFooter as error:
        raise BadInputError(f"damaged: {error}") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"truncated, or not Parquet: {' '.join(str(error).split())[:300]}") from None
    names = {source.path[0] for source in workload.source_columns}
    codecs: dict[str, set[str]] = {}
    for group in footer.row_groups:
        for column in group.columns:
            codecs.setdefault(column.path[0], set()).add(_CODECS.get(column.codec, f"codec {column.codec}"))
    return [
        ColumnLayout(
            name=field.name,
            type=_type_text(field.type),
            storage=", ".join(sorted(codecs.get(field.name, set()))) or "no rows",
            is_read=field.name in names,
        )
        for field in schema
    ]


def _type_text(kind: pa.DataType) -> str:
    """Arrow's text of a type, without the names of list elements."""
    if pa.types.is_fixed_size_list(kind):
        return f"fixed_size_list<{_type_text(kind.value_type)}>[{kind.list_size}]"
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return f"{'large_' * pa.types.is_large_list_view(kind)}list_view<{_type_text(kind.value_type)}>"
    if pa.types.is_large_list(kind):
        return f"large_list<{_type_text(kind.value_type)}>"
    if pa.types.is_list(kind):
        return f"list<{_type_text(kind.value_type)}>"
    return str(kind)


def _hdf5(path: Path, workload: EventSchema) -> list[ColumnLayout]:
    tables = workload.tables
    names = {tables.events, tables.particles, tables.counts} if tables else set()
    found: list[ColumnLayout] = []
    try:
        with hdf5_errors("truncated, or damaged"), h5py.File(path, "r", locking=False) as file:
            for name in file:
                if not isinstance(file.get(name, getlink=True), h5py.HardLink):
                    found.append(ColumnLayout(name=name, type="link to elsewhere", storage="", is_read=False))
                elif isinstance(file[name], h5py.Dataset):
                    dataset = file[name]
                    filters = [dataset.compression, "shuffle" * dataset.shuffle, "fletcher32" * dataset.fletcher32]
                    chunks = f"chunks {dataset.chunks}" if dataset.chunks else "contiguous"
                    found.append(
                        ColumnLayout(
                            name=name,
                            type=f"{dataset.dtype} {dataset.shape}",
                            storage=", ".join([chunks, *(one for one in filters if one)]),
                            is_read=name in names,
                        )
                    )
                else:
                    found.append(ColumnLayout(name=name, type="group", storage="", is_read=False))
    except BadTables as error:
        raise BadInputError(str(error)) from None
    return found
