"""Ragged arithmetic: reduce, sort and broadcast by event, without a loop over events or a host sync.

Shape suffixes: E events, P particles, D width. Every operation is differentiable any number of times where its result
is a float.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_SUM, _MAX = 0, 2  # modes of torch's embedding bags, which reduce by offsets: its fastest segment kernels


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

    @classmethod
    def from_counts(cls, counts_E: Tensor, num_particles: int, sizes_E: Tensor | None = None) -> Segments:
        """Segments from (E,) int64 counts. ``num_particles`` must be their sum; ``sizes_E``: by default the counts.

        ``num_particles`` is an argument because reading the sum from the device would be a host sync.
        """
        events_E = torch.arange(counts_E.shape[0], device=counts_E.device)
        event_P = torch.repeat_interleave(events_E, counts_E, output_size=num_particles)
        return cls(event_P, counts_E, counts_E.cumsum(0) - counts_E, counts_E if sizes_E is None else sizes_E)

    @classmethod
    def from_offsets(cls, offsets_E1: Tensor, num_particles: int, sizes_E: Tensor | None = None) -> Segments:
        """Segments from (E + 1,) int64 offsets: event e owns particles offsets[e] to offsets[e + 1]."""
        return cls.from_counts(offsets_E1.diff(), num_particles, sizes_E)

    def repeated(self, times: int) -> Segments:
        """Segments of ``times`` copies of the events, one set after the other."""
        shift_T1 = torch.arange(times, device=self.event_P.device).unsqueeze(1)
        return Segments(
            (self.event_P + self.num_events * shift_T1).flatten(),
            self.counts_E.repeat(times),
            (self.starts_E + self.num_particles * shift_T1).flatten(),
            self.sizes_E.repeat(times),
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
    values_PD: Tensor = _Spread.apply(values_ED, segments.event_P, segments.starts_E)
    return values_PD


def segment_sum(values_PD: Tensor, segments: Segments) -> Tensor:
    """Sum over the particles of each event, 0 for an empty one. (P, D) -> (E, D), (P,) -> (E,)."""
    if values_PD.dim() == 1:
        return segment_sum(values_PD.unsqueeze(1), segments).squeeze(1)
    sums_ED: Tensor = _SegmentSum.apply(values_PD, segments.event_P, segments.starts_E)
    return sums_ED


def segment_argmax(values_PD: Tensor, segments: Segments) -> Tensor:
    """Particle of each event where each column is largest, the first of equal ones. (P, D) -> (E, D) int64.

    The index of an empty event is 0, a particle of another event.
    """
    if segments.num_particles == 0:
        return segments.counts_E.unsqueeze(1).expand(-1, values_PD.shape[1])
    particles_P = torch.arange(segments.num_particles, device=values_PD.device)
    with torch.no_grad():
        wide_PD = values_PD if values_PD.dtype == torch.float64 else values_PD.float()
        index_ED = torch._embedding_bag(wide_PD, particles_P, segments.starts_E, mode=_MAX)[3]
    return index_ED.clamp_min_(0)  # -1 for an empty event on CUDA


def pool(values_PD: Tensor, segments: Segments, pools: tuple[str, ...], argmax_ED: Tensor | None) -> Tensor:
    """Mean, sum and maximum of an event's particles, several at once; 0 for an empty one. (P, D) -> (E, D × pools).

    ``argmax_ED``, of `segment_argmax`, is needed for the maximum.
    """
    pooled_ED: Tensor = _Pool.apply(values_PD, segments, pools, argmax_ED)
    return pooled_ED


def unpool(slopes_ED: Tensor, segments: Segments, pools: tuple[str, ...], argmax_ED: Tensor | None) -> Tensor:
    """Transpose of `pool`: gradients with respect to the particles. (E, D × pools) -> (P, D)."""
    slopes_PD: Tensor = _Unpool.apply(slopes_ED, segments, pools, argmax_ED)
    return slopes_PD


def sort_within_events(key_P: Tensor, segments: Segments) -> Tensor:
    """Permutation that sorts each event's particles by ``key``, ascending. (P,) -> (P,) int64.

    Events stay in order and ties keep theirs, so that ``values_PD[permutation]`` has the same segments.
    """
    by_key_P = key_P.argsort(stable=True)
    return by_key_P[segments.event_P[by_key_P].argsort(stable=True)]


def _inverse_counts_E1(segments: Segments, dtype: torch.dtype) -> Tensor:
    """1 / N of each event, 1 for an empty one. -> (E, 1)."""
    return segments.counts_E.clamp_min(1).to(dtype).reciprocal().unsqueeze(1)


def _present_E1(segments: Segments, dtype: torch.dtype) -> Tensor:
    return (segments.counts_E > 0).to(dtype).unsqueeze(1)


def _bag_sum(values_PD: Tensor, starts_E: Tensor) -> Tensor:
    if values_PD.shape[0] == 0:
        return values_PD.new_zeros((starts_E.shape[0], values_PD.shape[1]))
    particles_P = torch.arange(values_PD.shape[0], device=values_PD.device)
    return torch._embedding_bag(values_PD.contiguous(), particles_P, starts_E, mode=_SUM)[0]


def _added_at_largest(values_PD: Tensor, slope_ED: Tensor, segments: Segments, argmax_ED: Tensor) -> Tensor:
    """Values, with an event's slope added to its largest particle. (P, D), (E, D) -> (P, D).

    The bits of scatter_add_, which sorts all its indices in CUDA's deterministic mode.
    """
    particles_P1 = torch.arange(segments.num_particles, device=values_PD.device).unsqueeze(1)
    is_largest_PD = argmax_ED.index_select(0, segments.event_P) == particles_P1
    return torch.where(is_largest_PD, values_PD + slope_ED.index_select(0, segments.event_P), values_PD)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values_ED: Tensor, event_P: Tensor, starts_E: Tensor) -> Tensor:
        ctx.save_for_backward(event_P, starts_E)
        return values_ED.index_select(0, event_P)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        result_ED: Tensor = _SegmentSum.apply(gradients[0], *ctx.saved_tensors)
        return result_ED, None, None


class _SegmentSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values_PD: Tensor, event_P: Tensor, starts_E: Tensor) -> Tensor:
        ctx.save_for_backward(event_P, starts_E)
        return _bag_sum(values_PD, starts_E)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        result_PD: Tensor = _Spread.apply(gradients[0], *ctx.saved_tensors)
        return result_PD, None, None


class _Pool(torch.autograd.Function):
    """Pooling: linear for given positions of the maxima, as is its transpose."""

    @staticmethod
    def forward(
        ctx: Any, values_PD: Tensor, segments: Segments, pools: tuple[str, ...], argmax_ED: Tensor | None
    ) -> Tensor:
        ctx.of = segments, pools, argmax_ED
        parts = []
        for kind in pools:
            if kind == "max":
                assert argmax_ED is not None
                if segments.num_particles > 0:
                    parts.append(values_PD.gather(0, argmax_ED) * _present_E1(segments, values_PD.dtype))
                else:
                    parts.append(values_PD.new_zeros(segments.num_events, values_PD.shape[1]))
            else:
                sum_ED = _bag_sum(values_PD, segments.starts_E)
                if kind == "mean":
                    sum_ED *= _inverse_counts_E1(segments, values_PD.dtype)
                parts.append(sum_ED)
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        result_PD: Tensor = _Unpool.apply(gradients[0], *ctx.of)
        return result_PD, None, None, None


class _Unpool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, slopes_ED: Tensor, segments: Segments, pools: tuple[str, ...], argmax_ED: Tensor | None
    ) -> Tensor:
        ctx.of = segments, pools, argmax_ED
        width = slopes_ED.shape[1] // len(pools)
        result_PD: Tensor | None = None
        for kind, slope_ED in zip(pools, slopes_ED.split(width, 1), strict=True):
            if kind == "mean":
                slope_ED = slope_ED * _inverse_counts_E1(segments, slope_ED.dtype)
            if kind != "max":
                result_PD = slope_ED.index_select(0, segments.event_P)
            elif segments.num_particles > 0:
                assert argmax_ED is not None
                if result_PD is None:
                    result_PD = slope_ED.new_zeros(segments.num_particles, width)
                if torch.are_deterministic_algorithms_enabled():
                    result_PD = _added_at_largest(result_PD, slope_ED, segments, argmax_ED)
                else:
                    result_PD.scatter_add_(0, argmax_ED, slope_ED * _present_E1(segments, slope_ED.dtype))
        return slopes_ED.new_zeros(0, width) if result_PD is None else result_PD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        result_ED: Tensor = _Pool.apply(gradients[0], *ctx.of)
        return result_ED, None, None, None
