"""Parquet files as Arrow reads them, with lists in the place of list views.

An Arrow schema in a file's metadata may ask for list views, which are stored like lists. A view has a place and a size
of its own for each list, so that lists may overlap, or come in any order: here they become the lists that they show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


class ArrowFile(pq.ParquetFile):  # type: ignore[misc]  # pyarrow has no types
    """A `pyarrow.parquet.ParquetFile` without list views."""

    @property
    def schema_arrow(self) -> pa.Schema:
        """Return the schema of what is read."""
        return schema_without_views(super().schema_arrow)

    def iter_batches(self, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        """Yield record batches, as pyarrow does."""
        return map(without_views, super().iter_batches(*arguments, **options))


def schema_without_views(schema: pa.Schema) -> pa.Schema:
    """Return the schema with lists in the place of list views."""
    if not any(_has_views(field.type) for field in schema):
        return schema
    return pa.schema([field.with_type(_kind_without_views(field.type)) for field in schema], schema.metadata)


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with lists in the place of list views."""
    schema = schema_without_views(batch.schema)
    if schema is batch.schema:
        return batch
    return pa.RecordBatch.from_arrays([_array_without_views(column) for column in batch.columns], schema=schema)


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def _has_views(kind: pa.DataType) -> bool:
    return _is_view(kind) or any(_has_views(kind.field(i).type) for i in range(kind.num_fields))


def _kind_without_views(kind: pa.DataType) -> pa.DataType:
    if not _has_views(kind):
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_kind_without_views(field.type)) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_item_without_views(kind), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(_item_without_views(kind))
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(_item_without_views(kind))
    return kind  # a map: no column that is read


def _item_without_views(kind: pa.DataType) -> pa.Field:
    return kind.value_field.with_type(_kind_without_views(kind.value_type))


def _array_without_views(array: pa.Array) -> pa.Array:
    kind = _kind_without_views(array.type)
    if kind is array.type:
        return array
    null = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        fields = [_array_without_views(array.field(i)) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=null)
    if pa.types.is_fixed_size_list(kind):
        first, size = array.offset * kind.list_size, len(array) * kind.list_size
        values = _array_without_views(array.values.slice(first, size))
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=null)
    lengths = (array.sizes if _is_view(array.type) else array.value_lengths().fill_null(0)).to_numpy().astype(np.int64)
    if null is not None:
        lengths[null.to_numpy(zero_copy_only=False)] = 0
    lists = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    ends = np.concatenate([[0], np.cumsum(lengths)])
    offsets = pa.array(ends, pa.int64() if pa.types.is_large_list(kind) else pa.int32())
    # flatten(): values of the lists that are not null, in the order of the lists. pyarrow 26's cast of views is wrong.
    return lists.from_arrays(offsets, _array_without_views(array.flatten()), type=kind, mask=null)
