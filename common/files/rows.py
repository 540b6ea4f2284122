"""Ragged rows as a reader returns them: the rules for their values, and permutations of whole events.

Events with bad values are invalid, fillers are dropped. Events move each with its particles, in C++ where there is a
compiler. R rows in pieces, E of them in the order wanted, P particles.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from common.messages import Part
from common.native import NativeLibrary, NativeSources
from common.schema import Column, EventSchema, RelativeField, ValueRule
from common.unit_arrays import Array, address
from common.where import Bounds

_HERE = Path(__file__).parent
FILES = NativeLibrary(
    NativeSources(
        "files",
        files=(_HERE / "gather.cpp", _HERE / "parquet/plain.cpp"),
        functions={
            "take_rows": "p ll p l p -> l",
            "take_particles": "pp ll p l p l -> l",
            "parse_page_header": "p l p -> l",
            "declared_size": "l p l -> l",
            "read_page": "p ll llll ll pl pl pl p -> l",
        },
    ),
    without="decoding of files: numpy and Arrow, slower than C++",
)

Beat = Callable[[], None]
_MOST_WHOLE = float(1 << 62)
"""Largest whole number: the difference of two such has 64 bits."""
_ROWS_AT_A_TIME = 16_384
"""Rows copied at a time: Arrow's `take` can't write into the slot, so its temporary copies are kept small."""
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class Room:
    """Arrays for one read, by column. Memory is reserved for all particles, and only used as far as it is filled."""

    def __init__(self, particles: int) -> None:
        """``particles``: of all pieces together, as promised by the files."""
        self._particles = particles
        self._arrays: dict[str, Array] = {}
        self.filled: dict[str, int] = {}
        """Particles taken so far, by column: what was taken since is free again if it is set back."""

    def empty(self, column: Column, particles: int) -> Array:
        """Uninitialised array of the next particles, (P, fields), behind those of the piece before.

        It lies elsewhere if the files have more than they promised.
        """
        if column.name not in self._arrays:
            self._arrays[column.name] = np.empty((self._particles, len(column.fields)), column.dtype)
        first = self.filled.get(column.name, 0)
        if first + particles > self._particles:
            return np.empty((particles, len(column.fields)), column.dtype)
        self.filled[column.name] = first + particles
        return self._arrays[column.name][first : first + particles]


def joined(pieces: Sequence[Array]) -> Array:
    """Rows of all pieces, (R, F): a view if they lie one after the other in a Room, else a copy."""
    pieces = [piece for piece in pieces if len(piece)] or pieces[:1]  # an empty one has no place
    first = pieces[0]
    if len(pieces) == 1:
        return first
    whole = first.base
    at = start = address(first)
    for piece in pieces:
        if whole is None or piece.base is not whole or address(piece) != at or not piece.flags.c_contiguous:
            return np.concatenate(pieces)
        at += piece.nbytes
    if not isinstance(whole, np.ndarray) or whole.shape[1:] != first.shape[1:] or whole.dtype != first.dtype:
        return np.concatenate(pieces)
    row = (start - address(whole)) // max(first.strides[0], 1)
    view: Array = whole[row : row + sum(map(len, pieces))]
    return view


def offsets_of(counts: Int64 | npt.NDArray[np.bool_]) -> Int64:
    """First particle of each row, then the total number of particles. (R,) -> (R + 1,)."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def counts_of_kept(counts: Int64, keep: npt.NDArray[np.bool_]) -> Int64:
    """Return the number of particles in ``keep`` (P,) of each row. (R,)."""
    kept: Int64 = np.diff(offsets_of(keep)[offsets_of(counts)])
    return kept


def take_rows(pieces: Sequence[Array], order: Int64, out: Array) -> None:
    """Rows in the given order: out[i] = row order[i] of all pieces together. (R, F) -> (E, F)."""
    rows = joined(pieces)
    library = FILES.used
    if library is not None and rows.flags.c_contiguous and out.flags.c_contiguous:
        order = np.ascontiguousarray(order)
        width = rows.itemsize * rows.shape[1]
        if library.take_rows(address(rows), len(rows), width, address(order), len(order), address(out)) == 0:
            return
    # `clip` only saves a buffer.
    np.take(as_items(rows), order, out=as_items(out), mode="clip")


def take_particles(pieces: list[Array], counts: Sequence[Int64], order: Int64, out: Array) -> None:
    """Particles of rows order[0], order[1], … of all pieces together, concatenated. (P, F).

    Empties ``pieces``, whose memory is that of a whole unit and not needed once they are joined.

    Arrow's `take` of byte strings is a memcpy a row, three times as fast as any index per particle in numpy, and needs
    no such indices: a row's particles are taken as one string of bytes.
    """
    if not out.size:
        return
    particles = joined(pieces)
    pieces.clear()
    offsets = offsets_of(np.concatenate(counts) if len(counts) > 1 else counts[0])
    if FILES.used is not None and _taken(FILES.used, particles, offsets, order, out):
        return
    offsets *= particles.itemsize * particles.shape[1]  # in bytes: each row's particles are one string, not copied
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(particles))]
    rows = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    del particles, buffers
    indices, target = pa.array(order), out.reshape(-1).view(np.uint8)
    filled = 0
    for first in range(0, len(order), _ROWS_AT_A_TIME):
        taken = pc.take(rows, indices.slice(first, _ROWS_AT_A_TIME), boundscheck=False)
        offsets = np.frombuffer(taken.buffers()[1], np.int64, len(taken) + 1, taken.offset * 8)
        num_bytes = int(offsets[-1] - offsets[0])
        target[filled : filled + num_bytes] = np.frombuffer(taken.buffers()[2], np.uint8, num_bytes, int(offsets[0]))
        filled += num_bytes


def _taken(library: ctypes.CDLL, particles: Array, offsets: Int64, order: Int64, out: Array) -> bool:
    """True if the particles were taken in C++."""
    if not (particles.flags.c_contiguous and out.flags.c_contiguous) or offsets[-1] != len(particles):
        return False
    order = np.ascontiguousarray(order)
    width = particles.itemsize * particles.shape[1]
    code: int = library.take_particles(
        *(address(particles), address(offsets), len(offsets) - 1, width, address(order), len(order)),
        *(address(out), len(out)),
    )
    return code == 0


def as_items(rows: Array) -> Array:
    """Contiguous rows as one item each: numpy moves it at once instead of number by number. (R, F) -> (R,)."""
    return rows.view(f"V{rows.itemsize * rows.shape[1]}")[:, 0]


# -------------------------------------------------------------- rows and the rules for their values


class BadRowsError(Exception):
    """Error for rows that can't be used: the text names file, row group, column, row and expected value."""


@dataclass(frozen=True)
class BrokenRule:
    """Events that are invalid because of one rule. An event that breaks several is counted by the first."""

    column: str
    """Column of the file, or of the workload where values are checked."""
    expected: str
    rows: Int64
    """(I,) at least one, in order."""
    found: str
    """Value that the first of the rows has instead."""
    field: str = ""
    """Number of a list; empty: the whole value."""

    @property
    def rule(self) -> str:
        """The rule in words."""
        return f"column {self.column!r}{f', {self.field}' if self.field else ''}: expected {self.expected}"

    def at(self, places: Int64) -> BrokenRule:
        """Same events, row r being row ``places[r]`` of others."""
        return replace(self, rows=places[self.rows])


@dataclass(frozen=True)
class RaggedRows:
    """Rows of files, checked. R rows, P particles. The arrays may be views of the reader's buffers."""

    counts: Int64
    """Particles of each row. (R,)."""
    event_columns: dict[str, Array]
    """Array by column name: (R, fields)."""
    particle_columns: dict[str, Array]
    """Array by column name: (P, fields)."""
    large: Int64
    """Rows with more than ``large_above`` particles (see Reader), in order. (L,)."""
    large_events: pa.Table | None
    """Same L rows as stored in the file: the workload's source columns. Buffers of the file that the arrays don't need
    can so be freed. None if there are no such rows."""
    particles_dropped: int = 0
    """Fillers that a converter wrote for rows without particles, and null particles."""
    is_null: Bool | None = None
    """True for rows that hold no event (`source.nulls = "empty"`), and for invalid ones; None: none. Their columns are
    zeros. (R,)."""
    invalid: tuple[BrokenRule, ...] = ()
    """Rows that are set aside because of their values; they have no particles here."""
    invalid_events: pa.Table | None = None
    """All invalid rows in order, as stored in the file. None: there are none."""

    def part(self, first: int, end: int) -> RaggedRows:
        """Return rows ``first`` to ``end`` without what concerns the rows as a whole: see the fields above."""
        before = int(self.counts[:first].sum())
        after = before + int(self.counts[first:end].sum())
        return RaggedRows(
            counts=self.counts[first:end],
            event_columns={name: column[first:end] for name, column in self.event_columns.items()},
            particle_columns={name: column[before:after] for name, column in self.particle_columns.items()},
            large=self.large[:0],
            large_events=None,
            is_null=None if self.is_null is None else self.is_null[first:end],
        )

    @property
    def invalid_rows(self) -> Int64:
        """All invalid rows, in order."""
        if not self.invalid:
            return np.zeros(0, np.int64)
        return np.sort(np.concatenate([one.rows for one in self.invalid]))


def first_invalid(rows: RaggedRows, name: str, first_row: int) -> str:
    """First invalid event in words, given the name of the file and the row in it of the first of the rows."""
    one = min(rows.invalid, key=lambda one: int(one.rows[0]))
    row = first_row + int(one.rows[0])
    return f"{name}: column {one.column!r}, row {row} of the file: {one.found}; expected {one.expected}"


def without_events(rows: RaggedRows, broken: Sequence[BrokenRule]) -> RaggedRows:
    """Rows in which the events of ``broken``, none of them invalid so far, are invalid: empty, their columns zeros."""
    if not broken:
        return rows
    aside = np.zeros(len(rows.counts), np.bool_)
    for one in broken:
        aside[one.rows] = True
    keep = ~np.repeat(aside, rows.counts)
    event_columns = {name: column.copy() for name, column in rows.event_columns.items()}
    for column in event_columns.values():
        column[aside] = 0
    return replace(
        rows,
        counts=np.where(aside, 0, rows.counts),
        event_columns=event_columns,
        particle_columns={name: kept(column, keep) for name, column in rows.particle_columns.items()},
        is_null=aside if rows.is_null is None else rows.is_null | aside,
        invalid=(*rows.invalid, *broken),
    )


def kept(array: Array, keep: Bool) -> Array:
    """Rows of a contiguous array: as one item each, numpy moves runs of them at once. (P, F) -> (K, F)."""
    return as_items(array)[keep].view(array.dtype).reshape(-1, array.shape[1])


class Reader(Protocol):
    """Reader of files of one kind; keeps the newest ones open, since a block's files are read by many units."""

    def read(self, parts: Sequence[Part], beat: Beat, *, large_above: int) -> list[RaggedRows]:
        """Rows of the parts, in order, in one or more pieces; calls ``beat`` once in a while.

        Events with more than ``large_above`` particles are also given as stored in the file.
        Raises MachineError for faults of the machine, and BadRowsError for faults of the file, which must not depend on
        the machine, or the stream would.
        """

    def bounds(self, part: Part) -> Bounds:
        """Least and largest values of fields in the row group of a part, by their names, as far as the file tells."""

    def close(self) -> None:
        """Close all files."""


def checked(rows: RaggedRows, workload: EventSchema) -> RaggedRows:
    """Rows without fillers, in which the events that break a rule are invalid."""
    for column in workload.read_columns:
        rules = [rule for rule in workload.rules if rule.column == column.name]
        # What source.extra hands through stays as it is: a reconstruction that failed may be NaN.
        if "f" in column.dtype and column.name not in workload.source.extra:
            ruled = {rule.field for rule in rules}  # a field without a rule must be finite
            rules += [ValueRule(column.name, field) for field in range(len(column.fields)) if field not in ruled]
        if rules:
            per_event = column.per == "event"
            values = (rows.event_columns if per_event else rows.particle_columns)[column.name]
            present = None
            if per_event and rows.is_null is not None:
                present = np.flatnonzero(~rows.is_null)
                values = values[present]
            if len(values) and not _surely_good(values, rules, column):
                rows = without_events(rows, _broken(rows, values, present, rules, column))
    return without_fillers(rows, workload)


def without_fillers(rows: RaggedRows, workload: EventSchema) -> RaggedRows:
    """Rows without the particles that are fillers; the dropped ones are counted."""
    for rule in workload.rules:
        if rule.drop_unless_positive:
            values = _numbers(rows.particle_columns[rule.column][:, rule.field])
            if len(values) and values.min() <= 0:
                rows = drop_particles(rows, values > 0)
    return rows


def _surely_good(values: Array, rules: list[ValueRule], column: Column) -> bool:
    """True if no value can break a rule: a few fast passes, sufficient for a good file. (N, fields)."""
    if values.dtype.kind == "f":
        if len({rule.field for rule in rules}) < len(column.fields):
            return False
        flat = values.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.isfinite(np.dot(flat, flat)):  # the fastest pass; it also rejects very large values
                return False
    minima = [(rule.field, rule.minimum) for rule in rules if rule.minimum > -np.inf]
    maxima = [(rule.field, rule.maximum) for rule in rules if rule.maximum < np.inf]
    if minima:
        low = values.min()
        if not all(low >= minimum or values[:, field].min() >= minimum for field, minimum in minima):
            return False
    if maxima:
        high = values.max()
        return all(high <= maximum or values[:, field].max() <= maximum for field, maximum in maxima)
    return True


def _broken(
    rows: RaggedRows, values: Array, present: npt.NDArray[np.int64] | None, rules: list[ValueRule], column: Column
) -> list[BrokenRule]:
    """Rules that values of the column break, each with its events. ``present``: rows of the values, if some have
    none."""
    found: list[BrokenRule] = []
    is_known = np.zeros(len(rows.counts), np.bool_)
    for rule in rules:
        field = _numbers(values[:, rule.field])
        bad = np.flatnonzero(~np.isfinite(field) | (field < rule.minimum) | (field > rule.maximum))
        row_of_bad = bad if present is None else present[bad]
        if column.per == "particle":
            row_of_bad = rows_of_particles(bad, rows.counts)
        is_new = ~is_known[row_of_bad]
        if is_new.any():
            first = field[bad[np.argmax(is_new)]]
            value = f"{first:g}" if field.dtype.kind == "f" else str(first)
            name = column.fields[rule.field]
            expected = _expected(rule, field.dtype)
            found.append(BrokenRule(rule.column, expected, np.unique(row_of_bad[is_new]), f"{name} is {value}", name))
            is_known[row_of_bad] = True
    return found


def _expected(rule: ValueRule, dtype: np.dtype[np.generic]) -> str:
    limits = [(rule.minimum, "of at least"), (rule.maximum, "of at most")]
    bounds = " and".join(f" {which} {limit:g}" for limit, which in limits if np.isfinite(limit))
    return f"a {'finite ' if dtype.kind == 'f' else ''}number{bounds}"


def _numbers(values: Array) -> npt.NDArray[np.floating]:
    """Numbers of a field with a rule: never bool."""
    return cast("npt.NDArray[np.floating]", values)


def drop_particles(rows: RaggedRows, keep: npt.NDArray[np.bool_]) -> RaggedRows:
    """Rows with the particles in ``keep`` only; the dropped ones are counted. ``keep`` (P,) bool."""
    dropped = len(keep) - int(np.count_nonzero(keep))
    if not dropped:
        return rows
    offsets = offsets_of(rows.counts)
    emptied = (rows.counts == 1) & ~keep.take(offsets[:-1], mode="clip")
    if np.count_nonzero(emptied) == dropped:  # most often fillers, each the only particle of its event
        counts = np.where(emptied, 0, rows.counts)
    else:
        counts = counts_of_kept(rows.counts, keep)
    return replace(
        rows,
        counts=counts,
        particle_columns={name: kept(array, keep) for name, array in rows.particle_columns.items()},
        particles_dropped=rows.particles_dropped + dropped,
    )


def rows_of_particles(particles: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Row of each particle, given the particles of each row."""
    return np.searchsorted(np.cumsum(counts), particles, side="right")


class BadList(Exception):
    """Error for lists that can't be used: which ones, the problem of the first, and what was expected of all."""

    def __init__(self, bad: Bool, found: str, expected: str) -> None:
        super().__init__(f"{found}; expected {expected}")
        self.bad = bad
        """(N,) with at least one."""
        self.found = found
        self.expected = expected

    @property
    def index(self) -> int:
        """First of the lists."""
        return int(np.argmax(self.bad))


class BadNumber(BadList):
    """Error for numbers that can't be used: their lists, and the position among the wanted numbers of the first."""

    def __init__(self, bad: Bool, found: str, expected: str) -> None:
        """``bad``: (N,) or (N, F)."""
        super().__init__(bad if bad.ndim == 1 else np.asarray(bad.any(axis=1)), found, expected)
        self.column = 0 if bad.ndim == 1 else int(np.argmax(bad)) % bad.shape[1]

    def at_field(self, place: int, fields: int) -> BadNumber:
        """Same error of lists of so many ``fields``, with the numbers at ``place``."""
        bad = np.zeros((len(self.bad), fields), np.bool_)
        bad[:, place] = self.bad
        return BadNumber(bad, self.found, self.expected)


def counted_from_first(values: Array, counts: Int64, rule: RelativeField, dtype: str) -> Array:
    """Values as stored, or counted from the smallest one of their event, where ``dtype`` would round them too much.

    An event's result depends on nothing but that event. ``counts``: particles of each event. (P,) -> (P,).
    Raises BadNumber for the values that the type of the file itself has rounded too much.
    """
    target = np.dtype(dtype)
    is_float = values.dtype.kind == "f"
    if not len(values) or (is_float and values.dtype.itemsize <= target.itemsize):
        return values
    if -rule.most <= values.min() and values.max() <= rule.most:  # false for NaN
        return values
    if not is_float:
        values = values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)  # holds the differences
    filled = counts[counts > 0]
    firsts = offsets_of(filled)[:-1]
    with np.errstate(invalid="ignore"):
        least_E = np.minimum.reduceat(values, firsts)
        most_E = np.maximum.reduceat(values, firsts)
        is_large_E = (least_E < -rule.most) | (most_E > rule.most)
    if is_float:
        is_large_E &= np.isfinite(least_E) & np.isfinite(most_E)  # the others are reported as they are
    _check_digits(values, np.repeat(is_large_E, filled), rule, target)
    start_E = np.where(is_large_E, least_E, np.zeros_like(least_E))
    small: Array = values - np.repeat(start_E, filled)
    return small


def _check_digits(
    values: Array, is_large: npt.NDArray[np.bool_], rule: RelativeField, target: np.dtype[np.generic]
) -> None:
    """Raise BadNumber for the values that their own type holds no better than ``target`` holds ``rule.most``."""
    is_float = values.dtype.kind == "f"
    digits = np.finfo(values.dtype.str).nmant - np.finfo(target.str).nmant if is_float else 0
    most = rule.most * 2.0**digits if is_float else _MOST_WHOLE
    numbers = cast("npt.NDArray[np.float64]", values)
    bad = is_large & ~((numbers >= -most) & (numbers <= most))
    if bad.any():
        first = numbers[np.argmax(bad)]
        value = f"{first:.17g}" if is_float else str(first)
        expected = f"at most {most:g}, or numbers relative to the event"
        raise BadNumber(np.asarray(bad), f"is {value} as {values.dtype}", expected)
