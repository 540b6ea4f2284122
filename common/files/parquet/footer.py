"""Parquet footers: parsed and checked before Arrow sees a file, and the content of a file that follows from them.

A footer is the only part of a Parquet file without a checksum. Arrow trusts it, and on some damaged footers ends the
whole process when the metadata of a column are requested, so Arrow is not used to parse it. Arrow also trusts the size
and the number of values in a page header: so the sizes must be possible for that many numbers, and the values of all
pages together must be those of the metadata, from which the plan was made.

Columns that the workload does not read are not checked: they cost nothing. The bounds are far above those of real
files, and any file within them can be planned and decoded in the memory of common/plan.py. Format: parquet.thrift of
apache/parquet-format, in the compact protocol of Thrift.

The content is row groups, rows, and a tight bound of their particles. A file of another layout gives a message with
the settings that would read it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from common.config import StreamConfig
from common.errors import LIBRARY_ERRORS, BadInputError, one_line, raise_if_machine
from common.files.local import BadFileError, check_largest
from common.files.parquet.columns import flattened, inside, is_list, list_lengths, read_names, schema_problem
from common.plan import Footer, RowGroup, SlotCapacity, Span, cut_spans
from common.schema import EventSchema, SourceColumn

_MAGIC = b"PAR1"
_MOST_DEPTH = 16
_MOST_BYTES = 64 << 20
"""Maximum size of a footer: 10,000 row groups of 40 columns with statistics have 40 MB."""
_MOST_STRUCTS = 3 << 18
"""Maximum structs in a footer: three for each column of a row group."""
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)

PARSE_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError)
"""Errors of Compact, of access to its structs, and of names that are not UTF-8 (a ValueError); only IndexError means
that more bytes could help."""

Struct = dict[int, Any]
"""Values by field number."""


Wanted = dict[int, Any]
"""Wanted fields by field number: those of its structs, or None for a value; other fields are skipped."""

_COLUMN: Wanted = dict.fromkeys((1, 3, 4, 5, 6, 7, 9, 11)) | {12: {5: None, 6: None}}
_ELEMENT: Wanted = dict.fromkeys((1, 3, 4, 5))
_FOOTER: Wanted = {2: _ELEMENT, 3: None, 4: {1: {1: None, 3: _COLUMN}, 3: None}}

MOST_ROW_GROUPS = 1 << 16
MOST_ROWS = 1 << 25
"""Maximum rows of a row group whose particles must be counted: 16 bytes of memory each."""
_MOST_WIDTHS = 8
"""Tolerated factor on the numbers of an event's list: below it, a list that is too long is a bad row, no bad file."""
_NUMBER_TYPES = {1: "<i4", 2: "<i8", 4: "<f4", 5: "<f8"}
"""Physical types of numbers: numpy's names."""
_DATA, _INDEX, _DICTIONARY, _DATA_V2 = range(4)
_VALUES: Wanted = {1: None}
_HEADER: Wanted = {1: None, 2: None, 3: None, 5: _VALUES, 7: _VALUES, 8: _VALUES}
_HEADER_OF = {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}
_HEADER_BYTES = (256, 1 << 16)
"""Bytes read at first, and if they are too few: a header may have statistics."""
_MOST_BYTES_A_VALUE = 32
"""Maximum bytes of a value: 8 of a number, and its levels; delta encodings are never larger than twice that."""
_SLACK_BYTES = 1 << 16
"""Maximum padding of an encoding's blocks."""
MOST_PAGE_BYTES = 256 << 20
"""Maximum size of a page, which is decompressed as a whole. Usual are 1 to 8 MiB."""


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
    bounds: tuple[float, float] | None = None
    """Least and largest number, by its statistics; None: unknown."""

    def is_of(self, name: str) -> bool:
        """Return True for a leaf of that top-level column, and for the leaf of that dotted path."""
        return name in (self.path[0], ".".join(self.path))


@dataclass(frozen=True)
class RowGroupMetadata:
    """Row group of a file."""

    rows: int
    columns: tuple[ColumnChunk, ...]

    def column(self, name: str) -> ColumnChunk:
        """First leaf of a top-level column, or the leaf of that dotted path. Raises KeyError."""
        for column in self.columns:
            if column.is_of(name):
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
        if tuple(part.decode() for part in column[3]) != path or column[1] != kind:
            raise DamagedFooter(f"the schema's column {name} is another one in a row group")
        values, uncompressed, num_bytes = int(column[5]), int(column[6]), int(column[7])
        if values < rows or min(num_bytes, uncompressed) < 0 or (not repeated and values != rows):
            raise DamagedFooter(f"column {name} has {values} values in {rows} rows")
        # 0: no such page; some writers use it for "no dictionary".
        start = min((place for place in (column[9], column.get(11, 0)) if place), default=0)
        bounds = _bounds(column.get(12, {}), kind)
        columns.append(ColumnChunk(path, values, column[4], int(start), num_bytes, bounds))
    return RowGroupMetadata(rows, tuple(columns))


def _bounds(statistics: Struct, kind: int) -> tuple[float, float] | None:
    """Least and largest number of a column; None if they are absent, or may be others."""
    dtype = np.dtype(_NUMBER_TYPES.get(kind, "V0"))
    stored = statistics.get(6, b""), statistics.get(5, b"")
    if not dtype.itemsize or any(len(one) != dtype.itemsize for one in stored):
        return None
    low, high = (np.frombuffer(one, dtype)[0].item() for one in stored)
    is_sure = low <= high and (dtype.kind == "f" or low >= 0)  # unsigned ones look the same, and NaN is none
    return (low, high) if is_sure else None


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
            here, depth = (*path, element[4].decode()), repeated + (element.get(3) == 2)
            if element.get(5):
                descend(element[5], here, depth)
            else:
                leaves.append((here, element[1], depth))

    descend(schema[0].get(5, 0), (), 0)
    if next(rest, None) is not None:
        raise DamagedFooter("its schema has columns that belong nowhere")
    return leaves


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


def check_claims(footer: ParquetFooter, workload: EventSchema, names: Mapping[str, str]) -> list[Sequence[ColumnChunk]]:
    """Columns read from each row group. Raises DamagedFooter; the columns must exist.

    ``names``: see read_names().
    """
    if len(footer.row_groups) > MOST_ROW_GROUPS:
        raise DamagedFooter(
            f"{len(footer.row_groups)} row groups; at most {MOST_ROW_GROUPS} are read: write larger ones"
        )
    selected = _selected(footer.leaves, names.values())
    columns: list[Sequence[ColumnChunk]] = []
    for index, group in enumerate(footer.row_groups):
        if group.rows > MOST_ROWS:
            raise DamagedFooter(
                f"row group {index} has {group.rows} rows; at most {MOST_ROWS} are read: write smaller ones"
            )
        columns.append([group.columns[i] for i in selected])
        for source in workload.source_columns:
            if workload.per(source) == "event" and source.is_list:
                column = group.column(names[source.name])
                width = len(workload.stored_fields(source))
                if column.num_values > group.rows * width * _MOST_WIDTHS:
                    raise DamagedFooter(
                        f"row group {index}, column {source.name!r}: {column.num_values} numbers in {group.rows} rows; "
                        f"expected {width} each"
                    )
    return columns


def _selected(leaves: Sequence[tuple[str, ...]], names: Collection[str]) -> list[int]:
    """Indices of the leaves that Arrow reads by those names: each with that name, or a path that begins with it."""
    texts = [".".join(leaf) for leaf in leaves]
    return [i for i, text in enumerate(texts) if any(text == name or text.startswith(f"{name}.") for name in names)]


def check_pages(file: int, column: ColumnChunk) -> None:
    """Raise DamagedFooter unless the pages agree with the metadata. ``file``: a descriptor. Raises OSError."""
    name = ".".join(column.path)
    at, end = column.start, column.start + column.num_bytes
    values = 0
    while at < end and values < column.num_values:
        header, length = _header(file, at, end, name)
        try:
            kind, uncompressed, compressed = int(header[1]), int(header[2]), int(header[3])
            in_page = int(header[_HEADER_OF[kind]][1]) if kind in _HEADER_OF else 0
        except PARSE_ERRORS as error:
            raise DamagedFooter(f"column {name}: a page header without what it must have: {error!r}") from None
        at += length + compressed
        if min(uncompressed, compressed, in_page) < 0 or at > end:
            raise DamagedFooter(f"column {name}: a page of {compressed} bytes doesn't end where the column does")
        if kind == _INDEX:
            continue
        if in_page > column.num_values:
            raise DamagedFooter(f"column {name}: a page of {in_page} values; the metadata say {column.num_values}")
        most = min(MOST_PAGE_BYTES, in_page * _MOST_BYTES_A_VALUE + _SLACK_BYTES)
        if uncompressed > most:
            raise DamagedFooter(
                f"column {name}: a page of {in_page} values has {uncompressed} bytes; expected at most {most}"
            )
        if kind != _DICTIONARY:
            values += in_page
    if values != column.num_values:
        raise DamagedFooter(f"column {name}: its pages have {values} values, its metadata say {column.num_values}")


def _header(file: int, at: int, end: int, name: str) -> tuple[Struct, int]:
    """Wanted fields and size in bytes of the page header at ``at``."""
    for size in _HEADER_BYTES:
        raw = os.pread(file, min(size, end - at), at)
        parser = Compact(raw)
        try:
            return parser.struct(_HEADER), parser.at
        except IndexError:
            continue  # the header is longer
        except PARSE_ERRORS as error:
            raise DamagedFooter(f"column {name}: a page header can't be parsed: {error!r}") from None
    raise DamagedFooter(f"column {name}: a page header of more than {len(raw)} bytes")


# -------------------------------------------------------------- content of a file


_SCAN_ROWS = 8_192
_SCAN_PARTICLES = 1 << 17
_FEW_ROWS = 16
_BUFFER_BYTES = 1 << 20

_ROWS = 64
"""Rows that must agree: a single damaged list is the fault of its row group."""
_NUMBERS = 1 << 17
"""Most numbers in these rows, if all events were alike."""


def read_parquet_footer(path: Path, workload: EventSchema, stream: StreamConfig, capacity: SlotCapacity) -> Footer:
    """Return the row groups of the file. Raises BadFileError that names its fault, MachineError."""
    try:
        footer = parse_footer(path)
        # A buffer: else Arrow reads a column of a row group at once.
        with pq.ParquetFile(path, buffer_size=_BUFFER_BYTES) as file:
            # The schema that also reads files without columns of ids.
            known = replace(workload, source=workload.source.model_copy(update={"ids": "rows"}))
            problem = schema_problem(file.schema_arrow, known)
            if problem:
                raise BadFileError(problem + columns_hint(file.schema_arrow, workload), footer.rows)
            try:
                names = read_names(file.schema_arrow, [".".join(leaf) for leaf in footer.leaves], known)
            except BadInputError as error:
                raise BadFileError(str(error), footer.rows) from None
            with path.open("rb") as raw:
                for columns in check_claims(footer, workload, names):
                    for column in columns:
                        check_pages(raw.fileno(), column)
            particles = [source for source in workload.source_columns if workload.per(source) == "particle"]
            problem = layout_problem(file, footer, workload, names)
            if problem:
                raise BadFileError(problem, footer.rows)
            groups = []
            for index, group in enumerate(footer.row_groups):
                # A leaf of a nested column counts one value for every number, and one for every empty or null list.
                bound = max(
                    group.column(names[source.name]).num_values
                    // (len(workload.stored_fields(source)) if source.is_list else 1)
                    for source in particles
                )
                spans: tuple[Span, ...] = ()
                if not capacity.fits(group.rows, bound):
                    if bound > group.rows * capacity.largest_event:
                        raise DamagedFooter(
                            f"row group {index} has {bound} particles in {group.rows} events; at most "
                            f"{capacity.largest_event} each are read, which follows from stream.slot_mib"
                        )
                    counts = _count(file, index, RowGroup(group.rows, bound), particles, names)
                    check_largest(counts, capacity.largest_event, f"row group {index}")
                    spans = cut_spans(counts, capacity, stream)
                groups.append(RowGroup(group.rows, bound, spans))
    except NoFooter as error:
        raise BadFileError(f"truncated, or not Parquet: {error}") from None
    except DamagedFooter as error:
        raise BadFileError(f"damaged: {error}") from None
    except (pa.ArrowException, *LIBRARY_ERRORS) as error:
        raise_if_machine(error, path)
        is_content = isinstance(error, pa.ArrowInvalid | UnicodeDecodeError)
        raise BadFileError(
            f"{'truncated, or not Parquet' if is_content else 'unreadable'}: {one_line(error)}"
        ) from None
    return Footer(tuple(groups))


def _count(
    file: pq.ParquetFile, index: int, group: RowGroup, sources: Sequence[SourceColumn], names: Mapping[str, str]
) -> npt.NDArray[np.integer]:
    """Particles of each row, counted a batch at a time: the footer has only their sum over the row group."""
    rows = max(min(_SCAN_PARTICLES * group.rows // max(group.particles, 1), _SCAN_ROWS), 1)
    try:
        return _counts(file, index, group.rows, sources, names, rows)
    except MemoryError:
        if rows <= _FEW_ROWS:
            raise
    return _counts(file, index, group.rows, sources, names, _FEW_ROWS)  # the row group's events are very unequal


def _counts(
    file: pq.ParquetFile,
    index: int,
    rows: int,
    sources: Sequence[SourceColumn],
    names: Mapping[str, str],
    batch_rows: int,
) -> npt.NDArray[np.integer]:
    """Particles of each row; if columns disagree, the maximum: the reader reports it and needs the memory to do so."""
    of_columns = []
    for source in sources:
        batches = file.iter_batches(batch_rows, [index], [names[source.name]], use_threads=False)
        counts = [list_lengths(inside(batch.column(0), source.path[1:])[0]) for batch in batches]
        if sum(map(len, counts)) != rows:
            raise DamagedFooter(f"row group {index} has {sum(map(len, counts))} rows; its metadata say {rows}")
        of_columns.append(np.concatenate(counts))
    most: npt.NDArray[np.integer] = np.maximum.reduce(of_columns)
    return most


def fields_problem(
    workload: EventSchema, widths: Mapping[str, int], missing: Sequence[str] = (), there: Sequence[str] = ()
) -> str | None:
    """One message for all lists of other numbers and all missing columns of ids, with the settings; None: no problem.

    ``widths``: numbers in each innermost list, by file column, as far as known. ``there``: the file's columns.
    """
    found, settings = [], []
    may_be_in_list = False
    for name, width in widths.items():
        source = workload.source_column(name)
        fields, own = workload.stored_fields(source), workload.column(source.into).fields
        if width == len(fields):
            continue
        found.append(f"{name} has lists of {width} numbers; expected {len(fields)} ({', '.join(fields)})")
        if width <= len(own):
            continue  # there are too few, whatever they are
        numbers = f"the names of the {width} numbers, in order"
        if missing and workload.per(source) == "event" and width >= len(own) + len(missing):
            may_be_in_list = True
            numbers += f", {' and '.join(missing)} among them"
        settings.append(f"--set 'source.fields.{source.key}=[{numbers}]'")
    if missing:
        names = ", ".join(map(repr, missing))
        one_or_more = f"column {names} is missing" if len(missing) == 1 else f"columns {names} are missing"
        found.append(f"{one_or_more}; the file has {', '.join(there) or 'none'}")
        keys = [workload.source_column(name).key for name in missing if name not in workload.source.extra]
        if keys and not may_be_in_list:
            settings += [f"--set source.columns.{key}=NAME" for key in keys]
            settings[-1] += ", or, if it has no ids, --set source.ids=rows"
    return ". ".join(["; ".join(found), *([f"Give {' '.join(settings)}"] if settings else [])]) if found else None


def columns_hint(schema: pa.Schema, workload: EventSchema) -> str:
    """Settings for the file's missing columns and lists of structs, to follow an error message; empty without any."""
    settings: list[str] = []
    for source in workload.source_columns:
        is_missing = source.path[0] not in schema.names and not workload.may_lack(source)
        if source.name in workload.source.extra:
            continue  # it has the name that the files give to it
        kind = schema.field(source.name).type if schema.get_field_index(source.name) >= 0 else pa.null()
        is_struct = pa.types.is_struct(kind.value_type if is_list(kind) else kind)  # in the place of the numbers
        if is_missing or (source.is_list and is_struct):
            fields = ", ".join(workload.column(source.into).fields)
            name = f"[NAME, or the columns or fields of {fields}]" if source.is_list else "NAME"
            settings.append(f"--set {shlex.quote(f'source.columns.{source.key}={name}')}")
    return f". If it has other names, give {' '.join(dict.fromkeys(settings))}" if settings else ""


def layout_problem(
    file: pq.ParquetFile, footer: ParquetFooter, workload: EventSchema, names: Mapping[str, str]
) -> str | None:
    """Problem of a file that is readable with other settings, with these; None: it has none.

    ``names``: those of read_names(), where ids may be made of rows. Rows are read only of files that look so.
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
    return fields_problem(workload, widths, missing, schema.names)


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


def _width(file: pq.ParquetFile, rows: int, source: SourceColumn, name: str, workload: EventSchema) -> int | None:
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
