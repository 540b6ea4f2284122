from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import make_events, make_table, write_events

from common.files.parquet.footer import DamagedFooter, parse_footer


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
    footer = parse_footer(path)
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


def changed(path: Path, old: bytes, new: bytes, *, place: int = -1) -> Path:
    """Other bytes in the footer; the last occurrence, or the one with that number."""
    raw = path.read_bytes()
    start = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    at = start
    for _ in range(place + 1):
        at = raw.index(old, at) + 1
    at = at - 1 if place >= 0 else raw.rindex(old)
    assert at >= start
    assert len(old) == len(new)
    path.write_bytes(raw[:at] + new + raw[at + len(old) :])
    return path


def a_file(folder: Path) -> Path:
    return write_events(folder / "f.parquet", make_events([1, 2, 3] * 100), row_group_rows=150)


def test_a_column_that_is_another_one_in_a_row_group_is_told(tmp_path: Path) -> None:
    path = changed(a_file(tmp_path), b"primary_minor_id", b"primary_mjnor_id", place=1)
    with pytest.raises(DamagedFooter, match="the schema's column primary_minor_id is another one in a row group"):
        parse_footer(path)


def test_a_name_that_is_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(DamagedFooter, match="can't be parsed: UnicodeDecodeError"):
        parse_footer(changed(a_file(tmp_path), b"primary_minor_id", b"primary_m\xffnor_id"))


def test_rows_that_do_not_add_up_are_told(tmp_path: Path) -> None:
    path = a_file(tmp_path)
    three_hundred = b"\x16\xd8\x04"  # field 3, 64 bits: the rows of the file
    with pytest.raises(DamagedFooter, match="its row groups have 300 rows, the file 301"):
        parse_footer(changed(path, three_hundred, b"\x16\xda\x04", place=0))


@pytest.mark.parametrize("kept", [0, 11, 100, 4000])
def test_a_truncated_file_is_told(tmp_path: Path, kept: int) -> None:
    path = a_file(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DamagedFooter, match=r"bytes|doesn't end"):
        parse_footer(path)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_footer_is_parsed_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = a_file(tmp_path_factory.mktemp("f"))
    raw = bytearray(path.read_bytes())
    start = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    for _ in range(data.draw(st.integers(1, 20))):
        raw[data.draw(st.integers(start, len(raw) - 9))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    try:
        footer = parse_footer(path)
    except DamagedFooter:
        return
    assert footer.rows == sum(group.rows for group in footer.row_groups)
    assert all(c.start >= 0 and c.start + c.num_bytes <= len(raw) for g in footer.row_groups for c in g.columns)
