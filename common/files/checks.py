"""Workload's rules for values, applied to ragged rows: events with bad values are invalid, fillers are dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt

from common.files.gather import offsets_of
from common.files.rows import BrokenRule, RaggedRows, kept, without_events
from common.schema import Column, EventSchema, ValueRule
from common.unit_arrays import Array


def checked(rows: RaggedRows, workload: EventSchema) -> RaggedRows:
    """Rows without fillers, in which the events that break a rule are invalid."""
    for column in workload.read_columns:
        rules = _rules_of(column, workload)
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


def _rules_of(column: Column, workload: EventSchema) -> list[ValueRule]:
    """Rules of the column's fields; a field of floats without one must be finite."""
    rules = [rule for rule in workload.rules if rule.column == column.name]
    if "f" in column.dtype:
        ruled = {rule.field for rule in rules}
        rules += [ValueRule(column.name, field) for field in range(len(column.fields)) if field not in ruled]
    return rules


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
        counts = np.diff(offsets_of(keep)[offsets])
    return replace(
        rows,
        counts=counts,
        particle_columns={name: kept(array, keep) for name, array in rows.particle_columns.items()},
        particles_dropped=rows.particles_dropped + dropped,
    )


def rows_of_particles(particles: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Row of each particle, given the particles of each row."""
    return np.searchsorted(np.cumsum(counts), particles, side="right")
