"""Values outside of their physical ranges: most often columns or numbers named in a wrong order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from common.files.rows import RaggedRows
from common.schema import EventSchema, ValueRule


class OutsideValues:
    """Counts of values that lie outside of the workload's physical ranges."""

    def __init__(self, workload: EventSchema) -> None:
        self._workload = workload
        self._found: dict[ValueRule, tuple[int, int, float]] = {}

    def add(self, rows: RaggedRows, first: int | None = None) -> None:
        """Add rows, with their fillers; with ``first``, of each column that many values at most."""
        for rule in self._workload.physical:
            is_of_event = self._workload.column(rule.column).per == "event"
            columns = rows.event_columns if is_of_event else rows.particle_columns
            if rule.column not in columns:  # the rows have no particles
                continue
            values = columns[rule.column][:first, rule.field].astype(np.float64)
            if is_of_event and rows.is_null is not None:
                values = values[~rows.is_null[:first]]
            outside = values[(values < rule.minimum) | (values > rule.maximum)]
            num, total, example = self._found.get(rule, (0, 0, 0.0))
            if not num and len(outside):
                example = float(outside[0])
            self._found[rule] = num + len(outside), total + len(values), example

    def problems(self) -> Iterator[str]:
        """One line about all of them, if there is any."""
        texts = [self._text(rule, *found) for rule, found in self._found.items() if found[0]]
        if texts:
            yield (
                f"values that can't be: {'; '.join(texts)}. Check the order of the names in source.columns and"
                " source.fields, if any, and the units: nothing is converted"
            )

    def _text(self, rule: ValueRule, num: int, total: int, example: float) -> str:
        name = f"{rule.column}.{self._workload.column(rule.column).fields[rule.field]}"
        limits = f"{rule.minimum:g} to {rule.maximum:g}"
        return f"{num:,} of {total:,} of {name} lie outside of {limits}, the first is {example:g}"
