"""Parts of a batch: their size, computed in parallel on a CPU, halved if out of memory. Their gradients are summed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from workloads.base.cpu_cache import particles_in_cache, second_level_cache_bytes
from workloads.base.flops import for_other_threads

logger = logging.getLogger(__name__)

CPU_CHUNK_PARTICLES = particles_in_cache(second_level_cache_bytes())
"""Particles of a part on a CPU, if not configured: 4,096 for a cache of 1 MiB a core."""
CUDA_SHARE = 0.5
"""Share of a GPU's memory for the networks' values of one part, at most."""


class BatchPart(Protocol):
    """Events of a batch, as input of a network."""

    @property
    def num_particles(self) -> int:
        """Particles of all its events."""

    def halves(self) -> Sequence[BatchPart]:
        """Two parts with about half of the particles each; the part itself if it can't be divided."""


PartT = TypeVar("PartT", bound=BatchPart)
Result = TypeVar("Result")


def most_particles(configured: int, device: torch.device, on_cpu: int, particle_bytes: int = 0) -> int:
    """Largest number of particles of a part: ``configured``, or 0: ``on_cpu`` on a CPU, what fits in memory on a GPU.

    ``particle_bytes``: memory of an update for each particle, about; 0: unknown, no limit. A power of two, so that
    similar cards make the same parts: their noise depends on them.
    """
    if configured or device.type == "cpu":
        return configured or on_cpu
    if particle_bytes == 0:
        return sys.maxsize
    available = torch.cuda.get_device_properties(device).total_memory * CUDA_SHARE
    return 1 << max(int(available / particle_bytes).bit_length() - 1, 0)


class PartPool:
    """Pool of threads that compute parts."""

    def __init__(self, threads: int) -> None:
        """``threads`` 1: parts are computed in the calling thread, one after the other."""
        # A new thread starts with OpenMP's default, one thread for each core, and MKL follows it: each product would be
        # split among busy cores, with other bits than in the calling thread.
        one_thread = partial(torch.set_num_threads, torch.get_num_threads())
        self._pool = ThreadPoolExecutor(threads, "step", one_thread) if threads > 1 else None

    def map(self, compute: Callable[..., Result], *arguments: Iterable[Any]) -> Iterator[Result]:
        """Results in the order of the parts, so that sums of them don't depend on the number of threads.

        ``arguments`` are read in the calling thread, in order: random numbers may be drawn there.
        """
        if self._pool is None:
            yield from map(compute, *arguments)
        else:
            yield from self._pool.map(for_other_threads(compute), *arguments)


def halved_if_out_of_memory(update: Callable[[list[PartT]], Result], parts: list[PartT]) -> tuple[Result, list[PartT]]:
    """Result of ``update(parts)`` and the parts that it computed: all are halved once if out of memory."""
    try:
        return update(parts), parts
    except torch.OutOfMemoryError:  # after this block nothing references tensors of the failed pass any more
        pass
    torch.cuda.empty_cache()
    num_particles = sum(part.num_particles for part in parts)
    logger.warning("out of memory with %d particles: the batch is split in two", num_particles)
    halves: list[Any] = [half for part in parts for half in part.halves()]
    return update(halves), halves
