"""The networks of the WGAN, and muons of a trained one piece by piece."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor
from trained import make_sampler

from workloads.base.segments import Segments
from workloads.muons.models.config import MuonNetworkConfig, WganConfig
from workloads.muons.models.count_head import CountMixture, count_cdf, count_nll
from workloads.muons.models.wgan_networks import Critic

NUM_FEATURES = 2


def ragged(counts: list[int]) -> Segments:
    return Segments.from_counts(torch.tensor(counts), sum(counts))


def inputs(counts: list[int]) -> tuple[Tensor, Tensor, Segments]:
    """Random features (P, 2), conditions (E, 5) and their segments."""
    generator = torch.Generator().manual_seed(4)
    return (
        torch.randn(sum(counts), NUM_FEATURES, generator=generator),
        torch.randn(len(counts), 5, generator=generator),
        ragged(counts),
    )


@pytest.fixture
def critic() -> Critic:
    torch.manual_seed(5)
    return Critic(NUM_FEATURES, MuonNetworkConfig(hidden=32))


def test_a_score_depends_on_which_muons_an_event_has_and_how_many_but_not_on_their_order(critic: Critic) -> None:
    features, conditions, segments = inputs([3, 0, 5])
    scores_E = critic.raw_scores(features, conditions, segments)

    torch.testing.assert_close(critic.raw_scores(features[[2, 0, 1, 7, 3, 5, 4, 6]], conditions, segments), scores_E)
    exchanged = critic.raw_scores(features[[0, 1, 3, 2, 4, 5, 6, 7]], conditions, segments)
    twice = critic.raw_scores(features.repeat_interleave(2, 0), conditions, ragged([6, 0, 10]))
    for other in (exchanged, twice):
        assert ((other - scores_E)[[0, 2]].abs() > 1e-5).all()
    assert exchanged[1] == scores_E[1]


def probability(count: int) -> float:
    """Of the mixture below."""
    return sum(w * stats.nbinom.pmf(count, k, k / (k + m)) for w, m, k in zip(*MIXTURE, strict=True))


MIXTURE = (0.3, 0.7), (2.0, 400.0), (1.5, 40.0)
"""Weights, means, shapes."""


def mixture_of(rows: int) -> CountMixture:
    return CountMixture(*(torch.tensor([row] * rows).log() for row in MIXTURE))


def test_count_nll_adds_the_components_by_weight_and_sums_over_events() -> None:
    expected = -math.log(probability(3)) - math.log(probability(410))
    assert float(count_nll(mixture_of(2), torch.tensor([3, 410]))) == pytest.approx(expected, rel=1e-5)
    above_0 = -sum(math.log(probability(count) / (1 - probability(0))) for count in (1, 2))
    found = count_nll(mixture_of(3), torch.tensor([1, 0, 2]), zero_truncated=True)
    assert float(found) == pytest.approx(above_0, rel=1e-5)


def test_a_zero_truncated_count_nll_and_its_slope_stay_finite_where_nothing_is_expected() -> None:
    log_means = torch.tensor([[-12.0]], requires_grad=True)
    mixture = CountMixture(torch.zeros(1, 1), log_means, torch.zeros(1, 1))
    nll = count_nll(mixture, torch.tensor([1]), zero_truncated=True)
    nll.backward()
    assert bool(nll.isfinite())
    assert log_means.grad is not None
    assert bool(log_means.grad.isfinite().all())


def test_count_cdf_is_that_of_scipy_and_ends_at_one() -> None:
    counts = [-1, 0, 25, 100_000]
    expected = [
        sum(w * stats.nbinom.cdf(n, k, k / (k + m)) for w, m, k in zip(*MIXTURE, strict=True)) if n >= 0 else 0.0
        for n in counts
    ]
    assert count_cdf(mixture_of(4), torch.tensor(counts)).tolist() == pytest.approx(expected, abs=1e-6)
    assert expected[-1] == 1.0


def test_count_nll_of_a_huge_count_is_not_rounded_away() -> None:
    mean, shape, count = 1e5, 2000.0, 100_000
    mixture = CountMixture(*(torch.tensor([[value]]).log() for value in (1.0, mean, shape)))

    expected = -stats.nbinom.logpmf(count, shape, shape / (shape + mean))
    assert float(count_nll(mixture, torch.tensor([count]))) == pytest.approx(expected, abs=1e-3)


PRIMARY_E4 = torch.tensor([[1e6, 0.3, 56.0, 1500.0], [3e5, 1.0, 1.0, 2500.0], [9e7, 0.1, 4.0, 1100.0]])


@pytest.mark.parametrize("azimuth", ["symmetric", "learned"])
def test_a_generator_corrects_what_the_densities_draw(azimuth: str) -> None:
    network = {"azimuth": azimuth, "hidden": 24, "energy_cut_gev": 50.0}
    sampler = make_sampler(WganConfig(network=MuonNetworkConfig.model_validate(network)))
    correction, sampler.correction = sampler.correction, None
    found = []
    for sampler.correction in (None, correction):
        muons_P3 = sampler.draw_muons(PRIMARY_E4, torch.tensor([0, 60, 700]), torch.Generator().manual_seed(5))
        assert muons_P3[:, 0].min() >= 50.0, "the cut"
        found.append(muons_P3)
    assert 0 < (found[1][:, 0] / found[0][:, 0]).log10().abs().median() < 0.2
    angle_P = torch.atan2(found[1][:, 2], found[1][:, 1]) - torch.atan2(found[0][:, 2], found[0][:, 1])
    assert (angle_P.abs() > 1e-3).any() == (azimuth == "learned")


def test_no_muon_and_no_event_are_no_error() -> None:
    sampler, random = make_sampler(WganConfig()), torch.Generator().manual_seed(5)
    assert sampler.draw_muons(PRIMARY_E4, torch.zeros(3, dtype=torch.int64), random).shape == (0, 3)
    assert sampler.draw_muons(PRIMARY_E4[:0], torch.zeros(0, dtype=torch.int64), random).shape == (0, 3)
    assert sampler.draw_counts(PRIMARY_E4[:0], random).shape == (0,)
