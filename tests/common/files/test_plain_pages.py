"""Parquet pages read in C++: the same rows as Arrow's, to the bit, or left to Arrow."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import make_events, make_table
from native_layers import compiled, files_in_cpp

from common.config import StreamConfig
from common.files.by_content import read_footer
from common.files.local import BadFileError
from common.files.parquet.reader import ParquetReader
from common.files.rows import FILES, BadRowsError, RaggedRows
from common.messages import Part
from common.plan import SlotCapacity
from common.schema import Column, EventSchema, SourceColumn
from common.unit_arrays import address
from workloads.muons.columns import MUONS

pytestmark = pytest.mark.process  # a compiler

PLAIN: dict[str, Any] = {"use_dictionary": False, "compression": "snappy"}
STREAM = StreamConfig()
NAN = float("nan")
ODD = np.array([0, -0.0, 1e-45, 3.4e38, 1, -1], np.float32)


@pytest.fixture(autouse=True)
def a_compiler() -> None:
    compiled(FILES)


def rows_of(path: Path, parts: Sequence[Part], workload: EventSchema, large_above: int, *, in_cpp: bool) -> Any:
    """Bytes of all arrays and the large events, or the error; and whether the file was read in C++."""
    with files_in_cpp() if in_cpp else nullcontext(), closing(ParquetReader(workload)) as reader:
        try:
            pieces = reader.read(parts, large_above=large_above)
        except BadRowsError as error:
            return str(error), False
        opened = reader._files.get(str(path))
        return contents(pieces, workload), opened is not None and opened.plain is not None


def contents(pieces: Sequence[RaggedRows], workload: EventSchema) -> Any:
    counts = np.concatenate([piece.counts for piece in pieces])
    columns = {}
    for column in workload.read_columns:
        arrays = [(p.event_columns if column.per == "event" else p.particle_columns)[column.name] for p in pieces]
        columns[column.name] = np.concatenate(arrays).tobytes(), {array.dtype.str for array in arrays}
    large, first = [], 0
    for piece in pieces:
        if piece.large_events is not None:
            large.append((piece.large + first, piece.large_events))
        first += len(piece.counts)
    tables = pa.concat_tables([table for _, table in large]).combine_chunks() if large else None
    rows = [row for places, _ in large for row in places.tolist()]
    dropped = sum(piece.particles_dropped for piece in pieces)
    # Types and values as text: NaN is equal to NaN.
    large_events = tables and (str(tables.schema.remove_metadata()), str(tables.to_pylist()))
    return counts.tolist(), columns, rows, large_events, dropped, invalid_of(pieces)


def invalid_of(pieces: Sequence[RaggedRows]) -> tuple[dict[str, list[int]], str]:
    """Rows, counted over all pieces, of each rule that is broken, and the events as stored in the files."""
    found: dict[str, list[int]] = {}
    first = 0
    for piece in pieces:
        for one in piece.invalid:
            found.setdefault(one.rule, []).extend((one.rows + first).tolist())
        first += len(piece.counts)
    return found, str([row for piece in pieces if piece.invalid_events for row in piece.invalid_events.to_pylist()])


def read_in_cpp(path: Path, workload: EventSchema = MUONS, large_above: int = 1 << 40) -> bool:
    """Compare both ways; True if C++ has read the file. Raises BadFileError if it can't be planned."""
    groups = read_footer(path, workload, STREAM, SlotCapacity(workload, STREAM)).row_groups
    parts = [Part(0, str(path), i, 0, group.rows, group.particles, 0) for i, group in enumerate(groups)]
    by_arrow, _ = rows_of(path, parts, workload, large_above, in_cpp=False)
    found, was_used = rows_of(path, parts, workload, large_above, in_cpp=True)
    assert found == by_arrow
    return was_used


def muon_table(counts: Sequence[int], seed: int = 0, *, nullable: tuple[bool, ...] = (True,) * 5) -> pa.Table:
    """Events of these numbers of muons, a tenth of which have no energy. ``nullable``: from outside to inside."""
    rng = np.random.default_rng(seed)
    muons = rng.uniform(0.1, 1000, (sum(counts), 3)).astype(np.float32)
    muons[rng.random(len(muons)) < 0.1, 0] = 0
    muons[:, 1] = ODD[rng.integers(len(ODD), size=len(muons))]
    number = pa.field("element", pa.float32(), nullable[0])
    inner = pa.list_(number)
    outer = pa.list_(pa.field("element", inner, nullable[1]))
    schema = pa.schema(
        [
            pa.field("primary_major_id", pa.uint64(), nullable[2]),
            pa.field("primary_minor_id", pa.uint64(), nullable[3]),
            pa.field("primary", inner, nullable[3]),
            pa.field("muons", outer, nullable[4]),
        ],
        metadata={"made": "here"},
    )
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(len(muons) + 1, dtype=np.int32) * 3), pa.array(muons.reshape(-1)), type=inner
    )
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    primary = rng.uniform(0.1, 1, (len(counts), 4)).astype(np.float32)
    return pa.Table.from_arrays(
        [
            pa.array(rng.integers(0, 2**63, len(counts)).astype(np.uint64) * 2 + 1),
            pa.array(np.arange(len(counts), dtype=np.uint64)),
            pa.array(primary.tolist(), inner),
            pa.ListArray.from_arrays(pa.array(offsets), lists, type=outer),
        ],
        schema=schema,
    )


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.one_of(st.integers(0, 3), st.just(0), st.integers(20, 60)), min_size=1, max_size=80),
    st.tuples(*[st.booleans()] * 5),
    st.sampled_from(["none", "snappy", "zstd"]),
    st.sampled_from([1, 200, 1 << 20]),
    st.sampled_from([1, 9, 1000]),
    st.booleans(),
    st.sampled_from([1, 30, 1 << 40]),
)
def test_plain_files_give_the_same_bytes_as_arrow(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    nullable: tuple[bool, ...],
    compression: str,
    page_bytes: int,
    rows: int,
    checksums: bool,
    large_above: int,
) -> None:
    path = tmp_path_factory.mktemp("f") / "f.parquet"
    options: dict[str, Any] = {"compression": compression, "data_page_size": page_bytes, "row_group_size": rows}
    pq.write_table(
        muon_table(counts, len(counts), nullable=nullable),
        path,
        use_dictionary=False,
        write_page_checksum=checksums,
        write_batch_size=7,
        **options,
    )
    assert read_in_cpp(path, large_above=large_above)


@pytest.mark.parametrize("in_a_page", [1, 8])
def test_a_great_many_pages_of_next_to_nothing_are_left_to_arrow(tmp_path: Path, in_a_page: int) -> None:
    """Each page takes as long in Python as thousands of numbers, and the decoder says nothing meanwhile."""
    path = tmp_path / "f.parquet"
    pq.write_table(muon_table([1] * 400), path, data_page_size=1, write_batch_size=in_a_page, **PLAIN)
    assert read_in_cpp(path) == (in_a_page == 8)


def scalar_workload() -> EventSchema:
    """Particles of two columns of numbers, and ids of 32 bits."""
    return EventSchema(
        name="made",
        columns=(
            Column("pulses", "particle", "<f8", ("time_ns", "charge")),
            Column("sensor", "particle", "<i4", ("sensor",)),
            Column("id", "event", "<i8", ("id",)),
        ),
        source_columns=(
            SourceColumn("time", "pulses", 0),
            SourceColumn("charge", "pulses", 1),
            SourceColumn("sensor", "sensor", 0),
            SourceColumn("id", "id", 0),
        ),
        rules=(),
    )


@pytest.mark.parametrize("counts", [[3, 0, 0, 5, 1], [0], [0, 0], [1] * 40])
def test_columns_of_one_number_a_particle_are_read_too(tmp_path: Path, counts: list[int]) -> None:
    rng = np.random.default_rng(1)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    lists = [
        pa.ListArray.from_arrays(offsets, pa.array(values))
        for values in (rng.random(sum(counts)), rng.random(sum(counts)), rng.integers(0, 9, sum(counts)).astype("i4"))
    ]
    columns = dict(zip(("time", "charge", "sensor"), lists, strict=True))
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({**columns, "id": np.arange(len(counts))}), path, row_group_size=2, **PLAIN)
    assert read_in_cpp(path, scalar_workload(), large_above=2)


def test_columns_of_other_lengths_are_left_to_arrow(tmp_path: Path) -> None:
    table = pa.table({"time": [[1.0], []], "charge": [[], [1.0]], "sensor": pa.array([[1], []], pa.list_(pa.int32()))})
    path = tmp_path / "f.parquet"
    pq.write_table(table.append_column("id", pa.array([1, 2])), path, **PLAIN)
    assert not read_in_cpp(path, scalar_workload())


@pytest.mark.parametrize(
    ("table", "options"),
    [
        *(
            (muon_table([3, 0, 2, 9]), options)
            for options in (
                {"use_dictionary": True},
                {"compression": "gzip"},
                {"compression": "lz4"},
                {"data_page_version": "2.0"},
                {"use_byte_stream_split": ["muons.list.element.list.element"]},
                {"column_encoding": {"primary_major_id": "DELTA_BINARY_PACKED"}},
            )
        ),
        (make_table(make_events([1, 2]), number=pa.float64()), {}),
        (make_table(make_events([1, 2]), list_of=pa.large_list), {}),
    ],
)
def test_other_encodings_and_types_are_left_to_arrow(tmp_path: Path, table: pa.Table, options: dict[str, Any]) -> None:
    pq.write_table(table, tmp_path / "f.parquet", **{**PLAIN, **options})
    assert not read_in_cpp(tmp_path / "f.parquet", large_above=1)


@pytest.mark.parametrize(
    ("column", "values", "in_cpp"),
    [
        ("muons", [[[1.0, 2.0, 3.0]], None], False),
        ("muons", [[[1.0, 2.0, 3.0]], [None]], False),
        ("muons", [[[1.0, 2.0, 3.0]], [[1.0, None, 3.0]]], False),
        ("muons", [[[1.0, 2.0, 3.0]], [[1.0, 2.0]]], False),
        ("muons", [[[1.0, 2.0, 3.0]], [[]]], False),
        ("muons", [[[1.0, 2.0, 3.0]], [[1.0, 2.0, NAN]]], True),
        ("primary", [[1.0, 2.0, 3.0, 4.0], None], False),
        ("primary", [[1.0, 2.0, 3.0, 4.0], [1.0]], False),
        ("primary", [[1.0, 2.0, 3.0, 4.0], [1.0] * 5], False),
        ("primary", [[1.0, 2.0, 3.0, 4.0], [-1.0] * 4], True),
        ("primary_major_id", [1, None], False),
    ],
)
def test_bad_values_are_invalid_events_by_both(tmp_path: Path, column: str, values: list[Any], in_cpp: bool) -> None:
    table = make_table(make_events([1, 1]))
    index = table.column_names.index(column)
    path = tmp_path / "f.parquet"
    pq.write_table(table.set_column(index, column, pa.array(values, table.schema.field(column).type)), path, **PLAIN)
    assert read_in_cpp(path) == in_cpp


def damaged_files(path: Path, good: bytes, tries: int, *, footer_too: bool) -> Iterator[int]:
    """Write damaged copies of a file."""
    end = len(good) if footer_too else len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    for seed in range(tries):
        rng = random.Random(seed)
        raw = bytearray(good)
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            at = rng.randrange(4, end)
            raw[at] = rng.choice([0, 1, 2, 127, 128, 255, raw[at] ^ 1 << rng.randrange(8), rng.randrange(256)])
        path.write_bytes(raw)
        yield seed


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("footer_too", [False, True])
def test_damaged_files_give_what_arrow_gives(tmp_path: Path, compression: str, footer_too: bool) -> None:
    """Rows of other numbers, or the same error: files of muons have no checksums."""
    path = tmp_path / "f.parquet"
    options: dict[str, Any] = {**PLAIN, "compression": compression, "write_statistics": footer_too}
    pq.write_table(muon_table([3, 0, 0, 2, 1, 9, 0, 4]), path, row_group_size=5, data_page_size=60, **options)
    num_read = num_left = 0
    for _ in damaged_files(path, path.read_bytes(), 150, footer_too=footer_too):
        try:
            was_used = read_in_cpp(path, large_above=8)
        except BadFileError:
            continue  # never planned
        num_read += was_used
        num_left += not was_used
    assert num_read > 5, "some bytes are numbers"
    assert num_left > 5


LEVELS_OF_ONE_EVENT = bytes([2, 0, 0, 0, 2, 0]) + bytes([2, 0, 0, 0, 2, 5])
"""One level 0 and one level 5, as runs."""


def read_page(page: bytes, num_values: int, most_lists: int = 4) -> int:
    """Outcome of C++ for a page of lists of one number, in a list each."""
    raw = np.frombuffer(page, np.uint8)
    levels, counts, out = np.empty(num_values + 16, np.uint8), np.empty(4, np.int64), np.empty(most_lists, np.float32)
    found = np.empty(2, np.int64)
    code: int = compiled(FILES).read_page(
        *(address(raw), len(raw), num_values, 2, 5, 1, 1, 4, 4, address(levels), len(levels)),
        *(address(counts), len(counts), address(out), most_lists, address(found)),
    )
    return code


def test_a_page_is_read_to_its_last_byte_and_no_further() -> None:
    page = LEVELS_OF_ONE_EVENT + b"\0\0\x80\x3f"
    assert read_page(page, 1) == 0
    assert read_page(page, 1, most_lists=0) != 0
    assert read_page(page + b"\0", 1) != 0
    assert read_page(page, 2) != 0, "a page whose header has more values than its bytes"
    for length in range(len(page)):
        assert read_page(page[:length], 1) != 0


@pytest.mark.parametrize(
    "runs",
    [
        b"\0\0",  # a run of no values: an endless loop
        b"\1",  # no group of eight
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # 2^63 groups
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\0",  # a run of 2^63 values
        b"\x80" * 20,
        b"\2\7",  # a level above the highest
        b"",
    ],
)
def test_levels_that_can_t_be_are_left_to_arrow(runs: bytes) -> None:
    length = len(runs).to_bytes(4, "little")
    for levels in (length + runs + LEVELS_OF_ONE_EVENT[6:], LEVELS_OF_ONE_EVENT[:6] + length + runs):
        assert read_page(levels + b"\0\0\x80\x3f", 1) != 0


@pytest.mark.parametrize("num_values", [0, 1, 5, 1 << 20])
@settings(deadline=None, max_examples=100)
@given(page=st.binary(max_size=80))
def test_any_bytes_are_read_or_left(num_values: int, page: bytes) -> None:
    read_page(page, num_values)
    found = np.empty(5, np.int64)
    raw = np.frombuffer(page, np.uint8)
    length = compiled(FILES).parse_page_header(address(raw), len(raw), address(found))
    assert -1 <= length <= len(page)
    for codec in (1, 6):
        compiled(FILES).declared_size(codec, address(raw), len(raw))
