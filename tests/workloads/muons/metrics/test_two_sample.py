"""Areas under curves that are known, and classifiers on what they can and can't see."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from simulated import drawn_again, real_sample
from torch import Tensor

from workloads.muons.metrics.bundles import BundleArrays, Float64, Int64
from workloads.muons.metrics.sample import Sample
from workloads.muons.metrics.settings import EvaluationSettings
from workloads.muons.metrics.two_sample import classifier_test
from workloads.muons.metrics.two_sample.auc import Auc
from workloads.muons.metrics.two_sample.classifier_test import attention_test, set_test, summary_test
from workloads.muons.metrics.two_sample.inputs import SetInputs
from workloads.muons.metrics.two_sample.networks import AttentionSets

SETTINGS = EvaluationSettings(c2st_epochs=5)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def auc(a: list[float], b: list[float]) -> float:
    return float(Auc(np.array(a), np.array(b))(np.ones((1, len(a))), np.ones((1, len(b))))[0])


def test_scores_that_are_told_apart_have_an_area_of_one_and_ties_count_half() -> None:
    assert auc([0.0, 1.0], [2.0, 3.0]) == 1.0
    assert auc([2.0, 3.0], [0.0, 1.0]) == 0.0
    assert auc([1.0, 1.0], [1.0]) == 0.5
    # Pairs: 0<1, 0<2, 1=1, 1<2, 3>1, 3>2.
    assert auc([0.0, 1.0, 3.0], [1.0, 2.0]) == pytest.approx((3 + 0.5) / 6)


def test_two_gaussians_have_the_area_that_is_known() -> None:
    rng = np.random.default_rng(1)
    # P(b > a) = Phi(1 / sqrt 2) for means one standard deviation apart.
    found = auc(rng.normal(0, 1, 50_000).tolist(), rng.normal(1, 1, 50_000).tolist())
    assert found == pytest.approx(0.7602, abs=0.005)


def test_integer_weights_of_scores_are_repetitions() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 9, 40) / 1.0, rng.integers(3, 12, 30) / 1.0
    times = rng.integers(0, 4, 40)
    found = Auc(a, b)(times[None].astype(np.float64), np.ones((1, 30)))[0]
    assert found == pytest.approx(auc(np.repeat(a, times).tolist(), b.tolist()))


def chance(a: Float64, b: Float64, weights: Float64, shower: Int64) -> float:
    return Auc(a, b).chance(weights, weights, shower, shower)


@pytest.mark.parametrize("alike", [1, 4])
def test_the_area_of_samples_that_are_alike_deviates_from_one_half_by_chance(alike: int) -> None:
    """Events of one shower have equal scores here: as if there were fewer of them."""
    rng = np.random.default_rng(3)
    showers = np.repeat(np.arange(200), alike)
    ones = np.ones((1, len(showers)))
    drawn = [[np.repeat(rng.normal(size=200), alike) for _ in range(2)] for _ in range(400)]
    found = [Auc(a, b)(ones, ones)[0] for a, b in drawn]
    expected = np.sqrt(1 / 6 / 200)
    assert np.std(found) == pytest.approx(expected, rel=0.1)
    told = [chance(a, b, ones[0], showers) for a, b in drawn]
    assert np.mean(told) == pytest.approx(expected, rel=0.02)


def test_scores_that_depend_on_the_primary_deviate_less_and_weights_more() -> None:
    rng = np.random.default_rng(4)
    showers, ones = np.arange(20_000), np.ones(20_000)
    primary = rng.normal(size=20_000)
    a, b = (primary + 0.1 * rng.normal(size=20_000) for _ in range(2))
    alone = chance(a, rng.normal(size=20_000), ones, showers)
    assert chance(a, b, ones, showers) < 0.2 * alone
    few = np.where(showers < 5_000, 1.0, 0.0)
    assert chance(a, b, few, showers) == pytest.approx(2 * chance(a, b, ones, showers), rel=0.1)


def test_samples_that_are_told_apart_completely_have_a_chance_above_zero() -> None:
    """Else there would be no floor to compare with."""
    assert chance(np.arange(100.0), 100 + np.arange(100.0), np.ones(100), np.arange(100)) > 0


def asked(test: Callable[..., object], real: Sample, generated: BundleArrays) -> float:
    trained = test(real, real.with_bundles(generated), SETTINGS, lambda part: None)
    ones = np.ones((1, len(real)))
    return float(trained(ones, ones)[0])  # type: ignore[operator]


REAL = real_sample(3_000)
AGAIN = drawn_again(REAL, 2)
CHANCE = 3 * np.sqrt(1 / 6 / 1_500)
"""Three standard deviations of the area of two samples of 1500 that are alike."""


@pytest.mark.slow
@pytest.mark.parametrize("test", [set_test, summary_test, attention_test])
def test_real_events_drawn_again_are_not_told_apart(test: Callable[..., object]) -> None:
    assert asked(test, REAL, AGAIN) == pytest.approx(0.5, abs=CHANCE)


@pytest.mark.slow
def test_only_the_classifier_of_raw_sets_sees_muons_on_one_side_of_the_axis() -> None:
    one_side = BundleArrays(AGAIN.counts_E, AGAIN.energy_gev_P, AGAIN.x_m_P, np.abs(AGAIN.y_m_P))
    assert asked(set_test, REAL, one_side) > 0.6
    assert asked(summary_test, REAL, one_side) == pytest.approx(0.5, abs=CHANCE)


def test_a_classifier_is_asked_about_showers_that_it_was_not_trained_on() -> None:
    showers = np.repeat(np.arange(750), 4)
    real = Sample(REAL.primary_E4, showers, REAL.bundles)
    trained = set_test(real, real.with_bundles(AGAIN), EvaluationSettings(c2st_epochs=1), lambda part: None)
    assert np.array_equal(trained.test_a_E, trained.test_b_E)
    assert trained.test_a_E.sum() == 1_500
    assert np.isin(trained.test_a_E.reshape(750, 4).sum(1), [0, 4]).all()


@pytest.mark.slow
def test_training_is_the_same_each_time_and_leaves_random_numbers_alone() -> None:
    state = torch.random.get_rng_state()
    first = asked(set_test, REAL, AGAIN)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(5)
    assert asked(set_test, REAL, AGAIN) == first


def test_of_a_large_event_some_muons_are_seen_and_the_true_count() -> None:
    counts_E = np.array([300, 2, 0])
    muons = BundleArrays(counts_E, np.arange(1.0, 303.0), np.arange(302.0), np.zeros(302))
    sample = Sample(REAL.primary_E4[:3], np.arange(3), muons)
    inputs = SetInputs(sample, sample, 100, np.random.default_rng(0))
    seen_PF, counts, _, log_counts = inputs(np.array([5, 1, 0]))
    assert counts.tolist() == [0, 2, 100]
    assert (2 * log_counts[:, 0]).expm1().round().tolist() == [0, 2, 300]
    every_PF, _, _, _ = SetInputs(sample, sample, 1_000, np.random.default_rng(0))(np.array([1, 0]))
    assert torch.equal(seen_PF[:2], every_PF[:2]), "the muons of the small event"
    rows = {tuple(row) for row in every_PF[2:].tolist()}
    assert {tuple(row) for row in seen_PF[2:].tolist()} < rows
    assert len(rows) == 300


def attention_of_one_event(network: AttentionSets, seen_MW: Tensor) -> Tensor:
    """The attention block of an event alone, as torch computes it."""
    inputs = network.queries_keys_values(network.before(seen_MW))
    query, key, value = (part.unflatten(1, (4, -1)).transpose(0, 1) for part in inputs.chunk(3, 1))
    mixed = torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1) @ value
    seen_MW = seen_MW + network.attended(mixed.transpose(0, 1).flatten(1))
    return seen_MW + network.after(seen_MW)


def test_attention_is_between_the_muons_of_an_event_only() -> None:
    counts = torch.tensor([3, 0, 1, 17, 2, 4, 1])
    network = AttentionSets(16)
    seen_PW = torch.randn(int(counts.sum()), 16)
    expected = [attention_of_one_event(network, event) for event in seen_PW.split(counts.tolist()) if len(event)]
    torch.testing.assert_close(network.together(seen_PW, counts), torch.cat(expected))
    assert network.together(torch.zeros(0, 16), torch.zeros(3, dtype=torch.int64)).shape == (0, 16)


@pytest.mark.slow
def test_muons_that_are_copies_of_others_are_seen_by_attention_as_by_deep_sets() -> None:
    rng = np.random.default_rng(5)
    first_E = np.cumsum(AGAIN.counts_E) - AGAIN.counts_E
    other_P = first_E[AGAIN.event_P] + rng.integers(0, AGAIN.counts_E[AGAIN.event_P])
    copies = [column_P[other_P] for column_P in (AGAIN.energy_gev_P, AGAIN.x_m_P, AGAIN.y_m_P)]
    for test in (set_test, attention_test):
        assert asked(test, REAL, BundleArrays(AGAIN.counts_E, *copies)) > 0.5 + CHANCE


def test_the_test_with_attention_is_about_some_showers_of_large_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifier_test, "_ATTENTION_EVENTS", 600)
    generated = REAL.with_bundles(AGAIN)
    trained = attention_test(REAL, generated, EvaluationSettings(c2st_epochs=1), lambda part: None)
    assert trained.test_a_E.sum() == 300
    assert trained.test_a_E is trained.test_b_E
    assert trained.chance(REAL, generated) == pytest.approx(np.sqrt(1 / 6 / 300), rel=0.5)


def test_photons_have_mass_number_zero_and_are_seen_as_any_other_primary() -> None:
    primary_E4 = REAL.primary_E4.copy()
    primary_E4[::5, 2] = 0.0
    real = Sample(primary_E4, REAL.shower_E, REAL.bundles)
    ten_times = BundleArrays(AGAIN.counts_E, 10 * AGAIN.energy_gev_P, AGAIN.x_m_P, AGAIN.y_m_P)
    for test in (set_test, summary_test):
        assert asked(test, real, ten_times) > 0.6


def test_scores_that_are_no_numbers_have_no_area() -> None:
    """An area of one half would say that nothing is wrong."""
    assert np.isnan(auc([0.0, np.nan], [1.0, 2.0]))
    assert np.isnan(auc([0.0, 1.0], [np.nan, np.nan]))
    assert np.isnan(chance(np.array([0.0, np.nan]), np.zeros(2), np.ones(2), np.arange(2)))
