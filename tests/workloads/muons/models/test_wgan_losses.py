"""Losses against known values."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from workloads.base.segments import Segments, spread
from workloads.muons.models.count_head import CountMixture, count_cdf, count_nll
from workloads.muons.models.wgan import losses
from workloads.muons.models.wgan.losses import GradientPenalty, between, critic_loss, generator_loss, signs

SLOPE = torch.tensor([2.0, -1.0, 2.0])  # norm 3


def ragged(counts: list[int]) -> Segments:
    return Segments.from_counts(torch.tensor(counts), sum(counts))


def gradient_penalty(slope: Tensor, segments: Segments, **options: bool) -> GradientPenalty:
    return losses.gradient_penalty(slope, segments, (segments.counts_E > 0).float(), **options)


def slope_of_mean(segments: Segments, factor: float | Tensor = 1.0) -> Tensor:
    """The slope SLOPE for the leading muon, and SLOPE / √(N (N - 1)) for each of the others.

    Its norm is |SLOPE| for one muon and √2 |SLOPE| for more, however many.
    """
    counts_E = segments.counts_E
    others_E = (counts_E * (counts_E - 1)).clamp_min(1).float().rsqrt().unsqueeze(1)
    slope = spread(others_E, segments) * SLOPE * factor
    leading = counts_E[counts_E > 0].cumsum(0) - 1
    return slope.index_copy(0, leading, (SLOPE * factor).expand(len(leading), -1))


@pytest.mark.parametrize("count", [0, 1, 7, 5000])
def test_count_nll_of_one_component_is_the_negative_binomial_of_scipy(count: int) -> None:
    mean, shape = 6.5, 3.2
    mixture = CountMixture(*(torch.tensor([[value]]).log() for value in (1.0, mean, shape)))

    nll = count_nll(mixture, torch.tensor([count]))

    assert float(nll) == pytest.approx(-stats.nbinom.logpmf(count, shape, shape / (shape + mean)), rel=1e-5)


def test_count_nll_adds_the_components_by_weight_and_sums_over_events() -> None:
    weights, means, shapes = [0.3, 0.7], [2.0, 400.0], [1.5, 40.0]
    mixture = CountMixture(*(torch.tensor([row, row]).log() for row in (weights, means, shapes)))
    counts = [3, 410]

    def probability(count: int) -> float:
        return sum(w * stats.nbinom.pmf(count, k, k / (k + m)) for w, m, k in zip(weights, means, shapes, strict=True))

    expected = -torch.tensor([probability(count) for count in counts], dtype=torch.float64).log().sum()
    assert float(count_nll(mixture, torch.tensor(counts))) == pytest.approx(float(expected), rel=1e-5)


def test_a_zero_truncated_count_nll_is_that_of_the_counts_above_zero_alone() -> None:
    mean, shape = [0.2, 3.0], [0.7, 4.0]
    mixture = CountMixture(
        torch.tensor([[0.3, 0.7]]).log().expand(3, 2),
        torch.tensor([mean]).log().expand(3, 2),
        torch.tensor([shape]).log().expand(3, 2),
    )
    chances = [k / (k + m) for m, k in zip(mean, shape, strict=True)]
    p = [
        sum(w * stats.nbinom.pmf(n, k, q) for w, k, q in zip((0.3, 0.7), shape, chances, strict=True)) for n in range(3)
    ]
    expected = -math.log(p[1] / (1 - p[0])) - math.log(p[2] / (1 - p[0]))
    found = count_nll(mixture, torch.tensor([1, 0, 2]), zero_truncated=True)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_a_zero_truncated_count_nll_and_its_slope_stay_finite_where_nothing_is_expected() -> None:
    log_means = torch.tensor([[-12.0]], requires_grad=True)
    mixture = CountMixture(torch.zeros(1, 1), log_means, torch.zeros(1, 1))
    nll = count_nll(mixture, torch.tensor([1]), zero_truncated=True)
    nll.backward()
    assert bool(nll.isfinite())
    assert log_means.grad is not None
    assert bool(log_means.grad.isfinite().all())


def test_count_cdf_is_that_of_scipy_and_ends_at_one() -> None:
    mixture = CountMixture(
        torch.tensor([[0.3, 0.7]]).log().expand(4, 2),
        torch.tensor([[0.2, 30.0]]).log().expand(4, 2),
        torch.tensor([[0.7, 4.0]]).log().expand(4, 2),
    )
    counts = [-1, 0, 25, 100_000]
    expected = [
        0.3 * stats.nbinom.cdf(n, 0.7, 0.7 / 0.9) + 0.7 * stats.nbinom.cdf(n, 4.0, 4.0 / 34.0) if n >= 0 else 0.0
        for n in counts
    ]
    assert count_cdf(mixture, torch.tensor(counts)).tolist() == pytest.approx(expected, abs=1e-6)
    assert expected[-1] == 1.0


def test_count_nll_of_a_huge_count_is_not_rounded_away() -> None:
    mean, shape, count = 1e5, 2000.0, 100_000
    mixture = CountMixture(*(torch.tensor([[value]]).log() for value in (1.0, mean, shape)))

    expected = -stats.nbinom.logpmf(count, shape, shape / (shape + mean))
    assert float(count_nll(mixture, torch.tensor([count]))) == pytest.approx(expected, abs=1e-3)


def test_critic_and_generator_losses_sum_over_events_with_muons_only() -> None:
    real, fake = torch.tensor([1.0, 50.0, 2.0]), torch.tensor([4.0, -7.0, 8.0])
    present = torch.tensor([1.0, 0.0, 1.0])

    assert critic_loss(torch.cat([real, fake]), signs(present), 0.0).loss == (4 - 1) + (8 - 2)
    assert generator_loss(fake, signs(present), 0.0) == -(4 + 8)


def test_the_leading_muon_counts_as_much_as_the_mean_of_all_others_whatever_the_count() -> None:
    segments = ragged([1, 4, 0, 100])

    result = gradient_penalty(slope_of_mean(segments), segments)

    two = 3.0 * math.sqrt(2)
    torch.testing.assert_close(result.norm, torch.tensor(3.0 + 2 * two))
    torch.testing.assert_close(result.penalty, torch.tensor((3.0 - 1) ** 2 + 2 * (two - 1) ** 2))


def test_the_plain_norm_is_that_of_all_muons_as_one_vector() -> None:
    result = gradient_penalty(SLOPE.repeat(5, 1), ragged([4, 0, 1]), plain_norm=True)

    torch.testing.assert_close(result.norm, torch.tensor(6.0 + 3.0))
    torch.testing.assert_close(result.penalty, torch.tensor((6.0 - 1) ** 2 + (3.0 - 1) ** 2))


@pytest.mark.parametrize(("factor", "two_sided", "one_sided"), [(0.1, 0.49, 0.0), (1.0, 4.0, 4.0)])
def test_one_sided_penalty_spares_norms_below_1(factor: float, two_sided: float, one_sided: float) -> None:
    segments = ragged([1])
    slope = slope_of_mean(segments, factor)

    assert float(gradient_penalty(slope, segments).penalty) == pytest.approx(two_sided, rel=1e-4)
    assert float(gradient_penalty(slope, segments, one_sided=True).penalty) == pytest.approx(one_sided, rel=1e-4)


def test_a_point_between_two_events_mixes_muons_of_equal_rank() -> None:
    segments = ragged([2, 0, 1])
    real = torch.tensor([[1.0, 2.0], [5.0, 1.0], [0.0, 0.0]])
    fake = torch.tensor([[2.0, 3.0], [9.0, 4.0], [8.0, 8.0]])

    mixed = between(real, fake, segments, torch.tensor([0.5, 0.9, 0.25]))

    torch.testing.assert_close(mixed, torch.tensor([[1.5, 2.5], [7.0, 2.5], [6.0, 6.0]]))


def test_penalty_of_events_without_muons_is_zero_and_has_a_finite_gradient() -> None:
    segments = ragged([0, 0])
    slope = torch.zeros(0, 3, requires_grad=True)

    result = gradient_penalty(slope, segments)
    result.penalty.backward()

    assert (result.penalty.item(), result.norm.item()) == (0, 0)
    assert slope.grad is not None


def test_penalty_trains_the_critic_through_its_gradient() -> None:
    segments = ragged([1])
    factor = torch.ones((), requires_grad=True)

    gradient_penalty(slope_of_mean(segments, factor), segments).penalty.backward()

    assert factor.grad is not None
    torch.testing.assert_close(factor.grad, torch.tensor(2 * (3.0 - 1) * 3))  # d/df (3 f - 1)^2 at f = 1
