"""Areas under curves that are known, and classifiers on what they can and can't see."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from simulated import drawn_again, real_sample
from torch import Tensor

from workloads.muons.metrics import two_sample
from workloads.muons.metrics.bundles import BundleArrays, EvaluationSettings, Float64, Int64, Sample
from workloads.muons.metrics.two_sample import AttentionSets, Auc, SetInputs, attention_test, set_test

SETTINGS = EvaluationSettings(c2st_epochs=5)


def auc(a: list[float], b: list[float]) -> float:
    return float(Auc(np.array(a), np.array(b))(np.ones((1, len(a))), np.ones((1, len(b))))[0])


def test_scores_that_are_told_apart_have_an_area_of_one_and_ties_count_half() -> None:
    assert auc([0.0, 1.0], [2.0, 3.0]) == 1.0
    assert auc([2.0, 3.0], [0.0, 1.0]) == 0.0
    assert auc([1.0, 1.0], [1.0]) == 0.5
    # Pairs: 0<1, 0<2, 1=1, 1<2, 3>1, 3>2.
    assert auc([0.0, 1.0, 3.0], [1.0, 2.0]) == pytest.approx((3 + 0.5) / 6)


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


def asked(test: Callable[..., object], real: Sample, generated: BundleArrays) -> float:
    trained = test(real, real.with_bundles(generated), SETTINGS, lambda part: None)
    ones = np.ones((1, len(real)))
    return float(trained(ones, ones)[0])  # type: ignore[operator]


@cache
def real_and_again() -> tuple[Sample, BundleArrays]:
    real = real_sample(2_000)
    return real, drawn_again(real, 2)


CHANCE = 3 * np.sqrt(1 / 6 / 1_000)
"""Three standard deviations of the area of two samples of 1000 that are alike."""


@pytest.mark.slow
@pytest.mark.parametrize("test", [set_test, attention_test])
def test_real_events_drawn_again_are_not_told_apart_and_random_numbers_are_left_alone(
    test: Callable[..., object],
) -> None:
    state = torch.random.get_rng_state()
    first = asked(test, *real_and_again())
    assert first == pytest.approx(0.5, abs=CHANCE)
    assert torch.equal(torch.random.get_rng_state(), state)
    if test is set_test:
        torch.rand(5)
        assert asked(test, *real_and_again()) == first


def test_a_classifier_is_asked_about_showers_that_it_was_not_trained_on() -> None:
    of_all, again = real_and_again()
    real = Sample(of_all.primary_E4, np.repeat(np.arange(500), 4), of_all.bundles)
    trained = set_test(real, real.with_bundles(again), EvaluationSettings(c2st_epochs=1), lambda part: None)
    assert np.array_equal(trained.test_a_E, trained.test_b_E)
    assert trained.test_a_E.sum() == 1_000
    assert np.isin(trained.test_a_E.reshape(500, 4).sum(1), [0, 4]).all()


def test_of_a_large_event_some_muons_are_seen_and_the_true_count() -> None:
    counts_E = np.array([300, 2, 0])
    muons = BundleArrays(counts_E, np.arange(1.0, 303.0), np.arange(302.0), np.zeros(302))
    sample = Sample(real_and_again()[0].primary_E4[:3], np.arange(3), muons)
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


def test_the_test_with_attention_is_about_some_events_of_large_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_sample, "_ATTENTION_EVENTS", 600)
    real, again = real_and_again()
    generated = real.with_bundles(again)
    trained = attention_test(real, generated, EvaluationSettings(c2st_epochs=1), lambda part: None)
    assert trained.test_a_E.sum() == 300
    assert trained.test_a_E is trained.test_b_E
    assert trained.chance(real, generated) == pytest.approx(np.sqrt(1 / 6 / 300), rel=0.5)


def test_photons_have_mass_number_zero_and_are_seen_as_any_other_primary() -> None:
    of_all, again = real_and_again()
    primary_E4 = of_all.primary_E4.copy()
    primary_E4[::5, 2] = 0.0
    real = Sample(primary_E4, of_all.shower_E, of_all.bundles)
    ten_times = BundleArrays(again.counts_E, 10 * again.energy_gev_P, again.x_m_P, again.y_m_P)
    assert asked(set_test, real, ten_times) > 0.6


def test_scores_that_are_no_numbers_have_no_area() -> None:
    """An area of one half would say that nothing is wrong."""
    assert np.isnan(auc([0.0, np.nan], [1.0, 2.0]))
    assert np.isnan(auc([0.0, 1.0], [np.nan, np.nan]))
    assert np.isnan(chance(np.array([0.0, np.nan]), np.zeros(2), np.ones(2), np.arange(2)))
