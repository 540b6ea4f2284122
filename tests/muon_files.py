"""Small Parquet files of the muons' source schema, for tests, and what readers must make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common.files.rows import RaggedRows


@dataclass(frozen=True)
class Event:
    """One row of a source file."""

    major: int
    minor: int
    primary: tuple[float, ...]
    muons: tuple[tuple[float, ...], ...]


def make_event(number: int, num_muons: int) -> Event:
    """An event whose numbers tell which one it is; all are exact in float32."""
    muons = tuple((1.0 + number, float(j), -float(number)) for j in range(num_muons))
    return Event(number, number % 7, (1000.0 + number, 0.5, 4.0, 1500.0), muons)


def make_events(counts: Sequence[int], first: int = 0) -> list[Event]:
    """Events with these numbers of muons."""
    return [make_event(first + i, count) for i, count in enumerate(counts)]


def make_table(
    events: Sequence[Event],
    *,
    list_of: Callable[[pa.DataType], pa.DataType] = pa.list_,
    number: pa.DataType | None = None,
) -> pa.Table:
    """The events as a table of the source schema."""
    number = number or pa.float32()
    return pa.table(
        {
            "primary_major_id": pa.array([event.major for event in events], pa.uint64()),
            "primary_minor_id": pa.array([event.minor for event in events], pa.uint64()),
            "primary": pa.array([event.primary for event in events], list_of(number)),
            "muons": pa.array([event.muons for event in events], list_of(list_of(number))),
        }
    )


def write_events(path: Path, events: Sequence[Event], *, row_group_rows: int = 1 << 20) -> Path:
    """Write the events into a Parquet file."""
    pq.write_table(make_table(events), path, row_group_size=row_group_rows)
    return path


def assert_rows(pieces: Sequence[RaggedRows], events: Sequence[Event]) -> None:
    """What a reader gave is what a loop over the events gives, to the bit."""
    first = pieces[0]
    of_event, of_particle = (
        {name: np.concatenate([getattr(one, kind)[name] for one in pieces]) for name in getattr(first, kind)}
        for kind in ("event_columns", "particle_columns")
    )
    assert np.concatenate([one.counts for one in pieces]).tolist() == [len(event.muons) for event in events]
    primary = np.array([event.primary for event in events], "<f4").reshape(-1, 4)
    assert np.array_equal(of_event["primary"], primary)
    assert of_event["primary_id"].tolist() == [[event.major, event.minor] for event in events]
    muons = np.array([muon for event in events for muon in event.muons], "<f4").reshape(-1, 3)
    assert np.array_equal(of_particle["muons"], muons)
    types = {"primary": "<f4", "primary_id": "<u8", "muons": "<f4"}
    assert {name: array.dtype.str for name, array in (of_event | of_particle).items()} == types
