"""The simulator's own distributions, with which `make bench-physics` compares models."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.physics import truth
from benchmarks.physics.data import evaluation_events, redrawn, tail_primaries
from benchmarks.physics.muon_truth import muon_nats
from benchmarks.physics.spec import Source
from benchmarks.physics.tails import Tails
from workloads.muons.metrics.bundles import BundleArrays


@pytest.mark.parametrize("fluctuation", ["nb", "lognormal", "poisson"])
def test_the_simulators_own_likelihood_is_normalised_and_beats_a_wrong_one(fluctuation: str) -> None:
    source = Source(changes=(("fluctuation", fluctuation),))
    real = evaluation_events(source, 4000)
    one = np.repeat(real.primary_E4[real.bundles.counts_E == 5][:1], 4000, axis=0)
    assert np.exp(truth.log_probability(one, np.arange(4000), source)).sum() == pytest.approx(1, abs=1e-6)
    wrong = Source(changes=(("fluctuation", "poisson" if fluctuation != "poisson" else "lognormal"),))
    own, other = (truth.mean_nll(real, of) for of in (source, wrong))
    assert own < other


def test_expected_numbers_of_muons_are_the_means_of_the_simulators() -> None:
    source = Source()
    primary_E4 = tail_primaries(source, 100_000)
    drawn = redrawn(primary_E4, source.config, np.random.default_rng(2))
    assert drawn.counts_E.sum() == pytest.approx(truth.expected_muons(primary_E4, source), rel=0.01)
    for above_gev in (100.0, 3000.0):
        number = (drawn.energy_gev_P > above_gev).sum()
        assert number == pytest.approx(truth.expected_muons(primary_E4, source, above_gev), rel=5 / number**0.5)


def bundles_of_one(energy_gev_E: np.ndarray, radius_m_E: np.ndarray) -> BundleArrays:
    ones_E = np.ones(len(energy_gev_E), np.int64)
    return BundleArrays(ones_E, energy_gev_E, radius_m_E, np.zeros(len(energy_gev_E)))


def test_the_simulators_density_of_muons_is_normalised() -> None:
    source = Source()
    real = evaluation_events(source, 100)
    log_energy, log_radius = np.linspace(-4, 6, 60), np.linspace(-3, 3.3, 60)
    grid = np.stack(np.meshgrid(log_energy, log_radius, indexing="ij"), -1).reshape(-1, 2)
    energy_gev, radius_m = 1 + 10 ** grid[:, 0], 10 ** grid[:, 1]
    for number in real.bundles.filled_F[:2]:
        primary_E4 = np.repeat(real.primary_E4[number : number + 1], len(grid), axis=0)
        with np.errstate(all="ignore"):
            density = np.exp(-muon_nats(primary_E4, bundles_of_one(energy_gev, radius_m), source))
        # dlgE = dlg(E - 1) (E - 1) / E; dx dy = 2 pi r² ln 10 dlg r.
        weight = (energy_gev - 1) / energy_gev * 2 * np.pi * radius_m**2 * np.log(10)
        cell = (log_energy[1] - log_energy[0]) * (log_radius[1] - log_radius[0])
        assert np.nansum(density * weight) * cell == pytest.approx(1, abs=0.01)


def test_muons_of_an_event_share_the_height_where_it_began() -> None:
    """The likelihood of muons that were drawn together is above that of the same muons taken from several events."""
    source = Source()
    primary_E4 = np.repeat(np.array([[3e7, 0.3, 56.0, 1500.0]]), 400, axis=0)
    drawn = redrawn(primary_E4, source.config, np.random.default_rng(3))
    order = np.random.default_rng(4).permutation(len(drawn.energy_gev_P))
    mixed = BundleArrays(drawn.counts_E, drawn.energy_gev_P[order], drawn.x_m_P[order], drawn.y_m_P[order])
    own, other = (muon_nats(primary_E4, one, source).sum() for one in (drawn, mixed))
    assert own < other - 100
    assert own == pytest.approx(muon_nats(primary_E4, drawn, source, 320, 32).sum(), abs=1e-4 * drawn.counts_E.sum())


def test_tails_find_what_a_distance_does_not_see() -> None:
    source = Source()
    primary_E4 = tail_primaries(source, 100_000)
    real, again = (redrawn(primary_E4, source.config, np.random.default_rng(seed)) for seed in (5, 6))
    clipped = replace(again, energy_gev_P=np.minimum(again.energy_gev_P, 5e3))
    narrow = replace(again, x_m_P=0.5 * again.x_m_P, y_m_P=0.5 * again.y_m_P)
    tails = Tails(source, primary_E4)
    tails.add_real(real)
    found = []
    for generated in (again, clipped, narrow):
        sums = tails.new_sums()
        sums.add(generated)
        found.append(tails.ratios(sums))
    good, without_tail, narrowed = found
    assert good["energy_above_1_tev_ratio"] == pytest.approx(1, abs=0.05)
    assert good["energy_above_10_tev_ratio"] == pytest.approx(1, abs=0.3)
    assert good["radius_variance_ratio"] == pytest.approx(1, abs=0.3)
    assert good["energy_below_cut_share"] == without_tail["energy_above_10_tev_ratio"] == 0
    assert narrowed["radius_above_100_m_ratio"] < 0.3 < good["radius_above_100_m_ratio"]
