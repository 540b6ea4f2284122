"""Parts of a batch: computed in parallel on a CPU, halved if out of memory. Their gradients are summed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from workloads.base.batch import Microbatch
from workloads.base.cpu_cache import particles_in_cache, second_level_cache_bytes

logger = logging.getLogger(__name__)

CPU_CHUNK_PARTICLES = particles_in_cache(second_level_cache_bytes())
"""Particles of a part on a CPU, if not configured: 4,096 for a cache of 1 MiB a core."""


class BatchPart(Protocol):
    """Events of a batch, as input of a network."""

    @property
    def num_particles(self) -> int:
        """Particles of all its events."""

    def halves(self) -> Sequence[BatchPart]:
        """Two parts with about half of the particles each; the part itself if it can't be divided."""


PartT = TypeVar("PartT", bound=BatchPart)
Result = TypeVar("Result")


def chunks(
    microbatch: Microbatch, max_particles: int, device: torch.device, on_cpu: int = CPU_CHUNK_PARTICLES
) -> Iterable[Microbatch]:
    """Consecutive parts of at most ``max_particles`` particles; 0: ``on_cpu`` on a CPU, no limit elsewhere."""
    max_particles = max_particles or (on_cpu if device.type == "cpu" else 0)
    return microbatch.chunks(max_particles) if max_particles else (microbatch,)


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
        yield from (map if self._pool is None else self._pool.map)(compute, *arguments)


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
