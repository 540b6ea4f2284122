"""Check of a Parquet column's page headers against its metadata, before Arrow decodes a page.

Arrow trusts the size and the number of values in a page header. So the sizes must be possible for that many numbers,
and the values of all pages together must be those of the metadata, from which the plan was made.
"""

from __future__ import annotations

import os

from common.files.parquet.footer import PARSE_ERRORS, ColumnChunk, Compact, DamagedFooter, Struct, Wanted

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
