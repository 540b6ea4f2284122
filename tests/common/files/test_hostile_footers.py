"""Parquet footers: what Arrow says too; and well-formed ones, page headers and HDF5 chunks that say what can't be."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hdf5_files import tables_of, write_tables
from hostile_files import varint
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import make_events, make_table, write_events

from common.config import StreamConfig
from common.files.by_content import read_footer
from common.files.local import BadFileError, check_largest
from common.files.parquet import footer as parsing
from common.plan import SlotCapacity, cut_spans
from workloads.muons.columns import MUONS

STREAM = StreamConfig()
CAPACITY = SlotCapacity(MUONS, STREAM)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 5), max_size=40),
    st.integers(1, 50),
    st.sampled_from(["none", "snappy", "zstd", "gzip"]),
    st.booleans(),
    st.sampled_from([pa.list_, pa.large_list]),
)
def test_it_says_what_arrow_says(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    rows: int,
    compression: str,
    dictionary: bool,
    list_of: Callable[[pa.DataType], pa.DataType],
) -> None:
    path = tmp_path_factory.mktemp("f") / "f.parquet"
    table = make_table(make_events(counts), list_of=list_of)
    pq.write_table(
        table, path, row_group_size=rows, compression=compression, use_dictionary=dictionary, write_page_index=True
    )
    footer = parsing.parse_footer(path)
    metadata = pq.read_metadata(path)
    assert footer.rows == metadata.num_rows
    assert len(footer.row_groups) == metadata.num_row_groups
    for i, group in enumerate(footer.row_groups):
        expected = metadata.row_group(i)
        assert group.rows == expected.num_rows
        for j, column in enumerate(group.columns):
            known = expected.column(j)
            assert (".".join(column.path), column.num_values) == (known.path_in_schema, known.num_values)
            assert column.num_bytes == known.total_compressed_size
        assert group.column("muons").path[0] == "muons"


@pytest.mark.parametrize(
    ("old", "new", "nth", "told"),
    [
        (b"primary_minor_id", b"primary_mjnor_id", 2, "the schema's column primary_minor_id is another one in a row g"),
        (b"primary_minor_id", b"primary_m\xffnor_id", 3, "can't be parsed: UnicodeDecodeError"),
        # Field 3, 64 bits: the rows of the file.
        (b"\x16\xd8\x04", b"\x16\xda\x04", 1, "its row groups have 300 rows, the file 301"),
    ],
)
def test_a_footer_that_contradicts_itself_or_is_no_text_is_told(
    tmp_path: Path, old: bytes, new: bytes, nth: int, told: str
) -> None:
    raw = write_events(tmp_path / "f.parquet", make_events([1, 2, 3] * 100), row_group_rows=150).read_bytes()
    at = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little") - 1
    for _ in range(nth):
        at = raw.index(old, at + 1)
    (tmp_path / "f.parquet").write_bytes(raw[:at] + new + raw[at + len(old) :])
    with pytest.raises(parsing.DamagedFooter, match=told):
        parsing.parse_footer(tmp_path / "f.parquet")


# ---------------------------------------------------------------- Thrift's compact protocol, written


def thrift(value: Any) -> tuple[int, bytes]:
    """(type, bytes) of an int, bytes, list, dict of fields, or bool."""
    match value:
        case bool():
            return 1 if value else 2, b""
        case int():
            return 6, varint((value << 1) ^ (value >> 63))
        case bytes():
            return 8, varint(len(value)) + value
        case list():
            items = [thrift(item) for item in value] or [(12, b"")]
            size = len(value)
            head = bytes([size << 4 | items[0][0]]) if size < 15 else bytes([0xF0 | items[0][0]]) + varint(size)
            return 9, head + b"".join(raw for _, raw in items[:size])
        case dict():
            raw = b""
            for number, field in value.items():
                kind, content = thrift(field)
                raw += bytes([kind]) + varint(number << 1) + content
            return 12, raw + b"\x00"
    raise TypeError(value)


extremes = st.sampled_from([-(1 << 63), -1, 0, 1, 2, 7, 100, 1 << 31, 1 << 40, (1 << 62) - 1, (1 << 63) - 1])
wrong = st.one_of(
    extremes,
    st.binary(max_size=4),
    st.booleans(),
    st.builds(list),
    st.builds(dict),
    st.builds(lambda: [{}]),
    st.builds(lambda: [1]),
)


@st.composite
def footers(draw: st.DrawFn) -> dict[int, Any]:
    """A footer of two columns, in which up to three things are wrong."""
    names = (b"a", b"muons")

    def column(name: bytes) -> dict[int, Any]:
        values = {1: 4, 2: [0], 3: [name], 4: 0, 5: 10, 6: 100, 7: 40, 9: 4 + 40 * names.index(name)}
        return {2: 0, 3: values}

    elements = [{4: b"schema", 5: 2}, *({1: 4, 3: 0, 4: name} for name in names)]
    footer = {1: 2, 2: elements, 3: 10, 4: [{1: [column(name) for name in names], 2: 80, 3: 10}]}
    for _ in range(draw(st.integers(0, 3))):
        holder: Any = footer
        for _ in range(draw(st.integers(0, 6))):
            inner = [key for key in (holder if isinstance(holder, dict) else range(len(holder)))]
            inner = [key for key in inner if isinstance(holder[key], dict | list) and holder[key]]
            if not inner:
                break
            holder = holder[draw(st.sampled_from(inner))]
        key = draw(st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder))))
        if draw(st.booleans()):
            holder[key] = draw(wrong)
        elif isinstance(holder, dict):
            del holder[key]
            if not holder:
                break
        else:
            holder.append(holder[key])
    return footer


@settings(deadline=None, max_examples=150)
@given(footers())
def test_a_footer_that_says_anything_is_parsed_or_refused(
    tmp_path_factory: pytest.TempPathFactory, footer: dict[int, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.parquet"
    raw = thrift(footer)[1]
    path.write_bytes(b"PAR1" + bytes(80) + raw + len(raw).to_bytes(4, "little") + b"PAR1")
    try:
        parsed = parsing.parse_footer(path)
    except parsing.DamagedFooter:
        return
    assert parsed.rows == sum(group.rows for group in parsed.row_groups)
    for group in parsed.row_groups:
        for column in group.columns:
            assert 0 <= column.start <= column.start + column.num_bytes <= 84
            assert column.num_values >= group.rows >= 0


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                1: st.sampled_from([0, 1, 2, 3, 4, -1]) | wrong,
                2: extremes | wrong,
                3: st.integers(0, 30) | wrong,
                5: st.fixed_dictionaries({1: st.integers(0, 20) | extremes}) | wrong,
                7: st.fixed_dictionaries({1: st.integers(0, 20) | extremes}) | wrong,
                8: st.fixed_dictionaries({}, optional={1: st.integers(0, 20) | extremes}) | wrong,
            },
        ),
        max_size=4,
    ),
    st.binary(max_size=40),
    st.integers(0, 40),
)
def test_page_headers_that_say_anything_are_counted_or_refused(
    tmp_path_factory: pytest.TempPathFactory, headers: list[dict[int, Any]], body: bytes, values: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "pages"
    raw = b"".join(thrift(header)[1] + body for header in headers)
    path.write_bytes(raw)
    column = parsing.ColumnChunk(("muons",), values, 0, 0, len(raw))
    with path.open("rb") as file:
        try:
            parsing.check_pages(file.fileno(), column)
        except parsing.DamagedFooter as error:
            assert str(error).startswith("column muons: ")  # noqa: PT017  either is right


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 40),
    st.integers(1, 12),
    st.sampled_from([None, "gzip", "lzf"]),
    st.booleans(),
    st.lists(
        st.tuples(
            st.sampled_from(["counts", "muons", "primaries"]),
            st.integers(0, 50),
            st.sampled_from(
                [b"", b"\x00", bytes(48), zlib.compress(bytes(48)), zlib.compress(bytes(100_000)), bytes(5000)]
            ),
            st.sampled_from([0, 1, 2, 3, 0xFFFF]),
        ),
        max_size=3,
    ),
)
def test_chunks_that_hold_anything_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    events: int,
    chunk_rows: int,
    compression: str | None,
    checksum: bool,
    changes: list[tuple[str, int, bytes, int]],
) -> None:
    path = tmp_path_factory.mktemp("fuzzed") / "f.h5"  # HDF5 may keep a file open that it can't close
    options = {"fletcher32": checksum, **({"compression": compression} if compression else {})}
    tables = tables_of(make_events([i % 3 for i in range(events)]))
    write_tables(path, tables, chunk_rows=chunk_rows, **options)
    # A chunk that is too long overwrites what lies behind it, which HDF5 may need for the next one, or to close.
    with contextlib.suppress(KeyError, OSError, RuntimeError), h5py.File(path, "a") as file:
        for name, chunk, stored, mask in changes:
            rows = file[name].shape[0]
            first = (chunk * chunk_rows) % max(rows, 1) // chunk_rows * chunk_rows
            place = (first, *(0 for _ in file[name].shape[1:]))
            if stored:
                file[name].id.write_direct_chunk(place, stored, filter_mask=mask)
    try:
        footer = read_footer(path, MUONS, STREAM, CAPACITY)
    except BadFileError as error:
        assert "\n" not in str(error)  # noqa: PT017  either is right
        return
    assert footer.rows == events
    assert sum(group.particles for group in footer.row_groups) == len(tables["muons"])


# ---------------------------------------------------------------- what must be accepted


NAMES = {source.name: source.name for source in MUONS.source_columns}


def claims(rows: int, particles: int) -> parsing.ParquetFooter:
    """One row group, as a footer tells it."""
    values = {"primary_major_id": rows, "primary_minor_id": rows, "primary": 4 * rows, "muons": 3 * particles}
    columns = tuple(parsing.ColumnChunk((name,), number, 0, 0, 4 * number) for name, number in values.items())
    return parsing.ParquetFooter(
        rows, (parsing.RowGroupMetadata(rows, columns),), tuple(column.path for column in columns)
    )


@pytest.mark.parametrize(("rows", "particles"), [(0, 0), (1, 178_000), (10_000_000, 80_000_000), (5000, 890_000_000)])
def test_large_row_groups_are_within_what_may_be_claimed(rows: int, particles: int) -> None:
    parsing.check_claims(claims(rows, particles), MUONS, NAMES)


def test_more_rows_than_can_be_counted_are_refused_before_anything_is_decoded() -> None:
    with pytest.raises(parsing.DamagedFooter, match="row group 0 has 33554433 rows; at most 33554432 are read"):
        parsing.check_claims(claims(parsing.MOST_ROWS + 1, 0), MUONS, NAMES)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 30) | st.sampled_from([178_000, 1_000_000, 5_592_104]), min_size=1, max_size=300),
    st.sampled_from([1, 8, 64]),
    st.integers(0, 4096),
)
def test_any_outliers_are_planned_within_memory(counts: list[int], slot_mib: int, most: int) -> None:
    stream = StreamConfig(slot_mib=slot_mib, max_particles_per_event=most)
    capacity = SlotCapacity(MUONS, stream)
    if max(counts) > capacity.largest_event:
        with pytest.raises(BadFileError, match="particles; at most"):
            check_largest(np.array(counts), capacity.largest_event, "row group 0")
        return
    spans = cut_spans(np.array(counts * 3), capacity, stream)
    assert sum(span.rows for span in spans) == 3 * len(counts)
    for span in spans:
        of_span = (counts * 3)[span.first_row : span.first_row + span.rows]
        assert capacity.fits(span.rows, span.particles)
        assert sum(of_span) <= capacity.largest_event, "an outlier counts as a share of its particles"
        rows = span.batch_rows or 16_384
        for first in range(0, 3 * len(counts), rows):
            in_batch = (counts * 3)[first : first + rows]
            assert rows == 1 or sum(in_batch) <= capacity.particles + max(counts)
