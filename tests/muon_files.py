"""Small Parquet files of the muons' source schema, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


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
