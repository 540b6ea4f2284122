"""The critic's score and the terms of the WGAN's losses: values by hand, gradients against autograd's."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from workloads.base.segments import Segments
from workloads.muons.models import wgan_losses
from workloads.muons.models import wgan_losses as terms


def ragged(counts: list[int]) -> Segments:
    return Segments.from_counts(torch.tensor(counts, dtype=torch.int64), sum(counts))


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_events", [0, 1, 70])
def test_the_slope_of_a_score_and_its_gradients_are_those_of_autograd(
    monkeypatch: pytest.MonkeyPatch, num_events: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(wgan_losses, "SCORE_LIMIT", 0.7)  # scores near it, where the bound bends the slope
    wide = torch.promote_types(dtype, torch.float32)
    rows_ED, projected_ED = draw(num_events, 6, dtype=dtype), draw(num_events, 6, dtype=dtype, seed=2)
    inputs = (rows_ED, projected_ED, draw(1, 6, dtype=wide, seed=3), draw(1, dtype=wide, seed=4))
    for one in inputs:
        one.requires_grad_(True)
    (expected_ED,) = torch.autograd.grad(terms.bounded(terms.raw_score(*inputs)).sum(), rows_ED, create_graph=True)
    found_ED = terms.score_slope(*inputs)

    assert found_ED.dtype == wide
    tolerance = {"rtol": 0.02, "atol": 0.02} if dtype == torch.bfloat16 else {"rtol": 1e-7, "atol": 1e-9}
    torch.testing.assert_close(found_ED, expected_ED.to(wide), **tolerance)
    direction_ED = draw(num_events, 6, dtype=wide, seed=5)
    found, expected = (
        torch.autograd.grad((slope_ED * direction_ED).sum(), inputs, materialize_grads=True)
        for slope_ED in (found_ED, expected_ED)
    )
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize("num_events", [0, 1, 1025])
def test_the_loss_of_scores_its_gradient_and_what_describes_it(num_events: int) -> None:
    scores_N = (60 * draw(num_events)).requires_grad_(True)
    signs_N = torch.arange(num_events).remainder(3).sub(1).double()
    expected = (100 * torch.tanh(scores_N / 100) * signs_N).sum()
    near = (torch.tanh(scores_N / 100).abs() > 0.9) * signs_N.abs()

    found = terms.score_loss(scores_N, signs_N)

    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(found.gap_and_near_2, torch.stack([-(scores_N * signs_N).sum(), near.sum() / 2]))
    assert not found.gap_and_near_2.requires_grad
    slopes = [
        torch.autograd.grad(one, scores_N, torch.tensor(0.3, dtype=torch.float64)) for one in (found[0], expected)
    ]
    torch.testing.assert_close(*(slope_N for (slope_N,) in slopes))


def test_an_event_without_a_slope_has_a_finite_gradient_of_its_penalty() -> None:
    slope_PF = torch.zeros(5, 3, requires_grad=True)
    segments = ragged([2, 3])
    terms.gradient_penalty(slope_PF, segments, torch.ones(2)).penalty.backward()
    assert slope_PF.grad is not None
    assert not slope_PF.grad.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("times", "rows", "columns"), [(2, 6, 1), (3, 6, 9), (2, 0, 3)])
def test_the_score_of_rows_and_its_gradient_are_those_of_all_pairs(
    times: int, rows: int, columns: int, dtype: torch.dtype
) -> None:
    generated_MRS, real_RS = draw(times, rows, columns, dtype=dtype), draw(rows, columns, dtype=dtype, seed=2)
    generated_MRS[1, ::2] = generated_MRS[0, ::2]  # equal ones, at the distance of the floor
    generated_MRS.requires_grad_(True)

    def distance(one: Tensor, other: Tensor) -> Tensor:
        return ((one.double() - other.double()).square().sum(1) + 1e-12).sqrt()

    to_real = torch.stack([distance(one, real_RS) for one in generated_MRS])
    among = torch.stack([distance(one, other) for one, other in itertools.combinations(generated_MRS, 2)])
    expected_R = to_real.mean(0) - among.mean(0) / 2

    found_R = terms.row_scores(generated_MRS, real_RS)

    assert found_R.dtype == torch.promote_types(dtype, torch.float32)
    tolerance = {"rtol": 0.02, "atol": 0.02} if dtype == torch.bfloat16 else {"rtol": 1e-6, "atol": 1e-9}
    torch.testing.assert_close(found_R.double(), expected_R, **tolerance)
    direction_R = draw(rows, seed=3)
    found, expected = (
        torch.autograd.grad((score_R * direction_R).sum(), generated_MRS)[0] for score_R in (found_R, expected_R)
    )
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, **tolerance)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_gives_a_loss_that_is_not_finite(value: float) -> None:
    bad = draw(5, 3)
    bad[0, 0] = value
    segments = ragged([2, 3])
    assert not terms.raw_score(bad, draw(5, 3), draw(1, 3), draw(1))[0].isfinite()
    assert not terms.score_loss(bad.flatten(), torch.ones(15).double()).gap_and_near_2[0].isfinite()
    assert not terms.gradient_penalty(bad, segments, torch.ones(2).double()).penalty.isfinite()
    assert not terms.row_scores(torch.stack([bad, draw(5, 3)]), draw(5, 3))[0].isfinite()
    assert terms.score_loss(torch.full((1,), torch.nan), torch.ones(1)).loss.isnan()


def test_scores_and_their_loss_can_be_differentiated_twice_and_the_energy_score_once_only() -> None:
    rows_ED = draw(4, 3)
    inputs = [one.requires_grad_(True) for one in (rows_ED, draw(4, 3, seed=2), draw(1, 3, seed=3), draw(1, seed=4))]
    signs_N = torch.tensor([-1.0, 0, 1, 1]).double()
    assert torch.autograd.gradgradcheck(lambda *values: terms.raw_score(*values), inputs)
    assert torch.autograd.gradgradcheck(lambda *values: terms.score_slope(*values), inputs)
    assert torch.autograd.gradgradcheck(lambda x: terms.score_loss(x, signs_N).loss, 50 * rows_ED[:, 0])
    score_R = terms.row_scores(torch.stack([rows_ED, 2 * rows_ED]), draw(4, 3, seed=5))
    with pytest.raises(RuntimeError, match="once only"):
        torch.autograd.grad(score_R.sum(), rows_ED, create_graph=True)


def test_a_point_between_two_events_mixes_muons_of_equal_rank() -> None:
    segments = ragged([2, 0, 1])
    real = torch.tensor([[1.0, 2.0], [5.0, 1.0], [0.0, 0.0]])
    fake = torch.tensor([[2.0, 3.0], [9.0, 4.0], [8.0, 8.0]])

    mixed = terms.between(real, fake, segments, torch.tensor([0.5, 0.9, 0.25]))

    torch.testing.assert_close(mixed, torch.tensor([[1.5, 2.5], [7.0, 2.5], [6.0, 6.0]]))


SPREAD = torch.tensor(0.5)


def score_of(generated: list[torch.Tensor], real: torch.Tensor, segments: Segments) -> terms.EnergyScore:
    present_E = (segments.counts_E > 0).to(real.dtype)
    weights = terms.event_weight(segments, present_E), present_E
    return terms.energy_score(torch.stack(generated), real, segments, weights, SPREAD)


def test_the_summary_of_an_event_is_that_of_its_muons_by_hand() -> None:
    features = torch.tensor([[0.0, 1.0], [2.0, 3.0], [-1.0, 0.5]], dtype=torch.float64)
    found = terms.event_summary(features, ragged([2, 0, 1]), SPREAD)
    sum_lg_energy = math.log10(10**0.0 + 10 ** (2.0 * 0.5)) / 0.5
    assert found[0].tolist() == pytest.approx([1.0, 2.0, 2.0, 3.0, 2.0, sum_lg_energy])
    assert found[1].tolist() == [0.0] * 6
    assert found[2].tolist() == pytest.approx([-1.0, 0.5, 1.0, -0.5, -1.0, -1.0])


def test_an_empty_event_has_no_score_and_no_gradient_that_is_not_finite() -> None:
    one = torch.zeros(2, 2, requires_grad=True)
    real = torch.zeros(2, 2)
    score = sum(score_of([one, torch.zeros(2, 2)], real, ragged([0, 2, 0])))
    score.backward()
    assert score.item() == pytest.approx(0.0, abs=1e-5)
    assert one.grad is not None
    assert bool(one.grad.isfinite().all())
    nothing = torch.zeros(0, 2)
    assert [part.item() for part in score_of([nothing, nothing], nothing, ragged([0, 0]))] == [0.0, 0.0]
