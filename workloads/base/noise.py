"""Random numbers that depend on the purpose, the run's seed, the step and the place in its batch only.

A resumed run with as many ranks draws the same numbers; checkpoints store no generator state.
"""

from __future__ import annotations

import torch

from workloads.base.batch import Microbatch
from workloads.base.random_streams import Purpose, stream_seed


class Noise:
    """Random generators on the device, one for each first microbatch of a rank or part."""

    def __init__(self, purpose: Purpose, seed: int, device: torch.device) -> None:
        self._purpose = purpose
        self._seed = seed
        self._device = device
        self._step = 0
        self._generators: dict[tuple[int, int], torch.Generator] = {}

    def begin(self, step: int) -> None:
        """Seed all generators for ``step``."""
        self._step = step
        for place, generator in self._generators.items():
            generator.manual_seed(stream_seed(self._purpose, self._seed, step, *place))

    def of(self, microbatch: Microbatch) -> torch.Generator:
        """Generator of the events from ``microbatch`` on. Each use advances it."""
        place = (microbatch.shard, microbatch.number)
        if place not in self._generators:
            generator = torch.Generator(self._device)
            generator.manual_seed(stream_seed(self._purpose, self._seed, self._step, *place))
            self._generators[place] = generator
        return self._generators[place]
