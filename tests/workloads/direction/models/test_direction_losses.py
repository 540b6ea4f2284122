"""Loss and angle of predicted directions, beside references of 50 digits."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from workloads.direction.models.losses import angle_deg, unit_vectors, vmf_loss

KAPPAS = [1e-6, 1e-3, 0.1, 0.4999, 0.5001, 1.0, 3.0, 10.0, 88.0, 100.0, 800.0, 1e4, 1e6]
ANGLES = [0.0, 1e-4, 0.01, 0.3, math.pi / 2, 3.0, math.pi]


def pair(kappa: float, angle: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """p of the given κ at an angle from a true direction that isn't an axis. (1, 3) each."""
    true = torch.tensor([2.0, -1.0, 2.0], dtype=torch.float64) / 3
    across = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64) / math.sqrt(5)
    p = kappa * (math.cos(angle) * true + math.sin(angle) * across)
    return p[None].to(dtype), true[None].to(dtype)


def reference(kappa: float, angle: float) -> float:
    """-ln[κ exp(κ cos α) / (4π sinh κ)], with 50 digits where they cancel."""
    with localcontext() as context:
        context.prec = 50
        k = Decimal(kappa)
        ln_sinh_ratio = ((k.exp() - (-k).exp()) / (2 * k)).ln()
        # 1 - cos α = 2 sin²(α / 2); cos α is not exact enough at κ = 1e6.
        return float(ln_sinh_ratio - k + k * 2 * Decimal(math.sin(angle / 2)) ** 2) + math.log(4 * math.pi)


@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize("kappa", KAPPAS)
def test_the_loss_is_the_exact_one_at_every_concentration_and_angle(kappa: float, angle: float) -> None:
    assert float(vmf_loss(*pair(kappa, angle))) == pytest.approx(reference(kappa, angle), rel=1e-8, abs=1e-8)
    # float32 rounds the directions: at κ = 1e6 angles by 1e-7 rad.
    single = float(vmf_loss(*pair(kappa, angle, torch.float32)))
    assert single == pytest.approx(reference(kappa, angle), rel=2e-6, abs=2e-6 + kappa * (1e-7 * angle + 1e-13))


@pytest.mark.parametrize("kappa", [0.2, 0.7, 5.0, 300.0])
def test_its_gradient_is_that_of_its_differences(kappa: float) -> None:
    p, true = pair(kappa, 0.7)
    assert gradcheck(lambda p: vmf_loss(p, true), p.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize("kappa", [0.0, 1e-30, *KAPPAS])
def test_loss_and_gradient_are_finite_everywhere(kappa: float, angle: float, dtype: torch.dtype) -> None:
    p, true = pair(kappa, angle, dtype)
    p.requires_grad_()

    loss, degrees = vmf_loss(p, true.float()), angle_deg(p, true.float())
    (gradient,) = torch.autograd.grad(loss.sum(), p)

    assert loss.dtype == degrees.dtype == torch.float32
    assert loss.isfinite().all()
    assert gradient.isfinite().all()


def test_without_any_concentration_the_gradient_leads_to_the_true_direction() -> None:
    """A clamp on κ would kill it there: a network that starts at 0 would stay."""
    p, true = pair(0.0, 0.3)
    (gradient,) = torch.autograd.grad(vmf_loss(p.requires_grad_(), true).sum(), p)
    torch.testing.assert_close(gradient, -true)


def test_the_best_concentration_is_that_of_the_angles() -> None:
    """For angles of 2 degrees it is 1 / (1 - cos 2°) = 1641; a loss that drops the 1 / κ term stays at 100."""
    best = 1 / (1 - math.cos(math.radians(2)))
    below, at, above = (float(vmf_loss(*pair(factor * best, math.radians(2)))) for factor in (0.9, 1.0, 1.1))
    assert at < min(below, above)


@pytest.mark.parametrize("angle", [0.0, 1e-6, 1e-4, 0.01, 1.0, math.pi / 2, 3.1, math.pi])
@pytest.mark.parametrize("kappa", [1e-3, 1.0, 1e6])
def test_angles_are_exact_at_both_ends(angle: float, kappa: float) -> None:
    assert float(angle_deg(*pair(kappa, angle))) == pytest.approx(math.degrees(angle), abs=1e-10)
    assert float(angle_deg(*pair(kappa, angle, torch.float32))) == pytest.approx(math.degrees(angle), abs=1e-5)


def test_no_prediction_is_a_right_angle_away_and_has_no_direction() -> None:
    nothing, true = pair(0.0, 0.0, torch.float32)
    assert float(angle_deg(nothing, true)) == pytest.approx(90)
    assert torch.equal(unit_vectors(nothing), nothing)


def test_the_loss_turns_with_the_directions() -> None:
    p, true = pair(20.0, 0.4)
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    torch.testing.assert_close(vmf_loss(p @ turn.T, true @ turn.T), vmf_loss(p, true))
