"""Every layout of lists that a Parquet file may have gives the same events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import decoded_files
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import Event, make_event, make_events

from common.config import SourceConfig, StreamConfig
from common.files.bad_file import BadFileError
from common.files.parquet.reader import ParquetReader
from common.messages import Layout, Tally, Unit
from common.status import OUTLIER_FOLDER
from common.unit_arrays import UnitArrays
from workloads.muons.columns import MUONS
from workloads.muons.geometry import slant_depth_m

STREAM = StreamConfig(batch_events=4, max_particles=64, max_particles_per_event=8, unit_events=64, slot_mib=0.25)
AS_IT_IS = SourceConfig()
WITH_TIME = ("energy_gev", "zenith_rad", "mass_a", "time_s", "depth_m")

lists = st.sampled_from(["list", "large_list", "list_view", "large_list_view", "fixed"])
layouts = st.fixed_dictionaries(
    {
        "primary": lists,
        "muons": st.sampled_from(["list", "large_list", "list_view", "large_list_view"]),
        "muon": lists,
        "number": st.sampled_from([pa.float32(), pa.float64()]),
        "compression": st.sampled_from(["zstd", "snappy", "gzip", "none"]),
        "rows_per_group": st.integers(1, 30),
        "slice": st.booleans(),
        "chunks": st.booleans(),
        "dictionary": st.booleans(),
        "pages": st.sampled_from(["1.0", "2.0"]),
    }
)
event_counts = st.lists(st.integers(0, 12), min_size=1, max_size=40)


def outlier_path(run_dir: Path, k: int) -> Path:
    """Of unit k in the only plan there is; it may not exist."""
    found = list((run_dir / OUTLIER_FOLDER).glob(f"unit-{k:010d}-*.parquet"))
    assert len(found) <= 1
    return found[0] if found else run_dir / "none"


def list_type(kind: str, value: pa.DataType, size: int) -> pa.DataType:
    return pa.list_(value, size) if kind == "fixed" else getattr(pa, "list_" if kind == "list" else kind)(value)


def table_of(events: Sequence[Event], layout: dict[str, object]) -> pa.Table:
    number = layout["number"]
    muon = list_type(str(layout["muon"]), number, 3)
    width = next(len(event.primary) for event in events if event.primary is not None)
    return pa.table(
        {
            "primary_major_id": pa.array([event.major for event in events], pa.uint64()),
            "primary_minor_id": pa.array([event.minor for event in events], pa.uint64()),
            "primary": pa.array([event.primary for event in events], list_type(str(layout["primary"]), number, width)),
            "muons": pa.array([event.muons for event in events], list_type(str(layout["muons"]), muon, 0)),
        }
    )


def write(path: Path, events: Sequence[Event], layout: dict[str, object]) -> Path:
    table = table_of(events, layout)
    if layout["slice"]:  # arrays with an offset
        table = pa.concat_tables([table_of(make_events([5, 1]), layout), table]).combine_chunks().slice(2)
    if layout["chunks"]:
        table = pa.concat_tables([table.slice(i, 3) for i in range(0, len(events), 3)])
    pq.write_table(
        table,
        path,
        compression=str(layout["compression"]),
        row_group_size=layout["rows_per_group"],
        use_dictionary=layout["dictionary"],
        data_page_version=layout["pages"],
    )
    return path


def decoded(
    path: Path, run_dir: Path, stream: StreamConfig, source: SourceConfig = AS_IT_IS
) -> list[tuple[Unit, Layout, Tally, UnitArrays]]:
    """All units of a file: planned from its footer, then decoded."""
    workload = MUONS.stored_as(source)
    units = decoded_files.planned([path], workload, stream)
    found = decoded_files.decoded(units, workload, stream, run_dir)
    return [(one.unit, one.layout, one.tally, one.arrays) for one in found]


def events_of(arrays: UnitArrays) -> dict[int, Event]:
    """Events by their row in the file."""
    offsets = arrays.offsets
    found = {}
    for i, row in enumerate(arrays.event_columns["source_row"][:, 0].tolist()):
        major, minor = arrays.event_columns["primary_id"][i].tolist()
        muons = arrays.particle_columns["muons"][offsets[i] : offsets[i + 1]].tolist()
        primary = tuple(arrays.event_columns["primary"][i].tolist())
        assert row not in found, "an event comes once"
        found[row] = Event(major, minor, primary, tuple(map(tuple, muons)))
    return found


@settings(deadline=None, max_examples=60)
@given(event_counts, layouts, st.booleans(), st.booleans())
def test_every_layout_gives_the_same_whole_events_and_the_sums_add_up(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    layout: dict[str, object],
    shuffle: bool,
    drop_empty: bool,
) -> None:
    folder = tmp_path_factory.mktemp("layout")
    events = make_events(counts)
    stream = STREAM.model_copy(update={"shuffle": shuffle, "drop_empty": drop_empty})
    path = write(folder / "f.parquet", events, layout)
    kept: dict[int, Event] = {}
    order: list[int] = []
    read = outliers = empty = 0
    for unit, unit_layout, tally, arrays in decoded(path, folder, stream):
        found = events_of(arrays)
        assert not found.keys() & kept.keys()
        kept |= found
        order += found
        read, outliers, empty = read + tally.rows_read, outliers + tally.outliers, empty + tally.empty
        assert tally.rows_read == unit_layout.events + tally.outliers + tally.empty + tally.quarantined
        bounds, offsets = arrays.microbatch_bounds, arrays.offsets
        assert bounds[0] == 0
        assert bounds[-1] == unit_layout.events
        assert (np.diff(bounds) > 0).all(), "microbatches partition the unit"
        assert (np.diff(offsets[bounds]) <= stream.max_particles).all()
        set_aside = outlier_path(folder, unit.k)
        assert set_aside.exists() == (tally.outliers > 0)
        if set_aside.exists():
            table = pq.read_table(set_aside)
            for row, major, number in zip(
                *(table[name].to_pylist() for name in ("source_row", "primary_major_id", "num_particles")), strict=True
            ):
                assert (events[row].major, len(events[row].muons)) == (major, number)
    expected = {
        row: event
        for row, event in enumerate(events)
        if len(event.muons) <= stream.outlier_above and not (drop_empty and not event.muons)
    }
    assert kept == expected
    assert (read, outliers) == (len(events), sum(count > 8 for count in counts))
    assert empty == (counts.count(0) if drop_empty else 0)
    if not shuffle:
        assert order == sorted(order)


PLAIN: dict[str, object] = {
    "primary": "list",
    "muons": "list",
    "muon": "list",
    "number": pa.float32(),
    "compression": "snappy",
    "rows_per_group": 100,
    "slice": False,
    "chunks": False,
    "dictionary": False,
    "pages": "1.0",
}


@pytest.mark.parametrize("kind", ["list", "fixed"])
def test_a_primary_of_five_numbers_is_read_once_the_configuration_names_them(tmp_path: Path, kind: str) -> None:
    events = [Event(e.major, e.minor, (*e.primary[:3], 77.0, e.primary[3]), e.muons) for e in make_events([2, 0, 3])]
    path = write(tmp_path / "f.parquet", events, {**PLAIN, "primary": kind})
    ((_, _, tally, arrays),) = decoded(path, tmp_path, STREAM, SourceConfig(fields={"primary": WITH_TIME}))
    assert tally.quarantined == 0
    assert events_of(arrays) == dict(enumerate(make_events([2, 0, 3])))


def test_a_primary_of_five_numbers_is_never_guessed_at(tmp_path: Path) -> None:
    events = [Event(e.major, e.minor, (*e.primary[:3], 77.0, e.primary[3]), e.muons) for e in make_events([2, 0, 3])]
    for layout in (PLAIN, {**PLAIN, "primary": "fixed"}):
        with pytest.raises(BadFileError, match=r"lists of 5 numbers; expected 4 .* --set 'source\.fields\.primary="):
            decoded(write(tmp_path / "f.parquet", events, layout), tmp_path, STREAM)


def test_slant_depths_are_vertical_in_the_slot_and_as_they_were_among_the_outliers(tmp_path: Path) -> None:
    depth_m, zenith = np.array([1500.0, 2000.0, 2500.0]), np.array([0.0, 0.7, 1.2])
    slant_m = slant_depth_m(np.cos(zenith), depth_m)
    events = [
        Event(i, 0, (1e5, float(zenith[i]), 4.0, float(slant_m[i])), make_event(i, count).muons)
        for i, count in enumerate([2, 3, 9])
    ]
    path = write(tmp_path / "f.parquet", events, {**PLAIN, "number": pa.float64()})
    source = SourceConfig(depth_kind="slant")
    ((_, layout, _, arrays),) = decoded(path, tmp_path, STREAM.model_copy(update={"shuffle": False}), source)
    assert layout.events == 2
    np.testing.assert_allclose(arrays.event_columns["primary"][:, 3], depth_m[:2], rtol=1e-6)
    (aside,) = pq.read_table(outlier_path(tmp_path, 0))["primary"].to_pylist()
    assert aside[3] == slant_m[2], "an outlier file is an input like the one that it comes from"


def with_nulls() -> list[Event]:
    """No primary; no list of particles; one particle of three null; whole."""
    events = make_events([2, 2, 3, 1])
    events[0] = Event(0, 0, None, events[0].muons)  # type: ignore[arg-type]
    events[1] = Event(1, 1, events[1].primary, None)  # type: ignore[arg-type]
    events[2] = Event(2, 2, events[2].primary, (events[2].muons[0], None, events[2].muons[2]))  # type: ignore[arg-type]
    return events


@pytest.mark.parametrize("muons", ["list", "large_list", "list_view"])
@pytest.mark.parametrize("kind", ["list", "large_list", "large_list_view", "fixed"])
@pytest.mark.parametrize("drop_empty", [False, True])
def test_nulls_are_empty_where_the_configuration_says_so(
    tmp_path: Path, muons: str, kind: str, drop_empty: bool
) -> None:
    path = write(tmp_path / "f.parquet", with_nulls(), {**PLAIN, "muons": muons, "muon": kind, "primary": kind})
    stream = STREAM.model_copy(update={"drop_empty": drop_empty})
    ((_, _, tally, arrays),) = decoded(path, tmp_path, stream, SourceConfig(nulls="empty"))
    whole = make_events([2, 0, 3, 1])
    third = Event(2, 2, whole[2].primary, (whole[2].muons[0], whole[2].muons[2]))
    expected = {1: whole[1], 2: third, 3: whole[3]}
    if drop_empty:
        del expected[1]
    assert events_of(arrays) == expected
    assert (tally.rows_read, tally.quarantined, tally.particles_dropped) == (4, 0, 1)
    assert tally.empty == 4 - len(expected)


def test_nulls_are_a_named_error_by_default(tmp_path: Path) -> None:
    ((_, layout, tally, _),) = decoded(write(tmp_path / "f.parquet", with_nulls(), PLAIN), tmp_path, STREAM)
    assert (layout.events, tally.quarantined) == (0, 4)
    assert "3 of its 4 events are invalid" in tally.bad[0].reason
    assert "column 'primary': expected none (source.nulls = " in tally.bad[0].reason
    assert "row 0 of the file: the value is null" in tally.bad[0].reason


def test_files_of_different_layouts_make_one_unit(tmp_path: Path) -> None:
    stream = STREAM.model_copy(update={"max_particles_per_event": 5})
    others = [{**PLAIN, "muon": "fixed"}, {**PLAIN, "number": pa.float64(), "muons": "large_list"}, PLAIN]
    content = [make_events([1, 7, 2], first=10 * i) for i in range(3)]
    paths = [
        write(tmp_path / f"{i}.parquet", events, layout)
        for i, (events, layout) in enumerate(zip(content, others, strict=True))
    ]
    (one,) = decoded_files.decoded(decoded_files.planned(paths, MUONS, stream), MUONS, stream, tmp_path)
    majors = one.arrays.event_columns["primary_id"][:, 0].tolist()
    assert sorted(majors) == [0, 2, 10, 12, 20, 22]
    assert one.tally.outliers == 3
    paths = list((tmp_path / OUTLIER_FOLDER).iterdir())
    assert len(paths) == 3, "each of its own types: no number changes"
    aside = pa.concat_tables([pq.read_table(path, columns=["primary_major_id", "num_particles"]) for path in paths])
    assert sorted(zip(aside["primary_major_id"].to_pylist(), aside["num_particles"].to_pylist(), strict=True)) == [
        (1, 7),
        (11, 7),
        (21, 7),
    ]


def test_spans_of_one_large_row_group_are_read_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "f.parquet", make_events([3] * 400), {**PLAIN, "rows_per_group": 1000})
    scans = []
    iterate = ParquetReader._iterate
    monkeypatch.setattr(ParquetReader, "_iterate", lambda *args: scans.append(1) or iterate(*args))  # type: ignore[func-returns-value]
    stream = STREAM.model_copy(update={"unit_events": 30, "slot_mib": 4096 / 2**20})
    found = decoded(path, tmp_path, stream)
    assert len(found) > 5
    rows = sorted(row for _, _, _, arrays in found for row in events_of(arrays))
    assert rows == list(range(400))
    assert len(scans) == 1
