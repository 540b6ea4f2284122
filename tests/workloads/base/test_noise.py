"""Noise depends on seed, step and lane alone."""

from __future__ import annotations

import torch

from workloads.base.noise import Noise, noise_seed

CPU = torch.device("cpu")


def draw(noise: Noise, lane: int) -> list[float]:
    return torch.randn(3, generator=noise.of(lane)).tolist()


def test_a_step_of_a_lane_has_the_same_noise_whatever_was_drawn_before() -> None:
    first, second = Noise(7, CPU), Noise(7, CPU)
    first.begin(3)
    draw(first, 0)
    draw(first, 1)
    first.begin(4)
    second.begin(4)
    draw(second, 1)

    assert draw(first, 0) == draw(second, 0)
    assert draw(first, 1) != draw(second, 1)  # the second has drawn once already


def test_seeds_steps_and_lanes_have_noise_of_their_own() -> None:
    seeds = {noise_seed(seed, step, lane) for seed in range(10) for step in range(10) for lane in range(10)}

    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
