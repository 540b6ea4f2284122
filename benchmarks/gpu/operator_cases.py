"""Cases of the operators of layers, scores and losses that are hard for a kernel, with their values by torch's own
operations on the CPU.

They are compared after those of the segments (segment_cases.py), and so run under compute-sanitizer. Needs torch only.
Shape suffixes: R rows, D columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from workloads.base.kernels import elementwise, event_losses, layers, scores  # noqa: F401  registered there
from workloads.base.kernels.registration import ON_CPU
from workloads.base.segments import Segments, tensors_of

SIZES = ((0, 8), (1, 3), (70, 128), (515, 130), (3, 1500))
"""No row, one, more than a block, and rows that are no power of two or long."""
COUNTS = ([], [0, 0], [0, 3, 1, 0, 4], [2, 300, 0, 1])
NUMBERS = (0, 1, 1025)
DTYPES = (torch.float32, torch.bfloat16)
_LEAK, _EPSILON, _LIMIT = 0.2, 1e-5, 100.0

Call = tuple[str, tuple[Any, ...]]


def compared(device: torch.device) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Description, value on the device, value expected; one for each result of each call."""
    for name, arguments in calls():
        on_device = [one.to(device) if isinstance(one, Tensor) else one for one in arguments]
        found, expected = getattr(torch.ops.icestream, name)(*on_device), ON_CPU[name](*arguments)
        sizes = [tuple(one.shape) for one in arguments if isinstance(one, Tensor)]
        for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, expected)), strict=True):
            yield f"{name}, {arguments[0].dtype}, {sizes[0]}", one, other


def calls() -> Iterator[Call]:
    """Calls of every operator, by name."""
    for rows, columns in SIZES:
        for dtype in DTYPES:
            yield from _of_rows(rows, columns, dtype)
    for counts in COUNTS:
        yield from _of_events(counts)
    for number in NUMBERS:
        yield from _of_values(number)


def _of_rows(rows: int, columns: int, dtype: torch.dtype) -> Iterator[Call]:
    random = torch.Generator().manual_seed(1)
    linear_RD, gradient_RD, s_RD = torch.randn(3, rows, columns, generator=random).to(dtype)
    bias_D, scale_D, shift_D = torch.randn(3, columns, generator=random)
    for parameters in ((bias_D, scale_D, shift_D), (bias_D, None, None)):
        activated = (linear_RD, *parameters, _EPSILON, _LEAK)
        yield "activate", activated
        output_RD, *statistics = ON_CPU["activate"](*activated)
        of_norm = (None, None, None, None) if parameters[1] is None else (linear_RD, *statistics, scale_D)
        layer = (output_RD, *of_norm)
        yield "pull", (gradient_RD, *layer, _LEAK)
        yield "pull_with_sums", (gradient_RD, *layer, _LEAK)
        pulled_RD = ON_CPU["pull"](gradient_RD, *layer, _LEAK)
        yield "pull_backward", (s_RD, gradient_RD, *layer, pulled_RD, _LEAK)
    of_rows, bias_1 = (linear_RD, gradient_RD, scale_D.unsqueeze(0)), bias_D[:1]
    yield "score", (*of_rows, bias_1)
    yield "score_backward", (s_RD[:, 0].float(), *of_rows)
    yield "score_slope", (*of_rows, bias_1, _LIMIT)
    yield "score_slope_backward", (s_RD.float(), *of_rows, bias_1, _LIMIT)


def _of_events(counts: list[int]) -> Iterator[Call]:
    random = torch.Generator().manual_seed(2)
    segments = Segments.from_counts(torch.tensor(counts, dtype=torch.int64), sum(counts))
    slope_PF = torch.randn(segments.num_particles, 3, generator=random)
    events = (*tensors_of(segments), (segments.counts_E > 0).float())
    yield "gradient_penalty", (slope_PF, *events)
    square_E = ON_CPU["gradient_penalty"](slope_PF, *events)[2]
    yield "gradient_penalty_backward", (torch.ones(()), slope_PF, square_E, *events)
    generated_MRS = torch.randn(8, segments.num_particles, 9, generator=random)
    yield "row_scores", (generated_MRS, torch.randn(segments.num_particles, 9, generator=random))
    yield "repeat_segments", (*tensors_of(segments)[:3], segments.sizes_E, 3)


def _of_values(number: int) -> Iterator[Call]:
    random = torch.Generator().manual_seed(3)
    values_N, signs_N = torch.randn(2, number, generator=random)
    for limit in (0.0, 2.0):
        yield "bounded_loss", (values_N, signs_N.sign(), limit)
        yield "bounded_loss_backward", (torch.ones(()), values_N, signs_N.sign(), limit)
    yield "sort_keys", (values_N, torch.arange(number) // 2)
    yield "long_tails", (values_N.unsqueeze(1).expand(-1, 3), 2)
    yield "log_sizes", (torch.arange(number), torch.float32)
    yield "checked_update", (torch.ones(number % 40 + 1), torch.ones(()), torch.tensor([10.0, 5.0]))
    yield "least_spread", (torch.rand(2, 7, generator=random) + 1,)
