"""Tests of the density of time residuals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from workloads.direction.fits.pandel import (
    NOISE_SHARE,
    NOISE_WINDOW_NS,
    convolved_density,
    ln_density,
    ln_density_table,
)
from workloads.direction.ice import SCATTERING_M, SCATTERING_RATE_PER_NS


@pytest.mark.parametrize("shape", [0.03, 0.3, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("jitter_ns", [6.0, 60.0])
def test_the_density_integrates_to_one(shape: float, jitter_ns: float) -> None:
    near, far = np.linspace(-10 * jitter_ns, 30 * jitter_ns, 4001), np.linspace(30 * jitter_ns, 16_000, 4001)
    residual_R = np.concatenate([near, far[1:]])
    density_R = convolved_density(shape, residual_R, jitter_ns)
    assert integrate.trapezoid(density_R, residual_R) == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("shape", [0.3, 2.0, 12.0])
@pytest.mark.parametrize("residual_ns", [-8.0, 0.0, 5.0, 47.0, 49.0, 400.0])
def test_the_density_is_the_convolution_that_scipy_integrates(shape: float, residual_ns: float) -> None:
    delay = stats.gamma(shape, scale=1 / SCATTERING_RATE_PER_NS)
    # With u = delay^shape the integrand has no pole.
    expected, _ = integrate.quad(
        lambda u: (
            stats.norm.pdf(residual_ns, u ** (1 / shape), 6.0)
            * delay.pdf(u ** (1 / shape))
            * u ** (1 / shape - 1)
            / shape
        ),
        1e-12,
        (max(residual_ns, 0) + 60.0) ** shape,
        points=[max(residual_ns, 1e-3) ** shape],
        limit=400,
    )
    found = convolved_density(shape, np.array([residual_ns]), 6.0)[0]
    assert found == pytest.approx(expected, rel=3e-3)


def test_the_table_gives_the_density_with_noise_between_its_points() -> None:
    distance = torch.tensor([2.0, 20.0, 77.0, 300.0])
    residual = torch.tensor([-3.0, 2.5, 61.0, 350.0])
    found = ln_density(ln_density_table(6.0), distance, residual).value
    density = [
        convolved_density(d / SCATTERING_M, np.array([t]), 6.0)[0]
        for d, t in zip(distance.tolist(), residual.tolist(), strict=True)
    ]
    expected = np.log((1 - NOISE_SHARE) * np.array(density) + NOISE_SHARE / NOISE_WINDOW_NS)
    assert found.numpy() == pytest.approx(expected, abs=0.02)


def test_far_from_the_light_only_noise_is_left() -> None:
    value, by_ln_distance, by_residual = ln_density(
        ln_density_table(20.0), torch.tensor([1e-3, 1e6, 50.0]), torch.tensor([-1e7, -1e4, 1e7])
    )
    assert value.tolist() == pytest.approx([math.log(NOISE_SHARE / NOISE_WINDOW_NS)] * 3, abs=1e-3)
    assert by_residual.abs().max() < 1e-6
    assert torch.isfinite(by_ln_distance).all()


def test_the_derivatives_are_those_of_the_density() -> None:
    table = ln_density_table(20.0)
    generator = torch.Generator().manual_seed(0)
    distance = torch.exp(torch.rand(500, generator=generator, dtype=torch.float64) * 4 + 1).float()
    residual = torch.rand(500, generator=generator) * 400 - 50
    found = ln_density(table, distance, residual)
    later, earlier = (ln_density(table, distance, residual + step).value for step in (4.0, -4.0))
    farther, nearer = (ln_density(table, distance * math.exp(step), residual).value for step in (0.06, -0.06))
    assert torch.allclose(found.by_residual, (later - earlier) / 8.0, atol=2e-3)
    assert torch.allclose(found.by_ln_distance, (farther - nearer) / 0.12, rtol=0.15, atol=0.1)
