import numpy as np
import pytest
from scipy import stats

from workloads.muons.simulator.config import preset
from workloads.muons.simulator.flux import SimulatedPrimaries, sample_primaries
from workloads.muons.simulator.multiplicity import expect
from workloads.muons.simulator.showers import shower_depths_m, simulate_showers

CONFIG = preset("bench")
DEPTHS = 10


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(1)
    showers = sample_primaries(10_000, CONFIG, rng)
    return simulate_showers(showers, shower_depths_m(DEPTHS, CONFIG), CONFIG, rng)


def test_depths_of_a_shower_are_the_converters_hundred():
    np.testing.assert_allclose(shower_depths_m(100, CONFIG), np.linspace(1000.0, 2800.0, 100))


def test_every_shower_has_a_row_at_every_depth_shallowest_first(rows):
    primary_SD4 = rows.primary_E4.reshape(-1, DEPTHS, 4)

    assert len(rows) == 10_000 * DEPTHS
    np.testing.assert_allclose(primary_SD4[:, :, 3], np.tile(np.linspace(1000, 2800, DEPTHS), (10_000, 1)))
    assert (primary_SD4[:, :, :3] == primary_SD4[:, :1, :3]).all()


def test_muons_only_get_fewer_with_depth(rows):
    counts_SD = rows.counts_E.reshape(-1, DEPTHS)

    assert (np.diff(counts_SD, axis=1) <= 0).all()
    assert (counts_SD[:, -1] == 0).any()


def test_every_depth_has_the_mean_of_the_formula(rows):
    truth = expect(SimulatedPrimaries.from_columns(rows.primary_E4, CONFIG), CONFIG)
    counts_SD, mean_SD = rows.counts_E.reshape(-1, DEPTHS), truth.mean_E.reshape(-1, DEPTHS)
    sigma_D = np.sqrt((mean_SD + mean_SD**2 / truth.shape_E.reshape(-1, DEPTHS)).sum(axis=0))

    assert (np.abs(counts_SD.sum(axis=0) - mean_SD.sum(axis=0)) < 3.5 * sigma_D).all()


def test_the_deepest_rows_scatter_as_a_negative_binomial_too(rows):
    # Thinning a negative binomial by survival leaves one of the same shape.
    truth = expect(SimulatedPrimaries.from_columns(rows.primary_E4, CONFIG), CONFIG)
    some = (truth.mean_E > 0.5) & (np.arange(len(rows)) % DEPTHS == DEPTHS - 1)
    mean, shape = truth.mean_E[some], truth.shape_E[some]
    z = (rows.counts_E[some] - mean) / np.sqrt(mean + mean**2 / shape)

    assert z.std() == pytest.approx(1.0, abs=0.06)


def test_a_muon_loses_energy_and_moves_away_from_the_axis_on_a_straight_line():
    # One iron shower: enough muons that hardly any is lost between two close depths.
    shower = SimulatedPrimaries(np.array([1e8]), np.array([56.0]), np.array([0.9]), np.array([0.0]))
    drawn = simulate_showers(shower, np.array([1500.0, 1510.0]), CONFIG, np.random.default_rng(2))
    first_P3, second_P3 = np.split(drawn.muons_P3, [drawn.counts_E[0]])
    # The lost ones are those of least energy, and survivors keep their order.
    kept_P3 = first_P3[first_P3[:, 0] >= np.sort(first_P3[:, 0])[-len(second_P3)]]
    loss_gev = 0.26 * 10 * 0.917 / 0.9

    assert 0.9 * drawn.counts_E[0] < drawn.counts_E[1] < drawn.counts_E[0]
    assert (kept_P3[:, 0] - second_P3[:, 0]).min() > 0.9 * loss_gev
    np.testing.assert_allclose(
        np.arctan2(second_P3[:, 2], second_P3[:, 1]), np.arctan2(kept_P3[:, 2], kept_P3[:, 1]), atol=1e-5
    )
    assert (np.hypot(*second_P3[:, 1:].T) > np.hypot(*kept_P3[:, 1:].T)).all()


def test_each_rows_muons_are_its_own(rows):
    nucleon_gev = rows.primary_E4[:, 0] / rows.primary_E4[:, 2]

    assert (rows.muons_P3[:, 0] < np.repeat(nucleon_gev, rows.counts_E)).all()
    assert rows.muons_P3[:, 0].min() >= CONFIG.energy_cut_gev


def test_mupage_radii_are_redrawn_at_each_depth_from_its_fit():
    config = preset("bench", lateral="mupage")
    showers = SimulatedPrimaries(*(np.full(2000, value) for value in (1e7, 1.0, 1.0, 0.0)))
    drawn = simulate_showers(showers, np.array([1800.0, 2600.0]), config, np.random.default_rng(3))
    deep = np.arange(len(drawn)) % 2 == 1
    chosen = (deep & (drawn.counts_E >= 4)).repeat(drawn.counts_E)
    radius_m = np.hypot(drawn.muons_P3[:, 1], drawn.muons_P3[:, 2]).astype(float)[chosen]
    h = (200 * 0.832 + 2400 * 0.917) / 1000.0
    alpha = (-0.448 * 4 + 4.969) * np.exp(h * (0.0194 * 4 + 0.276))
    ratio = radius_m / ((-1.786 * 4 + 28.26) * h**-1.06 * (alpha - 3.0) / 2.0)
    cdf = 1.0 - (1.0 + ratio) ** (1.0 - alpha) * (1.0 + (alpha - 1.0) * ratio)

    assert stats.kstest(cdf, "uniform").pvalue > 0.01


def test_showers_without_muons_make_empty_rows():
    shower = SimulatedPrimaries(np.full(3, 1e3), np.full(3, 56.0), np.ones(3), np.zeros(3))
    drawn = simulate_showers(shower, shower_depths_m(4, CONFIG), CONFIG, np.random.default_rng(4))

    assert drawn.counts_E.tolist() == [0] * 12
    assert drawn.muons_P3.shape == (0, 3)
