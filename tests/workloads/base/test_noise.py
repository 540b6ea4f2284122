"""Noise depends on purpose, seed, step and lane alone."""

from __future__ import annotations

import torch

from workloads.base.noise import Noise
from workloads.base.random_streams import SharedPurpose

CPU = torch.device("cpu")


def draw(noise: Noise, lane: int) -> list[float]:
    return torch.randn(3, generator=noise.of(lane)).tolist()


def test_a_step_of_a_lane_has_the_same_noise_whatever_was_drawn_before() -> None:
    first, second = (Noise(SharedPurpose.TRAINING_NOISE, 7, CPU) for _ in range(2))
    first.begin(3)
    draw(first, 0)
    draw(first, 1)
    first.begin(4)
    second.begin(4)
    draw(second, 1)

    assert draw(first, 0) == draw(second, 0)
    assert draw(first, 1) != draw(second, 1)  # the second has drawn once already


def test_seeds_steps_lanes_and_purposes_have_noise_of_their_own() -> None:
    drawn = set()
    for purpose in (SharedPurpose.TRAINING_NOISE, SharedPurpose.HELD_OUT_NOISE):
        for seed in range(4):
            noise = Noise(purpose, seed, CPU)
            for step in range(4):
                noise.begin(step)
                drawn |= {tuple(draw(noise, lane)) for lane in range(4)}
    assert len(drawn) == 128
