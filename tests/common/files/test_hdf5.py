"""HDF5 files of flat tables: rows, and the content that their footers would tell."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from decoded_files import decoded, planned
from hdf5_files import tables_of, write_hdf5, write_tables
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import Event, assert_rows, make_event, make_events, write_events

from common.config import SourceConfig, StreamConfig
from common.errors import MachineError
from common.files import hdf5
from common.files.by_content import ContentReader, read_footer
from common.files.hdf5 import Hdf5Reader, Table
from common.files.local import BadFileError
from common.files.parquet.reader import ParquetReader
from common.files.rows import BadRowsError, first_invalid
from common.messages import Part
from common.plan import Footer, RowGroup, SlotCapacity
from workloads.muons.columns import MUONS

NAN = float("nan")
WITH_TIME = SourceConfig(
    fields={
        "primary": ("energy_gev", "zenith_rad", "mass_a", "time_s", "depth_m"),
        "muons": ("energy_gev", "x_m", "y_m", "time_s"),
    }
)


@pytest.fixture
def reader() -> Iterator[Hdf5Reader]:
    made = Hdf5Reader(MUONS)
    yield made
    made.close()


def part_of(path: Path, events: Sequence[Event], first: int = 0, rows: int | None = None, group: int = 0) -> Part:
    """Rows ``first`` of the span that begins at row ``group`` of a file with fillers."""
    before = sum(max(len(event.muons), 1) for event in events[:group])
    rows = len(events) - group - first if rows is None else rows
    return Part(0, str(path), 0, first, rows, 1 << 20, file_row=group, file_particle=before)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=60),
    st.sampled_from(["<f4", ">f4", "<f8", ">f8"]),
    st.sampled_from(["<i4", "<u8", ">i2", "u1"]),
    st.sampled_from([0, 1, 7, 64]),
    st.sampled_from([{}, {"compression": "gzip"}, {"compression": "lzf", "fletcher32": True}, {"shuffle": True}]),
    st.data(),
)
def test_any_part_of_a_file_is_those_events(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    dtype: str,
    count_dtype: str,
    chunk_rows: int,
    options: dict[str, object],
    data: st.DataObject,
) -> None:
    events = make_events(counts)
    tables = tables_of(events, dtype=dtype, count_dtype=count_dtype)
    options = {**options, "chunk_rows": chunk_rows} if chunk_rows else {}
    path = write_tables(tmp_path_factory.mktemp("f") / "f.h5", tables, **options)  # type: ignore[arg-type]
    group = data.draw(st.integers(0, len(events) - 1))
    first = data.draw(st.integers(0, len(events) - group - 1))
    rows = data.draw(st.integers(1, len(events) - group - first))
    reader = Hdf5Reader(MUONS)
    expected = events[group + first : group + first + rows]
    found = reader.read([part_of(path, events, first, rows, group)])
    reader.close()
    assert_rows(found, expected)
    assert sum(piece.particles_dropped for piece in found) == sum(not event.muons for event in expected)


@pytest.mark.parametrize("counts", [[0, 2, 0, 0, 1, 0], [0], [0, 0, 0]])
def test_events_without_muons_may_also_have_count_zero(tmp_path: Path, reader: Hdf5Reader, counts: list[int]) -> None:
    """A slice without particles ended the decoder."""
    events = make_events(counts)
    path = write_tables(tmp_path / "f.h5", tables_of(events, fillers=False))
    found = reader.read([Part(0, str(path), 0, 0, len(counts), sum(counts), 0)])
    assert_rows(found, events)
    assert sum(piece.particles_dropped for piece in found) == 0


def test_a_file_with_times_is_read_as_the_configuration_names_it(tmp_path: Path) -> None:
    events = make_events([2, 0, 3])
    timed = [
        replace(e, primary=(*e.primary[:3], 99.0, e.primary[3]), muons=tuple((*muon, 7.0) for muon in e.muons))
        for e in events
    ]
    path = write_hdf5(tmp_path / "f.h5", timed)
    reader = Hdf5Reader(MUONS.stored_as(WITH_TIME))
    (piece,) = reader.read([part_of(path, events)], large_above=2)
    assert_rows([piece], events)
    assert piece.large.tolist() == [2]
    assert piece.large_events.to_pylist() == [
        {
            "primary_major_id": 2,
            "primary_minor_id": 2,
            "primary": list(timed[2].primary),
            "muons": [list(muon) for muon in timed[2].muons],
        }
    ]
    reader.close()


GOOD = [make_event(number, number % 3) for number in range(12)]
FIRST = 4
"""Row with which a part of them begins."""


def change(tables: dict[str, np.ndarray], name: str, place: tuple[int, ...] | int, value: float) -> None:
    tables[name] = tables[name].astype("<f8") if name != "counts" else tables[name]
    tables[name][place] = value


@pytest.mark.parametrize(
    ("name", "place", "value", "row", "told"),
    [
        ("primaries", (9, 2), NAN, 9, "'primary', row 9: energy_gev is nan; expected a finite number"),
        ("primaries", (9, 0), 9.5, 9, "'primary_major_id', row 9: major is 9.5; expected a whole number"),
        ("primaries", (9, 0), NAN, 9, "'primary_major_id', row 9: major is nan; expected a whole number"),
        ("primaries", (9, 1), -2, 9, "'primary_minor_id', row 9: minor is -2; expected a whole number"),
        ("primaries", (0, 0), 77, None, ""),  # an event with a filler only: nothing says which event it is of
        ("muons", (11, 3), NAN, 8, "'muons', row 8: x_m is nan"),
    ],
)
def test_one_bad_event_is_invalid_and_all_others_are_read(
    tmp_path: Path,
    reader: Hdf5Reader,
    name: str,
    place: tuple[int, ...] | int,
    value: float,
    row: int | None,
    told: str,
) -> None:
    tables = tables_of(GOOD)
    change(tables, name, place, value)
    path = write_tables(tmp_path / "f.h5", tables)
    [rows] = reader.read([part_of(path, GOOD, FIRST)])
    if row is None:
        assert not rows.invalid
        return
    assert rows.invalid_rows.tolist() == [row - FIRST]
    text = first_invalid(rows, str(path), FIRST).replace(" of the file", "")
    assert text.startswith(f"{path}: column {told}")
    empty = replace(make_event(0, 0), major=0, minor=0, primary=(0.0,) * 4)
    assert_rows([rows], [*GOOD[FIRST:row], empty, *GOOD[row + 1 :]])
    assert rows.invalid_events is not None
    assert len(rows.invalid_events) == 1
    assert len(rows.invalid_events["muons"][0]) == len(GOOD[row].muons)


@pytest.mark.parametrize(
    ("name", "place", "value", "told"),
    [
        ("primaries", (8, 1), 3, ", dataset 'muons': a particle of row 8 has ids 8 1, its event has 8 3 ("),
        ("muons", (11, 0), 7, ", dataset 'muons': a particle of row 8 has ids 7 1, its event has 8 1"),
        ("counts", 8, -2, ": dataset 'counts', row 8: -2 particles; expected 0 or more"),
        ("counts", 8, 1, ", dataset 'muons': a particle of row 9 has ids 8 1, its event has 9 2"),
        ("counts", 11, 30, ": dataset 'counts' asks for 44 rows of 'muons', which has 16"),
    ],
)
def test_muons_of_an_unknown_event_are_an_error_of_all_rows(
    tmp_path: Path, reader: Hdf5Reader, name: str, place: tuple[int, ...] | int, value: float, told: str
) -> None:
    tables = tables_of(GOOD)
    change(tables, name, place, value)
    path = write_tables(tmp_path / "f.h5", tables)
    with pytest.raises(BadRowsError) as error:
        reader.read([part_of(path, GOOD, FIRST)])
    assert str(error.value).startswith(f"{path}: rows {FIRST} to 11{told}")


def test_two_muons_of_zeros_are_no_stand_in_for_none(tmp_path: Path, reader: Hdf5Reader) -> None:
    tables = tables_of(GOOD)
    tables["muons"][3:5] = 0  # both of event 2
    path = write_tables(tmp_path / "f.h5", tables)
    with pytest.raises(BadRowsError, match="a particle of row 2 has ids 0 0, its event has 2 2"):
        reader.read([part_of(path, GOOD)])


@pytest.mark.parametrize("kind", [Hdf5Reader, ParquetReader, ContentReader])
def test_rows_of_a_file_that_was_planned_and_is_gone_are_quarantined(
    kind: type[Hdf5Reader | ParquetReader | ContentReader],
) -> None:
    part = replace(part_of(Path("x"), GOOD), path="", remote="/data/f.h5")
    with (
        closing(kind(MUONS)) as reader,
        pytest.raises(BadRowsError, match=r"^/data/f\.h5: .*: the file was there when the plan was made"),
    ):
        reader.read([part])


def test_one_unit_may_hold_both_kinds_and_is_decoded_alike(tmp_path: Path) -> None:
    stream = StreamConfig(unit_events=100, batch_events=10, max_particles=100, max_particles_per_event=4, slot_mib=0.25)
    events = make_events([0, 3, 5, 1, 0, 4, 9, 2])
    slots = []
    for writers in ((write_events, write_hdf5), (write_events, write_events)):
        folder = tmp_path / writers[1].__name__
        folder.mkdir()
        paths = [write(folder / f"{i}.parquet", events) for i, write in enumerate(writers)]
        (one,) = decoded(planned(paths, MUONS, stream), MUONS, stream, folder)
        slots.append((one.slot, one.layout, replace(one.tally, particles_dropped=0)))
        assert one.tally.outliers == 4
        assert (folder / "outliers").exists()
    assert np.array_equal(slots[0][0], slots[1][0])
    assert slots[0][1:] == slots[1][1:]


def test_numbers_behind_links_and_in_other_files_are_not_followed(tmp_path: Path, reader: Hdf5Reader) -> None:
    good = write_hdf5(tmp_path / "good.h5", GOOD)
    path = tmp_path / "f.h5"
    with h5py.File(path, "w") as file:
        file["primaries"] = h5py.ExternalLink(str(good), "primaries")
        for name in ("muons", "counts"):
            file[name] = tables_of(GOOD)[name]
    with pytest.raises(BadRowsError, match="'primaries' is a link to elsewhere"):
        reader.read([part_of(path, GOOD)])
    tables = tables_of(GOOD)
    with h5py.File(path, "w") as file:
        file["muons"], file["counts"] = tables["muons"], tables["counts"]
        raw = tmp_path / "raw"
        file.create_dataset("primaries", data=tables["primaries"], external=[(str(raw), 0, h5py.h5f.UNLIMITED)])
    with pytest.raises(BadRowsError, match="dataset 'primaries' keeps its numbers in other files"):
        reader.read([part_of(path, GOOD)])


# ------------------------------------------------------------------ content


STREAM = StreamConfig(unit_events=50, max_particles=100, max_particles_per_event=40, slot_mib=0.0157)
CAPACITY = SlotCapacity(MUONS, STREAM)
TABLES_OF_40 = make_events([2, 0, 3, 1] * 10)


def footer_of(path: Path) -> Footer:
    return read_footer(path, MUONS, STREAM, CAPACITY)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5, "_LEAST_ROWS", 16)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_spans_have_the_exact_particles_with_fillers(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int]
) -> None:
    path = write_hdf5(tmp_path_factory.mktemp("f") / "f.h5", make_events(counts))
    stored = [max(count, 1) for count in counts]
    groups = [stored[i : i + 16] for i in range(0, len(stored), 16)]
    assert footer_of(path) == Footer(tuple(RowGroup(len(group), sum(group)) for group in groups))


def test_a_file_without_events_has_none(tmp_path: Path) -> None:
    assert footer_of(write_hdf5(tmp_path / "f.h5", [])) == Footer(())
    assert footer_of(write_hdf5(tmp_path / "g.h5", [], chunk_rows=10)) == Footer(())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"primaries": None}, "dataset 'primaries' is missing; the file has 'counts', 'muons'"),
        ({"primaries": np.zeros((39, 6), "f4")}, "dataset 'primaries' has 39 rows, and 'counts' has 40"),
        ({"primaries": np.zeros((40, 6), "i4")}, "dataset 'primaries' has numbers of type int32; expected float32 or"),
        ({"primaries": np.zeros(40, "f4")}, "dataset 'primaries' has shape (40,); expected 2 dimensions"),
        (
            {"muons": np.zeros((70, 4), "f4")},
            "behind the 2 ids, muons has lists of 2 numbers; expected 3 (energy_gev, x_m, y_m)",
        ),
        ({"counts": np.full(40, 2)}, "dataset 'counts' counts 80 particles, and 'muons' has 70 rows"),
        ({"counts": np.full(40, 2.0)}, "dataset 'counts' has numbers of type float64; expected integers"),
        ({"counts": np.full(40, -1)}, "dataset 'counts', row 0: -1 particles; expected 0 or more"),
        ({"counts": np.full(40, 2**63, "u8")}, "particles; expected 0 or more"),
    ],
)
def test_tables_that_cannot_be_are_named_with_what_was_expected(
    tmp_path: Path, change: dict[str, np.ndarray | None], told: str
) -> None:
    tables = {**tables_of(TABLES_OF_40), **change}
    path = write_tables(tmp_path / "f.h5", {name: table for name, table in tables.items() if table is not None})
    with pytest.raises(BadFileError, match=re.escape(told)) as error:
        footer_of(path)
    assert error.value.rows in (0, 40)


def test_a_dataset_that_was_never_written_is_told(tmp_path: Path) -> None:
    """HDF5 would read its numbers as zeros."""
    for options in ({}, {"chunks": (5, 5)}):
        path = tmp_path / "f.h5"
        with h5py.File(path, "w") as file:
            for name, table in tables_of(TABLES_OF_40).items():
                if name == "muons":
                    file.create_dataset(name, table.shape, table.dtype, **options)
                else:
                    file[name] = table
        with pytest.raises(BadFileError, match=r"'muons' (is stored in 0 bytes|has 0 of the 14 chunks)"):
            footer_of(path)


@pytest.mark.parametrize("options", [{"compression": "lzf"}, {"compression": "lzf", "fletcher32": True}])
def test_chunks_that_a_compression_would_not_make_smaller_are_no_error(
    tmp_path: Path, options: dict[str, object]
) -> None:
    rng = np.random.default_rng(0)
    tables = tables_of(make_events([3] * 400))
    tables["muons"][:] = rng.integers(1, 2**30, (1200, 5)).astype(np.uint32).view(np.float32)  # noise
    path = write_tables(tmp_path / "f.h5", tables, chunk_rows=400, **options)
    with h5py.File(path) as file:
        masks: list[int] = []
        file["muons"].id.chunk_iter(lambda chunk: masks.append(chunk.filter_mask))
    assert any(masks), "the writer left the compression out"
    capacity = SlotCapacity(MUONS, StreamConfig())
    footer = read_footer(path, MUONS, StreamConfig(), capacity)
    assert sum(group.rows for group in footer.row_groups) == 400


def test_a_chunk_smaller_than_its_checksum_is_told_and_not_decoded(tmp_path: Path) -> None:
    """HDF5 would read outside of it, and end the process."""
    path = write_hdf5(tmp_path / "f.h5", TABLES_OF_40, chunk_rows=100, compression="gzip", fletcher32=True)
    with h5py.File(path, "r+") as file:
        file["muons"].id.write_direct_chunk((0, 0), b"xxx")
    with pytest.raises(BadFileError, match="dataset 'muons': a chunk of 3 bytes; expected"):
        footer_of(path)


def test_other_filters_than_those_of_common_writers_are_refused_with_the_way_out(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "f.h5", TABLES_OF_40)
    with h5py.File(path, "r+") as file:
        muons = file["muons"][:]
        del file["muons"]
        file.create_dataset("muons", data=muons, chunks=(5, 5), scaleoffset=3)
    with pytest.raises(BadFileError, match=r"dataset 'muons': filter 6 is not read; expected gzip, .*`h5repack"):
        footer_of(path)


def test_the_smallest_chunk_of_each_dataset_is_decoded_so_that_what_kills_its_reader_does_so_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_of(TABLES_OF_40)
    tables["primaries"][20:30] = 1.0  # the chunk of the fewest bytes
    path = write_tables(tmp_path / "f.h5", tables, chunk_rows=10, compression="gzip")
    read: list[tuple[str, int]] = []
    real, fails = Table.read, 0

    def reads(table: Table, first: int, num: int) -> npt.NDArray[np.generic]:
        if num == 1:
            read.append((table.name, first))
            if fails:
                raise MachineError("the kernel", fails)
        return real(table, first, num)

    monkeypatch.setattr(Table, "read", reads)
    found = footer_of(path)
    assert {name for name, _ in read} == {"counts", "primaries", "muons"}
    assert ("primaries", 20) in read
    fails = errno.ENOMEM
    assert footer_of(path) == found, "the decoder asks whose fault that is"
    fails = errno.EIO
    with pytest.raises(MachineError):
        footer_of(path)
