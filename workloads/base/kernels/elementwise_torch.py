"""Operators that pass once over a few values, in torch's own operations.

Shape suffixes: R rows, D columns, N values, E events, P particles, T times as many.
"""

from __future__ import annotations

import torch
from torch import Tensor


def checked_update(norms_N: Tensor, loss: Tensor, limits_2: Tensor) -> tuple[Tensor, Tensor]:
    """Norm of the gradients with these norms; 1 if it or |loss| is above its limit or not finite, else 0. (), ()."""
    norm = torch.linalg.vector_norm(norms_N)
    good = (torch.stack([norm, loss.abs()]) <= limits_2).all()
    return norm, good.logical_not().float()


def sort_keys(keys_N: Tensor, event_N: Tensor) -> Tensor:
    """Integers in the order of event, then key: event above the key's bits. (N,), (N,) int64 -> (N,) int64.

    The bits of a float32 are in the order of the numbers once those of negative ones are turned round. NaN is last.
    """
    bits_N = (keys_N.float() + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0: both have the same bits
    ordered_N = bits_N ^ (bits_N >> 31 & 0x7FFFFFFF)
    ordered_N = ordered_N.masked_fill(keys_N.isnan(), 0x7FFFFFFF)
    return (event_N << 32) + ordered_N


def long_tails(normal_RD: Tensor, tails: int) -> Tensor:
    """z·|z| / √3 in the first ``tails`` columns, z in the others. (R, D) -> (R, D)."""
    tails_RT, others = normal_RD[:, :tails], normal_RD[:, tails:]
    return torch.cat([tails_RT * tails_RT.abs() * 3**-0.5, others], 1)


def log_sizes(sizes_E: Tensor, dtype: torch.dtype) -> Tensor:
    """ln(1 + N) / 2 of each event. (E,) int64 -> (E, 1)."""
    return sizes_E.to(dtype).log1p().unsqueeze(1) / 2


def least_spread(moments_2M: Tensor) -> Tensor:
    """Smallest ratio of the second standard deviation to the first. (2, M) -> ().

    Columns: number of values, the sums of each of their features, the sums of the squares.
    """
    mean_KF, square_KF = (moments_2M[:, 1:] / moments_2M[:, :1].clamp_min(1)).chunk(2, 1)
    first_F, second_F = (square_KF - mean_KF.square()).clamp_min(0).unbind()
    return (second_F / first_F.clamp_min(1e-12)).sqrt().min()


def repeat_segments(
    event_P: Tensor, counts_E: Tensor, starts_E: Tensor, sizes_E: Tensor, times: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Segments of copies of the events, one set after the other: event, counts, starts, sizes, particles."""
    (num_particles,), (num_events,) = event_P.shape, counts_E.shape
    shift_T1 = torch.arange(times, device=event_P.device).unsqueeze(1)
    return (
        (event_P + num_events * shift_T1).flatten(),
        counts_E.repeat(times),
        (starts_E + num_particles * shift_T1).flatten(),
        sizes_E.repeat(times),
        torch.arange(times * num_particles, device=event_P.device),
    )
