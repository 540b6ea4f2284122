"""Parquet files of another layout: a message with the settings, from the file's first rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from common.files.other_fields import fields_problem
from common.files.parquet.arrow_file import ArrowFile
from common.files.parquet.columns import inside, is_list
from common.files.parquet.footer import ParquetFooter, RowGroupMetadata
from common.files.parquet.lists import flattened, list_lengths
from common.files.parquet.other_columns import ids_settings
from common.schema import EventSchema, SourceColumn

_ROWS = 64
"""Rows that must agree: a single damaged list is the fault of its row group."""
_NUMBERS = 1 << 17
"""Most numbers in these rows, if all events were alike."""


def with_made_ids(workload: EventSchema) -> EventSchema:
    """Schema that also reads files without columns of ids."""
    return replace(workload, source=workload.source.model_copy(update={"ids": "rows"}))


def layout_problem(
    file: ArrowFile, footer: ParquetFooter, workload: EventSchema, names: Mapping[str, str]
) -> str | None:
    """Problem of a file that is readable with other settings, with these; None: it has none.

    ``names``: those of read_names() for with_made_ids(workload). Rows are read only of files that look so.
    """
    schema, first = file.schema_arrow, next((group for group in footer.row_groups if group.rows), None)
    missing = [
        one.name for one in workload.source_columns if one.path[0] not in schema.names and not workload.may_lack(one)
    ]
    lists = [source for source in workload.source_columns if source.is_list]
    if not missing and not any(_looks_other(schema, first, one, names[one.name], workload) for one in lists):
        return None
    widths: dict[str, int] = {}
    for source in lists:
        if first is None:
            break
        numbers = first.column(names[source.name]).num_values // first.rows
        rows = max(min(_NUMBERS // max(numbers, 1), _ROWS), 1)
        width = _width(file, rows, source, names[source.name], workload)
        widths |= {} if width is None else {source.name: width}
    return fields_problem(workload, widths, missing, schema.names, ids_settings(schema, workload) if missing else ())


def _looks_other(
    schema: pa.Schema, first: RowGroupMetadata | None, source: SourceColumn, name: str, workload: EventSchema
) -> bool:
    """True if the lists have other numbers by their type, or by the counts of the first row group."""
    expected = len(workload.stored_fields(source))
    kind = schema.field(source.path[0]).type
    while is_list(kind) and is_list(kind.value_type):
        kind = kind.value_type
    if pa.types.is_fixed_size_list(kind):
        return bool(kind.list_size != expected)
    if first is None or workload.per(source) == "particle":
        return False
    return first.column(name).num_values != first.rows * expected


def _width(file: ArrowFile, rows: int, source: SourceColumn, name: str, workload: EventSchema) -> int | None:
    """Numbers in the innermost lists of the first rows, if all have as many, and some exist."""
    try:
        batch = next(file.iter_batches(rows, columns=[name], use_threads=False), None)
    except MemoryError:
        return None  # very large events: the reader tells their widths
    if batch is None:
        return None
    values, rest = inside(batch.column(0), source.path[1:])
    if workload.per(source) == "particle":
        values, _ = inside(flattened(values), rest)
    lengths = np.unique(list_lengths(values.drop_null()))
    return int(lengths[0]) if len(lengths) == 1 else None
