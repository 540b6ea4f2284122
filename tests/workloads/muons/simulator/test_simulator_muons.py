from itertools import pairwise

import numpy as np
import pytest
from scipy import optimize, stats

from workloads.muons.simulator.config import SimulatorConfig, preset
from workloads.muons.simulator.flux import SimulatedPrimaries, sample_primaries
from workloads.muons.simulator.multiplicity import expect, mean_multiplicity
from workloads.muons.simulator.muons import simulate
from workloads.muons.simulator.propagation import surface_energy_gev

WIDE = SimulatorConfig(gamma=1.5, energy_min_gev=1e4, energy_max_gev=1e8, theta_max_deg=70.0)


@pytest.fixture(scope="module")
def bundles():
    rng = np.random.default_rng(6)
    return simulate(sample_primaries(60_000, WIDE, rng), WIDE, rng)


def same(num_events, *, energy_gev=1e6, mass=1.0, cos_zenith=0.8, depth_m=1950.0):
    """Identical primaries."""
    columns = (np.full(num_events, value) for value in (energy_gev, mass, cos_zenith, depth_m))
    return SimulatedPrimaries(*columns)


def radius_m(bundles):
    return np.hypot(bundles.muons_P3[:, 1], bundles.muons_P3[:, 2]).astype(float)


def event_of(bundles):
    return np.repeat(np.arange(len(bundles)), bundles.counts_E)


def test_columns_have_the_files_types_and_every_row_is_there(bundles):
    assert bundles.primary_E4.dtype == bundles.muons_P3.dtype == np.float32
    assert bundles.primary_E4.shape == (60_000, 4)
    assert bundles.counts_E.sum() == len(bundles.muons_P3)
    assert (bundles.counts_E == 0).sum() > 1000
    assert np.isfinite(bundles.muons_P3).all()


def test_no_muon_is_below_the_cut_or_above_its_nucleon(bundles):
    nucleon_gev = bundles.primary_E4[:, 0] / bundles.primary_E4[:, 2]

    assert bundles.muons_P3[:, 0].min() >= WIDE.energy_cut_gev
    assert (bundles.muons_P3[:, 0] < nucleon_gev[event_of(bundles)]).all()


@pytest.mark.parametrize("elbert", ["classic", "generalized"])
@pytest.mark.parametrize(("energy_gev", "mass"), [(1e6, 1.0), (1e6, 56.0), (1e5, 1.0), (1e9, 14.0)])
def test_surface_energies_follow_elberts_survival_at_a_fixed_primary(elbert, energy_gev, mass):
    config = SimulatorConfig(elbert=elbert)
    num_events = int(np.clip(20_000 / expect(same(1, energy_gev=energy_gev, mass=mass), config).mean_E[0], 1, 1e6))
    primaries = same(num_events, energy_gev=energy_gev, mass=mass)
    truth = expect(primaries, config)
    drawn = simulate(primaries, config, np.random.default_rng(7))
    surface_gev = surface_energy_gev(drawn.muons_P3[:, 0].astype(float), truth.slant_mwe_E[0], config)

    def mean_above(threshold_gev):
        return mean_multiplicity(
            threshold_gev, primaries.energy_gev_E[:1], primaries.mass_E[:1], truth.cos_local_E[:1], config.elbert_fit
        )

    survival = mean_above(surface_gev) / mean_above(truth.threshold_gev_E[:1])
    assert stats.kstest(survival, "uniform").pvalue > 0.01


def test_median_energy_at_depth_is_the_analytic_one():
    primaries = same(20_000)
    truth = expect(primaries, WIDE)
    drawn = simulate(primaries, WIDE, np.random.default_rng(8))
    cos_local, fit, threshold = truth.cos_local_E[:1], WIDE.elbert_fit, truth.threshold_gev_E[:1]

    def half(energy_gev):
        mean = mean_multiplicity(np.array([energy_gev]), np.array([1e6]), np.ones(1), cos_local, fit)
        return float(mean[0] / truth.mean_E[0]) - 0.5

    median_gev = optimize.brentq(half, threshold[0], 9e5)
    slant_mwe = truth.slant_mwe_E[:1]
    expected_gev = optimize.brentq(lambda gev: surface_energy_gev(gev, slant_mwe, WIDE)[0] - median_gev, 1.0, 9e5)
    assert expected_gev == pytest.approx(191.3, abs=0.1)
    assert np.median(drawn.muons_P3[:, 0]) == pytest.approx(expected_gev, rel=0.03)


def test_azimuth_is_uniform(bundles):
    angle_rad = np.arctan2(bundles.muons_P3[:50_000, 2], bundles.muons_P3[:50_000, 1])

    assert stats.kstest((angle_rad + np.pi) / (2.0 * np.pi), "uniform").pvalue > 0.01


def test_energetic_muons_are_closer_to_the_axis(bundles):
    energy_gev, radius = bundles.muons_P3[:, 0], radius_m(bundles)
    edges = (1.0, 10.0, 100.0, 1e3, 1e4)
    medians = [np.median(radius[(energy_gev >= low) & (energy_gev < high)]) for low, high in pairwise(edges)]

    np.testing.assert_allclose(medians, [10.6, 9.2, 5.2, 1.5], rtol=0.1)
    assert np.corrcoef(np.log(energy_gev), np.log(radius))[0, 1] == pytest.approx(-0.47, abs=0.03)


def width_ratio(bundles):
    """Variance of the events' mean ln r over what muons independent of their event would have (N >= 20)."""
    log_radius, event, counts = np.log(radius_m(bundles)), event_of(bundles), bundles.counts_E
    big = np.flatnonzero(counts >= 20)
    mean = np.bincount(event, log_radius, len(counts))[big] / counts[big]
    square = np.bincount(event, log_radius**2, len(counts))[big] / counts[big]
    within = (square - mean**2) / (1.0 - 1.0 / counts[big])
    return mean.var() / np.mean(within / counts[big])


def test_bundles_differ_in_width_by_more_than_independent_muons_would(bundles):
    assert width_ratio(bundles) > 5.0


def test_bundles_of_the_same_primary_differ_in_width_by_their_first_interaction():
    assert width_ratio(simulate(same(3000, energy_gev=1e7), WIDE, np.random.default_rng(10))) > 2.0


def test_energies_and_radii_of_the_bench_preset_are_as_documented():
    rng = np.random.default_rng(9)
    drawn = simulate(sample_primaries(60_000, preset("bench"), rng), preset("bench"), rng)

    np.testing.assert_allclose(np.percentile(drawn.muons_P3[:, 0], [10, 50, 90, 99]), [19, 142, 758, 3105], rtol=0.06)
    np.testing.assert_allclose(np.percentile(radius_m(drawn), [10, 50, 90, 99]), [1.4, 6.3, 20.6, 45], rtol=0.06)


def test_natural_bundles_at_two_km_water_equivalent_are_narrower_than_mupages_by_the_documented_factor():
    config = preset(
        "h3a", energy_min_gev=5e3, theta_max_deg=30.0, depth_min_m=2200.0, depth_max_m=2200.0, depth_steps=1
    )
    rng = np.random.default_rng(11)
    drawn = simulate(sample_primaries(400_000, config, rng), config, rng)
    multiple = (drawn.counts_E >= 2)[event_of(drawn)]

    assert radius_m(drawn)[multiple].mean() == pytest.approx(5.4, rel=0.1)


@pytest.mark.parametrize(
    ("depth_m", "cos_zenith", "energy_gev"), [(1000.0, 1.0, 1e5), (2200.0, 0.5, 1e6), (2200.0, 1.0, 1e7)]
)
def test_mupage_radii_follow_the_published_distribution(depth_m, cos_zenith, energy_gev):
    config = SimulatorConfig(lateral="mupage")
    drawn = simulate(
        same(20_000, energy_gev=energy_gev, cos_zenith=cos_zenith, depth_m=depth_m), config, np.random.default_rng(12)
    )
    h = max((200 * 0.832 + (depth_m - 200) * 0.917) / 1000.0, 1.5)
    tested = 0
    for num in (1, 2, 4):
        chosen = (np.minimum(drawn.counts_E, 4) == num)[event_of(drawn)]
        if chosen.sum() < 500:
            continue
        tested += 1
        mean_m = (-1.786 * num + 28.26) * h**-1.06 / (np.exp((np.arccos(cos_zenith) - 1.3) * 10.4) + 1.0)
        alpha = (-0.448 * num + 4.969) * np.exp(h * (0.0194 * num + 0.276))
        scale_m = mean_m * (alpha - 3.0) / 2.0
        # Integral of dN/dR ~ R / (R + R0)^alpha.
        ratio = radius_m(drawn)[chosen][:20_000] / scale_m
        cdf = 1.0 - (1.0 + ratio) ** (1.0 - alpha) * (1.0 + (alpha - 1.0) * ratio)
        assert stats.kstest(cdf, "uniform").pvalue > 0.01
    assert tested


def test_the_water_equivalent_width_of_mupage_is_ten_to_twelve_metres_at_two_km():
    for num, expected_m in ((2, 11.8), (4, 10.1)):
        assert (-1.786 * num + 28.26) * 2.0**-1.06 == pytest.approx(expected_m, abs=0.1)


def test_wider_transverse_momentum_widens_the_bundle_in_proportion():
    narrow = simulate(same(2000, energy_gev=1e7), WIDE, np.random.default_rng(13))
    wide_config = SimulatorConfig(pt_mean_gev=0.9)
    wide = simulate(same(2000, energy_gev=1e7), wide_config, np.random.default_rng(13))

    np.testing.assert_allclose(radius_m(wide), 2.0 * radius_m(narrow), rtol=1e-4)


def test_a_single_event_of_a_hundred_thousand_muons_is_simulated_whole():
    primaries = same(3, energy_gev=3e11, mass=56.0, cos_zenith=1.0, depth_m=1000.0)
    drawn = simulate(primaries, SimulatorConfig(energy_max_gev=1e12), np.random.default_rng(14))

    assert drawn.counts_E.min() > 1e5
    assert np.isfinite(drawn.muons_P3).all()


def test_primaries_that_leave_no_muons_make_empty_rows():
    drawn = simulate(same(10, energy_gev=1e3, mass=56.0), WIDE, np.random.default_rng(15))

    assert drawn.counts_E.tolist() == [0] * 10
    assert drawn.muons_P3.shape == (0, 3)
    assert np.isfinite(drawn.primary_E4).all()


def test_a_second_draw_for_the_same_primaries_is_independent():
    rng = np.random.default_rng(16)
    primaries = sample_primaries(5000, WIDE, rng)
    first, second = simulate(primaries, WIDE, rng), simulate(primaries, WIDE, rng)

    np.testing.assert_array_equal(first.primary_E4, second.primary_E4)
    assert (first.counts_E != second.counts_E).any()


def test_the_same_generator_state_gives_the_same_muons():
    first, second = (simulate(same(100), WIDE, np.random.default_rng(17)) for _ in range(2))

    np.testing.assert_array_equal(first.muons_P3, second.muons_P3)
