"""Losses against known values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

from services.trainer.segments import Segments, segment_mean
from services.trainer.wgan.losses import count_nll, critic_loss, generator_loss, gradient_penalty
from services.trainer.wgan.model import CountMixture

SLOPE = torch.tensor([2.0, -1.0, 2.0])  # norm 3


def ragged(counts: list[int]) -> Segments:
    return Segments.from_counts(torch.tensor(counts), sum(counts))


def mean_score(segments: Segments, factor: float = 1.0) -> Callable[[Tensor], Tensor]:
    """A critic whose score is linear in the mean of the event's muons: its norm is |slope| for any count."""
    return lambda features: segment_mean(features, segments) @ SLOPE * factor


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


def test_count_nll_of_a_huge_count_is_not_rounded_away() -> None:
    mean, shape, count = 1e5, 2000.0, 100_000
    mixture = CountMixture(*(torch.tensor([[value]]).log() for value in (1.0, mean, shape)))

    expected = -stats.nbinom.logpmf(count, shape, shape / (shape + mean))
    assert float(count_nll(mixture, torch.tensor([count]))) == pytest.approx(expected, abs=1e-3)


def test_critic_and_generator_losses_sum_over_events_with_muons_only() -> None:
    real, fake = torch.tensor([1.0, 50.0, 2.0]), torch.tensor([4.0, -7.0, 8.0])
    present = torch.tensor([1.0, 0.0, 1.0])

    assert critic_loss(real, fake, present) == (4 - 1) + (8 - 2)
    assert generator_loss(fake, present) == -(4 + 8)


def test_gradient_norm_of_a_linear_critic_is_its_slope_whatever_the_count() -> None:
    segments = ragged([1, 4, 0, 100])
    real, fake = torch.randn(105, 3), torch.randn(105, 3)

    result = gradient_penalty(mean_score(segments), real, fake, segments, torch.rand(4))

    torch.testing.assert_close(result.norm, torch.tensor(3 * 3.0))
    torch.testing.assert_close(result.penalty, torch.tensor(3 * (3.0 - 1) ** 2))


@pytest.mark.parametrize(("factor", "two_sided", "one_sided"), [(0.1, 0.49, 0.0), (1.0, 4.0, 4.0)])
def test_one_sided_penalty_spares_norms_below_1(factor: float, two_sided: float, one_sided: float) -> None:
    segments = ragged([5])
    arguments = (
        mean_score(segments, factor),
        torch.randn(5, 3),
        torch.randn(5, 3),
        segments,
        torch.rand(1),
    )

    assert float(gradient_penalty(*arguments).penalty) == pytest.approx(two_sided, rel=1e-4)
    assert float(gradient_penalty(*arguments, one_sided=True).penalty) == pytest.approx(one_sided, rel=1e-4)


def test_penalty_is_taken_between_muons_of_equal_rank_in_energy() -> None:
    segments = ragged([2, 1, 2])
    real = torch.tensor([[5.0, 1.0], [1.0, 2.0], [0.0, 0.0], [4.0, 4.0], [3.0, 3.0]])
    fake = torch.tensor([[9.0, 4.0], [2.0, 3.0], [8.0, 8.0], [0.0, 1.0], [1.0, 0.0]])
    seen = []

    def record(features: Tensor) -> Tensor:
        seen.append(features.detach())
        return segment_mean(features, segments).sum(1)

    gradient_penalty(record, real, fake, segments, torch.tensor([0.5, 0.25, 1.0]))

    torch.testing.assert_close(seen[0], torch.tensor([[1.5, 2.5], [7.0, 2.5], [6.0, 6.0], [3.0, 3.0], [4.0, 4.0]]))


def test_penalty_of_events_without_muons_is_zero_and_has_a_finite_gradient() -> None:
    segments = ragged([0, 0])
    weight = torch.ones(3, requires_grad=True)
    nothing = torch.zeros(0, 3)

    result = gradient_penalty(
        lambda features: segment_mean(features, segments) @ weight, nothing, nothing, segments, torch.rand(2)
    )
    result.penalty.backward()

    assert (result.penalty.item(), result.norm.item()) == (0, 0)
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


def test_penalty_trains_the_critic_through_its_gradient() -> None:
    segments = ragged([3])
    weight = SLOPE.clone().requires_grad_(True)

    gradient_penalty(
        lambda features: segment_mean(features, segments) @ weight,
        torch.randn(3, 3),
        torch.randn(3, 3),
        segments,
        torch.rand(1),
    ).penalty.backward()

    # d/dw (|w| - 1)^2 = 2 (|w| - 1) w / |w|
    torch.testing.assert_close(weight.grad, 2 * (3 - 1) * SLOPE / 3)
