"""Invalid events by the rule that they break, and values outside of their physical ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from common.files.rows import RaggedRows
from common.messages import MAX_EXAMPLES, MAX_RULES, InvalidEvents
from common.schema import Column, EventSchema, ValueRule

_OTHERS = "other rules"

BrokenRules = tuple[InvalidEvents, ...]


def sum_of_rules(rules: Iterable[InvalidEvents]) -> BrokenRules:
    """One item for each rule, in the order of their first events; of more than MAX_RULES, the last are one item."""
    by_rule: dict[str, InvalidEvents] = {}
    for one in rules:
        name = one.rule if one.rule in by_rule or len(by_rule) < MAX_RULES - 1 else _OTHERS
        known = by_rule.get(name, InvalidEvents(name, 0))
        examples = tuple(dict.fromkeys((*known.examples, *one.examples)))[:MAX_EXAMPLES]
        by_rule[name] = replace(known, events=known.events + one.events, examples=examples)
    return tuple(by_rule.values())


def rules_since(now: Sequence[InvalidEvents], before: Sequence[InvalidEvents]) -> BrokenRules:
    """Return the rules that have to be added to ``before`` for ``now``."""
    known = {one.rule: one for one in before}
    grown: list[InvalidEvents] = []
    for one in now:
        former = known.get(one.rule, InvalidEvents(one.rule, 0))
        if one.events > former.events:
            new = tuple(example for example in one.examples if example not in former.examples)
            grown.append(InvalidEvents(one.rule, one.events - former.events, new))
    return tuple(grown)


def lines_of_rules(rules: Iterable[InvalidEvents]) -> list[str]:
    """A line for each rule: its events, then examples."""
    return [
        f"{one.events:,} {'event' if one.events == 1 else 'events'}: {one.rule}"
        + (f"; e.g. {'; '.join(one.examples)}" if one.examples else "")
        for one in rules
    ]


class OutsideValues:
    """Counts of values that lie outside of the workload's physical ranges."""

    def __init__(self, workload: EventSchema) -> None:
        self._workload = workload
        self._rules: dict[Column, list[ValueRule]] = {}
        self._found: dict[ValueRule, tuple[int, int, float]] = {}
        for rule in workload.physical:
            column = workload.column(rule.column)
            if column in workload.read_columns:  # a derived one is not in the rows yet
                self._rules.setdefault(column, []).append(rule)

    def add(self, rows: RaggedRows) -> None:
        """Add rows, with their fillers."""
        for column, rules in self._rules.items():
            columns = rows.event_columns if column.per == "event" else rows.particle_columns
            values = columns[column.name][:, [rule.field for rule in rules]].astype(np.float64)
            if column.per == "event" and rows.is_null is not None:
                values = values[~rows.is_null]
            outside = (values < [rule.minimum for rule in rules]) | (values > [rule.maximum for rule in rules])
            any_outside = outside.any()
            for i, rule in enumerate(rules):
                num, total, example = self._found.get(rule, (0, 0, 0.0))
                if any_outside:
                    of_rule = values[outside[:, i], i]
                    example = float(of_rule[0]) if not num and len(of_rule) else example
                    num += len(of_rule)
                self._found[rule] = num, total + len(values), example

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
