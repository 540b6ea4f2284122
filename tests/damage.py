"""Damaged copies of good files, and what fetcher and decoder make of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hdf5_files import tables_of, write_tables
from muon_files import Event, make_table

from common.config import StreamConfig
from common.files.by_content import ContentReader, read_footer
from common.files.local import BadFileError
from common.plan import SlotCapacity, StagedFile, plan_block
from common.unit_arrays import unit_arrays
from services.decoder.decode import Decode
from workloads.muons.columns import MUONS

STREAM = StreamConfig(unit_events=400, batch_events=100, max_particles=2000, slot_mib=1)
NUM_EVENTS = 1200

PARQUET = {
    "zstd": {"compression": "zstd", "use_dictionary": False},
    "snappy_dictionary": {"compression": "snappy"},
    "plain": {"compression": "none", "use_dictionary": False, "data_page_version": "2.0"},
    "byte_stream_split": {
        "compression": "zstd",
        "use_dictionary": False,
        "use_byte_stream_split": ["primary.list.element", "muons.list.element.list.element"],
    },
}
HDF5 = {
    "gzip": {"compression": "gzip", "shuffle": True},
    "chunks": {},
    "lzf_latest": {"compression": "lzf", "libver": "latest"},
    "chunks_latest": {"libver": "latest"},
}


@lru_cache(1)
def the_events() -> list[Event]:
    """Events of which no two are alike."""
    rng = np.random.default_rng(7)
    events = []
    for i, count in enumerate(rng.geometric(0.3, NUM_EVENTS) - 1):
        primary = tuple(np.float32(rng.uniform(0.1, 1000, 4)).tolist())
        muons = np.float32(rng.uniform(0.1, 1000, (count, 3))).tolist()
        events.append(Event(i // 100, i % 100, primary, tuple(map(tuple, muons))))
    return events


def write_good(path: Path, kind: str) -> bytes:
    """A good file with checksums, as bytes; HDF5 has none for a dataset in one piece (contiguous)."""
    if kind in PARQUET:
        table = make_table(the_events(), list_of=pa.list_)
        pq.write_table(table, path, row_group_size=250, write_page_checksum=True, **PARQUET[kind])
    elif kind == "contiguous":
        write_tables(path, tables_of(the_events()))
    else:
        write_tables(path, tables_of(the_events()), chunk_rows=128, fletcher32=True, **HDF5[kind])
    return path.read_bytes()


def damaged(good: bytes, rng: random.Random) -> bytes:
    """Bits flipped (mostly in what no checksum of a page protects), truncated, overwritten, or appended to."""
    raw = bytearray(good)
    match rng.choices(
        ("flip", "flip the structure", "truncate", "zero", "overwrite", "append"), (25, 40, 12, 10, 8, 5)
    )[0]:
        case "flip":
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        case "flip the structure":
            # A Parquet file's footer is at its end; HDF5's structures are at both ends, and among the chunks.
            start, stop = rng.choice(((0, 4096), (len(raw) - 4096, len(raw))))
            if good.startswith(b"PAR1"):
                start, stop = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little"), len(raw)
            raw[rng.randrange(start, stop)] ^= 1 << rng.randrange(8)
        case "truncate":
            del raw[rng.randrange(len(raw)) :]
        case "zero":
            start = rng.randrange(len(raw))
            length = min(rng.choice((1, 8, 64, 512, 4096)), len(raw) - start)
            raw[start : start + length] = bytes(length)
        case "overwrite":
            start = rng.randrange(len(raw) - 16)
            raw[start : start + 16] = rng.randbytes(16)
        case "append":
            raw += rng.randbytes(rng.choice((1, 8, 1000)))
    return bytes(raw)


@dataclass
class Outcome:
    """What became of a file."""

    reasons: list[str] = field(default_factory=list)
    """Why it, or parts of it, were refused."""
    wrong: str = ""
    """What should not have happened; empty: nothing."""
    read: int = 0
    """Events that its footer promised."""
    rows: list[int] = field(default_factory=list)
    """Of the events that came out of it, each compared with its original."""
    particles: int = 0
    """Of those."""


def outcome(path: Path, run_dir: Path) -> Outcome:
    """A file through footer, plan and decoder."""
    capacity = SlotCapacity(MUONS, STREAM)
    try:
        footer = read_footer(path, MUONS, STREAM, capacity)
    except BadFileError as error:
        return Outcome([f"{path}: {error}"], read=error.rows)
    units = plan_block(0, 0, 0, [StagedFile(0, str(path), footer)], capacity=capacity, stream=STREAM, seed=1)
    reader = ContentReader(MUONS)
    decode = Decode(MUONS, STREAM, 1, run_dir, reader)
    slot = np.zeros(STREAM.slot_bytes, np.uint8)
    found = Outcome(read=footer.rows)
    quarantined = 0
    for unit in units:
        layout, tally = decode(unit, slot)
        arrays = unit_arrays(slot, MUONS, layout)
        found.reasons += [bad.reason for bad in tally.bad]
        quarantined += tally.quarantined
        for i, row in enumerate(arrays.event_columns["source_row"][:, 0].tolist()):
            muons = arrays.particle_columns["muons"][arrays.offsets[i] : arrays.offsets[i + 1]].tolist()
            event = Event(
                *arrays.event_columns["primary_id"][i].tolist(),
                tuple(arrays.event_columns["primary"][i].tolist()),
                tuple(map(tuple, muons)),
            )
            if event != the_events()[row]:
                found.wrong = f"row {row} is {event}, not {the_events()[row]}"
            found.rows.append(row)
            found.particles += len(muons)
    reader.close()
    if len(set(found.rows)) + quarantined != NUM_EVENTS or len(set(found.rows)) != len(found.rows):
        found.wrong = f"{len(found.rows)} events and {quarantined} quarantined"
    return found
