"""The dispatcher under random schedules. CI tries 100,000 others each time: schedules.py."""

from __future__ import annotations

import pytest
from schedules import check

AT_A_TIME = 1000


@pytest.mark.parametrize("first_seed", range(0, 4 * AT_A_TIME, AT_A_TIME))
def test_no_random_schedule_breaks_a_promise_of_the_queue(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + AT_A_TIME):
        check(seed)
