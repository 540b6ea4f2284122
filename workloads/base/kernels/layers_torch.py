"""Operators of a dense layer in torch's own operations. Shape suffixes: R rows, D columns.

Rows may be of less than 32 bits: statistics, sums and the results in between are in float32 then.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_aten = torch.ops.aten


def activate(
    linear_RD: Tensor,
    bias_D: Tensor | None,
    scale_D: Tensor | None,
    shift_D: Tensor | None,
    epsilon: float,
    leak: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised rows after a leaky ReLU, mean and inverse spread of each row. (R, D) -> (R, D), (R, 1), (R, 1).

    Without ``scale_D`` there is no normalisation, and the last two are empty. ``bias_D`` is in the rows already.
    """
    linear_RD = linear_RD.contiguous()
    if scale_D is None:
        nothing = statistics_of(linear_RD)
        return F.leaky_relu(linear_RD, leak), nothing, nothing.clone()
    normal_RD, mean_R1, inverse_R1 = torch.native_layer_norm(wide(linear_RD), scale_D.shape, scale_D, shift_D, epsilon)
    return F.leaky_relu(normal_RD, leak, inplace=True).to(linear_RD.dtype), mean_R1, inverse_R1


def pull(
    gradient_RD: Tensor,
    output_RD: Tensor,
    linear_RD: Tensor | None,
    mean_R1: Tensor | None,
    inverse_R1: Tensor | None,
    scale_D: Tensor | None,
    leak: float,
) -> Tensor:
    """Pullback of a gradient through `activate`: J(γ u) with u = gradient × slope of the ReLU. (R, D) -> (R, D).

    With x̂ the normalised row, σ its spread: J v = (v - mean(v) - x̂ mean(x̂ v)) / σ, which is symmetric.
    """
    u_RD = _through(gradient_RD, output_RD, leak)
    if scale_D is not None:
        u_RD = _normal_pull(u_RD, linear_RD, mean_R1, inverse_R1, scale_D)
    return u_RD.to(gradient_RD.dtype)


def pull_with_sums(
    gradient_RD: Tensor,
    output_RD: Tensor,
    linear_RD: Tensor | None,
    mean_R1: Tensor | None,
    inverse_R1: Tensor | None,
    scale_D: Tensor | None,
    leak: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same, and gradients of bias, scale and shift. -> (R, D), 3 × (D,), the last two empty without a scale."""
    u_RD = _through(gradient_RD, output_RD, leak)
    if scale_D is None:
        return u_RD.to(gradient_RD.dtype), u_RD.sum(0), u_RD.new_empty(0), u_RD.new_empty(0)
    assert linear_RD is not None
    pulled_RD, to_scale_D, to_shift_D = _aten.native_layer_norm_backward(
        *(u_RD, wide(linear_RD), list(scale_D.shape), mean_R1, inverse_R1, scale_D, scale_D, [True, True, True])
    )
    return pulled_RD.to(gradient_RD.dtype), pulled_RD.sum(0), to_scale_D, to_shift_D


def pull_backward(
    s_RD: Tensor,
    gradient_RD: Tensor,
    output_RD: Tensor,
    linear_RD: Tensor | None,
    mean_R1: Tensor | None,
    inverse_R1: Tensor | None,
    scale_D: Tensor | None,
    r_RD: Tensor,
    leak: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ⟨s, r⟩, r = `pull`, with respect to gradient, rows and scale. -> (R, D), (R, D), (D,).

    That with respect to γ u is J s, that with respect to the row -((s·r) x̂ + (x̂·s) r + (x̂·γu) J s) / (n σ), n its
    length. The last two are empty without a scale.
    """
    dtype = gradient_RD.dtype
    if scale_D is None:
        nothing = statistics_of(s_RD)
        return _through(s_RD, output_RD, leak).to(dtype), nothing, nothing.clone()
    assert linear_RD is not None
    assert mean_R1 is not None
    assert inverse_R1 is not None
    row_RD, s_RD, r_RD = wide(linear_RD), wide(s_RD), wide(r_RD)
    u_RD = _through(gradient_RD, output_RD, leak)
    js_RD = _normal_pull(s_RD, row_RD, mean_R1, inverse_R1, None)
    # Each pass over the rows is expensive: row products are shared, and summed by matrix-vector products.
    centred_RD = row_RD - mean_R1
    products_RD = u_RD * js_RD
    to_scale_D = products_RD.sum(0)
    factor_R = (inverse_R1 * inverse_R1 / -row_RD.shape[1]).squeeze(1)
    of_row_R = (products_RD @ scale_D) * factor_R  # s·r = J(γ u)·s = γ u·J s
    of_r_R = torch.mul(centred_RD, s_RD, out=products_RD).sum(1) * factor_R
    of_js_R = (torch.mul(centred_RD, u_RD, out=products_RD) @ scale_D) * factor_R
    to_row_RD = centred_RD.mul_(of_row_R.unsqueeze(1))
    to_row_RD.addcmul_(r_RD, of_r_R.unsqueeze(1)).addcmul_(js_RD, of_js_R.unsqueeze(1))
    to_gradient_RD = _through(js_RD.mul_(scale_D), output_RD, leak)
    return to_gradient_RD.to(dtype), to_row_RD.to(linear_RD.dtype), to_scale_D


def wide(values: Tensor) -> Tensor:
    """Values as they are computed with: in float32 at least."""
    return values if values.dtype == torch.float64 else values.float()


def statistics_of(values: Tensor) -> Tensor:
    """No values, of the type of the statistics of others."""
    return wide(values.new_empty(0))


def _through(gradient_RD: Tensor, output_RD: Tensor, leak: float) -> Tensor:
    """Pullback of the leaky ReLU, by its output."""
    pulled_RD: Tensor = _aten.leaky_relu_backward(wide(gradient_RD).contiguous(), wide(output_RD), leak, True)
    return pulled_RD


def _normal_pull(
    u_RD: Tensor, row_RD: Tensor | None, mean_R1: Tensor | None, inverse_R1: Tensor | None, scale_D: Tensor | None
) -> Tensor:
    """Vector J(γ u), (R, D); γ = 1 without a scale."""
    assert row_RD is not None
    pulled_RD: Tensor = _aten.native_layer_norm_backward(
        u_RD.contiguous(), wide(row_RD), [row_RD.shape[1]], mean_R1, inverse_R1, scale_D, None, [True, False, False]
    )[0]
    return pulled_RD
