"""Launches of the Triton kernels that pass once over a few values. Imports Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from workloads.base.kernels import elementwise_triton as kernels
from workloads.base.kernels.launch import accumulator, on_device_of

_VALUES = 1024


def _each_value(kernel: Any, num_values: int, *arguments: Any, **constants: Any) -> None:
    """Launch a kernel with a program for each block of values, if there is any, where its first argument is."""
    if num_values:
        with on_device_of(arguments[0]):
            kernel[(triton.cdiv(num_values, _VALUES),)](*arguments, VALUES=_VALUES, **constants)


def checked_update(norms_N: Tensor, loss: Tensor, limits_2: Tensor) -> tuple[Tensor, Tensor]:
    """See elementwise_torch."""
    norm, skipped = norms_N.new_empty(()), norms_N.new_empty((), dtype=torch.float32)
    with on_device_of(norms_N):
        kernels.checked_update_of[(1,)](
            norms_N.contiguous(), loss, limits_2, norm, skipped, norms_N.shape[0],
            ACC=accumulator(norms_N), VALUES=triton.next_power_of_2(max(norms_N.shape[0], 1)),
        )  # fmt: skip
    return norm, skipped


def sort_keys(keys_N: Tensor, event_N: Tensor) -> Tensor:
    """See elementwise_torch."""
    results_N = torch.empty_like(event_N)
    _each_value(kernels.sort_key_values, len(keys_N), keys_N.contiguous(), event_N.contiguous(), results_N, len(keys_N))
    return results_N


def long_tails(normal_RD: Tensor, tails: int) -> Tensor:
    """See elementwise_torch."""
    normal_RD = normal_RD.contiguous()
    results_RD = torch.empty_like(normal_RD)
    places = normal_RD, results_RD, normal_RD.numel(), normal_RD.shape[1]
    _each_value(kernels.long_tail_values, normal_RD.numel(), *places, TAILS=tails, SCALE=3**-0.5)
    return results_RD


def log_sizes(sizes_E: Tensor, dtype: torch.dtype) -> Tensor:
    """See elementwise_torch."""
    results_E1 = sizes_E.new_empty((sizes_E.shape[0], 1), dtype=dtype)
    places = sizes_E.contiguous(), results_E1, len(sizes_E)
    _each_value(kernels.log_size_values, len(sizes_E), *places, ACC=accumulator(results_E1))
    return results_E1


def least_spread(moments_2M: Tensor) -> Tensor:
    """See elementwise_torch."""
    moments_2M, ratio = moments_2M.contiguous(), moments_2M.new_empty(())
    features = moments_2M.shape[1] // 2
    with on_device_of(moments_2M):
        kernels.least_spread_of[(1,)](
            moments_2M, ratio, features, ACC=accumulator(moments_2M), VALUES=triton.next_power_of_2(features)
        )
    return ratio


def repeat_segments(
    event_P: Tensor, counts_E: Tensor, starts_E: Tensor, sizes_E: Tensor, times: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See elementwise_torch."""
    (num_particles,), (num_events,) = event_P.shape, counts_E.shape
    to_event_P, to_particles_P = (event_P.new_empty(times * num_particles) for _ in range(2))
    to_counts_E, to_starts_E, to_sizes_E = (counts_E.new_empty(times * num_events) for _ in range(3))
    _each_value(
        kernels.repeat_segment_values, times * max(num_particles, num_events),
        event_P.contiguous(), counts_E.contiguous(), starts_E.contiguous(), sizes_E.contiguous(),
        to_event_P, to_counts_E, to_starts_E, to_sizes_E, to_particles_P, num_particles, num_events, times,
    )  # fmt: skip
    return to_event_P, to_counts_E, to_starts_E, to_sizes_E, to_particles_P
