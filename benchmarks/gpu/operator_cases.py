"""Cases of the operators of layers that are hard for a kernel, with their values by torch's own operations on the CPU.

They are compared after those of the segments (segment_cases.py), and so run under compute-sanitizer. Needs torch only.
Shape suffixes: R rows, D columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from workloads.base.kernels import layers  # noqa: F401  registered there
from workloads.base.kernels.registration import ON_CPU

SIZES = ((0, 8), (1, 3), (70, 128), (515, 130), (3, 1500))
"""No row, one, more than a block, and rows that are no power of two or long."""
DTYPES = (torch.float32, torch.bfloat16)
_LEAK, _EPSILON = 0.2, 1e-5

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
