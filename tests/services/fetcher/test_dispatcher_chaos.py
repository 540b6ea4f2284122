"""The dispatcher under random schedules. CI tries 10,000 others each time: schedules.py."""

from __future__ import annotations

import pytest
from schedules import check

FEW = range(200)
ONCE_FAILED = (9_284,)
"""A trainer that has its batch waits for the others, and isn't attached: it must not hold them back."""


@pytest.mark.parametrize("seeds", [FEW, ONCE_FAILED], ids=str)
def test_no_random_schedule_breaks_a_promise_of_the_queue(seeds: range) -> None:
    for seed in seeds:
        check(seed)


def test_no_promise_is_broken_where_trainers_leave_in_good_order() -> None:
    for seed in range(10_000, 10_060):
        check(seed, trainers_leave=True)
