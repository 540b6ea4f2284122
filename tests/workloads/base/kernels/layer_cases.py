"""Inputs of a dense layer's operators that are hard for a kernel. Shape suffixes: R rows, D columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LEAK, EPSILON = 0.2, 1e-5
SIZES = {
    "no row": (0, 8),
    "one row": (1, 8),
    "rows that are no multiple of a block": (70, 128),
    "a single column": (7, 1),
    "columns that are no power of two": (9, 130),
    "long rows": (3, 1500),
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@dataclass
class LayerCase:
    """Rows of a layer before its activation, its parameters, and two gradients."""

    linear_RD: Tensor
    bias_D: Tensor
    scale_D: Tensor
    shift_D: Tensor
    gradient_RD: Tensor
    s_RD: Tensor

    @classmethod
    def of(cls, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> LayerCase:
        """Case of random numbers; parameters of bfloat16 rows are in float32."""
        random = torch.Generator().manual_seed(4)
        wide = torch.float64 if dtype == torch.float64 else torch.float32

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=random, dtype=torch.float64)

        rows_3RD = draw(3, rows, columns).to(dtype).to(device)
        bias_D, scale_D, shift_D = draw(3, columns).to(wide).to(device)
        return cls(rows_3RD[0] + 0.5, bias_D, scale_D, shift_D, rows_3RD[1], rows_3RD[2])

    def activated(self, *, norm: bool) -> tuple[Tensor | None, ...]:
        """Arguments of `activate`."""
        return self.linear_RD, self.bias_D, self.scale_D if norm else None, self.shift_D if norm else None
