"""`icestream convert`: layouts, columns of any fixed width, and data sets of other experiments."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from column_files import Form, any_forms, make, write
from hdf5_files import tables_of, write_hdf5, write_tables
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import Event, make_events, make_table, write_events
from neutrino_files import events_in as neutrinos_in
from neutrino_files import expected, import_with, neutrinos, write_batch, write_flat, write_kaggle

from common.config import SourceConfig
from common.errors import BadInputError
from common.files.parquet.footer import parse_footer
from common.files.parquet.reader import ParquetReader
from common.files.rows import RaggedRows
from common.messages import Part
from icestream.commands import convert as convert_module
from icestream.commands.convert import Converted, convert_file
from workloads.muons.columns import MUONS


def converted(path: Path, out: Path, *, source: SourceConfig = SourceConfig(), rows: int = 10) -> Converted:  # noqa: B008
    return convert_file(path, out, MUONS.stored_as(source), rows_per_group=rows)


def events_in(path: Path) -> list[Event]:
    table = pq.read_table(path, page_checksum_verification=True)
    return [
        Event(row["primary_major_id"], row["primary_minor_id"], tuple(row["primary"]), tuple(map(tuple, row["muons"])))
        for row in table.to_pylist()
    ]


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 70), st.sampled_from(["<f4", "<f8"]))
def test_a_file_from_hdf5_gives_the_same_ragged_unit(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], rows: int, dtype: str
) -> None:
    folder = tmp_path_factory.mktemp("f")
    events = make_events(counts)
    path, out = write_tables(folder / "f.h5", tables_of(events, dtype=dtype)), folder / "f.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convert_module, "_GROUP_PARTICLES", 50)
        done = converted(path, out, rows=rows)
    assert events_in(out) == events
    assert done == Converted(
        rows_in=len(events),
        events=len(events),
        empty=counts.count(0),
        null_events=0,
        particles=sum(counts),
        dropped=counts.count(0),
        bytes_in=path.stat().st_size,
        bytes_out=out.stat().st_size,
    )
    assert all(group.rows <= rows for group in parse_footer(out).row_groups)
    assert np.concatenate([piece.counts for piece in rows_of(out, MUONS)]).tolist() == counts


@pytest.mark.parametrize("list_of", [pa.list_, pa.large_list])
@pytest.mark.parametrize("number", [pa.float32(), pa.float64()])
def test_any_parquet_layout_becomes_the_fastest_one(tmp_path: Path, list_of: object, number: pa.DataType) -> None:
    events = make_events([3, 0, 7] * 9)
    pq.write_table(make_table(events, list_of=list_of, number=number), tmp_path / "in.parquet", row_group_size=4)  # type: ignore[arg-type]
    converted(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert events_in(tmp_path / "out.parquet") == events
    with pq.ParquetFile(tmp_path / "out.parquet") as file:
        schema, metadata = file.schema_arrow, file.metadata
    element = pa.field("element", pa.float32(), False)
    assert schema.field("primary") == pa.field("primary", pa.list_(element), False)
    muons = pa.list_(pa.field("element", pa.list_(element), False))
    assert schema.field("muons") == pa.field("muons", muons, False)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [10, 10, 7]
    for column in (metadata.row_group(0).column(j) for j in range(4)):
        assert column.compression == "ZSTD"
        is_float = column.physical_type == "FLOAT"
        assert ("BYTE_STREAM_SPLIT" in column.encodings) == is_float
        assert not any("DICTIONARY" in encoding for encoding in column.encodings)


def test_a_bad_file_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    events = make_events([2] * 30)
    events[25] = replace(events[25], muons=((float("nan"), 0.0, 0.0),))
    path = write_hdf5(tmp_path / "f.h5", events)
    with pytest.raises(BadInputError, match=r"f\.h5: column 'muons', row 25 of the file: energy_gev is nan"):
        converted(path, tmp_path / "out.parquet")
    assert [file.name for file in tmp_path.iterdir()] == ["f.h5"]


def test_what_is_there_is_overwritten_only_on_request_and_never_the_input(tmp_path: Path) -> None:
    path = write_events(tmp_path / "in.parquet", make_events([1, 2]))
    out = tmp_path / "out.parquet"
    out.write_bytes(b"mine")
    with pytest.raises(BadInputError, match=r"out\.parquet exists: .*--force"):
        converted(path, out)
    assert out.read_bytes() == b"mine"
    convert_file(path, out, MUONS, rows_per_group=10, force=True)
    assert events_in(out) == make_events([1, 2])
    before = path.read_bytes()
    with pytest.raises(BadInputError, match=r"in\.parquet exists: choose another name$"):
        convert_file(path, path, MUONS, rows_per_group=10, force=True)
    assert path.read_bytes() == before


@pytest.mark.process
def test_the_command_converts_files_of_both_kinds_and_remote_ones_into_a_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_hdf5(data / "a.h5", make_events([0, 2, 1]))
    write_events(data / "b.parquet", make_events([4]))
    output = import_with(data, tmp_path / "out", "--rows-per-group", "2")
    assert events_in(tmp_path / "out" / "a.parquet") == make_events([0, 2, 1])
    assert events_in(tmp_path / "out" / "b.parquet") == make_events([4])
    assert (
        f"{data / 'a.h5'} -> {tmp_path / 'out' / 'a.parquet'}: 3 events in, 3 out, 1 of them empty, 3 particles, "
        in output
    )
    assert "1 fillers and nulls dropped; " in output
    fsspec.filesystem("memory").pipe("/convert/f.h5", (data / "a.h5").read_bytes())
    import_with("memory://convert/f.h5", tmp_path / "out")
    assert events_in(tmp_path / "out" / "f.parquet") == make_events([0, 2, 1])


@pytest.mark.process
def test_the_command_goes_on_behind_a_bad_file_and_tells_it(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "a.h5", make_events([1]))
    (tmp_path / "b.h5").write_bytes(b"<html>404</html>")
    write_hdf5(tmp_path / "c.h5", make_events([1]))
    (tmp_path / "d.h5").symlink_to("nowhere")
    with pytest.raises(
        BadInputError, match=r"2 of 4 files were not converted; the first: .*b\.h5: .*neither Parquet nor"
    ):
        import_with(tmp_path, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.parquet", "c.parquet"]


@pytest.mark.parametrize(
    ("names", "out", "told"),
    [
        (("a/x.h5", "b/x.parquet"), "out", "would both become {folder}/out/x.parquet; convert them into different"),
        (("a/x.h5", "b/y.h5"), "out.parquet", "out.parquet: one file for 2 inputs; name a directory"),
        (("a/x.h5",), "a/x.h5", "x.h5 is a file without the suffix .parquet; name a directory"),
    ],
)
def test_outputs_that_cannot_be_are_refused(tmp_path: Path, names: tuple[str, ...], out: str, told: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_hdf5(tmp_path / name, make_events([1]))
    with pytest.raises(BadInputError, match=re.escape(told.format(folder=tmp_path))):
        import_with(*(tmp_path / name for name in names), tmp_path / out)


def rows_of(path: Path, workload: object) -> list[RaggedRows]:
    reader = ParquetReader(workload)  # type: ignore[arg-type]
    parts = [Part(0, str(path), i, 0, one.rows, 1 << 20, 0) for i, one in enumerate(parse_footer(path).row_groups)]
    found = [piece for part in parts for piece in reader.read([part])]
    reader.close()
    return found


@settings(deadline=None, max_examples=20)
@given(any_forms(), st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(0, 1 << 30), st.booleans())
def test_every_column_is_kept_in_the_type_and_the_place_that_the_workload_describes(
    tmp_path_factory: pytest.TempPathFactory, forms: list[Form], counts: list[int], seed: int, nulls: bool
) -> None:
    folder = tmp_path_factory.mktemp("f")
    made = make(forms, counts, seed, nulls=nulls)
    path = write(folder / "f.parquet", made, rows_per_group=7, extra=True)
    done = convert_file(path, folder / "out.parquet", made.workload, rows_per_group=4)
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


def data_set(folder: Path) -> Path:
    return write_kaggle(folder, {1: neutrinos([3, 4]), 2: neutrinos([5], 1, first_id=100)})


def test_what_is_there_from_something_else_is_not_skipped(tmp_path: Path) -> None:
    batch, out = data_set(tmp_path) / "train" / "batch_1.parquet", tmp_path / "out"
    write_batch(batch, neutrinos([3, 4]), charge=[2.0] * 7)
    import_with(tmp_path, out)
    told = re.escape("batch_1.parquet exists, and was not made from batch_1.parquet and its tables as they are, with")
    with pytest.raises(BadInputError, match=told):
        import_with(tmp_path, out, "--max-particles", "3")
    size_bytes = batch.stat().st_size
    write_batch(batch, neutrinos([3, 4]), charge=[3.0] * 7)
    assert batch.stat().st_size == size_bytes
    with pytest.raises(BadInputError, match=told):
        import_with(batch, out)
    (out / "batch_1.parquet").write_bytes(b"mine")
    with pytest.raises(BadInputError, match=told):
        import_with(tmp_path, out)
    import_with(tmp_path, out, "--force")
    assert neutrinos_in(out / "batch_1.parquet")[0]["pulses"][0]["charge_pe"] == 3.0


def test_events_that_were_joined_with_another_table_are_not_skipped(tmp_path: Path) -> None:
    write_flat(tmp_path, neutrinos([3, 4]))
    import_with(tmp_path, tmp_path / "out")
    write_flat(tmp_path, neutrinos([3, 4]), zenith=np.array([1.0, 2.0]))
    with pytest.raises(BadInputError, match=r"_0\.parquet exists, and was not made from"):
        import_with(tmp_path, tmp_path / "out")


def test_an_import_goes_on_behind_a_bad_file_and_tells_it(tmp_path: Path) -> None:
    data_set(tmp_path)
    (tmp_path / "train" / "batch_1.parquet").write_bytes(b"<html>404</html>")
    with pytest.raises(BadInputError, match=r"1 of 2 files were not imported; the first: .*batch_1\.parquet: can't be"):
        import_with(tmp_path, tmp_path / "out", "--from", "kaggle")
    wanted = [expected(event) for event in neutrinos([5], 1, first_id=100)]
    assert neutrinos_in(tmp_path / "out" / "batch_2.parquet") == wanted
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["batch_2.parquet", "sensor_geometry.csv"]


def test_wrong_inputs_are_told_in_one_line(tmp_path: Path) -> None:
    data_set(tmp_path / "set")
    muons = tmp_path / "muons"
    muons.mkdir()
    write_events(muons / "muons.parquet", make_events([1]))
    empty = tmp_path / "empty"
    empty.mkdir()
    out = tmp_path / "out"
    for part in ("a", "b"):
        write_flat(tmp_path / part, neutrinos([2]))
    batch = tmp_path / "set" / "train" / "batch_1.parquet"
    before = batch.read_bytes()
    cases: list[tuple[tuple[str | Path, ...], str]] = [
        ((tmp_path / "a", tmp_path / "b", out), "b/pulses/pulses_0.parquet would both become"),
        ((batch, batch.parent, "--force"), "batch_1.parquet is the input: choose another directory"),
        ((tmp_path / "none", out), "none: no such file or directory"),
        ((tmp_path / "none", out, "--from", "kaggle"), "none: no such local file or directory; download it first"),
        ((empty, out), "empty: the directory holds no file with one of"),
        ((empty, out, "--from", "kaggle"), "empty: no batch_N.parquet in it, nor in its folder train or test"),
        ((empty, out, "--from", "graphnet"), "empty: no folder in it has a table of pulses with event_no, positions"),
        ((tmp_path / "set", muons, out), "muons is not; give only inputs of one"),
        ((tmp_path / "set", tmp_path / "none", out), "is of the layout kaggle, but others are not there; give only"),
        ((tmp_path / "set", out, "--from", "cagle"), "--from cagle: no such layout; there are kaggle, graphnet"),
        ((tmp_path / "set", tmp_path / "o.parquet"), "o.parquet: name a directory; an import writes more than one"),
        (
            (muons / "muons.parquet", out, "--from", "graphnet"),
            "structs with a direction: none; with lists of pulses: ",
        ),
        ((muons, out, "--max-particles", "9"), "--max-particles is for files of another experiment; these have a"),
    ]
    for arguments, told in cases:
        with pytest.raises(BadInputError, match=re.escape(told)) as error:
            import_with(*arguments)
        assert "\n" not in str(error.value)
        assert not out.exists(), arguments
    assert batch.read_bytes() == before
