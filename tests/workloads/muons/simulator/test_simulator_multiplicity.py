import numpy as np
import pytest
from scipy import stats

from workloads.muons.simulator.config import ELBERT_FITS, GROUP_MASS, PRESETS, SimulatorConfig, preset
from workloads.muons.simulator.flux import SimulatedPrimaries, h3a_flux, sample_primaries
from workloads.muons.simulator.multiplicity import draw_counts, expect, mean_multiplicity, surface_spectrum
from workloads.muons.simulator.propagation import cos_local_zenith, surface_energy_gev

CLASSIC = ELBERT_FITS["classic"]


@pytest.fixture(scope="module")
def drawn():
    """Means, shapes and counts of 200,000 events."""
    config = SimulatorConfig(gamma=1.5, energy_min_gev=1e4, energy_max_gev=1e8, theta_max_deg=70.0)
    rng = np.random.default_rng(5)
    primaries = sample_primaries(200_000, config, rng)
    truth = expect(primaries, config)
    return truth, draw_counts(truth.mean_E, truth.shape_E, primaries.mass_E, config, rng), primaries


def test_the_sum_of_counts_is_the_sum_of_means_within_three_sigma(drawn):
    truth, counts, _ = drawn
    sigma = np.sqrt((truth.mean_E + truth.mean_E**2 / truth.shape_E).sum())

    assert abs(counts.sum() - truth.mean_E.sum()) < 3.0 * sigma


def test_counts_scatter_as_a_negative_binomial(drawn):
    truth, counts, _ = drawn
    some = truth.mean_E > 0.5
    variance = truth.mean_E + truth.mean_E**2 / truth.shape_E
    z = (counts - truth.mean_E)[some] / np.sqrt(variance[some])

    assert abs(z.mean()) < 3.0 / np.sqrt(some.sum())
    assert z.std() == pytest.approx(1.0, abs=0.02)


def test_empty_events_are_as_many_as_the_negative_binomial_says(drawn):
    truth, counts, _ = drawn
    expected = np.mean((1.0 + truth.mean_E / truth.shape_E) ** -truth.shape_E)

    assert np.mean(counts == 0) == pytest.approx(expected, abs=0.003)


def test_iron_showers_fluctuate_less_than_proton_showers(drawn):
    truth, counts, primaries = drawn
    for mass, expected in ((1.0, 0.41), (56.0, 0.055)):
        chosen = (primaries.mass_E == mass) & (truth.mean_E > 20.0)
        mean, count = truth.mean_E[chosen], counts[chosen]
        # What is left of the variance after the Poisson part, relative to the mean.
        excess = np.mean(((count - mean) ** 2 - mean) / mean**2)
        assert np.sqrt(excess) == pytest.approx(expected, rel=0.15)


def test_mean_multiplicity_matches_a_value_computed_by_hand():
    # x = 500 / 1e6, 14.5 / (500 · 0.8) · x^-0.757 · (1 - x)^5.25
    expected = 0.03625 * (5e-4) ** -0.757 * (1 - 5e-4) ** 5.25
    mean = mean_multiplicity(np.array([500.0]), np.array([1e6]), np.ones(1), np.array([0.8]), CLASSIC)

    assert mean[0] == pytest.approx(expected)


def test_generalized_fit_matches_its_published_form():
    threshold, energy, mass, cos_local = 500.0, 1e7, 14.0, 0.7
    x, nucleon = mass * threshold / energy, energy / mass
    expected = 49.419 * mass / (nucleon * cos_local) * x**-1.62586 * (1 - x**0.580386) ** 4.93827
    mean = mean_multiplicity(*map(np.atleast_1d, (threshold, energy, mass, cos_local)), ELBERT_FITS["generalized"])

    assert mean[0] == pytest.approx(expected)


def test_iron_makes_more_muons_than_a_proton_by_the_power_of_its_mass():
    def ratio(energy_gev):
        threshold, energy, one = np.array([500.0]), np.array([energy_gev]), np.ones(1)
        proton = mean_multiplicity(threshold, energy, one, one, CLASSIC)
        return float((mean_multiplicity(threshold, energy, 56.0 * one, one, CLASSIC) / proton)[0])

    assert ratio(1e6) == pytest.approx(2.297, abs=1e-3)
    assert ratio(1e7) == pytest.approx(2.621, abs=1e-3)
    assert ratio(1e8) == pytest.approx(2.656, abs=1e-3)
    assert ratio(1e11) == pytest.approx(56**0.243, rel=1e-4)


def test_a_primary_whose_nucleons_are_below_threshold_has_no_muons():
    mean = mean_multiplicity(np.array([500.0]), np.array([2e4]), np.array([56.0]), np.ones(1), CLASSIC)

    assert mean[0] == 0.0


def test_poisson_counts_have_the_variance_of_a_poisson():
    config = preset("bench", fluctuation="poisson")
    mean = np.full(50_000, 30.0)
    counts = draw_counts(mean, np.ones(50_000), np.ones(50_000), config, np.random.default_rng(1))

    assert counts.mean() == pytest.approx(30.0, abs=0.1)
    assert counts.var() == pytest.approx(30.0, rel=0.03)


def test_lognormal_counts_keep_the_mean_and_have_a_lognormals_variance():
    config = preset("bench", fluctuation="lognormal")
    mean, mass = np.full(200_000, 30.0), np.full(200_000, 4.0)
    counts = draw_counts(mean, np.ones(200_000), mass, config, np.random.default_rng(1))

    assert counts.mean() == pytest.approx(30.0, abs=0.1)
    assert counts.var() == pytest.approx(30.0 + 900.0 * np.expm1(0.5**2 / 4.0), rel=0.03)


@pytest.mark.parametrize("elbert", ["classic", "generalized"])
def test_the_spectrum_table_inverts_the_survival(elbert):
    fit = ELBERT_FITS[elbert]
    table = surface_spectrum(fit)
    log_x = np.concatenate([np.linspace(-29.0, -0.7, 2000), np.log1p(-np.geomspace(0.5, 1e-5, 2000))])
    back = table.log_x(table.log_share(log_x).astype(np.float32))

    # Half of float32's spacing at 30, where the table begins, is 1e-6.
    np.testing.assert_allclose(back, log_x, atol=1e-5)


def test_the_spectrum_table_stays_below_the_nucleons_energy_for_the_rarest_muon():
    assert -1e-6 < surface_spectrum(CLASSIC).log_x(np.array([-1e4], np.float32))[0] <= 0.0


# Mean N and P(N = 0) as documented; the tail above 1e8 GeV makes the mean of `corsika` and `heavy` uncertain.
@pytest.mark.parametrize(
    ("name", "mean", "mean_tolerance", "empty"),
    [
        ("corsika", 0.62, 0.2, 0.854),
        ("bench", 4.57, 0.05, 0.393),
        ("heavy", 9.66, 0.1, 0.692),
        ("flat", 9.45, 0.03, 0.415),
        ("h3a", 0.19, 0.04, 0.883),
    ],
)
def test_presets_have_the_documented_multiplicity(name, mean, mean_tolerance, empty):
    config = PRESETS[name]
    rng = np.random.default_rng(3)
    primaries = sample_primaries(200_000, config, rng)
    truth = expect(primaries, config)
    counts = draw_counts(truth.mean_E, truth.shape_E, primaries.mass_E, config, rng)

    assert counts.mean() == pytest.approx(mean, rel=mean_tolerance)
    assert np.mean(counts == 0) == pytest.approx(empty, abs=0.004)


def test_threshold_energy_of_a_deep_inclined_track_is_many_tev():
    config = preset("bench")
    primaries = SimulatedPrimaries(np.full(2, 1e6), np.ones(2), np.array([1.0, 0.2]), np.array([1000.0, 2500.0]))

    threshold_gev = expect(primaries, config).threshold_gev_E

    assert threshold_gev[0] == pytest.approx(276.0, rel=0.02)
    assert threshold_gev[1] > 20_000.0


# MUPAGE: fits of the flux in units of m^-2 s^-1 sr^-1, depth h in km.w.e. (hep-ph/0507228).
def mupage_flux(depth_km_mwe, cos_zenith, multiplicity):
    single = 0.0072 * depth_km_mwe**-1.927 * cos_zenith * np.exp((-0.581 * depth_km_mwe + 0.034) / cos_zenith)
    power = (-0.0771 * depth_km_mwe**2 + 0.524 * depth_km_mwe + 2.068) * np.exp(
        0.03 * np.exp(0.47 * depth_km_mwe) / cos_zenith
    )
    return single / multiplicity**power


def h3a_rate(depth_km_mwe, cos_zenith, elbert="classic"):
    """Rates of at least 1 and at least 2 muons above 20 GeV, by quadrature over the H3a flux."""
    config = SimulatorConfig(elbert=elbert)
    log_energy = np.linspace(np.log(300.0), np.log(1e10), 1500)
    energy_gev = np.exp(log_energy)
    threshold_gev = surface_energy_gev(20.0, np.full(1, depth_km_mwe * 1000.0 / cos_zenith), config)
    cos_local = cos_local_zenith(np.full(1, cos_zenith))
    rates = np.zeros(2)
    for group, mass in enumerate(GROUP_MASS):
        mean = mean_multiplicity(threshold_gev, energy_gev, np.full(1, mass), cos_local, config.elbert_fit)
        shape = config.nb_shape_per_nucleon * mass
        count = stats.nbinom(shape, shape / (shape + mean))
        weight = h3a_flux(energy_gev, group) * energy_gev
        rates += [np.trapezoid(weight * count.sf(least), log_energy) for least in (0, 1)]
    return rates


@pytest.mark.parametrize(
    ("depth_km_mwe", "cos_zenith", "ratio"),
    [(1.5, 1.0, 0.86), (2.0, 1.0, 0.80), (3.0, 1.0, 0.71), (1.8, 0.7, 0.71), (1.8, 0.5, 0.60)],
)
def test_the_h3a_rate_is_below_mupages_by_the_documented_factor(depth_km_mwe, cos_zenith, ratio):
    mupage = mupage_flux(depth_km_mwe, cos_zenith, np.arange(1.0, 2000.0)).sum()

    assert h3a_rate(depth_km_mwe, cos_zenith)[0] / mupage == pytest.approx(ratio, abs=0.01)


@pytest.mark.parametrize(("elbert", "share"), [("classic", 0.110), ("generalized", 0.144)])
def test_the_share_of_multiple_muons_is_below_mupages_by_the_documented_factor(elbert, share):
    flux = mupage_flux(2.0, 1.0, np.arange(1.0, 2000.0))
    assert flux[1:].sum() / flux.sum() == pytest.approx(0.164, abs=1e-3)

    one, two = h3a_rate(2.0, 1.0, elbert)
    assert two / one == pytest.approx(share, abs=1e-3)
