"""Ragged arithmetic: reduce, sort and broadcast by event, without a loop over events or a host sync.

Shape suffixes: E events, P particles, D width. Every operation is differentiable any number of times where its result
is a float. All are torch's own; sums are added in the same order each time, on a GPU, too, but in compiled code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_SORTED = (torch.float32, torch.bfloat16, torch.float16)
_SUM, _MAX = 0, 2
"""Modes of torch's embedding bags, which reduce by offsets: its fastest segment kernels."""


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
    if torch.compiler.is_compiling():  # or exporting: neither knows these functions, but a compiler fuses torch's own
        return values_ED.index_select(0, segments.event_P)
    values_PD: Tensor = _Spread.apply(values_ED, segments)
    return values_PD


def segment_sum(values_PD: Tensor, segments: Segments) -> Tensor:
    """Sum over the particles of each event, 0 for an empty one. (P, D) -> (E, D), (P,) -> (E,)."""
    if values_PD.dim() == 1:
        return segment_sum(values_PD.unsqueeze(1), segments).squeeze(1)
    if torch.compiler.is_compiling():
        zeros_ED = values_PD.new_zeros(segments.num_events, values_PD.shape[1])
        return zeros_ED.index_add(0, segments.event_P, values_PD)
    sum_ED: Tensor = _Sum.apply(values_PD, segments)
    return sum_ED


def segment_mean(values_PD: Tensor, segments: Segments) -> Tensor:
    """Mean over the particles of each event, 0 for an empty one. (P, D) -> (E, D)."""
    return by_count(segment_sum(values_PD, segments), segments)


def by_count(values_ED: Tensor, segments: Segments) -> Tensor:
    """Values by the number of particles of each event, by 1 for an empty one. (E, D) -> (E, D)."""
    wide = torch.promote_types(values_ED.dtype, torch.float32)  # a count above 256 is no number of bfloat16
    share_E1 = segments.counts_E.clamp_min(1).to(wide).reciprocal().unsqueeze(1)
    return (values_ED * share_E1).to(values_ED.dtype)


def segment_max(values_PD: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    """Maximum over the particles of each event, 0 for an empty one, and where it is. (P, D) -> (E, D), (P, D) bool.

    It is in one particle of an event, of equal ones in the first. A NaN is largest if it is an event's first value, and
    smaller than any number elsewhere.
    """
    is_largest_PD = torch.zeros_like(values_PD, dtype=torch.bool)
    if values_PD.shape[0] > 0:
        wide_PD = values_PD.detach().to(torch.promote_types(values_PD.dtype, torch.float32))
        argmax_ED = torch._embedding_bag(wide_PD, segments.particles_P, segments.starts_E, mode=_MAX)[3]
        is_largest_PD = argmax_ED.index_select(0, segments.event_P) == segments.particles_P.unsqueeze(1)
    # Not gathered: the derivative would add at places, in any order on a GPU.
    return segment_sum(torch.where(is_largest_PD, values_PD, 0), segments), is_largest_PD


class _Sum(torch.autograd.Function):
    """Sum over events. What autograd makes of `index_select` adds in any order on a GPU, and takes 5 times as long on a
    CPU."""

    @staticmethod
    def forward(ctx: Any, values_PD: Tensor, segments: Segments) -> Tensor:
        ctx.segments = segments
        if values_PD.shape[0] == 0:
            return values_PD.new_zeros(segments.num_events, values_PD.shape[1])
        return torch._embedding_bag(values_PD.contiguous(), segments.particles_P, segments.starts_E, mode=_SUM)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return spread(gradients[0], ctx.segments), None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values_ED: Tensor, segments: Segments) -> Tensor:
        ctx.segments = segments
        return values_ED.index_select(0, segments.event_P)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return segment_sum(gradients[0], ctx.segments), None


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


def wide(values: Tensor) -> Tensor:
    """Values in float32 at least: under autocast rows may be of bfloat16."""
    return values if values.dtype == torch.float64 else values.float()
