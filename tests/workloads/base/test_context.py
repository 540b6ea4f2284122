"""Noise of a step, as every task gets it."""

from __future__ import annotations

import torch
from line_task import points

from workloads.base.context import Noise
from workloads.base.random_streams import SharedPurpose

CPU = torch.device("cpu")


def draw(noise: Noise, number: int, shard: int = 0) -> list[float]:
    return torch.randn(3, generator=noise.of(points(1, shard=shard, number=number))).tolist()


def test_a_place_in_the_batch_of_a_step_has_the_same_noise_whatever_was_drawn_before() -> None:
    first, second = (Noise(SharedPurpose.TRAINING_NOISE, 7, CPU) for _ in range(2))
    first.begin(3)
    draw(first, 0)
    draw(first, 1)
    first.begin(4)
    second.begin(4)
    draw(second, 1)

    assert draw(first, 0) == draw(second, 0)
    assert draw(first, 1) != draw(second, 1)  # the second has drawn once already


def test_seeds_steps_shards_numbers_and_purposes_have_noise_of_their_own() -> None:
    drawn = set()
    for purpose in (SharedPurpose.TRAINING_NOISE, SharedPurpose.HELD_OUT_NOISE):
        for seed in range(4):
            noise = Noise(purpose, seed, CPU)
            for step in range(4):
                noise.begin(step)
                drawn |= {tuple(draw(noise, number, shard)) for number in range(4) for shard in range(3)}
    assert len(drawn) == 2 * 4 * 4 * 4 * 3
