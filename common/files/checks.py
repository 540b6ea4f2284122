"""The workload's rules for values, applied to ragged rows: bad ones are named, fillers dropped and counted."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt

from common.files.rows import BadRowsError, RaggedRows
from common.ragged import Array
from common.schema import Column, ValueRule, Workload


def checked(rows: RaggedRows, workload: Workload, where: str, first_row: int) -> RaggedRows:
    """The rows without fillers. Raises BadRowsError that names column, row and value."""
    for column in workload.columns:
        rules = [rule for rule in workload.rules if rule.column == column.name]
        if rules:
            per_event = column.per == "event"
            values = (rows.event_columns if per_event else rows.particle_columns)[column.name]
            if per_event and rows.is_null is not None:
                values = np.where(rows.is_null[:, None], np.asarray(1, values.dtype), values)  # no rule refuses 1
            if len(values) and not _surely_good(values, rules, column):
                for rule in rules:
                    _check(rows, values, rule, column, where, first_row)
    for rule in workload.rules:
        if rule.drop_unless_positive:
            rows = _without_fillers(rows, rule)
    return rows


def _surely_good(values: Array, rules: list[ValueRule], column: Column) -> bool:
    """True if no value can break a rule: a few fast passes that a good file never gets beyond. (N, fields)."""
    if len({rule.field for rule in rules}) < len(column.fields):
        return False
    flat = values.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(np.dot(flat, flat)):  # the fastest pass there is; it also refuses what is very large
            return False
    minima = [(rule.field, rule.minimum) for rule in rules if rule.minimum > -np.inf]
    if not minima:
        return True
    low = values.min()
    return all(low >= minimum or values[:, field].min() >= minimum for field, minimum in minima)


def _check(rows: RaggedRows, values: Array, rule: ValueRule, column: Column, where: str, first_row: int) -> None:
    field = _floats(values[:, rule.field])
    bad = ~np.isfinite(field) | (field < rule.minimum)
    if bad.any():
        index = int(np.argmax(bad))
        row = first_row + (index if column.per == "event" else row_of(index, rows))
        least = f" of at least {rule.minimum:g}" if np.isfinite(rule.minimum) else ""
        raise BadRowsError(
            f"{where}, column {rule.column!r}, row {row}: {column.fields[rule.field]} is {field[index]:g}; "
            f"expected a finite number{least}"
        )


def _without_fillers(rows: RaggedRows, rule: ValueRule) -> RaggedRows:
    values = _floats(rows.particle_columns[rule.column][:, rule.field])
    if not len(values) or values.min() > 0:
        return rows
    return drop_particles(rows, values > 0)


def _floats(values: Array) -> npt.NDArray[np.floating]:
    """What a rule is about is a number."""
    return cast("npt.NDArray[np.floating]", values)


def drop_particles(rows: RaggedRows, keep: npt.NDArray[np.bool_]) -> RaggedRows:
    """The rows with those of their particles only, the others counted. ``keep`` (P,) bool."""
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    offsets = np.concatenate([[0], np.cumsum(rows.counts)])
    return replace(
        rows,
        counts=np.diff(kept_before[offsets]),
        particle_columns={name: array[keep] for name, array in rows.particle_columns.items()},
        particles_dropped=rows.particles_dropped + int(len(keep) - kept_before[-1]),
    )


def row_of(particle: int, rows: RaggedRows) -> int:
    """The row that owns a particle."""
    return int(np.searchsorted(np.cumsum(rows.counts), particle, side="right"))
