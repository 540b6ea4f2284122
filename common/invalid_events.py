"""Sums of invalid events by the rule that they break, with the first examples of each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from common.messages.values import MAX_EXAMPLES, MAX_RULES, InvalidEvents

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
