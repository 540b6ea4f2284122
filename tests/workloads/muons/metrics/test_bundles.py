"""Showers stay together wherever events are split, chosen or drawn again."""

from __future__ import annotations

import numpy as np
import pytest

from workloads.muons.metrics.bundles import WeightSets, at_most, resampled

SHOWERS = np.repeat(np.arange(60), 4)


def test_a_bootstrap_draws_as_many_showers_as_there_are_with_all_their_events() -> None:
    times = resampled(SHOWERS, 30, np.random.default_rng(1))
    assert times.shape == (30, 240)
    assert (times.sum(1) == 240).all()
    assert (np.ptp(times.reshape(30, 60, 4), axis=2) == 0).all()
    assert not np.array_equal(times[0], times[1])


def test_sets_of_weights_begin_with_the_samples_own_and_are_the_same_each_time() -> None:
    weight_E = np.random.default_rng(3).random(240)
    sets = WeightSets(weight_E, SHOWERS, bootstraps=7, seed=1)
    rows = np.concatenate(list(sets))
    assert rows.shape == (8, 240)
    assert np.array_equal(rows[0], weight_E)
    times = rows[1:] / weight_E
    assert times == pytest.approx(np.round(times))
    assert times.sum(1) == pytest.approx(240)
    assert np.array_equal(rows, np.concatenate(list(sets)))
    assert [len(row) for row in sets.sample()] == [1]


def test_weights_that_do_not_fit_come_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workloads.muons.metrics.bundles._WEIGHTS_AT_A_TIME", 500)
    sets = WeightSets(np.ones(240), SHOWERS, bootstraps=5, seed=1)
    assert [len(rows) for rows in sets] == [1, 2, 2, 1]


def test_whole_showers_are_chosen_until_there_are_enough_events() -> None:
    chosen = at_most(SHOWERS, 101, np.random.default_rng(5)).reshape(60, 4)
    assert (chosen.all(1) == chosen.any(1)).all()
    assert chosen.sum() == 100
    assert at_most(SHOWERS, 240, np.random.default_rng(5)).all()
    assert at_most(SHOWERS, 1, np.random.default_rng(5)).sum() == 4, "at least one shower"
