from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import Event, assert_rows, make_event, make_events, make_table, write_events

from common.errors import BadInputError
from common.files.by_content import rows_of
from common.files.parquet import reader as parquet
from common.files.parquet.reader import ParquetReader
from common.files.rows import BadRowsError
from common.messages import Part
from workloads.muons.columns import MUONS


@pytest.fixture
def reader() -> Iterator[ParquetReader]:
    made = ParquetReader(MUONS)
    yield made
    made.close()


def part_of(path: Path, rows: int, *, row_group: int = 0, first_row: int = 0) -> Part:
    return Part(0, str(path), row_group, first_row, rows, 1 << 20, 0)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.data())
def test_any_part_of_a_row_group_is_those_rows(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("f") / "f.parquet"
    events = make_events(counts)
    write_events(path, events, row_group_rows=15)
    row_group = data.draw(st.integers(0, (len(events) - 1) // 15))
    group = events[row_group * 15 : (row_group + 1) * 15]
    first = data.draw(st.integers(0, len(group) - 1))
    rows = data.draw(st.integers(1, len(group) - first))
    reader = ParquetReader(MUONS)
    for batch_rows in (1 << 15, 4):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parquet, "_BATCH_ROWS", batch_rows)
            found = reader.read([part_of(path, rows, row_group=row_group, first_row=first)])
        assert_rows(found, group[first : first + rows])
    reader.close()


def test_the_beat_comes_on_the_way_to_a_span_far_behind_in_its_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: ParquetReader
) -> None:
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 2)
    path = write_events(tmp_path / "f.parquet", make_events([1] * 20))
    beats: list[int] = []
    reader.read([part_of(path, 2, first_row=18)], lambda: beats.append(1))
    assert len(beats) >= 10


@pytest.mark.parametrize("energy_gev", [0.0, -0.0, -1.0, -1e30])
def test_particles_without_energy_are_dropped_and_counted(
    tmp_path: Path, reader: ParquetReader, energy_gev: float
) -> None:
    filler = (energy_gev, 0.0, 0.0)
    events = [
        replace(make_event(0, 0), muons=(filler,)),
        make_event(1, 2),
        replace(make_event(2, 0), muons=(filler, (5.0, 1.0, 2.0), filler)),
    ]
    pieces = reader.read([part_of(write_events(tmp_path / "f.parquet", events), 3)])
    assert sum(one.particles_dropped for one in pieces) == 3
    assert_rows(pieces, [make_event(0, 0), make_event(1, 2), replace(make_event(2, 0), muons=((5.0, 1.0, 2.0),))])


GOOD = [make_event(number, 2) for number in range(12)]
BROKEN_ROW = 9
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("fields", "column", "told"),
    [
        ({"muons": ((1.0, 2.0, 3.0), (NAN, 0.0, 0.0))}, "muons", "energy_gev is nan"),
        ({"muons": ((1.0, INF, 3.0),)}, "muons", "x_m is inf"),
        ({"muons": ((1.0, 2.0, 1e300),)}, "muons", "y_m is inf"),
        ({"muons": ((1.0, 2.0),)}, "muons", "a list has 2 numbers; expected 3"),
        ({"muons": ((1.0, 2.0, 3.0), (1.0, 2.0, 3.0, 4.0))}, "muons", "a list has 4 numbers; expected 3"),
        ({"muons": ((1.0, None, 3.0),)}, "muons", "a number is null"),
        ({"muons": (None,)}, "muons", "a particle is null"),
        ({"muons": None}, "muons", "the value is null"),
        ({"primary": None}, "primary", "the value is null"),
        ({"primary": (1.0, 0.5, None, 3.0)}, "primary", "a number is null"),
        ({"primary": (1.0, 0.5, 4.0)}, "primary", "a list has 3 numbers; expected 4"),
        ({"primary": (NAN, 0.5, 4.0, 1500.0)}, "primary", "energy_gev is nan"),
        ({"primary": (0.0, 0.5, 4.0, 1500.0)}, "primary", "energy_gev is 0"),
        ({"primary": (5.0, -0.5, 4.0, 1500.0)}, "primary", "zenith_rad is -0.5"),
        ({"major": None}, "primary_major_id", "the value is null"),
        ({"minor": None}, "primary_minor_id", "the value is null"),
    ],
)
@pytest.mark.parametrize("first_row", [0, 4])
def test_one_bad_event_is_invalid_and_all_others_are_read(
    tmp_path: Path, reader: ParquetReader, fields: dict[str, object], column: str, told: str, first_row: int
) -> None:
    path = tmp_path / "f.parquet"
    events = [*GOOD[:BROKEN_ROW], replace(GOOD[BROKEN_ROW], **fields), *GOOD[BROKEN_ROW + 1 :]]  # type: ignore[arg-type]
    table = make_table(events, number=pa.float64())
    pq.write_table(table, path)
    part = part_of(path, 12 - first_row, first_row=first_row)
    [rows] = reader.read([part])
    [one] = rows.invalid
    assert (one.column, one.rows.tolist()) == (column, [BROKEN_ROW - first_row])
    assert f"{one.found}; expected {one.expected}".startswith(told)
    assert rows.is_null is not None
    assert np.flatnonzero(rows.is_null).tolist() == rows.invalid_rows.tolist() == one.rows.tolist()
    empty = replace(make_event(0, 0), major=0, minor=0, primary=(0.0,) * 4)
    assert_rows([rows], [*GOOD[first_row:BROKEN_ROW], empty, *GOOD[BROKEN_ROW + 1 :]])
    assert rows.invalid_events is not None
    assert str(rows.invalid_events.to_pylist()) == str(table.slice(BROKEN_ROW, 1).to_pylist())  # NaN is not NaN
    with pytest.raises(BadInputError) as error:
        list(rows_of([part], MUONS))
    assert str(error.value).startswith(f"{path}: column '{column}', row {BROKEN_ROW} of the file: {told}")


def test_events_that_break_several_rules_are_each_counted_once(tmp_path: Path, reader: ParquetReader) -> None:
    bad = {
        1: replace(GOOD[1], primary=(1.0, 0.5)),
        2: replace(GOOD[2], primary=(-1.0, -1.0, NAN, 1.0), muons=((1.0,),)),
        5: replace(GOOD[5], primary=(5.0, -0.5, 4.0, 1500.0), muons=((1.0, NAN, 0.0), (NAN, 1.0, 1.0))),
        6: replace(GOOD[6], primary=(5.0, -0.5, NAN, 1500.0)),
        8: replace(GOOD[8], muons=((NAN, 0.0, 0.0),)),
        9: replace(GOOD[9], muons=((NAN, 0.0, 0.0), (1.0, 2.0, 3.0))),
    }
    path = write_events(tmp_path / "f.parquet", [bad.get(row, event) for row, event in enumerate(GOOD)])
    [rows] = reader.read([part_of(path, 12)])
    assert {(one.column, one.field): one.rows.tolist() for one in rows.invalid} == {
        ("primary", ""): [1],
        ("muons", ""): [2],
        ("muons", "energy_gev"): [5, 8, 9],  # columns in the order of the workload
        ("primary", "zenith_rad"): [6],
    }
    assert rows.invalid_rows.tolist() == list(bad)
    assert rows.counts.tolist() == [0 if row in bad else 2 for row in range(12)]


def test_large_events_behind_invalid_ones_keep_their_rows(tmp_path: Path, reader: ParquetReader) -> None:
    events = [replace(GOOD[0], primary=(1.0,)), make_event(1, 9), replace(make_event(2, 9), primary=(1.0,)), GOOD[3]]
    path = write_events(tmp_path / "f.parquet", events)
    [rows] = reader.read([part_of(path, 4)], large_above=5)
    assert rows.large.tolist() == [1]
    assert rows.large_events is not None
    assert rows.large_events["primary_major_id"].to_pylist() == [1]


def test_a_file_that_was_evicted_is_closed_before_the_next_is_opened(tmp_path: Path, reader: ParquetReader) -> None:
    first, second = (write_events(tmp_path / f"{name}.parquet", make_events([1])) for name in "ab")
    reader.read([part_of(first, 1)])
    first.unlink()
    reader.read([part_of(second, 1)])
    maps = Path("/proc/self/maps").read_text() + "".join(
        str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()
    )
    assert str(first) not in maps
    assert str(second) in maps


def test_a_row_group_that_is_not_there_or_shorter_is_told(tmp_path: Path, reader: ParquetReader) -> None:
    path = write_events(tmp_path / "f.parquet", make_events([1, 1]))
    with pytest.raises(BadRowsError, match=r"^pelican://osg/f\.parquet: row group 3 can't be read: "):
        reader.read([replace(part_of(path, 1, row_group=3), remote="pelican://osg/f.parquet")])
    with pytest.raises(BadRowsError, match="has 2 of the 5 rows that its footer promised"):
        reader.read([part_of(path, 5)])


def test_a_read_of_many_row_groups_holds_none_of_them_as_stored_but_the_current_one(tmp_path: Path) -> None:
    """Arrow's pre-buffering read the whole unit's bytes at once, beside its rows."""
    rng = np.random.default_rng(1)
    noise = [Event(i, 0, (1.0, 0.5, 4.0, 1.0), tuple(map(tuple, rng.uniform(1, 2, (300, 3))))) for i in range(256)]
    path = tmp_path / "f.parquet"
    options = {"compression": "none", "use_dictionary": False}
    pq.write_table(make_table(noise, list_of=pa.list_), path, row_group_size=16, **options)
    stored_bytes, before = path.stat().st_size, pa.total_allocated_bytes()
    taken: list[int] = []
    reader = ParquetReader(MUONS)
    parts = [replace(part_of(path, 16, row_group=group), batch_rows=16) for group in range(16)]
    reader.read(parts, lambda: taken.append(pa.total_allocated_bytes() - before))
    reader.close()
    assert len(taken) == 16
    assert taken[0] < stored_bytes / 2
