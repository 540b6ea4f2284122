"""HDF5 tables read in C++: the same rows as numpy's, to the bit, or left to numpy."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hdf5_files import tables_of, write_tables
from hypothesis import given, settings
from hypothesis import strategies as st
from invalid_rows import content_of, invalid_of
from muon_files import make_events
from native_layers import compiled, files_in_cpp

from common.files.hdf5 import reader as hdf5
from common.files.hdf5 import span
from common.files.hdf5.reader import Hdf5Reader
from common.files.native import FILES
from common.files.rows import BadRowsError
from common.messages import Part
from workloads.muons.columns import MUONS

pytestmark = pytest.mark.process  # a compiler

NAN, INF = float("nan"), float("inf")


def rows_of(path: Path, part: Part, large_above: int, *, in_cpp: bool) -> Any:
    """Bytes of all arrays and the large events, or the error; and whether C++ has read the rows."""
    answers: list[bool] = []
    read = span.read_span

    def spy(*arguments: Any) -> Any:
        found = read(*arguments)
        answers.append(found is not None)
        return found

    context = files_in_cpp() if in_cpp else nullcontext()
    with pytest.MonkeyPatch.context() as patch, context, closing(Hdf5Reader(MUONS)) as reader:
        patch.setattr(hdf5, "read_span", spy)
        try:
            pieces = reader.read([part], large_above=large_above)
        except BadRowsError as error:
            return str(error), any(answers)
    arrays = {
        name: np.concatenate([{**p.event_columns, **p.particle_columns}[name] for p in pieces])
        for name in ("muons", "primary", "primary_id")
    }
    firsts = np.cumsum([0, *(len(piece.counts) for piece in pieces)])
    large = [int(first) + row for first, piece in zip(firsts, pieces, strict=False) for row in piece.large.tolist()]
    tables = [piece.large_events for piece in pieces if piece.large_events is not None]
    return (
        [count for piece in pieces for count in piece.counts.tolist()],
        {name: (array.tobytes(), array.dtype.str) for name, array in arrays.items()},
        large,
        content_of(pa.concat_tables(tables).combine_chunks() if tables else None),
        sum(piece.particles_dropped for piece in pieces),
        invalid_of(pieces),
    ), any(answers)


def read_in_cpp(path: Path, rows: int, large_above: int = 1 << 40, first: int = 0) -> bool:
    """Compare both ways; True if C++ has read the rows."""
    part = Part(0, str(path), 0, first, rows - first, 1 << 20, file_row=0)
    by_numpy, _ = rows_of(path, part, large_above, in_cpp=False)
    found, was_used = rows_of(path, part, large_above, in_cpp=True)
    assert found == by_numpy
    return was_used


ODD = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, 3.4e38, NAN, INF, -INF, 2.0**63, 2.0**64, 0.5])


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=40),
    st.lists(st.tuples(st.sampled_from(["muons", "primaries"]), st.integers(0, 10_000), ODD), max_size=3),
    st.booleans(),
    st.sampled_from([1, 3, 1 << 40]),
    st.sampled_from([1, 5, 4096]),
    st.data(),
)
def test_any_numbers_give_the_same_bytes_or_the_same_error(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    changes: list[tuple[str, int, float]],
    fillers: bool,
    large_above: int,
    block: int,
    data: st.DataObject,
) -> None:
    compiled(FILES)
    tables = tables_of(make_events(counts), fillers=fillers)
    for name, place, value in changes:
        if tables[name].size:
            tables[name].flat[place % tables[name].size] = value
    path = write_tables(tmp_path_factory.mktemp("f") / "f.h5", tables)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(span, "_BLOCK", block)
        was_used = read_in_cpp(path, len(counts), large_above, data.draw(st.integers(0, len(counts) - 1)))
    assert was_used or changes or not sum(counts)


@pytest.mark.parametrize(
    "options", [{"chunk_rows": 2}, {"dtype": "<f8"}, {"dtype": ">f4"}, {"compression": "gzip", "chunk_rows": 4}]
)
def test_other_tables_are_left_to_numpy(tmp_path: Path, options: dict[str, Any]) -> None:
    compiled(FILES)
    dtype = options.pop("dtype", "<f4")
    path = write_tables(tmp_path / "f.h5", tables_of(make_events([2, 0, 3]), dtype=dtype), **options)
    assert not read_in_cpp(path, 3)


def test_a_chunk_wider_than_its_table_is_left_to_numpy(tmp_path: Path) -> None:
    """Read as one row behind the other, the bytes beside the rows would be muons, here with the right ids."""
    compiled(FILES)
    tables = tables_of(make_events([1, 1]))
    path = write_tables(tmp_path / "f.h5", {name: tables[name] for name in ("primaries", "counts")})
    wide = np.zeros((2, 8), np.float32)
    wide[:, :5] = tables["muons"]
    wide[0, 5:] = [*tables["primaries"][1, :2], 1]  # ids of the second event, and an energy
    with h5py.File(path, "a") as file:
        muons = file.create_dataset("muons", (2, 5), "<f4", chunks=(1000, 8), maxshape=(None, None))
        muons.id.write_direct_chunk((0, 0), np.concatenate([wide, np.zeros((998, 8), np.float32)]).tobytes())
    assert not read_in_cpp(path, 2)


def test_rows_behind_the_end_of_a_truncated_file_are_reported_by_numpy(tmp_path: Path) -> None:
    compiled(FILES)
    path = write_tables(tmp_path / "f.h5", tables_of(make_events([2, 1, 3])))
    part = Part(0, str(path), 0, 0, 3, 1 << 20, file_row=0)
    with files_in_cpp(), closing(Hdf5Reader(MUONS)) as reader:
        reader.read([part])  # the file is open
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 30)
        with pytest.raises(BadRowsError, match="truncated"):
            reader.read([part])
