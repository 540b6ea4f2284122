"""Matrix products of bfloat16 in float32, and rows times weights that train float32 weights.

`torch.ops.icestream.wide_product` is one kernel on CUDA. `rounded_product` has gradients of the weights that are summed
over all rows in float32; registered with torch, since its compiler does not follow two functions of one's own in a row.
While a graph is traced, or operators are counted, it is taken apart into its products.

Shape suffixes: R rows, A inputs, D outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import mm_flop, register_flop_formula

from workloads.base.kernels.operators import LIBRARY

LIBRARY.define("wide_product(Tensor one, Tensor other) -> Tensor")
WIDE_PRODUCT = torch.ops.icestream.wide_product.default
"""Product of two matrices in bfloat16, in float32. (R, A), (A, D) -> (R, D)."""
LIBRARY.define(
    "rounded_product(Tensor input_RA, Tensor weight_DA, Tensor? bias_D, Tensor rounded_DA, Tensor? added, bool wide)"
    " -> Tensor"
)
ROUNDED_PRODUCT = torch.ops.icestream.rounded_product.default
"""Rows ``input_RA @ rounded_DA.T + added``, of bfloat16, with ``wide`` of float32. (R, A), (D, A) -> (R, D).

``rounded_DA``: the weights ``weight_DA`` in bfloat16; gradients go to the latter. ``added``: (R, D), or, with
``bias_D``, the bias (D,) as it is added; its gradients then go to ``bias_D``. Or a bias (D,) that isn't trained here.
"""


def _wide_by_torch(one: Tensor, other: Tensor) -> Tensor:
    return one.float() @ other.float()


def _wide_on_cuda(one: Tensor, other: Tensor) -> Tensor:
    return torch.mm(one, other, out_dtype=torch.float32)


def _like_wide(one: Tensor, other: Tensor) -> Tensor:
    return one.new_empty(one.shape[0], other.shape[1], dtype=torch.float32)


def _rounded_product(
    input_RA: Tensor, weight_DA: Tensor, bias_D: Tensor | None, rounded_DA: Tensor, added: Tensor | None, wide: bool
) -> Tensor:
    if wide:
        rows_RD: Tensor = WIDE_PRODUCT(input_RA, rounded_DA.t())
        return rows_RD if added is None else rows_RD.add_(added)
    if added is None:
        return input_RA @ rounded_DA.t()
    return torch.addmm(added, input_RA, rounded_DA.t())


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        input_RA, _, _, rounded_DA, _, _ = arguments
        ctx.save_for_backward(input_RA, rounded_DA)
        return _rounded_product(*arguments)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input_RA, rounded_DA = ctx.saved_tensors
        to_input, to_weight, to_bias, _, to_added, _ = ctx.needs_input_grad
        rows_RD = gradients[0].to(torch.bfloat16)
        return (
            rows_RD @ rounded_DA if to_input else None,
            WIDE_PRODUCT(rows_RD.t(), input_RA) if to_weight else None,
            gradients[0].sum(0, dtype=torch.float32) if to_bias else None,
            None,
            gradients[0] if to_added else None,
            None,
        )


def _differentiable(*arguments: Any) -> Any:
    is_trained = any(isinstance(one, Tensor) and one.requires_grad for one in arguments)
    return (_Product.apply if is_trained and torch.is_grad_enabled() else _rounded_product)(*arguments)


def _like_rounded(*arguments: Any) -> Any:
    input_RA, _, _, rounded_DA, _, wide = arguments
    dtype = torch.float32 if wide else torch.bfloat16
    return input_RA.new_empty(input_RA.shape[0], rounded_DA.shape[0], dtype=dtype)


LIBRARY.impl("wide_product", _wide_by_torch, "CPU")
LIBRARY.impl("wide_product", _wide_on_cuda if "dtype" in torch.ops.aten.mm.overloads() else _wide_by_torch, "CUDA")
torch.library.register_fake("icestream::wide_product", _like_wide, lib=LIBRARY)
register_flop_formula(torch.ops.icestream.wide_product, get_raw=True)(mm_flop)
LIBRARY.impl("rounded_product", _differentiable, "Autograd")
LIBRARY.impl("rounded_product", _rounded_product, "CompositeExplicitAutograd")
torch.library.register_fake("icestream::rounded_product", _like_rounded, lib=LIBRARY)
