"""Parquet tables of others: opened, and their columns checked, before numbers are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.errors import BadInputError
from common.files.parquet.arrow_file import ArrowFile
from common.files.parquet.footer import DamagedFooter, footer_digest, parse_footer
from common.printable import printable

ROWS_AT_A_TIME = 1 << 18
"""Rows decoded at a time: 262,144, which keeps a sort of as many keys in the processor's cache."""

_BUFFER_BYTES = 1 << 20
"""Bytes read at a time of each column, since a row group may be a whole file."""

KINDS = {
    "integers": pa.types.is_integer,
    "numbers": lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind),
    "bool": pa.types.is_boolean,
    "bool or integers": lambda kind: pa.types.is_boolean(kind) or pa.types.is_integer(kind),
}
"""Checks of a column's type by the words for it in an error."""

Numbers = npt.NDArray[Any]
"""Array of a type that is checked where it is read."""


def open_table(path: Path) -> ArrowFile:
    """Opened Parquet file, whose row groups are read in pieces. Raises BadInputError that names the file."""
    with named_errors(path):
        parse_footer(path)
        return ArrowFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Errors of a file that can't be read become BadInputErrors that name it."""
    try:
        yield
    except (DamagedFooter, pa.ArrowException, OSError) as error:
        reason = printable(str(error), 300)
        raise BadInputError(f"{path}: can't be read as Parquet ({reason}); get the file again") from None


def version_of(*paths: Path) -> str:
    """Text for the content of these tables. Raises BadInputError that names one that can't be read."""
    digests = []
    for path in paths:
        with named_errors(path):
            digests.append(footer_digest(path))
    return " with ".join(digests)


def column_names(path: Path) -> frozenset[str]:
    """Names of the file's columns; empty if it is no Parquet file, or damaged."""
    try:
        groups = parse_footer(path).row_groups
    except (DamagedFooter, OSError):
        return frozenset()
    return frozenset(column.path[0] for group in groups[:1] for column in group.columns)


def check_columns(schema: pa.Schema | pa.StructType, wanted: Mapping[str, str], where: str) -> None:
    """Raise BadInputError unless each wanted column is there and of its kind, one of KINDS."""
    names = [field.name for field in schema]
    for name, kind in wanted.items():
        if name not in names:
            raise BadInputError(f"{where}: it has no column {name!r}, but {printable(', '.join(names), 300)}")
        found = schema.field(name).type
        if not KINDS[kind](found):
            raise BadInputError(f"{where}: column {name!r} is of {printable(str(found), 80)}; expected {kind}")


def record_batches(
    file: ArrowFile,
    path: Path,
    columns: Sequence[str],
    *,
    rows: int | None = None,
    groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Record batches of these columns of all or some row groups, in order, with the errors of named_errors().

    ``rows`` are decoded at a time, ROWS_AT_A_TIME by default.
    """
    batches = file.iter_batches(rows or ROWS_AT_A_TIME, columns=list(columns), row_groups=groups, use_threads=False)
    while True:
        with named_errors(path):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def values_of(column: pa.Array | pa.ChunkedArray, where: str, first_row: int = 0) -> Numbers:
    """Numbers of a column without nulls. Raises BadInputError that names the row."""
    array = column
    if isinstance(column, pa.ChunkedArray):
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # which copies also a single one
    if array.null_count:
        row = first_row + int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise BadInputError(f"{where}, row {row}: the value is null; expected a number")
    values: Numbers = array.to_numpy(zero_copy_only=False)
    return values


def first_bad(bad: npt.NDArray[np.bool_]) -> int | None:
    """Place of the first True, or None."""
    return int(np.argmax(bad)) if bad.any() else None
