"""Operators that pass once over a few values, one kernel each on CUDA: `torch.ops.icestream.checked_update`,
`sort_keys`, `long_tails`, `log_sizes`, `least_spread`, `repeat_segments`. None has a derivative.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.base.kernels import elementwise_torch as kernels
from workloads.base.kernels.registration import register

_LAUNCHES = "workloads.base.kernels.elementwise_launch"


def _like_repeat_segments(
    event_P: Tensor, counts_E: Tensor, starts_E: Tensor, sizes_E: Tensor, times: int
) -> tuple[Tensor, ...]:
    of_events = (counts_E.new_empty(times * counts_E.shape[0]) for _ in range(3))
    return event_P.new_empty(times * event_P.shape[0]), *of_events, event_P.new_empty(times * event_P.shape[0])


CHECKED_UPDATE = register(
    "checked_update(Tensor norms_N, Tensor loss, Tensor limits_2) -> (Tensor, Tensor)",
    *(kernels, _LAUNCHES),
    lambda norms_N, *_: (norms_N.new_empty(()), norms_N.new_empty((), dtype=torch.float32)),
)
SORT_KEYS = register(
    "sort_keys(Tensor keys_N, Tensor event_N) -> Tensor",
    *(kernels, _LAUNCHES, lambda keys_N, event_N: event_N.new_empty(event_N.shape)),
)
LONG_TAILS = register(
    "long_tails(Tensor normal_RD, int tails) -> Tensor",
    *(kernels, _LAUNCHES, lambda normal_RD, tails: normal_RD.new_empty(normal_RD.shape)),
)
LOG_SIZES = register(
    "log_sizes(Tensor sizes_E, ScalarType dtype) -> Tensor",
    *(kernels, _LAUNCHES, lambda sizes_E, dtype: sizes_E.new_empty((sizes_E.shape[0], 1), dtype=dtype)),
)
LEAST_SPREAD = register(
    "least_spread(Tensor moments_2M) -> Tensor",
    *(kernels, _LAUNCHES, lambda moments_2M: moments_2M.new_empty(())),
)
REPEAT_SEGMENTS = register(
    "repeat_segments(Tensor event_P, Tensor counts_E, Tensor starts_E, Tensor sizes_E, int times)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    *(kernels, _LAUNCHES, _like_repeat_segments),
)
