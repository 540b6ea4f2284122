"""Weights and rows in bfloat16, with float32 for all that is summed: for networks of these layers.

The weights that are trained, saved and averaged stay in float32. Those of each `Linear` are rounded to bfloat16 once an
update; rows between layers are stored in bfloat16. Statistics of a normalisation, sums over events, scores, losses and
all gradients of weights are float32. Without rounded weights, as in generation, everything is float32.

Shape suffixes: R rows, A inputs, D outputs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base.kernels.product import ROUNDED_PRODUCT


class Linear(nn.Linear):
    """Linear layer that computes in bfloat16 while it has rounded weights: see `RoundedWeights`."""

    rounded_DA: Tensor | None
    """Weights in bfloat16; None: the layer computes in float32. Neither trained nor saved."""
    rounded_D: Tensor | None
    """Bias likewise."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, wide: bool = False) -> None:
        """``wide``: the result is float32 in any case, for numbers that a loss is computed from."""
        super().__init__(inputs, outputs, bias=bias)
        self.wide = wide
        self.register_buffer("rounded_DA", None, persistent=False)
        self.register_buffer("rounded_D", None, persistent=False)

    @property
    def is_rounded(self) -> bool:
        """True if the layer computes in bfloat16."""
        return self.rounded_DA is not None

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """Weights, and the same in bfloat16, for `rounded_product`. 2 times (D, A)."""
        assert self.rounded_DA is not None
        return self.weight, self.rounded_DA

    def forward(self, input_RA: Tensor) -> Tensor:
        """Result in float32; with rounded weights in bfloat16, unless ``wide``. (R, A) -> (R, D)."""
        if not self.is_rounded:
            return F.linear(input_RA, self.weight, self.bias)
        if self.bias is None:
            return rounded_product(input_RA, self.pair, wide=self.wide)
        added_D = self.bias.detach() if self.wide else self.rounded_D
        return rounded_product(input_RA, self.pair, added_D, bias_D=self.bias, wide=self.wide)


def rounded_product(
    input_RA: Tensor,
    pair: tuple[Tensor, Tensor],
    added: Tensor | None = None,
    *,
    bias_D: Tensor | None = None,
    wide: bool = False,
) -> Tensor:
    """Rows times weights in bfloat16, see `ROUNDED_PRODUCT`. ``pair``: weights, and the same in bfloat16."""
    weight_DA, rounded_DA = pair
    if added is not None and not wide:
        added = added.to(torch.bfloat16)
    result_RD: Tensor = ROUNDED_PRODUCT(input_RA.to(torch.bfloat16), weight_DA, bias_D, rounded_DA, added, wide)
    return result_RD


class RoundedWeights:
    """Weights of a network's layers in bfloat16, for its training."""

    def __init__(self, network: nn.Module) -> None:
        """Each `Linear` of ``network`` computes in bfloat16 from now on."""
        self._layers = [module for module in network.modules() if isinstance(module, Linear)]
        for layer in self._layers:
            layer.rounded_DA = layer.weight.detach().to(torch.bfloat16)
            if layer.bias is not None:
                layer.rounded_D = layer.bias.detach().to(torch.bfloat16)
            layer.register_load_state_dict_post_hook(_round_again)  # of the layer: it goes with a copy of the network

    @torch.no_grad()
    def refresh(self) -> None:
        """Round the present weights: after each update."""
        pairs = [pair for layer in self._layers for pair in _rounded_and_exact(layer)]  # other ones after .to(device)
        if pairs:
            torch._foreach_copy_([rounded for rounded, _ in pairs], [exact for _, exact in pairs])


def _rounded_and_exact(layer: Linear) -> Iterator[tuple[Tensor, Tensor]]:
    """Rounded weights and bias of a layer, each with what it is rounded from."""
    for exact, rounded in ((layer.weight, layer.rounded_DA), (layer.bias, layer.rounded_D)):
        if rounded is not None:
            yield rounded, exact


@torch.no_grad()
def _round_again(layer: Linear, _: object) -> None:
    """Round the loaded weights of a layer."""
    for rounded, exact in _rounded_and_exact(layer):
        rounded.copy_(exact)


def joined(rows: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Columns of all ``rows`` side by side, as ``dtype``. Several times (R, A) -> (R, D)."""
    return torch.cat([one.to(dtype) for one in rows], 1)
