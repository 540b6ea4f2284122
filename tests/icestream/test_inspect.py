"""`icestream inspect`: both kinds of files, columns of any width, values that can't be, and the command."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from column_files import Form, any_forms, make, write
from hdf5_files import tables_of, write_hdf5, write_tables
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import make_event, make_events, make_table, write_events

from common.errors import BadInputError
from icestream.commands.inspect import Description, Spread, describe, inspect, lines
from workloads.muons.columns import MUONS


def described(path: Path, num_events: int = 3) -> Description:
    return describe(path, str(path), MUONS, num_events=num_events)


def test_both_kinds_of_the_same_events_are_described_alike(tmp_path: Path) -> None:
    events = make_events([0, 2, 1, 0, 5])
    parquet = described(write_events(tmp_path / "f.parquet", events, row_group_rows=2))
    hdf5 = described(write_hdf5(tmp_path / "f.h5", events, chunk_rows=3, compression="gzip", fletcher32=True))
    own = {"name", "size_bytes", "kind", "layout", "row_groups", "particles_bound", "dropped", "nulls"}
    assert parquet.model_dump(exclude=own) == hdf5.model_dump(exclude=own)
    assert (parquet.kind, parquet.row_groups, parquet.particles_bound, parquet.dropped) == ("Parquet", [2, 2, 1], 8, 0)
    assert (hdf5.kind, hdf5.row_groups, hdf5.particles_bound, hdf5.dropped) == ("HDF5", [5], 10, 2)
    assert (parquet.events, parquet.empty, parquet.particles, parquet.problems) == (5, 2, 8, [])
    ranges = {one.name: (one.least, one.median, one.largest) for one in parquet.ranges}
    assert ranges["primary.energy_gev"] == (1000, 1002, 1004)
    assert ranges["muons.x_m"] == (0, 1, 4)
    assert parquet.multiplicity is not None
    assert (parquet.multiplicity.least, parquet.multiplicity.median, parquet.multiplicity.largest) == (0, 1, 5)
    assert [event.num_particles for event in parquet.first_events] == [0, 2, 1]
    assert parquet.first_events[1].ids == {"primary_major_id": 1, "primary_minor_id": 1}
    assert parquet.first_events[1].event == {"energy_gev": 1001, "zenith_rad": 0.5, "mass_a": 4, "depth_m": 1500}
    assert parquet.first_events[1].particles[1] == {"energy_gev": 2, "x_m": 1, "y_m": -1}


def test_layouts_are_told_with_types_compression_and_chunks(tmp_path: Path) -> None:
    table = make_table(make_events([1]), list_of=pa.large_list).append_column("more", pa.array(["x"]))
    pq.write_table(table, tmp_path / "f.parquet", compression={"primary.list.element": "zstd"})
    columns = {column.name: column for column in described(tmp_path / "f.parquet").layout}
    assert columns["muons"].type == "large_list<large_list<float>>"
    assert columns["primary"].storage == "zstd"
    assert columns["muons"].is_read
    assert not columns["more"].is_read
    columns = {column.name: column for column in described(write_hdf5(tmp_path / "f.h5", make_events([1]))).layout}
    assert (columns["muons"].type, columns["muons"].storage) == ("float32 (1, 5)", "contiguous")
    path = write_hdf5(tmp_path / "g.h5", make_events([1]), chunk_rows=7, compression="lzf", shuffle=True)
    assert described(path).layout[1].storage == "chunks (7, 5), lzf, shuffle"


def test_nulls_are_counted_with_what_to_set(tmp_path: Path) -> None:
    table = make_table(make_events([2, 1, 4, 0]))
    primary = pa.array([None if i == 1 else list(make_event(i, 0).primary) for i in range(4)], pa.list_(pa.float32()))
    pq.write_table(table.set_column(2, "primary", primary), tmp_path / "f.parquet")
    found = described(tmp_path / "f.parquet")
    assert found.nulls == {"primary_major_id": 0, "primary_minor_id": 0, "primary": 1, "muons": 0}
    assert (found.events, found.null_events, found.empty) == (4, 1, 1)
    told = 'nulls: 1 of primary; a run sets these events aside as invalid, unless source.nulls = "empty"'
    assert told in "\n".join(lines(found))


def test_a_file_that_cannot_be_used_is_told_with_its_layout_and_what_to_set(tmp_path: Path) -> None:
    timed = [replace(event, primary=(*event.primary, 1.0)) for event in make_events([1, 2])]
    found = described(write_hdf5(tmp_path / "f.h5", timed))
    assert [column.type for column in found.layout] == ["int32 (2,)", "float32 (3, 5)", "float32 (2, 7)"]
    assert len(found.problems) == 1
    assert "--set 'source.fields.primary=[the names of the" in found.problems[0]
    (tmp_path / "x").write_bytes(b"<html>404</html>")
    assert "neither Parquet nor HDF5" in described(tmp_path / "x").problems[0]


def test_bad_rows_are_told_and_the_others_described(tmp_path: Path) -> None:
    events = make_events([2] * 9)
    events[4] = replace(events[4], muons=((float("inf"), 0.0, 0.0),))
    found = described(write_events(tmp_path / "f.parquet", events, row_group_rows=3))
    assert found.problems == [
        "a run sets aside 1 event: column 'muons', energy_gev: expected a finite number; e.g. row 4 of the file: "
        "energy_gev is inf"
    ]
    assert (found.events, found.particles) == (9, 16)
    assert any(line.startswith("  PROBLEM: ") for line in lines(found))


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    for path in (
        write_tables(tmp_path / "f.h5", tables_of(make_events([3] * 500)), chunk_rows=100, fletcher32=True),
        write_events(tmp_path / "f.parquet", make_events([3] * 500)),
    ):
        raw = path.read_bytes()
        path.write_bytes(raw[:-100])
        assert described(path).problems
        path.write_bytes(raw[: len(raw) // 2] + bytes(2000) + raw[len(raw) // 2 + 2000 :])
        assert described(path).problems


@pytest.mark.process
def test_the_command_prints_text_or_json_and_its_exit_code_tells_problems(tmp_path: Path) -> None:
    good = write_hdf5(tmp_path / "good.h5", make_events([0, 2, 1]))
    result = CliRunner().invoke(inspect, [str(good), "--events", "1"], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{good}: HDF5, 0.0")
    assert "  3 events, 1 of them empty (33.3%)\n" in result.stdout
    assert "event 0: primary_major_id 0, primary_minor_id 0; energy_gev 1000, " in result.stdout
    assert "event 1" not in result.stdout
    (tmp_path / "bad.h5").write_bytes(b"")
    with pytest.raises(
        BadInputError, match=r"1 of 2 files can't be used as they are; the first: .*bad\.h5: the file is"
    ):
        CliRunner().invoke(inspect, [str(tmp_path / "*.h5"), "--json"], catch_exceptions=False)
    result = CliRunner().invoke(inspect, [str(good), "--json"], catch_exceptions=False)
    named = CliRunner().invoke(inspect, ["-i", str(good), "--json"], catch_exceptions=False)
    assert named.output == result.output
    assert json.loads(result.stdout)[0]["particles"] == 3


@pytest.mark.parametrize(("most", "is_exact"), [(1000, True), (8, False)])
def test_a_spread_has_exact_ends_and_quantiles_of_an_even_sample(
    monkeypatch: pytest.MonkeyPatch, most: int, is_exact: bool
) -> None:
    monkeypatch.setattr("icestream.commands.inspect._MOST_KEPT", most)
    values = np.random.default_rng(1).permutation(101) - 30
    found = Spread()
    for batch in np.split(values, [0, 7, 7, 40, 90]):
        found.add(batch)
    assert (found.num, found.least, found.largest) == (101, -30, 70)
    every = 1 if is_exact else 16
    for share in (0.0, 0.5, 1.0):
        assert found.quantile(share) == np.quantile(values[::every], share)


@pytest.mark.process
def test_no_name_of_a_file_or_column_steers_the_terminal(tmp_path: Path) -> None:
    trick = "\x1b]52;c;cm0gLXJmIH4=\x07\x9b2J\u202e\u2028"
    path = tmp_path / f"a{trick}.parquet"
    pq.write_table(pa.table({f"column{trick}": [1]}), path)
    assert all(line.isprintable() for line in lines(described(path)))
    for arguments in ([str(path)], [str(path), "--json"]):
        done = CliRunner().invoke(inspect, arguments)
        assert isinstance(done.exception, BadInputError)
        assert "column" in done.output
        assert done.output.replace("\n", "").isprintable()


@pytest.mark.process
def test_what_cannot_be_opened_is_told_among_the_others(tmp_path: Path) -> None:
    write_events(tmp_path / "a.parquet", make_events([1]))
    (tmp_path / "b.parquet").symlink_to("nowhere")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/c\xff.parquet")).write_bytes(b"")
    done = CliRunner().invoke(inspect, [str(tmp_path)])
    assert isinstance(done.exception, BadInputError)
    assert str(done.exception).startswith("2 of 3 files can't be used as they are")
    assert f"{tmp_path}/b.parquet: No such file or directory" in done.output
    assert "c\\udcff.parquet: its name, shown here with \\u…, is not UTF-8: rename it" in done.output


@settings(deadline=None, max_examples=20)
@given(any_forms(), st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(0, 1 << 30), st.booleans())
def test_counts_ranges_and_first_events_are_those_of_the_columns(
    tmp_path_factory: pytest.TempPathFactory, forms: list[Form], counts: list[int], seed: int, nulls: bool
) -> None:
    made = make(forms, counts, seed, nulls=nulls)
    path = write(tmp_path_factory.mktemp("f") / "f.parquet", made, rows_per_group=7, extra=True)
    found = describe(path, "f", made.workload, num_events=1)
    lines(found)
    present = ~made.null_events
    kept = ~made.null_particles
    assert (found.problems, found.events, found.null_events) == ([], len(counts), made.null_events.sum())
    assert (found.particles, found.dropped) == (kept.sum(), made.null_particles.sum())
    ranges = {one.name: (one.least, one.largest) for one in found.ranges}
    for one in forms:
        values = made.stored[one.column.name].astype(one.column.dtype)[present if one.column.per == "event" else kept]
        for i, name in enumerate(one.column.fields):
            expected = (float(values[:, i].min()), float(values[:, i].max())) if len(values) else None
            assert ranges.get(f"{one.column.name}.{name}") == expected
    if present.any():
        first, shown = made.event(int(np.argmax(present))), found.first_events[0]
        of_event = [one for one in forms if one.column.per == "event"]
        for source in (source for one in of_event for source in one.sources):
            at = source.field or 0
            name = made.workload.column(source.into).fields[at]
            if len([one for one in of_event if name in one.column.fields]) > 1:
                name = f"{source.into}.{name}"
            value = shown.ids[source.name] if source.name in shown.ids else shown.event[name]
            assert value == first[source.into][0][at]
        assert len(shown.particles) == min(3, shown.num_particles)


def test_numbers_that_can_not_be_are_a_problem_with_their_count(tmp_path: Path) -> None:
    in_degrees = [replace(event, primary=(1000.0, 57.5, 4.0, 1500.0)) for event in make_events([0, 3])]
    (problem,) = described(write_events(tmp_path / "f.parquet", in_degrees)).problems
    assert problem.startswith(
        "values that can't be: 2 of 2 of primary.zenith_rad lie outside of 0 to 3.14159, the first"
    )
