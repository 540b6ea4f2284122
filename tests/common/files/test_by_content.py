"""Kinds of files by their content, and the footers of Parquet files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import h5py
import pyarrow.parquet as pq
import pytest
from hdf5_files import write_hdf5
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import make_events, make_table, write_events

from common.config import StreamConfig
from common.errors import BadInputError
from common.files.by_content import read_footer
from common.files.local import BadFileError, file_kind
from common.plan import Footer, SlotCapacity
from workloads.muons.columns import MUONS

STREAM = StreamConfig(unit_events=50, max_particles=100, max_particles_per_event=40, slot_mib=0.0157)
CAPACITY = SlotCapacity(MUONS, STREAM)


def test_the_kind_is_told_by_content_and_not_by_suffix(tmp_path: Path) -> None:
    assert file_kind(write_events(tmp_path / "a.h5", make_events([1]))) == "Parquet"
    assert file_kind(write_hdf5(tmp_path / "b.parquet", make_events([1]))) == "HDF5"


@pytest.mark.parametrize("block_bytes", [512, 1024, 4096])
def test_hdf5_behind_a_block_of_the_users_own_is_found(tmp_path: Path, block_bytes: int) -> None:
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=block_bytes) as file:
        file["x"] = 1
    assert file_kind(tmp_path / "a.h5") == "HDF5"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "the file is empty; expected Parquet or HDF5"),
        (b"<html>404</html>" * 100, "neither Parquet nor HDF5: the file begins with b'<html>40'"),
        (b"PA", "truncated, or neither Parquet nor HDF5: the file begins with b'PA'"),
        (b"PARE" + b"x" * 100, "an encrypted Parquet file"),
    ],
)
def test_anything_else_is_named_by_what_it_begins_with(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "f.parquet").write_bytes(content)
    with pytest.raises(BadInputError, match=re.escape(told)):
        file_kind(tmp_path / "f.parquet")


def footer_of(path: Path) -> Footer:
    return read_footer(path, MUONS, STREAM, CAPACITY)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_the_bound_of_the_particles_is_an_upper_one_and_tight(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int]
) -> None:
    path = write_events(tmp_path_factory.mktemp("f") / "f.parquet", make_events(counts))
    (group,) = footer_of(path).row_groups
    assert sum(counts) <= group.particles <= sum(counts) + counts.count(0) // 3


def test_a_file_without_rows_has_none(tmp_path: Path) -> None:
    assert footer_of(write_events(tmp_path / "f.parquet", [])).rows == 0


@pytest.mark.parametrize(
    ("write", "kept", "told"),
    [
        *((write_events, kept, "truncated, or not Parquet") for kept in (0.5, 0.99)),
        *((write_hdf5, kept, "truncated, or damaged: .*truncated file: eof") for kept in (0.3, 0.999)),
    ],
)
def test_a_truncated_file_is_told(tmp_path: Path, write: Callable[..., Path], kept: float, told: str) -> None:
    path = write(tmp_path / "f.parquet", make_events([1] * 100))
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * kept)])
    with pytest.raises(BadFileError, match=told):
        footer_of(path)


@pytest.mark.parametrize("column", ["muons", "primary", "primary_major_id"])
def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path, column: str) -> None:
    pq.write_table(make_table(make_events([1, 2])).drop_columns([column]), tmp_path / "f.parquet")
    with pytest.raises(BadFileError, match=f"column '{column}' is missing; the file has .*primary_minor_id") as told:
        footer_of(tmp_path / "f.parquet")
    assert told.value.rows == 2
