from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hdf5_files import tables_of, write_hdf5, write_tables
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import Event, make_event, make_events, make_table, write_events

from common.config import SourceConfig
from common.errors import BadInputError
from common.files.parquet.footer import parse_footer
from common.files.parquet.reader import ParquetReader
from common.messages import Part
from icestream.commands.convert import convert as convert_module
from icestream.commands.convert.command import convert
from icestream.commands.convert.convert import Converted, convert_file
from workloads.muons.columns import MUONS

PRIMARY_WITH_TIME = ("energy_gev", "zenith_rad", "mass_a", "time_s", "depth_m")
WITH_TIME = SourceConfig(fields={"primary": PRIMARY_WITH_TIME, "muons": ("energy_gev", "x_m", "y_m", "time_s")})


def converted(path: Path, out: Path, *, source: SourceConfig = SourceConfig(), rows: int = 10) -> Converted:  # noqa: B008
    return convert_file(path, out, MUONS.stored_as(source), rows_per_group=rows, compression="zstd")


def events_in(path: Path) -> list[Event]:
    table = pq.read_table(path, page_checksum_verification=True)
    return [
        Event(row["primary_major_id"], row["primary_minor_id"], tuple(row["primary"]), tuple(map(tuple, row["muons"])))
        for row in table.to_pylist()
    ]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 70), st.sampled_from(["<f4", "<f8"]))
def test_a_file_from_hdf5_gives_the_same_ragged_unit(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], rows: int, dtype: str
) -> None:
    folder = tmp_path_factory.mktemp("f")
    events = make_events(counts)
    path, out = write_tables(folder / "f.h5", tables_of(events, dtype=dtype)), folder / "f.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convert_module, "_MOST_PARTICLES", 50)
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
    reader = ParquetReader(MUONS)
    found = [
        piece
        for i, group in enumerate(parse_footer(out).row_groups)
        for piece in reader.read([Part(0, str(out), i, 0, group.rows, 1 << 20, 0)])
    ]
    reader.close()
    assert np.concatenate([piece.counts for piece in found]).tolist() == counts


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


def test_numbers_that_the_configuration_names_are_kept_in_the_files_order(tmp_path: Path) -> None:
    timed = [
        replace(e, primary=(*e.primary[:3], 99.0, e.primary[3]), muons=tuple((*muon, 7.0) for muon in e.muons))
        for e in make_events([2, 0, 3])
    ]
    for path in (write_hdf5(tmp_path / "f.h5", timed), write_events(tmp_path / "f.parquet", timed)):
        converted(path, tmp_path / f"{path.suffix}.out.parquet", source=WITH_TIME)
        assert events_in(tmp_path / f"{path.suffix}.out.parquet") == timed


def test_null_events_are_left_out_and_counted_if_nulls_are_allowed(tmp_path: Path) -> None:
    table = make_table(make_events([2, 1, 4, 0]))
    primary = pa.array([None if i == 1 else list(make_event(i, 0).primary) for i in range(4)], pa.list_(pa.float32()))
    pq.write_table(table.set_column(2, "primary", primary), tmp_path / "f.parquet")
    with pytest.raises(BadInputError, match=r"f\.parquet: column 'primary', row 1 of the file: the value is null"):
        converted(tmp_path / "f.parquet", tmp_path / "out.parquet")
    done = converted(tmp_path / "f.parquet", tmp_path / "out.parquet", source=SourceConfig(nulls="empty"))
    assert (done.rows_in, done.events, done.null_events, done.empty) == (4, 3, 1, 1)
    expected = make_events([2, 1, 4, 0])
    assert events_in(tmp_path / "out.parquet") == [expected[0], *expected[2:]]


def test_a_file_without_events_becomes_one(tmp_path: Path) -> None:
    assert converted(write_hdf5(tmp_path / "f.h5", []), tmp_path / "out.parquet").events == 0
    assert events_in(tmp_path / "out.parquet") == []


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
    convert_file(path, out, MUONS, rows_per_group=10, compression="snappy", force=True)
    assert events_in(out) == make_events([1, 2])
    before = path.read_bytes()
    with pytest.raises(BadInputError, match=r"in\.parquet exists: choose another name$"):
        convert_file(path, path, MUONS, rows_per_group=10, compression="snappy", force=True)
    assert path.read_bytes() == before


def run(*arguments: str | Path) -> str:
    """The command's output, which has to end well."""
    result = CliRunner().invoke(convert, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.process
def test_the_command_converts_files_of_both_kinds_into_a_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_hdf5(data / "a.h5", make_events([0, 2, 1]))
    write_events(data / "b.parquet", make_events([4]))
    output = run(data, tmp_path / "out", "--rows-per-group", "2", "--compression", "snappy")
    assert events_in(tmp_path / "out" / "a.parquet") == make_events([0, 2, 1])
    assert events_in(tmp_path / "out" / "b.parquet") == make_events([4])
    assert (
        f"{data / 'a.h5'} -> {tmp_path / 'out' / 'a.parquet'}: 3 events in, 3 out, 1 of them empty, 3 particles, "
        in output
    )
    assert "1 fillers and nulls dropped; " in output


@pytest.mark.process
def test_the_command_goes_on_behind_a_bad_file_and_tells_it(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "a.h5", make_events([1]))
    (tmp_path / "b.h5").write_bytes(b"<html>404</html>")
    write_hdf5(tmp_path / "c.h5", make_events([1]))
    (tmp_path / "d.h5").symlink_to("nowhere")
    with pytest.raises(
        BadInputError, match=r"2 of 4 files were not converted; the first: .*b\.h5: .*neither Parquet nor"
    ):
        run(tmp_path, tmp_path / "out")
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
        run(*(tmp_path / name for name in names), tmp_path / out)


@pytest.mark.process
def test_a_remote_file_is_fetched_first(tmp_path: Path) -> None:
    import fsspec

    path = write_hdf5(tmp_path / "f.h5", make_events([3]))
    fsspec.filesystem("memory").pipe("/convert/f.h5", path.read_bytes())
    run("memory://convert/f.h5", tmp_path / "out")
    assert events_in(tmp_path / "out" / "f.parquet") == make_events([3])
