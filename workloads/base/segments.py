"""Ragged arithmetic: reduce, sort and broadcast by event, without a loop over events or a host sync.

Shape suffixes: E events, P particles, D width. Every operation is differentiable any number of times where its result
is a float.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workloads.base.kernels.operators import POOL, POOL_FINDING_LARGEST, UNPOOL
from workloads.base.kernels.torch_kernels import unpool_by_reading

_SORTED = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Segments:
    """Assignment of particles to events: an event's particles are contiguous, events in order."""

    event_P: Tensor
    """(P,) int64, not decreasing: row of the event in per-event tensors."""
    counts_E: Tensor
    """(E,) int64: particles of each event, 0 allowed."""
    starts_E: Tensor
    """(E,) int64: first particle of each event."""
    sizes_E: Tensor
    """(E,) int64: particles that each event has; those of ``counts_E`` are a sample of them, or all."""
    particles_P: Tensor
    """(P,) int64: 0, 1, 2, …, here so that no operation has to make it again."""

    @classmethod
    def from_counts(cls, counts_E: Tensor, num_particles: int, sizes_E: Tensor | None = None) -> Segments:
        """Segments from (E,) int64 counts. ``num_particles`` must be their sum; ``sizes_E``: by default the counts.

        ``num_particles`` is an argument because reading the sum from the device would be a host sync.
        """
        event_P = torch.repeat_interleave(counts_E, output_size=num_particles)
        starts_E = counts_E.cumsum(0) - counts_E
        particles_P = torch.arange(num_particles, device=counts_E.device)
        return cls(event_P, counts_E, starts_E, counts_E if sizes_E is None else sizes_E, particles_P)

    @classmethod
    def from_offsets(cls, offsets_E1: Tensor, num_particles: int) -> Segments:
        """Segments from (E + 1,) int64 offsets: event e owns particles offsets[e] to offsets[e + 1]."""
        return cls.from_counts(offsets_E1.diff(), num_particles)

    def repeated(self, times: int) -> Segments:
        """Segments of ``times`` copies of the events, one set after the other."""
        copy_T1 = torch.arange(times, device=self.event_P.device).unsqueeze(1)
        return Segments(
            event_P=(self.event_P + self.num_events * copy_T1).flatten(),
            counts_E=self.counts_E.repeat(times),
            starts_E=(self.starts_E + self.num_particles * copy_T1).flatten(),
            sizes_E=self.sizes_E.repeat(times),
            particles_P=torch.arange(times * self.num_particles, device=self.event_P.device),
        )

    @property
    def num_events(self) -> int:
        """Events, empty ones included."""
        return self.counts_E.shape[0]

    @property
    def num_particles(self) -> int:
        """Particles of all events."""
        return self.event_P.shape[0]


def spread(values_ED: Tensor, segments: Segments) -> Tensor:
    """Each event's row, repeated for each of its particles. (E, D) -> (P, D)."""
    return unpool(values_ED, segments, ("sum",), None)


def segment_sum(values_PD: Tensor, segments: Segments) -> Tensor:
    """Sum over the particles of each event, 0 for an empty one. (P, D) -> (E, D), (P,) -> (E,)."""
    if values_PD.dim() == 1:
        return segment_sum(values_PD.unsqueeze(1), segments).squeeze(1)
    return pool(values_PD, segments, ("sum",))


def pool(values_PD: Tensor, segments: Segments, pools: tuple[str, ...]) -> Tensor:
    """Mean, sum and maximum of an event's particles, several at once; 0 for an empty one. (P, D) -> (E, D × pools)."""
    return pool_with_argmax(values_PD, segments, pools)[0]


def pool_with_argmax(values_PD: Tensor, segments: Segments, pools: tuple[str, ...]) -> tuple[Tensor, Tensor | None]:
    """The same, and the particle of each event where each column is largest. (P, D) -> (E, D × pools), (E, D) int64.

    None without a maximum among the pools. Of equal ones the first; for an empty event 0, a particle of another one.
    A NaN is largest if it is an event's first value, and smaller than any number elsewhere.
    """
    pooled_ED: Tensor
    if "max" not in pools:
        pooled_ED = POOL(values_PD, None, *tensors_of(segments), "+".join(pools))
        return pooled_ED, None
    argmax_ED: Tensor
    pooled_ED, argmax_ED = POOL_FINDING_LARGEST(values_PD, *tensors_of(segments), "+".join(pools))
    return pooled_ED, argmax_ED


def unpool(slopes_ED: Tensor, segments: Segments, pools: tuple[str, ...], argmax_ED: Tensor | None) -> Tensor:
    """Transpose of `pool`: gradients with respect to the particles. (E, D × pools) -> (P, D).

    ``argmax_ED``, of `pool_with_argmax`, is needed for the maximum.
    """
    # An exported program must run without these operators.
    operator = unpool_by_reading if torch.compiler.is_exporting() else UNPOOL
    slopes_PD: Tensor = operator(slopes_ED, argmax_ED, *tensors_of(segments), "+".join(pools))
    return slopes_PD


def sort_within_events(key_P: Tensor, segments: Segments) -> Tensor:
    """Permutation that sorts each event's particles by ``key``, ascending, NaN last. (P,) -> (P,) int64.

    Events stay in order and ties keep theirs, so that ``values_PD[permutation]`` has the same segments.
    """
    if key_P.dtype not in _SORTED:
        raise TypeError(f"a key of {key_P.dtype}: only 32 bits are sorted by")
    # One sort of one integer: the event above the key's bits. Those of a float32 are in the order of the numbers once
    # those of negative ones are turned round.
    bits_P = (key_P.float() + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0: both have the same bits
    ordered_P = bits_P ^ (bits_P >> 31 & 0x7FFFFFFF)
    ordered_P = ordered_P.masked_fill(key_P.isnan(), 0x7FFFFFFF)
    return ((segments.event_P << 32) + ordered_P).argsort(stable=True)


def tensors_of(segments: Segments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Arguments of a registered operator: event, counts, starts, particles."""
    return segments.event_P, segments.counts_E, segments.starts_E, segments.particles_P
