"""decode(unit) -> slot: a pure function of the unit (rule R1), but for the outliers' file.

R rows of the unit's parts, E events that go into the slot, P particles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.config import StreamConfig
from common.messages import Layout, Part, Quarantined, Tally, Unit
from common.ragged import UnitArrays, unit_arrays
from common.schema import Workload
from common.streams import Stream, generator
from services.decoder.microbatch import microbatch_bounds
from services.decoder.outliers import Outlier, outlier_path, write_outliers
from services.decoder.readers.parquet import Beat, ParquetReader
from services.decoder.rows import BadRowsError, RaggedRows

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Decode:
    """Everything that a unit's bytes depend on, besides the unit."""

    workload: Workload
    stream: StreamConfig
    seed: int
    run_dir: Path
    reader: ParquetReader

    def __call__(self, unit: Unit, slot: npt.NDArray[np.uint8], beat: Beat = lambda: None) -> tuple[Layout, Tally]:
        """Fill the slot's arrays (not its header). Raises SlotMismatch if the unit does not fit."""
        parts, rows, bad = self._read(unit, beat)
        counts = np.concatenate([r.counts for r in rows]) if rows else np.zeros(0, np.int64)
        is_outlier = counts > self.stream.outlier_above
        is_dropped = (counts == 0) & self.stream.drop_empty
        order = self._order(unit, ~(is_outlier | is_dropped))
        offsets = _offsets(counts[order])
        bounds = microbatch_bounds(offsets, self.stream.batch_events, self.stream.max_particles)
        layout = Layout(events=len(order), particles=int(offsets[-1]), microbatches=len(bounds) - 1)
        arrays = unit_arrays(slot, self.workload, layout)
        arrays.offsets[:] = offsets
        arrays.microbatch_bounds[:] = bounds
        _fill_events(arrays, parts, rows, order)
        _fill_particles(arrays, rows, order)
        if is_outlier.any() and unit.epoch == 0:  # later epochs meet the same outliers again
            outliers = _collect_outliers(parts, rows, is_outlier)
            write_outliers(outlier_path(self.run_dir, unit.k), outliers, self.workload)
        tally = Tally(
            rows_read=unit.rows,
            outliers=int(is_outlier.sum()),
            empty=int(is_dropped.sum()),
            quarantined=sum(one.rows for one in bad),
            particles_dropped=sum(r.particles_dropped for r in rows),
            bad=tuple(bad),
        )
        return layout, tally

    def _read(self, unit: Unit, beat: Beat) -> tuple[list[Part], list[RaggedRows], list[Quarantined]]:
        parts: list[Part] = []
        rows: list[RaggedRows] = []
        bad: list[Quarantined] = []
        for part in unit.parts:
            try:
                rows.append(self.reader.read(part, beat))
                parts.append(part)
            except BadRowsError as error:
                bad.append(Quarantined(part.file, part.row_group, part.rows, str(error)[:2000]))
        return parts, rows, bad

    def _order(self, unit: Unit, keep: npt.NDArray[np.bool_]) -> Indices:
        """Rows that go into the slot, in the order in which they go."""
        if not self.stream.shuffle:
            return np.flatnonzero(keep)
        order = generator(Stream.EVENTS, self.seed, unit.epoch, unit.k).permutation(len(keep))
        return order[keep[order]]


def _fill_events(arrays: UnitArrays, parts: Sequence[Part], rows: Sequence[RaggedRows], order: Indices) -> None:
    if not rows:
        return
    for name in rows[0].event_columns:
        np.take(np.concatenate([r.event_columns[name] for r in rows]), order, axis=0, out=arrays.event_columns[name])
    files = np.concatenate([np.full(part.rows, part.file, np.int32) for part in parts])
    in_file = np.concatenate([np.arange(p.rows, dtype=np.int64) + (p.file_row + p.first_row) for p in parts])
    arrays.event_columns["source_file"][:, 0] = files[order]
    arrays.event_columns["source_row"][:, 0] = in_file[order]


def _fill_particles(arrays: UnitArrays, rows: Sequence[RaggedRows], order: Indices) -> None:
    """Scatter every part's particles to their places: they move with their event."""
    num_rows = sum(len(r.counts) for r in rows)
    place = np.full(num_rows, -1, np.int64)  # (R,) first particle of each row in the slot; -1: not in the slot
    place[order] = arrays.offsets[:-1]
    first = 0
    for r in rows:
        place_of_part = place[first : first + len(r.counts)]
        first += len(r.counts)
        source_offsets = _offsets(r.counts)
        # A particle keeps its distance from the first particle of its row.
        target = np.repeat(place_of_part - source_offsets[:-1], r.counts) + np.arange(source_offsets[-1])
        if (place_of_part >= 0).all():
            for name, column in r.particle_columns.items():
                arrays.particle_columns[name][target] = column
        else:
            kept = np.repeat(place_of_part >= 0, r.counts)
            for name, column in r.particle_columns.items():
                arrays.particle_columns[name][target[kept]] = column[kept]


def _collect_outliers(
    parts: Sequence[Part], rows: Sequence[RaggedRows], is_outlier: npt.NDArray[np.bool_]
) -> list[Outlier]:
    outliers: list[Outlier] = []
    first = 0
    for part, r in zip(parts, rows, strict=True):
        offsets = _offsets(r.counts)
        for row in np.flatnonzero(is_outlier[first : first + len(r.counts)]):
            events = {name: column[row] for name, column in r.event_columns.items()}
            particles = {name: col[offsets[row] : offsets[row + 1]] for name, col in r.particle_columns.items()}
            outliers.append(Outlier(part.name, part.file_row + part.first_row + int(row), events, particles))
        first += len(r.counts)
    return outliers


def _offsets(counts: Indices) -> Indices:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
