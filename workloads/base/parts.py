"""Parts of a batch: computed at once on a CPU, halved where memory is short. Their gradients add up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import torch

from workloads.base.batch import Microbatch

logger = logging.getLogger(__name__)

CPU_CHUNK_PARTICLES = 2048
"""Particles of a part on a CPU, if not configured: it stays in the cache."""


class BatchPart(Protocol):
    """Some events of a batch, as a network is given them."""

    @property
    def num_particles(self) -> int:
        """Particles of all its events."""

    def halves(self) -> Sequence[BatchPart]:
        """Two parts with about half of the particles each; itself alone if it can't be divided."""


PartT = TypeVar("PartT", bound=BatchPart)
Result = TypeVar("Result")


def chunks(microbatch: Microbatch, max_particles: int, device: torch.device) -> Iterable[Microbatch]:
    """Consecutive parts of at most so many particles. 0: 2,048 on a CPU, no limit elsewhere."""
    max_particles = max_particles or (CPU_CHUNK_PARTICLES if device.type == "cpu" else 0)
    return microbatch.chunks(max_particles) if max_particles else (microbatch,)


class PartPool:
    """Threads that compute parts."""

    def __init__(self, threads: int) -> None:
        """``threads`` 1: in the calling thread, one after the other."""
        self._pool = ThreadPoolExecutor(threads, "step") if threads > 1 else None

    def map(self, compute: Callable[..., Result], *arguments: Iterable[Any]) -> Iterator[Result]:
        """Results in the order of the parts, so that sums of them don't depend on the number of threads.

        ``arguments`` are read in the calling thread, in order: random numbers may be drawn there.
        """
        yield from (map if self._pool is None else self._pool.map)(compute, *arguments)


def halved_if_out_of_memory(update: Callable[[list[PartT]], Result], parts: list[PartT]) -> tuple[Result, list[PartT]]:
    """Result of ``update(parts)``, and the parts that fitted in memory: if they didn't, all are halved, once."""
    try:
        return update(parts), parts
    except torch.OutOfMemoryError:  # outside of this block, nothing of the failed pass is held any more
        pass
    torch.cuda.empty_cache()
    num_particles = sum(part.num_particles for part in parts)
    logger.warning("out of memory with %d particles: the batch is split in two", num_particles)
    halves: list[Any] = [half for part in parts for half in part.halves()]
    return update(halves), halves
