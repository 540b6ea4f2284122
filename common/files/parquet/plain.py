"""Reader in C++ of row groups as the common writers make them: plain numbers behind levels, nothing null.

Whatever is unusual, damaged or wrong is left to Arrow's reader: it gives the same rows, and words all errors.
R rows, P particles.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.files.parquet.columns import lists_of
from common.files.parquet.footer import ColumnChunk, ParquetFooter, RowGroupMetadata
from common.files.rows import Int64, RaggedRows, checked, offsets_of
from common.schema import Column, EventSchema, SourceColumn
from common.unit_arrays import Array, address

_PHYSICAL = {"<f4": "FLOAT", "<f8": "DOUBLE", "<i4": "INT32", "<u4": "INT32", "<i8": "INT64", "<u8": "INT64"}
"""Types whose numbers are stored as they are."""
_UNCOMPRESSED = 0
_CODECS = {1: "snappy", 6: "zstd"}
"""Parquet's number of a compression, and Arrow's name."""
_HEADER_BYTES = 512
_MOST_PAGE_BYTES = 8 << 20
"""Maximum size of a page: usual is 1 MiB."""
_MOST_VALUES = 4 << 20
"""Maximum values of a page, each with a byte for its levels."""
_FEW_PAGES, _FEW_VALUES = 256, 4
"""More pages than the one, with fewer values each than the other, are faster by Arrow: one takes 10 µs in Python."""
_PADDING = 16
"""Bytes behind the levels, which C++ reads and writes in groups of eight."""


class UnusualError(Exception):
    """Error for what only Arrow reads, or reports."""


@dataclass(frozen=True)
class _Leaf:
    """Column of numbers in a file."""

    index: int
    """Number among the leaf columns of the file."""
    source: SourceColumn
    column: Column
    most_repetition: int
    most_definition: int
    empty: int
    """Definition level of an event without particles; -1: values are per event."""

    @property
    def width(self) -> int:
        """Numbers of a value."""
        return len(self.column.fields) if self.source.is_list else 1


class PlainFile:
    """Open file whose columns have layouts that C++ reads. The footer's numbers are only claims of the file."""

    def __init__(
        self, descriptor: int, row_groups: Sequence[RowGroupMetadata], leaves: Sequence[_Leaf], schema: pa.Schema
    ) -> None:
        self._descriptor = os.dup(descriptor)
        self.row_groups = row_groups
        self.leaves = leaves
        self.schema = schema
        """Columns that the workload reads, in the file's order."""

    @classmethod
    def of(
        cls, file: pq.ParquetFile, descriptor: int, footer: ParquetFooter, workload: EventSchema
    ) -> PlainFile | None:
        """The file with that descriptor, which is copied; None: Arrow must read it."""
        schema = file.schema_arrow
        names = [leaf[0] for leaf in footer.leaves]
        if len(names) != len(file.schema) or len(footer.row_groups) != file.metadata.num_row_groups:
            return None
        leaves: list[_Leaf] = []
        for source in workload.source_columns:
            column, name = workload.column(source.into), source.path[0]
            levels = _levels(schema.field(name).type, schema.field(name).nullable, source, column, workload)
            if (
                levels is None
                or names.count(name) != 1
                or (source.is_list and source.stored not in ((), column.fields))
            ):
                return None
            index = names.index(name)
            stored = file.schema.column(index)
            if stored.physical_type != _PHYSICAL.get(column.dtype) or levels[:2] != (
                stored.max_repetition_level,
                stored.max_definition_level,
            ):
                return None
            leaves.append(_Leaf(index, source, column, *levels))
        of_leaves = {group.columns[leaf.index].codec for group in footer.row_groups for leaf in leaves}
        if not of_leaves <= {_UNCOMPRESSED, *_CODECS}:
            return None
        read = {leaf.source.path[0] for leaf in leaves}
        fields = [field for field in schema if field.name in read]
        return cls(descriptor, footer.row_groups, leaves, pa.schema(fields))

    def close(self) -> None:
        """Close the copied descriptor."""
        os.close(self._descriptor)

    def fill(self, out: Array, at: int) -> None:
        """Read bytes from the offset ``at`` on. Raises UnusualError, OSError."""
        if os.preadv(self._descriptor, [out.data], at) != len(out):
            raise UnusualError


def _levels(
    kind: pa.DataType, is_nullable: bool, source: SourceColumn, column: Column, workload: EventSchema
) -> tuple[int, int, int] | None:
    """Highest levels of repetition and definition, and that of an event without particles (-1: of none).

    None for other types than plain lists around numbers of the column's type.
    """
    per_particle = workload.per(source) == "particle"
    lists = int(per_particle) + int(source.is_list)
    definition, empty = int(is_nullable), -1
    for depth in range(lists):
        if not pa.types.is_list(kind):
            return None
        if per_particle and depth == 0:
            empty = definition
        definition += 1 + int(kind.value_field.nullable)
        kind = kind.value_type
    if column.dtype not in _PHYSICAL or kind != pa.from_numpy_dtype(np.dtype(column.dtype)):
        return None
    return lists, definition, empty


class PlainRows:
    """Rows of whole row groups, filled one row group after the other."""

    def __init__(self, library: ctypes.CDLL, workload: EventSchema, rows: int, particles: int) -> None:
        """``rows``: exactly; ``particles``: at most."""
        self._library = library
        self._workload = workload
        self._arrays = {
            column.name: np.empty((rows if column.per == "event" else particles, len(column.fields)), column.dtype)
            for column in workload.read_columns
        }
        self._counts: Int64 = np.empty(rows, np.int64)
        self._row = self._particle = 0
        self._schema: pa.Schema | None = None
        self._header = np.empty(_HEADER_BYTES, np.uint8)
        self._found: Int64 = np.empty(8, np.int64)
        self._stored = np.empty(0, np.uint8)
        self._levels = np.empty(0, np.uint8)

    def add(self, file: PlainFile, row_group: int, rows: int) -> None:
        """Add a row group of that many rows. Raises UnusualError, OSError."""
        if self._schema is not None and file.schema != self._schema:
            raise UnusualError
        self._schema = file.schema
        particles: int | None = None
        for leaf in file.leaves:
            if leaf.empty < 0:
                self._add_column(file, row_group, leaf, rows, self._row, None)
            else:
                counts = self._counts[self._row : self._row + rows] if particles is None else np.empty(rows, np.int64)
                found = self._add_column(file, row_group, leaf, rows, self._particle, counts)
                if particles is not None and not np.array_equal(counts, self._counts[self._row : self._row + rows]):
                    raise UnusualError
                particles = found - self._particle
        assert particles is not None, "a workload has a column of particles"
        self._row += rows
        self._particle += particles

    def all(self, large_above: int) -> RaggedRows:
        """All rows, checked. Raises UnusualError if some are missing."""
        counts = self._counts
        if self._row != len(counts):
            raise UnusualError
        large = np.flatnonzero(counts > large_above) if len(counts) and counts.max() > large_above else counts[:0]
        columns = self._workload.read_columns
        rows = RaggedRows(
            counts=counts,
            event_columns={one.name: self._arrays[one.name] for one in columns if one.per == "event"},
            particle_columns={
                one.name: self._arrays[one.name][: self._particle] for one in columns if one.per == "particle"
            },
            large=large,
            large_events=self._table(large) if len(large) else None,
        )
        rows = checked(rows, self._workload)
        return replace(rows, invalid_events=self._table(rows.invalid_rows)) if rows.invalid else rows

    def _add_column(
        self, file: PlainFile, row_group: int, leaf: _Leaf, rows: int, first: int, counts: Int64 | None
    ) -> int:
        """Numbers of a column into its array, from row or particle ``first`` on; the first one behind them.

        ``counts``: filled with the particles of each row. Raises UnusualError, OSError.
        """
        chunk = file.row_groups[row_group].columns[leaf.index]
        array = self._arrays[leaf.column.name]
        start = address(array) + (leaf.source.field or 0) * array.itemsize
        stride = array.itemsize * array.shape[1]  # numpy's own is 0 in an empty array
        most = first + rows if counts is None else len(array)
        values = row = pages = 0
        at, end = chunk.start, chunk.start + chunk.num_bytes
        while values < chunk.num_values:
            page, num_values, at = self._page(file, chunk, at, end)
            pages += 1
            if pages > _FEW_PAGES and values < _FEW_VALUES * pages:
                raise UnusualError
            if len(self._levels) < num_values + _PADDING:
                self._levels = np.empty(num_values + _PADDING, np.uint8)
            code = self._library.read_page(
                *(page.address, page.size, num_values, leaf.most_repetition, leaf.most_definition, leaf.empty),
                *(leaf.width, array.itemsize, stride, address(self._levels), len(self._levels)),
                *(None if counts is None else address(counts) + row * counts.itemsize, rows - row),
                *(start + first * stride, most - first, address(self._found)),
            )
            if code:
                raise UnusualError
            values += num_values
            row += int(self._found[0])
            first += int(self._found[1])
        if values != chunk.num_values or row != rows or at != end:
            raise UnusualError
        return first

    def _page(self, file: PlainFile, chunk: ColumnChunk, at: int, end: int) -> tuple[pa.Buffer, int, int]:
        """Uncompressed bytes of the page at that offset, its number of values, and the offset behind it.

        Raises UnusualError, OSError.
        """
        header = self._header[: end - at]
        file.fill(header, at)
        length = self._library.parse_page_header(address(header), len(header), address(self._found))
        uncompressed, compressed, has_checksum, checksum, num_values = self._found[:5].tolist()
        at += length
        if (
            length < 0
            or max(uncompressed, compressed) > _MOST_PAGE_BYTES
            or num_values > _MOST_VALUES
            or compressed > end - at
        ):
            raise UnusualError
        if len(self._stored) < compressed:
            self._stored = np.empty(compressed, np.uint8)
        stored = self._stored[:compressed]
        file.fill(stored, at)
        if has_checksum and zlib.crc32(stored.data) != checksum:
            raise UnusualError
        page = pa.py_buffer(stored)
        if chunk.codec != _UNCOMPRESSED:
            # Arrow leaves what a shorter result doesn't fill as it was.
            if self._library.declared_size(chunk.codec, address(stored), compressed) != uncompressed:
                raise UnusualError
            page = pa.Codec(_CODECS[chunk.codec]).decompress(page, uncompressed)
        if page.size != uncompressed:
            raise UnusualError
        return page, num_values, at + compressed

    def _table(self, chosen: Int64) -> pa.Table:
        """Rows as stored in the file: the columns that the workload reads."""
        assert self._schema is not None
        sources = {source.path[0]: source for source in self._workload.source_columns}
        offsets = offsets_of(self._counts)
        particles = np.concatenate([np.arange(offsets[row], offsets[row + 1]) for row in chosen])
        of_rows = pa.array(offsets_of(self._counts[chosen]), pa.int32())
        columns = []
        for field in self._schema:
            source = sources[field.name]
            array = self._arrays[source.into]
            if self._workload.per(source) == "event":
                columns.append(_values(array[chosen], source, field.type))
            else:
                values = _values(array[particles], source, field.type.value_type)
                columns.append(pa.ListArray.from_arrays(of_rows, values, type=field.type))
        return pa.Table.from_arrays(columns, schema=self._schema)


def _values(rows: Array, source: SourceColumn, kind: pa.DataType) -> pa.Array:
    """Values of a column of the file, from rows of the unit's column that it fills."""
    if not source.is_list:
        return pa.array(rows[:, source.field], kind)
    return lists_of(rows, kind)
