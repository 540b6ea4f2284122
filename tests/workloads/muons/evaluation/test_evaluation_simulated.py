"""Real events drawn once more: the same primaries, other muons, showers that stay showers."""

from __future__ import annotations

import numpy as np
import pytest

from common.errors import BadInputError
from workloads.muons.evaluation.simulated import drawn_again, drawn_sample, natural_weights
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.flux import sample_primaries
from workloads.muons.simulator.showers import shower_depths_m, simulate_showers

BENCH = preset("bench")


def test_both_draws_have_the_same_mean_and_are_independent() -> None:
    sample = drawn_sample(BENCH, 20_000, seed=1)
    again = drawn_again(sample.primary_E4, sample.shower_E, BENCH, seed=1)
    once, twice = sample.bundles.counts_E, again.counts_E
    assert len(once) == len(twice) == 20_000
    assert abs(once.mean() - twice.mean()) < 5 * np.std(once - twice) / np.sqrt(20_000)
    busy = once + twice > 4
    assert 0 < (once == twice)[busy].mean() < 0.3, "a second draw is another one"
    # The count follows the primary, so that both go together over events.
    assert np.corrcoef(np.log1p(once), np.log1p(twice))[0, 1] > 0.7


def test_rows_of_a_shower_are_drawn_as_a_shower_in_whatever_order_they_stand() -> None:
    rng = np.random.default_rng(0)
    depths_m = shower_depths_m(5, BENCH)
    rows = simulate_showers(sample_primaries(400, BENCH, rng), depths_m, BENCH, rng)
    order = rng.permutation(2000)[:1500]
    primary_E4 = rows.primary_E4[order].astype(np.float64)
    shower_E = np.repeat(np.arange(400), 5)[order]
    again = drawn_again(primary_E4, shower_E, BENCH, seed=3)
    assert (again.counts_E != rows.counts_E[order]).any()
    for shower in range(400):
        of_shower = np.flatnonzero(shower_E == shower)
        deeper = of_shower[np.argsort(primary_E4[of_shower, 3])]
        assert (np.diff(again.counts_E[deeper]) <= 0).all(), "a muon that is gone does not come back"
    means = [again.counts_E[primary_E4[:, 3] == depth].mean() for depth in np.unique(primary_E4[:, 3])]
    expected = [rows.counts_E[order][primary_E4[:, 3] == depth].mean() for depth in np.unique(primary_E4[:, 3])]
    assert np.allclose(means, expected, rtol=0.5)
    assert again.energy_gev_P.min() >= BENCH.energy_cut_gev


def test_ids_that_two_productions_share_make_no_shower() -> None:
    sample = drawn_sample(BENCH, 2000, seed=1)
    again = drawn_again(sample.primary_E4, np.arange(2000) % 1000, BENCH, seed=1)
    alone = drawn_again(sample.primary_E4, np.arange(2000), BENCH, seed=1)
    assert sorted(again.counts_E.tolist()) == sorted(alone.counts_E.tolist())


def test_natural_weights_turn_the_bench_spectrum_into_the_natural_one() -> None:
    flux = preset("h3a", energy_min_gev=BENCH.energy_min_gev, energy_max_gev=BENCH.energy_max_gev)
    made, natural = drawn_sample(BENCH, 40_000, seed=1).primary_E4, drawn_sample(flux, 40_000, seed=2).primary_E4
    weight_E = natural_weights(made, BENCH)
    assert weight_E.mean() == pytest.approx(1.0)
    assert np.average(np.log10(made[:, 0]), weights=weight_E) == pytest.approx(np.log10(natural[:, 0]).mean(), abs=0.01)
    for mass in (1.0, 4.0, 14.0, 27.0, 56.0):
        share = weight_E[made[:, 2] == mass].sum() / len(made)
        assert share == pytest.approx((natural[:, 2] == mass).mean(), abs=0.02)
    assert (natural_weights(natural, flux) == 1.0).all()
    made[:, 2] = 5.0
    with pytest.raises(BadInputError, match="no natural flux"):
        natural_weights(made, BENCH)
