"""Tables of others, in Parquet files and SQLite databases, in pieces; their columns are checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.errors import BadInputError, missing_extra
from common.files.parquet.footer import DamagedFooter, footer_digest, parse_footer
from common.text import printable
from workloads.direction.grouping import Int64

ROWS_AT_A_TIME = 1 << 18
"""Rows decoded at a time: 262,144, which keeps a sort of as many keys in the processor's cache."""

_BUFFER_BYTES = 1 << 20
"""Bytes read at a time of each column, since a row group may be a whole file."""

Numbers = npt.NDArray[Any]
"""Array of a type that is checked where it is read."""


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


KINDS: dict[str, Callable[[pa.DataType], bool]] = {
    "integers": pa.types.is_integer,
    "numbers": _is_number,
    "numbers, if known": _is_number,
    "bool or numbers": lambda kind: pa.types.is_boolean(kind) or _is_number(kind),
}
"""Checks of a column's type by the words for it in an error. SQLite has no NaN: the unknown is null, and read as 0."""

Pieces = Callable[[Mapping[str, str]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Table:
    """Rows of named columns."""

    where: str
    """Its name in errors."""
    schema: Callable[[], pa.Schema]
    """Return names and types of its columns. Raises BadInputError if the file can't be read, as the two below."""
    read: Pieces
    """Yield columns, whose names and KINDS are given, in order, some rows at a time."""
    version: Callable[[], str]
    """Return a text for its content."""

    @cached_property
    def columns(self) -> pa.Schema:
        """Names and types of its columns."""
        return self.schema()

    def batches(self, kinds: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """Columns of these names, some rows at a time. Raises BadInputError if one isn't there, or not of its kind."""
        check_columns(self.columns, kinds, self.where)
        return self.read(kinds)


def parquet_table(path: Path) -> Table:
    """Return a table that is a Parquet file. It is opened when it is read."""
    return Table(
        str(path),
        lambda: open_parquet(path).schema_arrow,
        lambda kinds: parquet_pieces(path, list(kinds)),
        partial(_parquet_version, path),
    )


def _parquet_version(path: Path) -> str:
    with named_errors(path):
        return footer_digest(path)


def open_parquet(path: Path) -> pq.ParquetFile:
    """Opened Parquet file, whose row groups are read in pieces. Raises BadInputError that names the file."""
    with named_errors(path):
        parse_footer(path)
        return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)


def parquet_pieces(path: Path, columns: Sequence[str], rows: int | None = None) -> Iterator[pa.RecordBatch]:
    """Columns, or fields of structs, ``rows`` at a time, by default ROWS_AT_A_TIME. Raises BadInputError."""
    file = open_parquet(path)
    with named_errors(path):
        yield from file.iter_batches(rows or ROWS_AT_A_TIME, columns=[*columns], use_threads=False)


FIRST_ID, LAST_ID = -(1 << 63), (1 << 63) - 1
_MOST_COLUMNS = 10_000
"""Columns of all tables of a database."""

_END_BYTES = 1 << 16
"""Bytes of both ends of a database that stand for its content: it begins with a count of its changes."""


@dataclass(frozen=True)
class SqliteTable:
    """Rows of a table of a SQLite database, in the order of the event's id, which needs an index.

    A database is whatever somebody put into it. It is opened read-only, without extensions and without functions in
    its schema; views, virtual tables and computed columns are left out, and a value that is no number is read as null.
    """

    path: Path
    name: str
    column_names: tuple[str, ...]
    event: str
    """Column of the event's id."""
    first: int = FIRST_ID
    last: int = LAST_ID
    """Events that are read."""
    selected: Int64 | None = None
    """Those of them that are kept; None: all."""

    @property
    def table(self) -> Table:
        """Return it as a Table. Any column may hold anything: the types are those that are read."""
        types = {name: pa.int64() if name == self.event else pa.float64() for name in self.column_names}
        start = "" if self.first == FIRST_ID else f", from event {self.first}"
        where = f"{self.path}, table {printable(self.name, 80)!r}{start}"
        return Table(where, lambda: pa.schema(types.items()), self.pieces, self._version)

    def pieces(self, kinds: Mapping[str, str], rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """See Table.read. ``rows`` at a time, by default ROWS_AT_A_TIME."""
        event = quoted(self.event)
        query = (
            f"SELECT {', '.join(_number(name, kind) for name, kind in kinds.items())} FROM {quoted(self.name)} AS t "
            f"WHERE t.{event} BETWEEN {self.first} AND {self.last} ORDER BY t.{event}"
        )
        plan = next(sqlite_batches(self.path, f"EXPLAIN QUERY PLAN {query}", 1))
        if not plan["detail"][0].as_py().startswith("SEARCH"):
            make = f"CREATE INDEX i ON {quoted(self.name)} ({event})"
            raise BadInputError(
                f"{self.table.where}: it has no index on {self.event}; make one: {printable(make, 300)}"
            )
        for batch in sqlite_batches(self.path, query, rows or ROWS_AT_A_TIME):
            if self.selected is not None and self.event in kinds:
                batch = batch.filter(pc.is_in(batch[self.event], pa.array(self.selected)))
            yield batch

    def _version(self) -> str:
        with named_errors(self.path, "SQLite"), self.path.open("rb") as file:
            digest = hashlib.sha256(file.read(_END_BYTES))
            size_bytes = file.seek(0, 2)
            file.seek(max(0, size_bytes - _END_BYTES))
            digest.update(file.read())
        digest.update(f"{self.first} {self.last}".encode() if self.selected is None else self.selected.tobytes())
        return f"{size_bytes} bytes {digest.hexdigest()}"


def sqlite_tables(path: Path, event: str) -> list[SqliteTable]:
    """Tables of a database that have a column of this name. Raises BadInputError."""
    query = (
        "SELECT l.name AS name, c.name AS column_name FROM pragma_table_list AS l JOIN pragma_table_info(l.name) AS c "
        f"WHERE l.schema = 'main' AND l.type = 'table' LIMIT {_MOST_COLUMNS + 1}"
    )
    columns: dict[str, list[str]] = {}
    rows = [row for batch in sqlite_batches(path, query, ROWS_AT_A_TIME) for row in batch.to_pylist()]
    if len(rows) > _MOST_COLUMNS:
        raise BadInputError(f"{path}: its tables have more than {_MOST_COLUMNS:,} columns")
    for row in rows:
        columns.setdefault(row["name"], []).append(row["column_name"])
    return [SqliteTable(path, name, tuple(names), event) for name, names in columns.items() if event in names]


def sqlite_batches(path: Path, query: str, rows: int) -> Iterator[pa.RecordBatch]:
    """Result of a query of a database, some rows at a time. Raises BadInputError."""
    try:
        from adbc_driver_sqlite import dbapi
    except ImportError:
        raise missing_extra(f"{path}: SQLite", "sqlite") from None
    for suffix in ("-wal", "-journal"):
        beside = path.with_name(path.name + suffix)
        if beside.exists() and beside.stat().st_size:
            raise BadInputError(f"{beside}: a change of the database is under way; let its writer end, or open it once")
    # Immutable: nobody locks it, and a file system that is mounted read-only will do.
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    with (
        named_errors(path, "SQLite", dbapi.Error, UnicodeError),
        closing(dbapi.connect(uri, autocommit=True)) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("PRAGMA trusted_schema = OFF")
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
        cursor.execute(query)
        yield from cursor.fetch_record_batch()


def quoted(name: str) -> str:
    """Name of a table or column, as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _number(name: str, kind: str) -> str:
    """Expression of a column of this kind, one of KINDS."""
    column = f"t.{quoted(name)}"
    value = f"CASE typeof({column}) WHEN 'real' THEN {column} WHEN 'integer' THEN CAST({column} AS REAL) END"
    if kind == "integers":
        value = f"CASE typeof({column}) WHEN 'integer' THEN {column} END"
    if kind == "numbers, if known":
        # The driver takes the type of a column from its first rows: these may all be null.
        value = f"ifnull({value}, 0.0)"
    return f"{value} AS {quoted(name)}"


@contextmanager
def named_errors(path: Path, form: str = "Parquet", *others: type[Exception]) -> Iterator[None]:
    """Errors of a file that can't be read, these and ``others``, become BadInputErrors that name it."""
    try:
        yield
    except (DamagedFooter, pa.ArrowException, OSError, *others) as error:
        reason = printable(str(error), 300)
        raise BadInputError(f"{path}: can't be read as {form} ({reason}); get the file again") from None


def is_sqlite(path: Path) -> bool:
    """True for a file that begins as a SQLite database."""
    try:
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def check_columns(schema: pa.Schema, wanted: Mapping[str, str], where: str) -> None:
    """Raise BadInputError unless each wanted column is there and of its kind, one of KINDS."""
    for name, kind in wanted.items():
        if name not in schema.names:
            raise BadInputError(f"{where}: it has no column {name!r}, but {printable(', '.join(schema.names), 300)}")
        found = schema.field(name).type
        if not KINDS[kind](found):
            raise BadInputError(f"{where}: column {name!r} is of {printable(str(found), 80)}; expected {kind}")


def values_of(column: pa.Array | pa.ChunkedArray, where: str, first_row: int = 0) -> Numbers:
    """Numbers of a column without nulls. Raises BadInputError that names the row."""
    array = column
    if isinstance(column, pa.ChunkedArray):
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # which copies also a single one
    if array.null_count:
        row = first_row + int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise BadInputError(f"{where}, row {row}: the value is null, or of another type; expected a number")
    values: Numbers = array.to_numpy(zero_copy_only=False)
    return values


def first_bad(bad: npt.NDArray[np.bool_]) -> int | None:
    """Place of the first True, or None."""
    return int(np.argmax(bad)) if bad.any() else None


def as_int64(values: Numbers, where: str) -> Int64:
    """Integers as int64. Raises BadInputError for one that it can't hold."""
    if values.dtype == np.uint64 and len(values) and values.max() > np.iinfo(np.int64).max:
        raise BadInputError(f"{where}: {values.max()} is too large; expected numbers below 2⁶³")
    return values.astype(np.int64)
