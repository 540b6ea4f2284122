"""`convert` of columns of any fixed width."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from column_files import Form, any_forms, make, write
from derived_columns import DERIVED, charges_of, write_derived
from hypothesis import given, settings
from hypothesis import strategies as st

from common.files.parquet.reader import ParquetReader
from common.files.rows import RaggedRows
from common.messages import Part
from common.schema import Column
from icestream.commands.convert.convert import convert_file


def rows_of(path: Path, workload: object) -> list[RaggedRows]:
    reader = ParquetReader(workload)  # type: ignore[arg-type]
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    found = [
        piece for i, rows in enumerate(groups) for piece in reader.read([Part(0, str(path), i, 0, rows, 1 << 20, 0)])
    ]
    reader.close()
    return found


@settings(deadline=None, max_examples=60)
@given(any_forms(), st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(0, 1 << 30), st.booleans())
def test_every_column_is_kept_in_the_type_and_the_place_that_the_workload_describes(
    tmp_path_factory: pytest.TempPathFactory, forms: list[Form], counts: list[int], seed: int, nulls: bool
) -> None:
    folder = tmp_path_factory.mktemp("f")
    made = make(forms, counts, seed, nulls=nulls)
    path = write(folder / "f.parquet", made, rows_per_group=7, extra=True)
    done = convert_file(path, folder / "out.parquet", made.workload, rows_per_group=4, compression="zstd")
    assert (done.rows_in, done.null_events) == (len(counts), made.null_events.sum())
    assert done.dropped == made.null_particles.sum()
    expected = [made.event(int(row)) for row in np.flatnonzero(~made.null_events)]
    found = []
    for piece in rows_of(folder / "out.parquet", made.workload):
        assert piece.is_null is None
        ends = np.cumsum(piece.counts)
        for i, (first, end) in enumerate(zip(ends - piece.counts, ends, strict=True)):
            event = {name: values[i : i + 1].tolist() for name, values in piece.event_columns.items()}
            event |= {name: values[first:end].tolist() for name, values in piece.particle_columns.items()}
            found.append(event)
    assert found == expected


@pytest.mark.parametrize("form", ["flat", "shared struct"])
def test_pulses_become_lists_or_lists_of_structs_without_nulls(tmp_path: Path, form: str) -> None:
    types = {"sensor": "<i2", "time": "<f4", "auxiliary": "|b1"}
    forms = [Form(Column("direction", "event", "<f4", ("azimuth", "zenith")), "struct", "<f8", "list", "list")]
    forms += [Form(Column(name, "particle", kind, ("v",)), form, kind, "large", "list") for name, kind in types.items()]
    made = make(forms, [2, 0, 3], 1)
    path = write(tmp_path / "in.parquet", made, rows_per_group=2)
    out = tmp_path / "out.parquet"
    convert_file(path, out, made.workload, rows_per_group=10, compression="zstd")
    schema = pq.read_schema(out)
    angles = [pa.field(f"direction_{name}", pa.float32(), False) for name in ("azimuth", "zenith")]
    assert schema.field("direction") == pa.field("direction", pa.struct(angles), False)
    numbers = [
        pa.field(source.path[-1], pa.from_numpy_dtype(np.dtype(kind)), False)
        for source, kind in zip(made.workload.source_columns[2:], types.values(), strict=True)
    ]
    if form == "flat":
        for number in numbers:
            kind = pa.list_(pa.field("element", number.type, False))
            assert schema.field(number.name) == pa.field(number.name, kind, False)
    else:
        pulses = pa.list_(pa.field("element", pa.struct(numbers), False))
        assert schema.field("pulses") == pa.field("pulses", pulses, False)
    with pq.ParquetFile(out) as file:
        group = file.metadata.row_group(0)
        columns = [group.column(i) for i in range(group.num_columns)]
    assert [column.physical_type for column in columns] == ["FLOAT", "FLOAT", "INT32", "FLOAT", "BOOLEAN"]
    assert all(("BYTE_STREAM_SPLIT" in column.encodings) == (column.physical_type != "BOOLEAN") for column in columns)


def test_a_converted_file_has_the_columns_of_files_and_none_that_are_derived(tmp_path: Path) -> None:
    path = write_derived(tmp_path / "in.parquet", range(30))
    convert_file(path, tmp_path / "out.parquet", DERIVED, rows_per_group=7, compression="zstd")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", "charge"]
    assert table["charge"].to_pylist() == [charges_of(number) for number in range(30)]
    convert_file(tmp_path / "out.parquet", tmp_path / "again.parquet", DERIVED, rows_per_group=7, compression="zstd")
    assert pq.read_table(tmp_path / "again.parquet") == table
