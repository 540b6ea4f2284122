"""The simulator of muon bundles: its distributions are those of the published formulas."""

import numpy as np
import pytest
from scipy import stats

from workloads.muons.showers.bundles import vertical_depth_mwe
from workloads.muons.simulator import muons
from workloads.muons.simulator.config import PRESETS, SimulatorConfig, preset

WIDE = SimulatorConfig(gamma=1.5, energy_min_gev=1e4, energy_max_gev=1e8)


def generator():
    return np.random.default_rng(20)


def test_cos_squared_of_the_zenith_is_uniform():
    primaries = muons.sample_primaries(50_000, preset("bench"), generator())
    lowest = np.cos(np.deg2rad(80.0)) ** 2
    share = (primaries.cos_zenith_E**2 - lowest) / (1.0 - lowest)

    assert stats.kstest(share, "uniform").pvalue > 0.01


@pytest.mark.parametrize("gamma", [1.0, 1.5, 2.0, 2.7])
def test_energies_follow_the_power_law(gamma):
    config = SimulatorConfig(gamma=gamma, energy_min_gev=1e4, energy_max_gev=1e8)
    energy_gev = muons.sample_primaries(50_000, config, generator()).energy_gev_E

    def cdf(energy):
        if gamma == 1.0:
            return np.log(energy / 1e4) / np.log(1e4)
        power = 1.0 - gamma
        return (energy**power - 1e4**power) / (1e8**power - 1e4**power)

    assert stats.kstest(energy_gev, cdf).pvalue > 0.01


def test_h3a_flux_matches_a_value_computed_by_hand():
    # Proton at 1 PeV: three populations with their cutoffs.
    expected = 7860 * 1e6**-2.66 * np.exp(-0.25) + (20 * np.exp(-1 / 30) + 1.7 * np.exp(-1 / 2000)) * 1e6**-2.4
    assert muons.h3a_flux(np.array([1e6]), 0)[0] == pytest.approx(expected)


def test_h3a_energies_and_masses_follow_the_flux():
    config = preset("h3a")
    primaries = muons.sample_primaries(100_000, config, generator())
    log_energy = np.linspace(np.log(1e4), np.log(1e11), 20_001)
    energy_gev = np.exp(log_energy)
    total = [np.trapezoid(muons.h3a_flux(energy_gev, group) * energy_gev, log_energy) for group in range(5)]
    _, count = np.unique(primaries.mass_E, return_counts=True)
    np.testing.assert_allclose(count / 100_000, np.array(total) / sum(total), atol=0.006)

    iron = primaries.energy_gev_E[primaries.mass_E == 56.0]
    above = energy_gev > 1e5
    share = np.trapezoid((muons.h3a_flux(energy_gev, 4) * energy_gev)[above], log_energy[above]) / total[4]
    assert np.mean(iron > 1e5) == pytest.approx(share, abs=0.01)


def test_primaries_read_back_from_their_columns_are_the_same():
    config = preset("bench")
    primaries = muons.sample_primaries(1000, config, generator())
    back = muons.SimulatedPrimaries.from_columns(primaries.columns())

    for name, values_E in vars(primaries).items():
        np.testing.assert_allclose(vars(back)[name], values_E, rtol=1e-5, err_msg=name)


def test_mean_multiplicity_is_that_of_elberts_formula():
    # x = 500 / 1e6, 14.5 / (500 · 0.8) · x^-0.757 · (1 - x)^5.25
    mean = muons.mean_multiplicity(*map(np.atleast_1d, (500.0, 1e6, 1.0, 0.8)))
    assert mean[0] == pytest.approx(0.03625 * (5e-4) ** -0.757 * (1 - 5e-4) ** 5.25)
    below_threshold = muons.mean_multiplicity(np.array([500.0]), np.array([2e4]), np.array([56.0]), np.ones(1))
    assert below_threshold[0] == 0.0


# Mean N and P(N = 0) as documented; the tail above 1e8 GeV makes the mean of `corsika` and `heavy` uncertain.
@pytest.mark.parametrize(
    ("name", "mean", "mean_tolerance", "empty"),
    [
        ("corsika", 0.68, 0.2, 0.859),
        ("bench", 4.56, 0.05, 0.405),
        ("heavy", 9.67, 0.1, 0.698),
        ("flat", 9.43, 0.03, 0.421),
        ("h3a", 0.19, 0.04, 0.887),
    ],
)
def test_presets_have_the_documented_multiplicity(name, mean, mean_tolerance, empty):
    config = PRESETS[name]
    rng = np.random.default_rng(3)
    truth = muons.expect(muons.sample_primaries(200_000, config, rng), config)
    counts = muons.draw_counts(truth.mean_E, truth.shape_E, rng)

    assert counts.mean() == pytest.approx(mean, rel=mean_tolerance)
    assert np.mean(counts == 0) == pytest.approx(empty, abs=0.004)


def test_energy_loss_satisfies_its_equation():
    step_mwe = 1e-3
    before, after = muons.surface_energy_gev(500.0, np.array([1000.0, 1000.0 + step_mwe]))

    assert muons.surface_energy_gev(500.0, np.zeros(1)) == pytest.approx(500.0)
    assert vertical_depth_mwe(np.array([1000.0]))[0] == pytest.approx(200 * 0.832 + 800 * 0.917), "firn is lighter"
    assert muons.cos_local_zenith(np.array([1.0, 0.2])) == pytest.approx([1.0, 0.21832], abs=1e-5)
    assert (after - before) / step_mwe == pytest.approx(0.259 + 0.363e-3 * before, rel=1e-5)


def test_the_spectrum_table_inverts_the_survival():
    table = muons.surface_spectrum()
    log_x = np.concatenate([np.linspace(-29.0, -0.7, 2000), np.log1p(-np.geomspace(0.5, 1e-5, 2000))])
    back = table.log_x(table.log_share(log_x).astype(np.float32))

    # Half of float32's spacing at 30, where the table begins, is 1e-6.
    np.testing.assert_allclose(back, log_x, atol=1e-5)
    assert -1e-6 < table.log_x(np.array([-1e4], np.float32))[0] <= 0.0, "below the nucleon's energy"


def same(num_events, *, energy_gev=1e6, mass=1.0, cos_zenith=0.8, depth_m=1950.0):
    """Identical primaries."""
    columns = (np.full(num_events, value) for value in (energy_gev, mass, cos_zenith, depth_m))
    return muons.SimulatedPrimaries(*columns)


def radius_m(bundles):
    return np.hypot(bundles.muons_P3[:, 1], bundles.muons_P3[:, 2]).astype(float)


def event_of(bundles):
    return np.repeat(np.arange(len(bundles)), bundles.counts_E)


def test_every_row_is_there_and_no_muon_is_below_the_cut_or_above_its_nucleon():
    rng = np.random.default_rng(6)
    bundles = muons.simulate(muons.sample_primaries(60_000, WIDE, rng), WIDE, rng)
    nucleon_gev = bundles.primary_E4[:, 0] / bundles.primary_E4[:, 2]

    assert bundles.primary_E4.dtype == bundles.muons_P3.dtype == np.float32
    assert bundles.primary_E4.shape == (60_000, 4)
    assert bundles.counts_E.sum() == len(bundles.muons_P3)
    assert np.isfinite(bundles.muons_P3).all()
    assert bundles.muons_P3[:, 0].min() >= WIDE.energy_cut_gev
    assert (bundles.muons_P3[:, 0] < nucleon_gev[event_of(bundles)]).all()
    angle_rad = np.arctan2(bundles.muons_P3[:50_000, 2], bundles.muons_P3[:50_000, 1])
    assert stats.kstest((angle_rad + np.pi) / (2.0 * np.pi), "uniform").pvalue > 0.01


@pytest.mark.parametrize(("energy_gev", "mass"), [(1e6, 56.0), (1e5, 1.0), (1e9, 14.0)])
def test_surface_energies_follow_elberts_survival_at_a_fixed_primary(energy_gev, mass):
    config = SimulatorConfig()
    num_events = int(
        np.clip(20_000 / muons.expect(same(1, energy_gev=energy_gev, mass=mass), config).mean_E[0], 1, 1e6)
    )
    primaries = same(num_events, energy_gev=energy_gev, mass=mass)
    truth = muons.expect(primaries, config)
    drawn = muons.simulate(primaries, config, np.random.default_rng(7))
    surface_gev = muons.surface_energy_gev(drawn.muons_P3[:, 0].astype(float), truth.slant_mwe_E[0])

    def mean_above(threshold_gev):
        return muons.mean_multiplicity(
            threshold_gev, primaries.energy_gev_E[:1], primaries.mass_E[:1], truth.cos_local_E[:1]
        )

    survival = mean_above(surface_gev) / mean_above(truth.threshold_gev_E[:1])
    assert stats.kstest(survival, "uniform").pvalue > 0.01


def test_energies_and_radii_of_the_bench_preset_are_as_documented():
    rng = np.random.default_rng(9)
    drawn = muons.simulate(muons.sample_primaries(60_000, preset("bench"), rng), preset("bench"), rng)

    np.testing.assert_allclose(np.percentile(drawn.muons_P3[:, 0], [10, 50, 90, 99]), [19, 142, 758, 3105], rtol=0.06)
    np.testing.assert_allclose(np.percentile(radius_m(drawn), [10, 50, 90, 99]), [1.4, 6.2, 19.6, 42], rtol=0.06)


def test_a_single_event_of_a_hundred_thousand_muons_is_simulated_whole_and_one_of_none_is_an_empty_row():
    large = same(3, energy_gev=3e11, mass=56.0, cos_zenith=1.0, depth_m=1000.0)
    drawn = muons.simulate(large, WIDE, np.random.default_rng(14))
    assert drawn.counts_E.min() > 1e5
    assert np.isfinite(drawn.muons_P3).all()

    none = muons.simulate(same(10, energy_gev=1e3, mass=56.0), WIDE, np.random.default_rng(15))
    assert none.counts_E.tolist() == [0] * 10
    assert none.muons_P3.shape == (0, 3)


BENCH = preset("bench")
DEPTHS = 10


@pytest.mark.parametrize(
    "draw", [muons.simulate, lambda same, *to: muons.simulate_showers(same, same.depth_m_E[:, None], *to)]
)
@pytest.mark.parametrize(
    ("energy_gev", "mass", "shape", "correlation"),
    [(1e6, 1.0, 5.6, 0.045), (1e6, 56.0, 15.3, 0.045), (1e7, 14.0, 18.0, 0.0226), (1e8, 1.0, 15.4, 0.0113)],
)
def test_counts_scatter_and_radii_correlate_as_in_real_showers(draw, energy_gev, mass, shape, correlation):
    primaries = same(40_000 if energy_gev < 1e8 else 10_000, energy_gev=energy_gev, mass=mass, cos_zenith=0.866)
    drawn = draw(primaries, BENCH, np.random.default_rng(16))
    counts, mean = drawn.counts_E, muons.expect(primaries, BENCH).mean_E[0]
    assert counts.mean() == pytest.approx(mean, rel=0.015)
    assert mean**2 / (counts.var() - mean) == pytest.approx(shape, rel=0.06)
    assert np.mean(counts == 0) == pytest.approx((1.0 + mean / shape) ** -shape, abs=0.004)

    lg_r = np.log10(radius_m(drawn))
    total, squares = (np.bincount(event_of(drawn), (lg_r - lg_r.mean()) ** power, len(counts)) for power in (1, 2))
    pairs = (total**2 - squares) / np.maximum(counts - 1, 1)
    assert pairs.sum() / squares[counts > 1].sum() == pytest.approx(correlation, rel=0.15)


def test_showers_have_a_row_at_every_depth_each_with_the_mean_and_spread_of_the_formula():
    rng = np.random.default_rng(1)
    depth_m_SD = muons.sample_depths(10_000, DEPTHS, BENCH, rng)
    rows = muons.simulate_showers(muons.sample_primaries(10_000, BENCH, rng), depth_m_SD, BENCH, rng)
    primary_SD4, counts_SD = rows.primary_E4.reshape(-1, DEPTHS, 4), rows.counts_E.reshape(-1, DEPTHS)

    np.testing.assert_allclose(primary_SD4[:, :, 3], depth_m_SD, rtol=1e-6)
    assert (np.diff(depth_m_SD, axis=1) > 0).all()
    assert np.isin(depth_m_SD, np.linspace(1000, 2800, 100)).all()
    assert (primary_SD4[:, :, :3] == primary_SD4[:, :1, :3]).all()
    assert (np.diff(counts_SD, axis=1) <= 0).all(), "muons only get fewer with depth"

    truth = muons.expect(muons.SimulatedPrimaries.from_columns(rows.primary_E4), BENCH)
    mean_SD, shape_SD = truth.mean_E.reshape(-1, DEPTHS), truth.shape_E.reshape(-1, DEPTHS)
    variance_SD = mean_SD + mean_SD**2 / shape_SD
    assert (np.abs((counts_SD - mean_SD).sum(0)) < 3.5 * np.sqrt(variance_SD.sum(0))).all()
    # Thinning a negative binomial by survival leaves one of the same shape.
    some = mean_SD[:, -1] > 0.5
    z = (counts_SD - mean_SD)[some, -1] / np.sqrt(variance_SD[some, -1])
    assert z.std() == pytest.approx(1.0, abs=0.06)


def test_a_muon_loses_energy_and_moves_away_from_the_axis_on_a_straight_line():
    # One iron shower: enough muons that hardly any is lost between two close depths.
    shower = muons.SimulatedPrimaries(np.array([1e8]), np.array([56.0]), np.array([0.9]), np.array([0.0]))
    drawn = muons.simulate_showers(shower, np.array([[1500.0, 1510.0, np.inf]]), BENCH, np.random.default_rng(2))
    first_P3, second_P3 = np.split(drawn.muons_P3, [drawn.counts_E[0]])
    # The lost ones are those of least energy, and survivors keep their order.
    kept_P3 = first_P3[first_P3[:, 0] >= np.sort(first_P3[:, 0])[-len(second_P3)]]
    loss_gev = 0.26 * 10 * 0.917 / 0.9

    assert 0.9 * drawn.counts_E[0] < drawn.counts_E[1] < drawn.counts_E[0]
    assert (kept_P3[:, 0] - second_P3[:, 0]).min() > 0.9 * loss_gev
    first_rad_P, second_rad_P = (np.arctan2(one_P3[:, 2], one_P3[:, 1]) for one_P3 in (kept_P3, second_P3))
    np.testing.assert_allclose(second_rad_P, first_rad_P, atol=1e-5)
    assert (np.hypot(*second_P3[:, 1:].T) > np.hypot(*kept_P3[:, 1:].T)).all()


@pytest.mark.parametrize("max_muons", [1, 3, 100])
def test_chunks_cover_every_muon_once_and_know_its_event(max_muons):
    counts = np.array([0, 2, 0, 0, 11, 1, 0, 5, 0])
    event = np.arange(len(counts), dtype=np.float32)
    pieces = list(muons.chunks(counts, max_muons))

    assert [piece.start for piece in pieces] == list(range(0, 19, max_muons))
    assert all(len(piece) <= max_muons for piece in pieces)
    np.testing.assert_array_equal(np.concatenate([piece.spread(event) for piece in pieces]), np.repeat(event, counts))
    assert list(muons.chunks(np.zeros(5, np.int64))) == list(muons.chunks(np.zeros(0, np.int64))) == []
