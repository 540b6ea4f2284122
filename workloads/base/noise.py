"""Random numbers that depend on the run's seed, the step and the lane, and on nothing else.

So a resumed run, and one whose lanes are shared out over several ranks, draws the same ones; none are in a checkpoint.
"""

from __future__ import annotations

import hashlib

import torch


class Noise:
    """Generators on the device, one a lane."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._device = device
        self._step = 0
        self._lanes: dict[int, torch.Generator] = {}

    def begin(self, step: int) -> None:
        """All generators start anew, as this step's."""
        self._step = step
        for lane, generator in self._lanes.items():
            generator.manual_seed(noise_seed(self._seed, step, lane))

    def of(self, lane: int) -> torch.Generator:
        """The lane's generator. To use it moves it on."""
        if lane not in self._lanes:
            generator = torch.Generator(self._device)
            self._lanes[lane] = generator.manual_seed(noise_seed(self._seed, self._step, lane))
        return self._lanes[lane]


def noise_seed(seed: int, step: int, lane: int) -> int:
    """63 bits that look random, whatever is counted up."""
    digest = hashlib.blake2b(f"noise {seed} {step} {lane}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
