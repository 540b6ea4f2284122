from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from decoded_files import decoded, planned
from hdf5_files import tables_of, write_hdf5, write_tables
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import Event, make_event, make_events, write_events
from native_layers import both_ways

from common.config import SourceConfig, StreamConfig
from common.files.by_content import ContentReader
from common.files.hdf5 import reader as hdf5
from common.files.hdf5 import stored
from common.files.hdf5.reader import Hdf5Reader
from common.files.hdf5.stored import StoredRows
from common.files.rows import BadRowsError, RaggedRows, first_invalid
from common.input_errors import MachineError
from common.messages import Part
from workloads.muons.columns import MUONS

__all__ = ["both_ways"]

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


def assert_events(pieces: Sequence[RaggedRows], events: Sequence[Event]) -> None:
    assert np.concatenate([p.counts for p in pieces]).tolist() == [len(event.muons) for event in events]
    found = {
        name: np.concatenate([p.event_columns[name] for p in pieces]).tolist() for name in ("primary", "primary_id")
    }
    assert found["primary"] == [list(event.primary) for event in events]
    assert found["primary_id"] == [[event.major, event.minor] for event in events]
    muons = np.concatenate([p.particle_columns["muons"] for p in pieces]).tolist()
    assert muons == [list(muon) for event in events for muon in event.muons]
    for piece in pieces:
        assert {name: array.dtype.str for name, array in {**piece.event_columns, **piece.particle_columns}.items()} == {
            "primary": "<f4",
            "primary_id": "<u8",
            "muons": "<f4",
        }


@settings(deadline=None, max_examples=80)
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
    for slice_particles in (1 << 17, 5):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hdf5, "_SLICE_PARTICLES", slice_particles)
            patch.setattr(stored, "_LEAST_CHUNK_BYTES", 0)
            found = reader.read([part_of(path, events, first, rows, group)])
        assert_events(found, expected)
        assert sum(piece.particles_dropped for piece in found) == sum(not event.muons for event in expected)
    reader.close()


def test_an_event_of_ids_zero_without_muons_is_empty_too(tmp_path: Path, reader: Hdf5Reader) -> None:
    events = [replace(make_event(5, 0), major=0, minor=0), make_event(0, 2), make_event(7, 0)]
    path = write_hdf5(tmp_path / "f.h5", events)
    assert_events(reader.read([part_of(path, events)]), events)


def test_events_without_muons_may_also_have_count_zero(tmp_path: Path, reader: Hdf5Reader) -> None:
    events = make_events([0, 2, 0, 0, 1, 0])
    path = write_tables(tmp_path / "f.h5", tables_of(events, fillers=False))
    found = reader.read([Part(0, str(path), 0, 0, 6, 3, 0)])
    assert_events(found, events)
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
    assert_events([piece], events)
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


def test_a_file_with_times_that_nobody_named_is_refused_with_what_to_set(tmp_path: Path, reader: Hdf5Reader) -> None:
    timed = [replace(e, primary=(*e.primary[:3], 99.0, e.primary[3])) for e in make_events([2, 0, 3])]
    path = write_hdf5(tmp_path / "f.h5", timed)
    expected = (
        "behind the 2 ids, primary has lists of 5 numbers; expected 4 (energy_gev, zenith_rad, mass_a, depth_m). If "
        "these are its numbers, in order, give "
        '--set \'source.fields.primary=["energy_gev", "zenith_rad", "mass_a", "time_s", "depth_m"]\''
    )
    with pytest.raises(BadRowsError, match=re.escape(expected)):
        reader.read([part_of(path, timed)])


GOOD = [make_event(number, number % 3) for number in range(12)]


def change(tables: dict[str, np.ndarray], name: str, place: tuple[int, ...] | int, value: float) -> None:
    tables[name] = tables[name].astype("<f8") if name != "counts" else tables[name]
    tables[name][place] = value


@pytest.mark.parametrize(
    ("name", "place", "value", "row", "told"),
    [
        ("primaries", (9, 2), NAN, 9, "'primary', row 9: energy_gev is nan; expected a finite number"),
        ("primaries", (9, 2), 1e39, 9, "'primary', row 9: energy_gev is inf; expected a finite number"),
        ("primaries", (9, 3), -1, 9, "'primary', row 9: zenith_rad is -1; expected"),
        ("primaries", (9, 0), 9.5, 9, "'primaries', row 9: primary_major_id is 9.5; expected a whole number"),
        ("primaries", (9, 0), NAN, 9, "'primaries', row 9: primary_major_id is nan; expected a whole number"),
        ("primaries", (9, 1), -2, 9, "'primaries', row 9: primary_minor_id is -2.0; expected a whole number"),
        ("primaries", (0, 0), 77, None, ""),  # an event with a filler only: nothing says which event it is of
        ("muons", (11, 3), NAN, 8, "'muons', row 8: x_m is nan"),
    ],
)
@pytest.mark.parametrize("first", [0, 4])
def test_one_bad_event_is_invalid_and_all_others_are_read(
    tmp_path: Path,
    reader: Hdf5Reader,
    name: str,
    place: tuple[int, ...] | int,
    value: float,
    row: int | None,
    told: str,
    first: int,
) -> None:
    tables = tables_of(GOOD)
    change(tables, name, place, value)
    path = write_tables(tmp_path / "f.h5", tables)
    [rows] = reader.read([part_of(path, GOOD, first)])
    if row is None:
        assert not rows.invalid
        return
    assert rows.invalid_rows.tolist() == [row - first]
    text = first_invalid(rows, str(path), first).replace(" of the file", "")
    assert text.startswith(f"{path}: column {told}")
    empty = replace(make_event(0, 0), major=0, minor=0, primary=(0.0,) * 4)
    assert_events([rows], [*GOOD[first:row], empty, *GOOD[row + 1 :]])
    assert rows.invalid_events is not None
    assert len(rows.invalid_events) == 1
    assert len(rows.invalid_events["muons"][0]) == max(len(GOOD[row].muons), 1)


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
@pytest.mark.parametrize("first", [0, 4])
def test_muons_of_an_unknown_event_are_an_error_of_all_rows(
    tmp_path: Path, reader: Hdf5Reader, name: str, place: tuple[int, ...] | int, value: float, told: str, first: int
) -> None:
    tables = tables_of(GOOD)
    change(tables, name, place, value)
    path = write_tables(tmp_path / "f.h5", tables)
    with pytest.raises(BadRowsError) as error:
        reader.read([part_of(path, GOOD, first)])
    assert str(error.value).startswith(f"{path}: rows {first} to 11{told}")


def test_two_muons_of_zeros_are_no_stand_in_for_none(tmp_path: Path, reader: Hdf5Reader) -> None:
    tables = tables_of(GOOD)
    tables["muons"][3:5] = 0  # both of event 2
    path = write_tables(tmp_path / "f.h5", tables)
    with pytest.raises(BadRowsError, match="a particle of row 2 has ids 0 0, its event has 2 2"):
        reader.read([part_of(path, GOOD)])


def test_ids_of_muons_in_another_type_than_those_of_events_are_compared_as_numbers(
    tmp_path: Path, reader: Hdf5Reader
) -> None:
    events = [replace(make_event(number, 2), major=0, minor=5 + number) for number in range(2)]
    tables = tables_of(events, dtype="<f8")
    tables["muons"] = tables["muons"].astype("<f4")
    assert_events(reader.read([part_of(write_tables(tmp_path / "good.h5", tables), events)]), events)
    tables["muons"][:, :2] = 0
    with pytest.raises(BadRowsError, match="ids 0 0, its event has 0 5"):
        reader.read([part_of(write_tables(tmp_path / "bad.h5", tables), events)])


def test_large_ids_are_exact_as_far_as_the_file_stores_them(tmp_path: Path, reader: Hdf5Reader) -> None:
    events = [replace(make_event(1, 2), major=2**53 - 1), replace(make_event(2, 0), major=2**40, minor=2**24 + 1)]
    path = write_tables(tmp_path / "f.h5", tables_of(events, dtype="<f8"))
    assert_events(reader.read([part_of(path, events)]), events)


def test_a_file_that_this_machine_cannot_open_says_nothing_of_the_file(tmp_path: Path) -> None:
    for reader in (Hdf5Reader(MUONS), ContentReader(MUONS)):
        with pytest.raises(MachineError, match="No such file"):
            reader.read([part_of(tmp_path / "not mounted here", GOOD)])


def test_rows_of_a_file_that_was_planned_and_is_gone_are_quarantined() -> None:
    part = replace(part_of(Path("x"), GOOD), path="", remote="/data/f.h5")
    for reader in (Hdf5Reader(MUONS), ContentReader(MUONS)):
        with pytest.raises(BadRowsError, match=r"^/data/f\.h5: .*: the file was there when the plan was made"):
            reader.read([part])


def test_a_file_that_was_evicted_is_closed_and_only_so_many_stay_open(tmp_path: Path, reader: Hdf5Reader) -> None:
    paths = [write_hdf5(tmp_path / f"{i}.h5", GOOD) for i in range(hdf5._OPEN_FILES + 3)]
    for path in [*paths, *paths]:
        assert_events(reader.read([part_of(path, GOOD)]), GOOD)
    assert len(reader._files) == hdf5._OPEN_FILES
    paths[-1].unlink()
    reader.read([part_of(paths[0], GOOD)])
    open_files = {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    assert not any(name.startswith(str(paths[-1])) for name in open_files)
    assert str(paths[0]) in open_files


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


def test_a_file_of_another_kind_is_named_by_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    path.write_bytes(b"<html>404</html>")
    with pytest.raises(BadRowsError, match="neither Parquet nor HDF5: the file begins with"):
        ContentReader(MUONS).read([part_of(path, GOOD)])


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


@pytest.mark.parametrize("events", [1, 3])
def test_events_without_any_muon_in_the_file_are_read(tmp_path: Path, reader: Hdf5Reader, events: int) -> None:
    """A slice without particles ended the decoder."""
    wanted = make_events([0] * events)
    path = write_tables(tmp_path / "f.h5", tables_of(wanted, fillers=False))
    assert_events(reader.read([part_of(path, wanted)]), wanted)


@pytest.mark.parametrize("userblock_bytes", [0, 512])
def test_a_dataset_in_one_piece_is_read_from_its_place_behind_a_user_block(
    tmp_path: Path, reader: Hdf5Reader, userblock_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.h5"
    with h5py.File(path, "w", userblock_size=userblock_bytes) as file:
        for name, values in tables_of(GOOD).items():
            file[name] = values
    monkeypatch.setattr(h5py.h5s, "create_simple", lambda *_: pytest.fail("HDF5 was asked"))
    assert_events(reader.read([part_of(path, GOOD)]), GOOD)


@pytest.mark.parametrize("chunk_rows", [0, 2])
def test_a_file_truncated_while_it_is_open_is_refused(tmp_path: Path, reader: Hdf5Reader, chunk_rows: int) -> None:
    path = write_hdf5(tmp_path / "f.h5", GOOD, chunk_rows=chunk_rows)
    assert_events(reader.read([part_of(path, GOOD, rows=1)]), GOOD[:1])
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(BadRowsError, match=r"f\.h5: rows 0 to 11"):
        reader.read([part_of(path, GOOD)])


@pytest.mark.parametrize("options", [{"libver": "earliest"}, {"libver": "latest"}, {"userblock_size": 512}])
@pytest.mark.parametrize("chunk_rows", [1, 3, 100])
@pytest.mark.parametrize("chunk_width", [1, 2, 5])
def test_chunks_without_filters_are_read_from_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], chunk_rows: int, chunk_width: int
) -> None:
    monkeypatch.setattr(stored, "_LEAST_CHUNK_BYTES", 0)
    numbers = np.arange(200, dtype="<f4").reshape(40, 5)
    with h5py.File(tmp_path / "f.h5", "w", **options) as file:
        chunks = (min(chunk_rows, 40), chunk_width)
        dataset = file.create_dataset("numbers", data=numbers, chunks=chunks, maxshape=(None, 5))
        file.flush()
        found = StoredRows.of(dataset.id)
        assert (found is None) == ("userblock_size" in options)  # HDF5's offsets of chunks are those behind it
        for first, end in ((0, 40), (2, 3), (5, 31), (39, 40)):
            out = np.zeros((end - first, 5), "<f4")
            assert found is None or (found.read(first, out) and np.array_equal(out, numbers[first:end]))


def test_chunks_that_are_missing_filtered_swapped_or_small_are_left_to_hdf5(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        kinds: dict[str, dict[str, Any]] = {
            "good": {"chunks": (1024, 4)},
            "one piece": {},
            "missing": {"chunks": (1024, 4)},
            "filtered": {"chunks": (1024, 4), "fletcher32": True},
            "swapped": {"chunks": (1024, 4), "dtype": ">f4"},
            "small": {"chunks": (128, 4)},
            "empty": {"chunks": (1024, 4), "shape": (0, 4), "maxshape": (None, 4)},
        }
        found = {}
        for name, options in kinds.items():
            dataset = file.create_dataset(name, **{"shape": (4096, 4), "dtype": "<f4", **options})
            dataset[: 1024 if name == "missing" else None] = 1
            file.flush()
            found[name] = StoredRows.of(dataset.id) is not None
    assert found == {name: name in ("good", "one piece") for name in kinds}
