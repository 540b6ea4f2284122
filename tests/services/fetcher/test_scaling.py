"""The policy of --decoders auto on scripted loads, looked at twice a second as the fetcher does."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from services.fetcher.scaling import COOL_DOWN_S, GROW_AFTER_S, SHRINK_AFTER_S, DecoderScaling, Load

STEP_S = 0.5
Series = Callable[[float, int], tuple[float, float]]
"""(time, decoders) -> (no_credit, idle)."""


def play(scaling: DecoderScaling, series: Series, seconds: float, *, began_s: float = 0.0) -> list[int]:
    """How many are wanted at each step, in a run that has as many as it wants at once."""
    wanted = []
    for step in range(int(seconds / STEP_S)):
        now_s = began_s + step * STEP_S
        decoders = scaling.wanted
        no_credit, idle = series(now_s, decoders)
        wanted.append(scaling.update(now_s, Load(decoders, no_credit, idle)))
    return wanted


def demand(decoders_needed: float) -> Series:
    """A steady trainer that keeps so many decoders busy."""

    def series(now_s: float, decoders: int) -> tuple[float, float]:
        short = decoders < decoders_needed
        return (1.0, 0.0) if short else (0.05, 1.0 - decoders_needed / decoders)

    return series


def changes(wanted: list[int]) -> int:
    return sum(a != b for a, b in pairwise(wanted))


@pytest.mark.parametrize(("needed", "most", "settled"), [(0.2, 8, 1), (2.5, 8, 3), (5.9, 8, 6), (50.0, 8, 8)])
def test_a_steady_demand_is_met_and_then_nothing_changes(needed: float, most: int, settled: int) -> None:
    scaling = DecoderScaling(most)
    wanted = play(scaling, demand(needed), 300.0)
    assert wanted[-1] == settled
    assert changes(wanted) == settled - 1, "one at a time, and never back"


def test_growing_takes_a_while_and_a_cool_down_between_two() -> None:
    wanted = play(DecoderScaling(8), demand(50.0), 60.0)
    grown_s = [step * STEP_S for step in range(1, len(wanted)) if wanted[step] > wanted[step - 1]]
    assert grown_s[0] == GROW_AFTER_S
    assert all(b - a >= COOL_DOWN_S + GROW_AFTER_S for a, b in pairwise(grown_s))


def test_idle_decoders_leave_one_by_one_and_later_than_they_came() -> None:
    scaling = DecoderScaling(8)
    play(scaling, demand(6.0), 200.0)
    assert scaling.wanted == 6
    wanted = play(scaling, demand(1.5), 300.0, began_s=200.0)
    assert wanted[int(SHRINK_AFTER_S / STEP_S) - 1] == 6
    assert wanted[-1] == 2
    assert set(wanted) == {6, 5, 4, 3, 2}


def test_the_last_decoder_stays_however_idle_it_is() -> None:
    assert set(play(DecoderScaling(4), lambda now_s, decoders: (0.0, 1.0), 200.0)) == {1}


@pytest.mark.parametrize("period_s", [2.0, 5.0])
def test_an_alternating_load_changes_nothing(period_s: float) -> None:
    def series(now_s: float, decoders: int) -> tuple[float, float]:
        return (1.0, 0.0) if now_s % period_s < period_s / 2 else (0.0, 1.0)

    scaling = DecoderScaling(8)
    scaling.update(0.0, Load(3, 0.0, 0.0))
    assert set(play(scaling, series, 300.0)) == {3}


@pytest.mark.parametrize("seed", range(20))
def test_a_noisy_load_settles_without_flapping(seed: int) -> None:
    rng = random.Random(seed)
    steady = demand(3.5)

    def series(now_s: float, decoders: int) -> tuple[float, float]:
        no_credit, idle = (value + rng.gauss(0.0, 0.1) for value in steady(now_s, decoders))
        return min(max(no_credit, 0.0), 1.0), min(max(idle, 0.0), 1.0)

    wanted = play(DecoderScaling(8), series, 600.0)
    assert set(wanted[120:]) == {4}


def test_no_more_than_the_most_are_asked_for() -> None:
    assert max(play(DecoderScaling(2), demand(50.0), 100.0)) == 2
    assert max(play(DecoderScaling(0), demand(50.0), 100.0)) == 1


def test_while_one_is_on_its_way_no_other_is_asked_for() -> None:
    scaling = DecoderScaling(8)
    wanted = [scaling.update(step * STEP_S, Load(1, 1.0, 0.0)) for step in range(400)]
    assert max(wanted) == 2


def test_one_that_nobody_starts_is_not_wanted_for_ever() -> None:
    scaling = DecoderScaling(8)
    for step in range(100):
        scaling.update(step * STEP_S, Load(1, 1.0, 0.0))
    assert scaling.wanted == 2
    for step in range(100, 200):
        scaling.update(step * STEP_S, Load(1, 0.0, 0.5))
    assert scaling.wanted == 1


def test_decoders_that_wait_for_one_late_unit_ask_for_no_other() -> None:
    scaling = DecoderScaling(8)
    scaling.update(0.0, Load(2, 0.0, 0.0))
    assert set(play(scaling, lambda now_s, decoders: (1.0, 0.5), 100.0)) == {2}


def test_one_that_joins_by_hand_is_welcome_even_above_the_most() -> None:
    scaling = DecoderScaling(2)
    assert scaling.update(0.0, Load(5, 0.0, 0.0)) == 5


def test_a_run_without_a_trainer_changes_nothing_and_begins_anew() -> None:
    scaling = DecoderScaling(8)
    short = Load(1, 1.0, 0.0)
    for now_s in (0.0, 2.0):
        scaling.update(now_s, short)
    assert scaling.update(100.0, None) == 1
    assert scaling.update(100.5, short) == 1
    assert scaling.update(100.5 + GROW_AFTER_S, short) == 2
