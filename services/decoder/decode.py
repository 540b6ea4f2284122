"""Decoding of a unit into a slot: a pure function of the unit (rule R1), except for the files of what is set aside.

Set aside are outliers, and invalid events unless a part has too many of them.
R rows of the unit's parts, E events in the slot, P particles.
"""

from __future__ import annotations

import errno
import itertools
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from common.atomic_file import Publishing, replacing
from common.config import StreamConfig
from common.errors import BadInputError, MachineError
from common.files.rows import (
    BadRowsError,
    Beat,
    BrokenRule,
    RaggedRows,
    Reader,
    counts_of_kept,
    offsets_of,
    take_particles,
    take_rows,
)
from common.invalid_events import BrokenRules, OutsideValues, sum_of_rules
from common.memory import asked_for_too_much, free_heap, too_much
from common.messages import MAX_EXAMPLE_BYTES, InvalidEvents, Layout, Part, Quarantined, Tally, Unit, shortened
from common.own_code import described, import_own
from common.plan import Stream, generator, is_held_out, plan_hash
from common.schema import EventSchema, UnitArrays
from common.status import INVALID_FOLDER, OUTLIER_FOLDER
from common.text import shown
from common.unit_arrays import unit_arrays
from common.where import Where
from services.decoder.microbatch import bucketed, microbatch_bounds

_NAME_SHOWN = 300
"""Characters of a file's name, from its end: the row has to be in the example, too."""


def invalid_rows(pieces: Sequence[RaggedRows]) -> npt.NDArray[np.bool_]:
    """True for the invalid ones among the rows of all pieces. (R,)."""
    is_invalid = np.zeros(sum(len(piece.counts) for piece in pieces), np.bool_)
    for one in _of_unit(pieces):
        is_invalid[one.rows] = True
    return is_invalid


def require_few(parts: Sequence[Part], pieces: Sequence[RaggedRows], most_share: float) -> None:
    """Raise BadRowsError for the first part of whose events more than ``most_share``, rounded up, are invalid."""
    if not any(piece.invalid for piece in pieces):
        return
    bounds = offsets_of(np.array([part.rows for part in parts], np.int64))
    numbers = np.diff(offsets_of(invalid_rows(pieces))[bounds])
    for part, number in zip(parts, numbers.tolist(), strict=True):
        if number > math.ceil(round(most_share * part.rows, 6)):
            # Of several parts the caller reads each again, so that the rule and its example are those of this part.
            most = max(_of_unit(pieces), key=lambda one: len(one.rows))
            raise BadRowsError(
                f"{part.name}: row group {part.row_group}: {number:,} of its {part.rows:,} events are invalid, and "
                f"source.max_invalid_share = {most_share:g} allows fewer: its columns are probably not what their "
                f"names say (see source.columns and source.fields). Most often: {most.rule}; e.g. "
                f"{_example(most, parts, bounds)}"
            )


def broken_rules(parts: Sequence[Part], pieces: Sequence[RaggedRows]) -> BrokenRules:
    """Invalid events by the rule that they break, each rule with examples."""
    if not any(piece.invalid for piece in pieces):
        return ()
    bounds = offsets_of(np.array([part.rows for part in parts], np.int64))
    return sum_of_rules(
        InvalidEvents(_short(one.rule), len(one.rows), (_short(shown(_example(one, parts, bounds))),))
        for one in _of_unit(pieces)
    )


def reasons(piece: RaggedRows) -> list[str]:
    """Rule that each invalid row of a piece breaks, in the order of the rows."""
    by_row = {row: one.rule for one in piece.invalid for row in one.rows.tolist()}
    return [by_row[row] for row in sorted(by_row)]


def _short(text: str) -> str:
    return shortened(text, MAX_EXAMPLE_BYTES)


def _of_unit(pieces: Sequence[RaggedRows]) -> list[BrokenRule]:
    """Broken rules of all pieces, with rows counted over all of them."""
    found: list[BrokenRule] = []
    first = 0
    for piece in pieces:
        found += [one.at(np.arange(first, first + len(piece.counts))) for one in piece.invalid]
        first += len(piece.counts)
    return found


def _example(one: BrokenRule, parts: Sequence[Part], bounds: Int64) -> str:
    """Place and value of the first event of ``one``. ``bounds``: first row of each part, and the end of the last."""
    row = int(one.rows[0])
    at = int(np.searchsorted(bounds, row, side="right")) - 1
    part = parts[at]
    in_file = part.file_row + part.first_row + row - int(bounds[at])
    name = part.name if len(part.name) <= _NAME_SHOWN else f"…{part.name[-_NAME_SHOWN:]}"
    return f"{name}: row group {part.row_group}, row {in_file} of the file: {one.found}"


@dataclass(frozen=True)
class Outliers:
    """N whole events that are set aside: with too many particles, or invalid."""

    files: Sequence[str]
    """(N,) names of their files."""
    rows: npt.NDArray[np.int64]
    """(N,) rows in the files."""
    events: pa.Table
    """Source columns of the workload, as in the files."""
    counts: npt.NDArray[np.int64] | None = None
    """(N,) numbers of particles; None: not counted, since the events are invalid."""
    reasons: Sequence[str] = ()
    """(N,) rules that invalid events break."""


def write_outliers(
    path: Path, outliers: Sequence[Outliers], workload: EventSchema, publishing: Publishing = nullcontext
) -> None:
    """Write the file atomically, and another one for each further set of types that the files of a unit have. Each can
    be used as an input. ``publishing``: see replacing()."""
    names = list(dict.fromkeys(source.path[0] for source in workload.source_columns))
    alike: dict[tuple[pa.DataType, ...], list[Outliers]] = {}
    for one in outliers:
        alike.setdefault(tuple(one.events[name].type for name in names), []).append(one)
    for number, group in enumerate(alike.values()):
        _write(path.with_stem(f"{path.stem}{number:02x}") if number else path, group, names, publishing)


def _write(path: Path, outliers: Sequence[Outliers], names: Sequence[str], publishing: Publishing) -> None:
    events = pa.concat_tables([pa.table({name: one.events[name] for name in names}) for one in outliers])
    columns = {name: events[name] for name in names}
    columns["source_file"] = pa.array([file for one in outliers for file in one.files])
    columns["source_row"] = pa.array(np.concatenate([one.rows for one in outliers]), pa.int64())
    counts = [one.counts for one in outliers if one.counts is not None]
    if counts:
        columns["num_particles"] = pa.array(np.concatenate(counts), pa.int64())
    else:
        columns["reason"] = pa.array([reason for one in outliers for reason in one.reasons])
    if not path.parent.is_dir():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_suffix(f".{secrets.token_hex(4)}.part")  # two decoders may write it, if one was taken for hung
    with replacing(path, durable=False, part=part, publishing=publishing) as new, pa.OSFile(str(new), "wb") as sink:
        pq.write_table(
            pa.table(columns).combine_chunks(), sink, write_page_checksum=True, use_dictionary=["source_file"]
        )


_CHECKED_VALUES = 256
"""Values of a column, from the start of each file's rows, that are compared with their physical range: a file with
swapped columns shows at once, and all values would cost more."""

NO_PARTS: Mapping[Part, str] = MappingProxyType({})

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Sources = tuple[npt.NDArray[np.int32], Int64]


@dataclass(frozen=True)
class Decode:
    """Decode function with everything that determines a unit's bytes, besides the unit."""

    workload: EventSchema
    stream: StreamConfig
    seed: int
    run_dir: Path
    reader: Reader
    publishing: Publishing = nullcontext
    """Context in which a file of outliers takes its name."""

    def __call__(
        self, unit: Unit, slot: npt.NDArray[np.uint8], beat: Beat = lambda: None, *, bad: Mapping[Part, str] = NO_PARTS
    ) -> tuple[Layout, Tally]:
        """Fill the slot's arrays (not its header). Raises SlotMismatch if the unit does not fit.

        ``bad``: parts that are not to be read, with the reason.
        """
        where = self._where
        wanted = [one for one in unit.parts if one in bad or where is None or where.may_hold(self.reader.bounds(one))]
        parts, pieces, left_out = self._read(wanted, beat, bad)
        counts = np.concatenate([piece.counts for piece in pieces]) if pieces else np.zeros(0, np.int64)
        is_outlier, is_empty, is_other, is_filtered, is_invalid = self._aside(pieces, counts)
        order = self._order(unit, is_outlier | is_empty | is_other | is_filtered | is_invalid, counts)
        layout, arrays = self._laid_out(slot, offsets_of(counts if order is None else counts[order]))
        outside_values = self._outside_values(parts, pieces)
        if order is None:
            _copy(arrays, parts, pieces)
        else:
            sources = _sources(parts)
            if (is_outlier.any() or is_invalid.any()) and unit.epoch == 0:  # later epochs meet the same events again
                self._set_aside(unit, parts, sources, pieces, is_outlier)
            if len(order):
                _gather(arrays, sources, pieces, order)
        if self.workload.finish_unit is not None:
            self.workload.finish_unit(arrays, self.workload.source)
        if self.stream.transform and layout.events:
            layout = self._transformed(unit, slot, layout, arrays)
        tally = Tally(
            rows_read=unit.rows,
            outliers=int(is_outlier.sum()),
            empty=int(is_empty.sum()),
            quarantined=sum(one.rows for one in left_out),
            particles_dropped=sum(piece.particles_dropped for piece in pieces),
            bad=tuple(left_out),
            held_out=int(is_other.sum()),
            filtered=int(is_filtered.sum()) + unit.rows - sum(part.rows for part in wanted),
            outside_values=outside_values,
            invalid=int(is_invalid.sum()),
            broken_rules=broken_rules(parts, pieces),
        )
        return layout, tally

    @cached_property
    def _plan(self) -> str:
        """Plan hash, in the outlier files' names."""
        return plan_hash(self.workload, self.stream, self.seed)

    @cached_property
    def _where(self) -> Where | None:
        return Where(self.stream.where, self.workload) if self.stream.where else None

    @cached_property
    def _transform(self) -> Callable[..., Any]:
        """Function of the user's. Raises BadInputError."""
        function: Callable[..., Any] = import_own(self.stream.transform, "stream.transform")
        return function

    def _laid_out(self, slot: npt.NDArray[np.uint8], offsets: Int64) -> tuple[Layout, UnitArrays]:
        """Layout and arrays of a slot for events with these offsets, which are cut into microbatches."""
        bounds = microbatch_bounds(
            offsets, self.stream.microbatch_events, self.stream.max_particles, self.stream.max_squared_particles
        )
        layout = Layout(events=len(offsets) - 1, particles=int(offsets[-1]), microbatches=len(bounds) - 1)
        arrays = unit_arrays(slot, self.workload, layout)
        arrays.offsets[:] = offsets
        arrays.microbatch_bounds[:] = bounds
        return layout, arrays

    def _transformed(self, unit: Unit, slot: npt.NDArray[np.uint8], layout: Layout, arrays: UnitArrays) -> Layout:
        """Have the user's function change the unit in its slot; the layout after that. Raises BadInputError."""
        columns = arrays.event_columns | arrays.particle_columns
        events, particles = (
            {one.name: columns[one.name] for one in self.workload.columns_per(per)} for per in ("event", "particle")
        )
        given, function = events | particles, self._transform
        try:
            random = generator(Stream.TRANSFORM, self.seed, *self._key(unit))
            keep = function(events, particles, arrays.offsets.copy(), random)
            if (events | particles).keys() != given.keys():
                raise TypeError(f"it has the columns {', '.join(events | particles)}; expected {', '.join(given)}")
            # Arrays of the function's own, which may be views of other columns.
            others = {n: np.array(one) for n, one in (events | particles).items() if one is not given[n]}
            for name, other in others.items():
                column = given[name]
                if other.shape != column.shape or not np.can_cast(other.dtype, column.dtype, "same_kind"):
                    found = f"{other.dtype} of shape {other.shape}"
                    raise TypeError(f"{name!r} is {found}; expected {column.dtype} of shape {column.shape}")
                column[:] = other
            if keep is None:
                return layout
            keep = np.asarray(keep)
            if keep.dtype != np.bool_ or keep.shape != (layout.particles,):
                expected = f"None, or bool of shape ({layout.particles},), true for the particles that stay"
                raise TypeError(f"it returned {keep.dtype} of shape {keep.shape}; expected {expected}")
        except Exception as error:
            files = ", ".join(dict.fromkeys(part.name for part in unit.parts))[:_NAME_SHOWN]
            told = f"stream.transform = {self.stream.transform!r} failed in unit {unit.k} of {files}"
            raise BadInputError(f"{told}: {described(error)}") from error
        # Copies, as the places of all arrays in the slot change.
        stay = {name: column[keep] for name, column in arrays.particle_columns.items()}
        stay |= {name: column.copy() for name, column in arrays.event_columns.items()}
        layout, arrays = self._laid_out(slot, offsets_of(counts_of_kept(np.diff(arrays.offsets), keep)))
        for name, column in (arrays.event_columns | arrays.particle_columns).items():
            column[:] = stay[name]
        return layout

    def _key(self, unit: Unit) -> tuple[int, ...]:
        """Key of the random numbers of a unit."""
        return (unit.epoch, unit.k) if self.stream.shard is None else (unit.epoch, unit.k, self.stream.shard)

    def _read(
        self, of_unit: Sequence[Part], beat: Beat, known: Mapping[Part, str]
    ) -> tuple[list[Part], list[RaggedRows], list[Quarantined]]:
        """Good parts, their rows in one or more pieces, and the bad parts, those ``known`` among them."""
        bad = [Quarantined(part.file, part.row_group, part.rows, shown(reason)) for part, reason in known.items()]
        of_unit = sorted((part for part in of_unit if part not in known), key=lambda part: part.file)
        if not of_unit:
            return [], [], bad
        try:
            return of_unit, self._read_parts(of_unit, beat), bad  # parts of one file are read together
        except (BadRowsError, MachineError, MemoryError) as error:  # find the part at fault
            if not isinstance(error, BadRowsError) and not _is_too_large(error):
                raise
        free_heap()
        parts: list[Part] = []
        pieces: list[RaggedRows] = []
        for part in of_unit:
            try:
                pieces += self._read_parts([part], beat)
                parts.append(part)
            except BadRowsError as error:
                bad.append(Quarantined(part.file, part.row_group, part.rows, shown(str(error))))
            except (MachineError, MemoryError) as error:
                if not _is_too_large(error):
                    raise
                reason = f"{part.name}: row group {part.row_group} needs {too_much()} to decode"
                bad.append(Quarantined(part.file, part.row_group, part.rows, shown(reason)))
                free_heap()
        return parts, pieces, bad

    def _read_parts(self, parts: Sequence[Part], beat: Beat) -> list[RaggedRows]:
        pieces = self.reader.read(parts, beat, large_above=self.stream.outlier_above)
        promised = sum(part.particles for part in parts)
        if sum(int(piece.counts.sum()) for piece in pieces) > promised:
            # A span's bound counts an event with at most the particles that a slot holds.
            kept = sum(int(np.minimum(piece.counts, self.stream.outlier_above).sum()) for piece in pieces)
            if kept > promised:
                where = f"{parts[0].name}: row group {parts[0].row_group}"
                raise BadRowsError(f"{where} has {kept} particles; its footer promised at most {promised}")
        require_few(parts, pieces, self.workload.source.max_invalid_share)
        return pieces

    def _aside(self, pieces: Sequence[RaggedRows], counts: Int64) -> tuple[Bool, Bool, Bool, Bool, Bool]:
        """Masks of the rows that are outliers, empty, of the other part of `stream.held_out`, filtered, and invalid.
        (R,) each.

        A row has one fate. An event is filtered or held out whatever else it is, unless it is invalid. One that is null
        has no values, and is empty.
        """
        is_invalid = invalid_rows(pieces)
        is_null = np.zeros(len(counts), np.bool_)  # an invalid row counts as null
        if any(piece.is_null is not None for piece in pieces):
            is_null = np.concatenate(
                [np.zeros(len(p.counts), np.bool_) if p.is_null is None else p.is_null for p in pieces]
            )
        is_filtered = np.zeros(len(counts), np.bool_)
        if self._where is not None and pieces:
            kept = [self._where.mask(piece.event_columns, piece.counts) for piece in pieces]
            is_filtered = ~(np.concatenate(kept) | is_null)
        is_other = self._is_other(pieces) & ~(is_null | is_filtered)
        is_outlier = (counts > self.stream.outlier_above) & ~(is_null | is_other | is_filtered)
        return is_outlier, is_null & ~is_invalid, is_other, is_filtered, is_invalid

    def _outside_values(self, parts: Sequence[Part], pieces: Sequence[RaggedRows]) -> str:
        """Values outside of their physical ranges among the first of each file; empty if there are none."""
        found = OutsideValues(self.workload)
        for rows in _first_rows(parts, pieces, _CHECKED_VALUES):
            found.add(rows)
        names = dict.fromkeys(part.name for part in parts)
        where = f"{next(iter(names), '')}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"
        return "".join(shown(f"{where}: {problem}") for problem in found.problems())

    def _is_other(self, pieces: Sequence[RaggedRows]) -> Bool:
        """True for the rows that `stream.part` excludes. (R,)."""
        share, identity = self.stream.held_out, self.workload.identity
        if not pieces or not share or self.stream.part == "all":
            return np.zeros(sum(len(piece.counts) for piece in pieces), np.bool_)
        assert identity is not None  # the configuration was checked
        held_out = np.concatenate([is_held_out(piece.event_columns[identity], share) for piece in pieces])
        return held_out if self.stream.part == "train" else ~held_out

    def _order(self, unit: Unit, is_aside: Bool, counts: Int64) -> Int64 | None:
        """Rows for the slot, in their order there, given the particles of each; None: all of them, as they are."""
        order = None
        if self.stream.shuffle:
            order = generator(Stream.EVENTS, self.seed, *self._key(unit)).permutation(len(is_aside))
        if is_aside.any():
            order = np.flatnonzero(~is_aside) if order is None else order[~is_aside[order]]
        if order is not None and self.stream.shuffle and self.stream.length_buckets > 1:
            random = generator(Stream.BUCKETS, self.seed, *self._key(unit))
            of_order = bucketed(counts[order], self.stream.shard_batch_events, self.stream.length_buckets, random)
            order = order[of_order]
        return order

    def _set_aside(
        self, unit: Unit, parts: Sequence[Part], sources: Sources, pieces: Sequence[RaggedRows], is_outlier: Bool
    ) -> None:
        files, rows = sources
        names = {part.file: part.name for part in parts}
        outliers: list[Outliers] = []
        invalid: list[Outliers] = []
        first = 0
        for piece in pieces:
            # A large event that loses enough fillers is no outlier.
            chosen = piece.large[is_outlier[first + piece.large]]
            if len(chosen):
                assert piece.large_events is not None
                file_names = [names[int(file)] for file in files[first + chosen]]
                events = piece.large_events
                if len(chosen) < len(piece.large):
                    events = events.take(pa.array(np.searchsorted(piece.large, chosen)))
                outliers.append(Outliers(file_names, rows[first + chosen], events, piece.counts[chosen]))
            if piece.invalid_events is not None:
                chosen = first + piece.invalid_rows
                file_names = [names[int(file)] for file in files[chosen]]
                invalid.append(Outliers(file_names, rows[chosen], piece.invalid_events, reasons=reasons(piece)))
            first += len(piece.counts)
        # Decoding again replaces the file; another plan, or other inputs, keep it.
        name = f"unit-{unit.k:010d}-{self._plan[:8]}{unit.source.digest[:8]}.parquet"
        for folder, events_aside in ((OUTLIER_FOLDER, outliers), (INVALID_FOLDER, invalid)):
            if events_aside:
                write_outliers(self.run_dir / folder / name, events_aside, self.workload, self.publishing)


def _is_too_large(error: MachineError | MemoryError) -> bool:
    """True if a part needs more memory than this process may use; else the error concerns the machine."""
    is_memory = isinstance(error, MemoryError) or error.number == errno.ENOMEM
    return is_memory and asked_for_too_much()


def _first_rows(parts: Sequence[Part], pieces: Sequence[RaggedRows], most: int) -> Iterator[RaggedRows]:
    """Yield the first ``most`` rows of each file, with at most as many particles, however the rows lie in pieces."""
    first = 0
    for _, of_file in itertools.groupby(parts, key=lambda part: part.file):
        end = first + sum(part.rows for part in of_file)
        last, particles, at = min(end, first + most), most, 0
        for piece in pieces:
            start, stop = max(first - at, 0), min(last - at, len(piece.counts))
            at += len(piece.counts)
            if start < stop:
                rows = piece.part(start, stop)
                num = min(int(rows.counts.sum()), particles)
                particles -= num
                yield replace(rows, particle_columns={n: column[:num] for n, column in rows.particle_columns.items()})
        first = end


def _copy(arrays: UnitArrays, parts: Sequence[Part], pieces: Sequence[RaggedRows]) -> None:
    """Copy all rows as they are: one copy per column, from the reader's buffer into the slot."""
    row = 0
    for part in parts:
        first = part.file_row + part.first_row
        arrays.event_columns["source_file"][row : row + part.rows] = part.file
        arrays.event_columns["source_row"][row : row + part.rows, 0] = np.arange(first, first + part.rows)
        row += part.rows
    row = particle = 0
    for piece in pieces:
        end, end_particle = row + len(piece.counts), particle
        for name, column in piece.event_columns.items():
            arrays.event_columns[name][row:end] = column
        for name, column in piece.particle_columns.items():
            end_particle = particle + len(column)
            arrays.particle_columns[name][particle:end_particle] = column
        row, particle = end, end_particle


def _gather(arrays: UnitArrays, sources: Sources, pieces: Sequence[RaggedRows], order: Int64) -> None:
    """Gather the rows ``order``: (E,) indices into the rows of all pieces, which lose their particles."""
    files, rows = sources
    np.take(files, order, out=arrays.event_columns["source_file"][:, 0], mode="clip")
    np.take(rows, order, out=arrays.event_columns["source_row"][:, 0], mode="clip")
    for name in pieces[0].event_columns:
        take_rows([piece.event_columns[name] for piece in pieces], order, arrays.event_columns[name])
    counts = [piece.counts for piece in pieces]
    for name in list(pieces[0].particle_columns):
        columns = [piece.particle_columns.pop(name) for piece in pieces]
        take_particles(columns, counts, order, arrays.particle_columns[name])


def _sources(parts: Sequence[Part]) -> Sources:
    """Origin of each row: file, and row in that file. (R,), (R,)."""
    numbers = np.array([part.rows for part in parts], np.int64)
    firsts = np.array([part.file_row + part.first_row for part in parts], np.int64)
    files = np.repeat(np.array([part.file for part in parts], np.int32), numbers)
    # A row's number is its index among all rows, shifted by the same offset for all rows of a part.
    return files, np.repeat(firsts - offsets_of(numbers)[:-1], numbers) + np.arange(len(files))
