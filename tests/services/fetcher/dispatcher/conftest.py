"""Dispatchers whose invariants are checked after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from dispatchers import PLAN, START, unit

from common import messages as m
from services.fetcher.dispatcher import Dispatcher


@pytest.fixture
def make_dispatcher() -> Iterator[Callable[..., Dispatcher]]:
    """Makes dispatchers with a plan and an attached trainer `t`; their invariants are checked at the end."""
    made: list[Dispatcher] = []

    def build(*, slots: int = 2, units: int = 8, deaths: int = 3, want: int = 1, attach: bool = True) -> Dispatcher:
        dispatcher = Dispatcher(slots=slots, plan_hash=PLAN, max_unit_deaths=deaths, stall_timeout_s=10.0)
        made.append(dispatcher)
        if attach:
            dispatcher.handle("t", m.Attach(0, 1, PLAN, START), 0.0)
            dispatcher.add_units([unit(k) for k in range(units)])
            if want:
                dispatcher.handle("t", m.Want(want), 0.0)
        return dispatcher

    yield build
    for dispatcher in made:
        dispatcher.validate()
