"""Tests of line fits."""

from __future__ import annotations

import numpy as np
import torch

from workloads.base.segments import Segments
from workloads.direction.fits.line import line_fits


def test_pulses_on_a_line_give_the_line() -> None:
    time_P = torch.tensor([-300.0, 0.0, 150.0, 150.0, 600.0])
    travel_3 = torch.tensor([0.6, 0.0, -0.8])
    position_P3 = torch.tensor([10.0, 20.0, 30.0]) + 0.25 * time_P.unsqueeze(1) * travel_3
    lines = line_fits(position_P3, time_P, Segments.from_counts(torch.tensor([5]), 5))
    assert torch.allclose(lines.travel_E3[0], travel_3, atol=1e-5)
    assert torch.allclose(lines.speed_E, torch.tensor([0.25]), atol=1e-5)
    assert torch.allclose(lines.point_E3[0], torch.tensor([10.0, 20.0, 30.0]) + 30 * travel_3, atol=1e-3)
    assert lines.residual_E.item() < 1e-3


def test_the_plain_fit_is_the_least_squares_line() -> None:
    rng = np.random.default_rng(0)
    time_P, position_P3 = rng.normal(0, 300, 40), rng.normal(0, 100, (40, 3))
    slope_3 = np.polyfit(time_P, position_P3, 1)[0]
    segments = Segments.from_counts(torch.tensor([40]), 40)
    lines = line_fits(torch.from_numpy(position_P3).float(), torch.from_numpy(time_P).float(), segments, reweightings=0)
    assert np.allclose(lines.travel_E3[0].numpy() * lines.speed_E.item(), slope_3, rtol=1e-4)


def test_weights_make_the_line_robust_against_a_pulse_far_away() -> None:
    time_P = torch.linspace(-500, 500, 21)
    position_P3 = 0.3 * time_P.unsqueeze(1) * torch.tensor([1.0, 0.0, 0.0])
    position_P3[20] = torch.tensor([150.0, 900.0, 0.0])
    segments = Segments.from_counts(torch.tensor([21]), 21)
    plain, robust = (line_fits(position_P3, time_P, segments, reweightings=n).travel_E3[0, 0] for n in (0, 2))
    assert torch.rad2deg(torch.acos(plain)) > 20
    assert torch.rad2deg(torch.acos(robust)) < 8


def test_pulses_that_do_not_move_give_a_line_straight_down_at_rest() -> None:
    counts = torch.tensor([3, 0, 1, 2])
    position_P3 = torch.tensor([[1.0, 2.0, 3.0]] * 3 + [[5.0, 5.0, 5.0]] + [[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    time_P = torch.tensor([0.0, 10.0, 20.0, 7.0, 4.0, 4.0])  # one place; nothing; one pulse; one time
    lines = line_fits(position_P3, time_P, Segments.from_counts(counts, 6))
    assert lines.travel_E3.tolist() == [[0.0, 0.0, -1.0]] * 4
    assert lines.speed_E.tolist() == [0.0] * 4
    assert all(torch.isfinite(values).all() for values in lines)
