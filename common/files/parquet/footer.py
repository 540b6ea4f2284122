"""Parser of Parquet footers, with a check for contradictions.

The footer is the only part of a Parquet file without a checksum. Arrow trusts it, and on some damaged footers ends the
whole process when a column's metadata are requested, so Arrow is not used here. Format: parquet.thrift of
apache/parquet-format, in Thrift's compact protocol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAGIC = b"PAR1"
_MOST_DEPTH = 16
_MOST_BYTES = 64 << 20
"""Maximum size of a footer: 10,000 row groups of 40 columns with statistics have 40 MB."""
_MOST_STRUCTS = 1 << 19
"""Maximum structs in a footer: two for each column of a row group."""
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)

PARSE_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError)
"""Errors of Compact and of access to its structs; only IndexError means that more bytes could help."""

Struct = dict[int, Any]
"""Values by field number."""


Wanted = dict[int, Any]
"""Wanted fields by field number: those of its structs, or None for a value; other fields are skipped."""

_COLUMN: Wanted = dict.fromkeys((1, 3, 4, 5, 6, 7, 9, 11))
_ELEMENT: Wanted = dict.fromkeys((1, 3, 4, 5))
_FOOTER: Wanted = {2: _ELEMENT, 3: None, 4: {1: {1: None, 3: _COLUMN}, 3: None}}


class DamagedFooter(Exception):
    """The footer contradicts itself or the file."""


class NoFooter(DamagedFooter):
    """The file doesn't end like a Parquet file."""


@dataclass(frozen=True)
class ColumnChunk:
    """Leaf column of a row group."""

    path: tuple[str, ...]
    num_values: int
    """Count of numbers, plus one for every empty or null list."""
    codec: int
    start: int
    """First byte in the file."""
    num_bytes: int


@dataclass(frozen=True)
class RowGroupMetadata:
    """Row group of a file."""

    rows: int
    columns: tuple[ColumnChunk, ...]

    def column(self, name: str) -> ColumnChunk:
        """First leaf of a top-level column, or the leaf of that dotted path. Raises KeyError."""
        for column in self.columns:
            if name in (column.path[0], ".".join(column.path)):
                return column
        raise KeyError(name)


@dataclass(frozen=True)
class ParquetFooter:
    """Row groups and leaf columns of a file."""

    rows: int
    row_groups: tuple[RowGroupMetadata, ...]
    leaves: tuple[tuple[str, ...], ...]
    """Paths of all leaf columns, in order."""


def parse_footer(path: Path) -> ParquetFooter:
    """Footer of a local file. Raises OSError, DamagedFooter."""
    raw, size_bytes = _raw_footer(path)
    try:
        return _checked(Compact(raw).struct(_FOOTER), size_bytes - 8 - len(raw))
    except PARSE_ERRORS as error:
        raise DamagedFooter(f"its metadata can't be parsed: {error!r}") from None


def footer_digest(path: Path) -> str:
    """Digest of a local file's size and footer, 32 hexadecimal digits. Raises OSError, DamagedFooter.

    The footer has the sizes, places and statistics of all columns: a file with other numbers nearly always has another.
    """
    raw, size_bytes = _raw_footer(path)
    return hashlib.blake2b(size_bytes.to_bytes(8, "little") + raw, digest_size=16).hexdigest()


def _raw_footer(path: Path) -> tuple[bytes, int]:
    """Bytes of the footer, and the size of the file. Raises OSError, DamagedFooter."""
    with path.open("rb") as file:
        size_bytes = file.seek(0, 2)
        if size_bytes < 12:
            raise NoFooter(f"the file has {size_bytes} bytes")
        file.seek(-8, 2)
        tail = file.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or length > size_bytes - 12:
            raise NoFooter("the file doesn't end as a Parquet file does")
        if length > _MOST_BYTES:
            raise DamagedFooter(f"a footer of {length} bytes; expected at most {_MOST_BYTES}")
        file.seek(-8 - length, 2)
        return file.read(length), size_bytes


def _checked(metadata: Struct, end: int) -> ParquetFooter:
    """Checked footer. ``end``: offset at which the data end."""
    leaves = _leaves(metadata[2])
    groups = tuple(_row_group(group, leaves) for group in metadata[4])
    rows = int(metadata[3])
    if rows != sum(group.rows for group in groups):
        raise DamagedFooter(f"its row groups have {sum(group.rows for group in groups)} rows, the file {rows}")
    taken = sorted((c.start, c.start + c.num_bytes) for group in groups for c in group.columns if c.num_bytes)
    previous = len(_MAGIC)
    for start, stop in taken:
        if start < previous or stop > end:
            raise DamagedFooter(f"bytes {start} to {stop} can't be a column's: others begin or end inside")
        previous = stop
    return ParquetFooter(rows, groups, tuple(path for path, _, _ in leaves))


def _row_group(group: Struct, leaves: Sequence[tuple[tuple[str, ...], int, int]]) -> RowGroupMetadata:
    rows, columns = int(group[3]), []
    if rows < 0 or len(group[1]) != len(leaves):
        raise DamagedFooter(f"a row group of {rows} rows and {len(group[1])} columns; expected {len(leaves)} columns")
    for chunk, (path, kind, repeated) in zip(group[1], leaves, strict=True):
        if chunk.get(1):
            raise DamagedFooter("a column lies in another file")
        column = chunk[3]
        name = ".".join(path)
        if tuple(_text(part) for part in column[3]) != path or column[1] != kind:
            raise DamagedFooter(f"the schema's column {name} is another one in a row group")
        values, uncompressed, num_bytes = int(column[5]), int(column[6]), int(column[7])
        if values < rows or min(num_bytes, uncompressed) < 0 or (not repeated and values != rows):
            raise DamagedFooter(f"column {name} has {values} values in {rows} rows")
        # 0: no such page; some writers use it for "no dictionary".
        start = min((place for place in (column[9], column.get(11, 0)) if place), default=0)
        columns.append(ColumnChunk(path, values, column[4], int(start), num_bytes))
    return RowGroupMetadata(rows, tuple(columns))


def _leaves(schema: Sequence[Struct]) -> list[tuple[tuple[str, ...], int, int]]:
    """Path, physical type and number of surrounding lists of every leaf, in order."""
    rest = iter(schema[1:])
    leaves: list[tuple[tuple[str, ...], int, int]] = []

    def descend(children: int, path: tuple[str, ...], repeated: int) -> None:
        if len(path) > _MOST_DEPTH:
            raise DamagedFooter("its schema is nested too deeply")
        for _ in range(children):
            element = next(rest, None)
            if element is None:
                raise DamagedFooter("its schema ends too early")
            here, depth = (*path, _text(element[4])), repeated + (element.get(3) == 2)
            if element.get(5):
                descend(element[5], here, depth)
            else:
                leaves.append((here, element[1], depth))

    descend(schema[0].get(5, 0), (), 0)
    if next(rest, None) is not None:
        raise DamagedFooter("its schema has columns that belong nowhere")
    return leaves


def _text(raw: bytes) -> str:
    return raw.decode("utf-8")  # a UnicodeDecodeError is a ValueError


class Compact:
    """Parser of Thrift's compact protocol: wanted fields by number, without their names. Its memory is bounded by the
    input's size, and by a number of structs."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self.at = 0
        """Number of bytes parsed so far."""
        self._structs = 0

    def struct(self, wanted: Wanted, depth: int = 0) -> Struct:
        """Wanted fields of the struct that begins here. Raises one of PARSE_ERRORS."""
        if depth > _MOST_DEPTH:
            raise ValueError("nested too deeply")
        self._structs += 1
        if self._structs > _MOST_STRUCTS:
            raise ValueError(f"more than {_MOST_STRUCTS} row groups and columns")
        fields: Struct = {}
        number = 0
        raw = self._raw
        while (head := raw[self.at]) != 0:
            self.at += 1
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            kind = head & 15
            if number not in wanted:
                self._skip(kind, depth)
            elif kind in (_TRUE, _FALSE):
                fields[number] = kind == _TRUE
            else:
                fields[number] = self._value(kind, wanted[number], depth)
        self.at += 1
        return fields

    def _value(self, kind: int, wanted: Wanted | None, depth: int) -> Any:
        if kind in (_I16, _I32, _I64):
            return self._zigzag()
        if kind == _BINARY:
            return self._take(self._varint())
        if kind == _STRUCT and wanted is not None:
            return self.struct(wanted, depth + 1)
        if kind in (_LIST, _SET):
            size, item = self._list_head()
            if item not in (_BINARY, _STRUCT):
                raise ValueError(f"a list of type {item}")
            return [self._value(item, wanted, depth + 1) for _ in range(size)]
        raise ValueError(f"type {kind}")

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _MOST_DEPTH:
            raise ValueError("nested too deeply")
        if kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _BINARY:
            self._take(self._varint())
        elif kind == _STRUCT:
            while (head := self._raw[self.at]) != 0:
                self.at += 1
                if not head >> 4:
                    self._varint()
                self._skip(head & 15, depth + 1)
            self.at += 1
        elif kind in (_LIST, _SET):
            size, item = self._list_head()
            if item in (_TRUE, _FALSE):
                self._take(size)
            else:
                for _ in range(size):
                    self._skip(item, depth + 1)
        elif kind == _BYTE:
            self._take(1)
        elif kind == _DOUBLE:
            self._take(8)
        elif kind not in (_TRUE, _FALSE):
            raise ValueError(f"type {kind}")  # a map: parquet.thrift has none

    def _list_head(self) -> tuple[int, int]:
        """Number of items and their type."""
        head = self._take(1)[0]
        size = self._varint() if head >> 4 == 15 else head >> 4
        if size > len(self._raw) - self.at:
            raise ValueError("a list longer than the footer")
        return size, head & 15

    def _varint(self) -> int:
        raw, at = self._raw, self.at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                self.at = at
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _take(self, num: int) -> bytes:
        taken = self._raw[self.at : self.at + num]
        if len(taken) != num:
            raise IndexError("it ends too early")
        self.at += num
        return taken
