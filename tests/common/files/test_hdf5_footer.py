from __future__ import annotations

import errno
import re
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from hdf5_files import tables_of, write_hdf5, write_tables
from hypothesis import given, settings
from hypothesis import strategies as st
from muon_files import make_events

from common.config import StreamConfig
from common.files.bad_file import BadFileError
from common.files.footers import read_footer
from common.files.hdf5 import footer as hdf5_footer
from common.files.hdf5.footer import rows_of_group
from common.files.hdf5.tables import Table
from common.input_errors import MachineError
from common.plan import Footer, RowGroup, SlotCapacity
from workloads.muons.columns import MUONS

STREAM = StreamConfig(unit_events=50, max_particles=100, max_particles_per_event=40, slot_mib=0.0157)
CAPACITY = SlotCapacity(MUONS, STREAM)
GOOD = make_events([2, 0, 3, 1] * 10)


def footer_of(path: Path) -> Footer:
    return read_footer(path, MUONS, STREAM, CAPACITY)


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_footer, "_LEAST_ROWS", 16)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_spans_have_the_exact_particles_with_fillers(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int]
) -> None:
    path = write_hdf5(tmp_path_factory.mktemp("f") / "f.h5", make_events(counts))
    stored = [max(count, 1) for count in counts]
    groups = [stored[i : i + 16] for i in range(0, len(stored), 16)]
    assert footer_of(path) == Footer(tuple(RowGroup(len(group), sum(group)) for group in groups))


def test_a_span_that_no_unit_can_hold_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_footer, "_LEAST_ROWS", 1000)
    counts = [30] * 60 + [90] + [1] * 60
    (group,) = footer_of(write_hdf5(tmp_path / "f.h5", make_events(counts))).row_groups
    assert group.particles == sum(counts)
    assert len(group.spans) > 2
    assert sum(span.rows for span in group.spans) == len(counts)
    for span in group.spans:
        assert CAPACITY.fits(span.rows, span.particles)


def test_a_span_is_a_part_of_a_unit_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert rows_of_group(StreamConfig(unit_events=16_384)) == 4096
    assert rows_of_group(StreamConfig(unit_events=100)) == 4096
    assert rows_of_group(StreamConfig(unit_events=1 << 20)) == 65_536


def test_a_file_without_events_has_none(tmp_path: Path) -> None:
    assert footer_of(write_hdf5(tmp_path / "f.h5", [])) == Footer(())
    assert footer_of(write_hdf5(tmp_path / "g.h5", [], chunk_rows=10)) == Footer(())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"primaries": None}, "dataset 'primaries' is missing; the file has 'counts', 'muons'"),
        ({"primaries": np.zeros((39, 6), "f4")}, "dataset 'primaries' has 39 rows, and 'counts' has 40"),
        ({"primaries": np.zeros((40, 6), "i4")}, "dataset 'primaries' has numbers of type int32; expected float32 or"),
        ({"primaries": np.zeros((40, 6), "f2")}, "dataset 'primaries' has numbers of type float16; expected float32"),
        ({"primaries": np.zeros(40, "f4")}, "dataset 'primaries' has shape (40,); expected 2 dimensions"),
        (
            {"muons": np.zeros((70, 4), "f4")},
            "behind the 2 ids, muons has lists of 2 numbers; expected 3 (energy_gev, x_m, y_m)",
        ),
        ({"counts": np.full(40, 2)}, "dataset 'counts' counts 80 particles, and 'muons' has 70 rows"),
        ({"counts": np.full(40, 2.0)}, "dataset 'counts' has numbers of type float64; expected integers"),
        ({"counts": np.full(40, -1)}, "dataset 'counts', row 0: -1 particles; expected 0 or more"),
        ({"counts": np.full(40, 2**63, "u8")}, "particles; expected 0 or more"),
        ({"counts": np.full(40, 2**62)}, "particles, and 'muons' has 70 rows"),
    ],
)
def test_tables_that_cannot_be_are_named_with_what_was_expected(
    tmp_path: Path, change: dict[str, np.ndarray | None], told: str
) -> None:
    tables = {**tables_of(GOOD), **change}
    path = write_tables(tmp_path / "f.h5", {name: table for name, table in tables.items() if table is not None})
    with pytest.raises(BadFileError, match=re.escape(told)) as error:
        footer_of(path)
    assert error.value.rows in (0, 40)


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_a_truncated_file_is_told(tmp_path: Path, kept: float) -> None:
    path = write_hdf5(tmp_path / "f.h5", GOOD)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * kept)])
    with pytest.raises(BadFileError, match=r"truncated, or damaged: .*truncated file: eof"):
        footer_of(path)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"nowhere\.h5: No such file"):
        footer_of(tmp_path / "nowhere.h5")
    with pytest.raises(BadFileError, match="a directory; expected a file"):
        footer_of(tmp_path)


def test_a_dataset_that_was_never_written_is_told(tmp_path: Path) -> None:
    """HDF5 would read its numbers as zeros."""
    for options in ({}, {"chunks": (5, 5)}):
        path = tmp_path / "f.h5"
        with h5py.File(path, "w") as file:
            for name, table in tables_of(GOOD).items():
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


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_chunk_smaller_than_its_checksum_is_told_and_not_decoded(tmp_path: Path, size: int) -> None:
    """HDF5 would read outside of it, and end the process."""
    path = write_hdf5(tmp_path / "f.h5", GOOD, chunk_rows=100, compression="gzip", fletcher32=True)
    with h5py.File(path, "r+") as file:
        file["muons"].id.write_direct_chunk((0, 0), b"x" * size)
    with pytest.raises(BadFileError, match=f"dataset 'muons': a chunk of {size} bytes; expected"):
        footer_of(path)


def test_other_filters_than_those_of_common_writers_are_refused_with_the_way_out(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "f.h5", GOOD)
    with h5py.File(path, "r+") as file:
        muons = file["muons"][:]
        del file["muons"]
        file.create_dataset("muons", data=muons, chunks=(5, 5), scaleoffset=3)
    with pytest.raises(BadFileError, match=r"dataset 'muons': filter 6 is not read; expected gzip, .*`h5repack"):
        footer_of(path)


def test_the_smallest_chunk_of_each_dataset_is_decoded_so_that_what_kills_its_reader_does_so_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_of(GOOD)
    tables["primaries"][20:30] = 1.0  # the chunk of the fewest bytes
    path = write_tables(tmp_path / "f.h5", tables, chunk_rows=10, compression="gzip")
    read: list[tuple[str, int]] = []
    real, fails = Table.read, 0

    def reads(table: Table, first: int, num: int, *rest: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        if num == 1:
            read.append((table.name, first))
            if fails:
                raise MachineError("the kernel", fails)
        return real(table, first, num, *rest)

    monkeypatch.setattr(Table, "read", reads)
    found = footer_of(path)
    assert {name for name, _ in read} == {"counts", "primaries", "muons"}
    assert ("primaries", 20) in read
    fails = errno.ENOMEM
    assert footer_of(path) == found, "the decoder asks whose fault that is"
    fails = errno.EIO
    with pytest.raises(MachineError):
        footer_of(path)


@pytest.mark.parametrize("name", ["primaries", "muons"])
def test_a_chunk_that_cannot_be_decoded_is_left_to_the_decoder_which_names_its_rows(tmp_path: Path, name: str) -> None:
    path = write_hdf5(tmp_path / "f.h5", GOOD, chunk_rows=10, compression="gzip", fletcher32=True)
    found = footer_of(path)
    with h5py.File(path, "r+") as file:
        for chunk in range(file[name].id.get_num_chunks()):
            info = file[name].id.get_chunk_info(chunk)
            file[name].id.write_direct_chunk(info.chunk_offset, b"x" * info.size)
    assert footer_of(path) == found
