"""The pace of a session, without its start."""

from __future__ import annotations

import pytest

from services.trainer.speed.pace import START_UP_STEPS, Pace


def test_the_first_steps_do_not_count_and_everything_between_later_ones_does() -> None:
    pace = Pace()
    for step in range(START_UP_STEPS):
        pace.stepped(100.0 * step, 1_000_000)
        assert pace.events_per_s == 0.0
    began_s = 100.0 * (START_UP_STEPS - 1)
    pace.stepped(began_s + 1.0, 100)
    pace.stepped(began_s + 4.0, 200)  # a checkpoint was written in between
    assert pace.events_per_s == pytest.approx(300 / 4)
