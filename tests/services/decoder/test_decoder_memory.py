from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hostile_files
import numpy as np
import pyarrow as pa
import pytest
from decoded_files import planned
from muon_files import make_events, write_events
from native_layers import both_ways

from common import memory as own_memory
from common.config import MIB, StreamConfig
from common.errors import MachineError
from common.files.by_content import ContentReader
from common.memory import asked_for_too_much, free_heap, limit_memory
from common.messages import Part, Unit
from common.plan import outlier_share
from services.decoder.decode import Decode
from workloads.muons.columns import MUONS

__all__ = ["both_ways"]

LIMIT = 16 * MIB
STREAM = StreamConfig()
SIZE = 18_000_000
"""Numbers: more than the limit, and than what this process has kept of its heap."""


@contextmanager
def limited() -> Iterator[None]:
    """This process has a limit, as a decoder has."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    free_heap()  # what was kept for later would not count
    limit_memory(LIMIT)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
        own_memory._limit_bytes = None


def decode_of(folder: Path, stream: StreamConfig) -> Decode:
    return Decode(MUONS, stream, 0, folder, ContentReader(MUONS))


@pytest.mark.slow
@pytest.mark.parametrize("trick", ["run lengths", "zstd", "lying metadata"])
def test_a_row_group_above_the_limit_is_quarantined_by_name_and_its_neighbours_are_not(
    tmp_path: Path, trick: str
) -> None:
    """As if the fetcher had let it pass."""
    bad = hostile_files.PARQUET[trick](tmp_path / "bad.parquet", SIZE)
    good = write_events(tmp_path / "good.parquet", make_events([1, 2, 3]))
    parts = (Part(0, str(bad), 0, 0, 1, 600_000, 0), Part(1, str(good), 0, 0, 3, 6, 0))
    slot = np.zeros(STREAM.slot_bytes, np.uint8)
    decode = decode_of(tmp_path, STREAM)
    with limited():
        layout, tally = decode(Unit(0, 0, 0, 0, parts), slot)
    assert (layout.events, layout.particles) == (3, 6)
    (quarantined,) = tally.bad
    assert quarantined.reason == f"{bad}: row group 0 needs more than 16 MiB of memory to decode"


def test_a_machine_without_memory_blames_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*args: object, **options: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    bad = hostile_files.run_lengths(tmp_path / "bad.parquet", SIZE)
    monkeypatch.setattr("mmap.mmap", refuses)  # less than the limit, even
    unit = Unit(0, 0, 0, 0, (Part(0, str(bad), 0, 0, 1, 600_000, 0),))
    decode, slot = decode_of(tmp_path, STREAM), np.zeros(STREAM.slot_bytes, np.uint8)
    with limited(), pytest.raises((MachineError, MemoryError)):
        decode(unit, slot)


def test_without_a_limit_it_is_always_the_machine_that_refuses() -> None:
    assert not asked_for_too_much()


def test_a_row_group_full_of_outliers_takes_no_more_memory_than_a_few_slots(tmp_path: Path) -> None:
    """A batch was 16,384 rows, whatever is in them."""
    stream = StreamConfig(unit_events=512, max_particles=1000, batch_events=64, slot_mib=0.25)
    counts = [2] * 1500 + [2_000] * 1500 + [2] * 1500
    path = hostile_files._write(tmp_path / "f.parquet", hostile_files.muons_of(counts, 1.0), compression="zstd")
    decode = decode_of(tmp_path, stream)
    before, peak = pa.total_allocated_bytes(), 0

    def beat() -> None:
        nonlocal peak
        peak = max(peak, pa.total_allocated_bytes() - before)

    slot = np.zeros(stream.slot_bytes, np.uint8)
    tallies = [decode(unit, slot, beat)[1] for unit in planned([path], MUONS, stream)]
    assert sum(tally.outliers for tally in tallies) == 1500
    assert sum(tally.rows_read for tally in tallies) == len(counts)
    assert 0 < peak < 16 * MIB, "all outliers of the row group have 36 MB of numbers"
    assert outlier_share(stream) * stream.slot_bytes == 32 * MIB
