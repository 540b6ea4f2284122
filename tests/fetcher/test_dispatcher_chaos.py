"""The dispatcher under random schedules: what happens in one of them stands in simulated_run.py.

`ICESTREAM_SEEDS=100000 pytest tests/fetcher/test_dispatcher_chaos.py` tries more of them.
"""

from __future__ import annotations

import os

import pytest
from simulated_run import SimulatedRun

from services.fetcher import dispatcher

SEEDS = int(os.environ.get("ICESTREAM_SEEDS", "20000"))
AT_A_TIME = 1000
FIRST_SEEDS = [
    pytest.param(first, marks=() if first < 2 * AT_A_TIME else pytest.mark.slow) for first in range(0, SEEDS, AT_A_TIME)
]


@pytest.fixture(autouse=True)
def no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every transition is logged: here that would be most of the time."""
    monkeypatch.setattr(dispatcher.logger, "disabled", True)


@pytest.mark.parametrize("first_seed", FIRST_SEEDS)
def test_no_random_schedule_breaks_a_promise_of_the_queue(first_seed: int) -> None:
    for seed in range(first_seed, min(first_seed + AT_A_TIME, SEEDS)):
        try:
            SimulatedRun(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
