"""Random numbers that depend on the purpose, the run's seed, the step and the lane only.

A resumed run, or a run with its lanes on several ranks, draws the same numbers; checkpoints store no generator state.
"""

from __future__ import annotations

import torch

from workloads.base.random_streams import Purpose, stream_seed


class Noise:
    """Random generators on the device, one for each lane."""

    def __init__(self, purpose: Purpose, seed: int, device: torch.device) -> None:
        self._purpose = purpose
        self._seed = seed
        self._device = device
        self._step = 0
        self._lanes: dict[int, torch.Generator] = {}

    def begin(self, step: int) -> None:
        """Seed all generators for ``step``."""
        self._step = step
        for lane, generator in self._lanes.items():
            generator.manual_seed(stream_seed(self._purpose, self._seed, step, lane))

    def of(self, lane: int) -> torch.Generator:
        """Generator of the lane. Each use advances it."""
        if lane not in self._lanes:
            generator = torch.Generator(self._device)
            self._lanes[lane] = generator.manual_seed(stream_seed(self._purpose, self._seed, self._step, lane))
        return self._lanes[lane]
