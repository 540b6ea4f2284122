"""Rows of flat tables read in C++: float32 tables, each in one piece of the file.

Whatever is unusual or wrong is left to numpy, which gives the same rows, and words all errors. R rows, P particles.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.files.hdf5.tables import Tables
from common.files.native import address
from common.schema import Column, EventSchema, FlatTables
from common.unit_arrays import Array

Int64 = npt.NDArray[np.int64]

_IDS = 2
_BLOCK = 2_048
"""Events, and particles, read at a time: they must still be in the CPU's cache when they are cut."""
_FLOAT32 = np.dtype("<f4")


@dataclass(frozen=True)
class SpanLayout:
    """Columns of a workload whose tables C++ reads."""

    events: Column
    particles: Column
    identity: Column
    positive: int
    """Number of a particle that is above 0, or the particle is a filler."""
    least: npt.NDArray[np.float32]
    """Minimum of each number of an event."""
    most: npt.NDArray[np.float32]
    """Maximum of each number of an event."""

    @classmethod
    def of(cls, workload: EventSchema, layout: FlatTables) -> SpanLayout | None:
        """The columns; None: numpy must read them."""
        of_events, of_particles = (workload.source_column(n) for n in (layout.event_list, layout.particle_list))
        events, particles = workload.column(of_events.into), workload.column(of_particles.into)
        ids = [workload.source_column(name) for name in layout.ids]
        identity = workload.column(ids[0].into)
        rules = [rule for rule in workload.rules if rule.column == particles.name]
        positive = [rule.field for rule in rules if rule.drop_unless_positive]
        is_known = (
            [(one.into, one.field) for one in ids] == [(identity.name, place) for place in range(_IDS)]
            and len(identity.fields) == _IDS
            and identity.dtype in ("<u8", "<i8")
            and events.dtype == particles.dtype == "<f4"
            and workload.stored_fields(of_events) == events.fields
            and workload.stored_fields(of_particles) == particles.fields
            and len({column.name for column in workload.read_columns}) == 3
            and len(positive) == 1
            and all(rule.minimum == -np.inf and rule.maximum == np.inf for rule in rules)
            and not any(rule.column == identity.name for rule in workload.rules)
            and not any(rule.column == events.name and rule.drop_unless_positive for rule in workload.rules)
        )
        if not is_known:
            return None
        least = np.full(len(events.fields), -np.inf, np.float32)
        most = np.full(len(events.fields), np.inf, np.float32)
        for rule in workload.rules:
            if rule.column == events.name:
                least[rule.field] = max(least[rule.field], np.float32(rule.minimum))
                most[rule.field] = min(most[rule.field], np.float32(rule.maximum))
        return cls(events, particles, identity, positive[0], least, most)


@dataclass(frozen=True)
class SpanRows:
    """Rows as read, checked, without fillers."""

    event_columns: dict[str, Array]
    particle_columns: dict[str, Array]
    counts: Int64
    """Particles of each row, without fillers. (R,)."""


def read_span(
    library: ctypes.CDLL, layout: SpanLayout, tables: Tables, first: int, counts: Int64, particle: int, num: int
) -> SpanRows | None:
    """Rows from ``first`` on, whose ``num`` particles begin with that one; None: numpy must read them.

    ``counts``: particles of each row as stored, none negative. Raises MachineError, BadTables.
    """
    events_at, particles_at = tables.events.in_one_piece, tables.particles.in_one_piece
    rows, width, event_width = len(counts), len(layout.particles.fields), len(layout.events.fields)
    if (
        events_at is None
        or particles_at is None
        or tables.particles.dtype != _FLOAT32
        or tables.events.dtype != _FLOAT32
        or tables.particles.shape[1:] != (_IDS + width,)
        or tables.events.shape[1:] != (_IDS + event_width,)
    ):
        return None
    events, ids = np.empty((rows, event_width), _FLOAT32), np.empty((rows, _IDS), layout.identity.dtype)
    kept_counts, particles = np.empty(rows, np.int64), np.empty((num, width), _FLOAT32)
    kept = library.read_flat_rows(
        *(tables.descriptor, events_at + first * tables.events.row_bytes, event_width),
        *(particles_at + particle * tables.particles.row_bytes, width),
        *(address(counts), rows, num, _BLOCK, address(layout.least), address(layout.most), layout.positive),
        *(address(events), address(ids), address(kept_counts), address(particles)),
    )
    if kept < 0:
        return None
    return SpanRows(
        {layout.events.name: events, layout.identity.name: ids},
        {layout.particles.name: particles[:kept]},
        kept_counts,
    )
