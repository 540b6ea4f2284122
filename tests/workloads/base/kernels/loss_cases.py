"""Calls of the operators of scores, losses and single passes that are hard for a kernel: (arguments, by operator).

Shape suffixes: R rows, D columns, E events, P particles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from workloads.base.kernels import event_losses_torch
from workloads.base.segments import Segments, tensors_of

COUNTS = {
    "no event": [],
    "only empty events": [0, 0],
    "empty events around others": [0, 3, 1, 0, 4, 0],
    "a long event": [2, 300, 0, 1],
}
SIZES = {"no row": (0, 4), "one row": (1, 3), "more than a block": (70, 128), "long rows": (3, 1500)}
NUMBERS = (0, 1, 1025)


def draw(*shape: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    """Random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Type of parameters and statistics of rows of a type."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def score_calls(rows: int, columns: int, dtype: torch.dtype) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Calls of the operators of scores by row."""
    of_rows = draw(rows, columns, dtype=dtype), draw(rows, columns, dtype=dtype, seed=2)
    weights = draw(1, columns, dtype=wide(dtype), seed=3), draw(1, dtype=wide(dtype), seed=4)
    gradient_RD = draw(rows, columns, dtype=wide(dtype), seed=5)
    yield "score", (*of_rows, *weights)
    yield "score_backward", (gradient_RD[:, 0], *of_rows, weights[0])
    for limit in (0.0, 0.7, 100.0):
        yield "score_slope", (*of_rows, *weights, limit)
        yield "score_slope_backward", (gradient_RD, *of_rows, *weights, limit)


def loss_calls(number: int, dtype: torch.dtype) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Calls of the operators of losses by score."""
    scores_N = 3 * draw(number, dtype=dtype)
    signs_N = torch.arange(number).remainder(3).sub(1).to(dtype)
    for limit in (0.0, 2.0, 100.0):
        yield "bounded_loss", (scores_N, signs_N, limit)
        yield "bounded_loss_backward", (draw(dtype=dtype), scores_N, signs_N, limit)


def event_calls(counts: list[int], dtype: torch.dtype) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Calls of the operators of losses by event."""
    segments = Segments.from_counts(torch.tensor(counts, dtype=torch.int64), sum(counts))
    slope_PF = draw(segments.num_particles, 3, dtype=dtype)
    events = (*tensors_of(segments), (segments.counts_E > 0).to(dtype))
    yield "gradient_penalty", (slope_PF, *events)
    square_E = event_losses_torch.gradient_penalty(slope_PF, *events)[2]
    yield "gradient_penalty_backward", (draw(dtype=dtype), slope_PF, square_E, *events)
    rows = segments.num_particles
    for times, columns in ((2, 1), (3, 9)):
        generated_MRS = draw(times, rows, columns, dtype=dtype)
        generated_MRS[1, ::2] = generated_MRS[0, ::2]  # equal ones, at the distance of the floor
        yield "row_scores", (generated_MRS, draw(rows, columns, dtype=dtype, seed=2))


def elementwise_calls(number: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Calls of the operators that pass over values once."""
    keys_N = draw(number, dtype=torch.float32)
    special = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf, 0.0, -0.0])
    keys_N[: len(special)] = special[:number]
    event_N = torch.arange(number) // 2
    yield "sort_keys", (keys_N, event_N)
    yield "sort_keys", (keys_N.bfloat16(), event_N)
    for tails in (0, 1, 3):
        yield "long_tails", (draw(number, 3, dtype=torch.float32), tails)
    counts_E = torch.arange(number) % 5
    yield "log_sizes", (counts_E, torch.float32)
    yield "log_sizes", (counts_E, torch.float64)
    segments = Segments.from_counts(counts_E, int(counts_E.sum()))
    for times in (1, 3):
        yield "repeat_segments", (*(tensors_of(segments)[:3]), counts_E + 1, times)
    limits_2 = torch.tensor([1e3, 10.0])
    for norm, loss in ((1.0, -3.0), (2e3, 0.0), (1.0, -11.0), (torch.nan, 0.0), (1.0, torch.nan), (torch.inf, 1.0)):
        norms_N = torch.cat([torch.tensor([norm]), torch.ones(number % 40)])
        yield "checked_update", (norms_N, torch.tensor(loss), limits_2)
    for moment in (1.0, torch.nan):
        moments_2M = draw(2, 7, dtype=torch.float32).abs() + 1
        moments_2M[1, 4:] += moment
        yield "least_spread", (moments_2M,)
