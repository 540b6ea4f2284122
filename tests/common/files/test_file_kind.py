from __future__ import annotations

import re
from pathlib import Path

import h5py
import pytest
from hdf5_files import write_hdf5
from muon_files import make_events, write_events

from common.errors import BadInputError
from common.files.file_kind import file_kind


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


def test_a_file_that_is_not_there_is_the_machines_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file_kind(tmp_path / "f.parquet")
