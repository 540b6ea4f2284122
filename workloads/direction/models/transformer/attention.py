"""Attention between the sensors of an event, biased by their interval in space-time.

Shape suffixes: T sensors, D width, H heads, W width of a head, G events of a padded group, N sensors of its longest,
K terms of the bias.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.direction.ice import LIGHT_SPEED_M_NS
from workloads.direction.models.transformer.padding import Padding

_INTERVAL_M = 300.0
_LARGEST_INTERVAL = 2.0
"""Centre of the last term of the bias, in units of _INTERVAL_M; the first one's is minus this."""


class Attention(nn.Module):
    """Multi-head attention with normalised queries and keys (QK-norm, arXiv:2010.04245)."""

    def __init__(self, width: int, heads: int, bias_terms: int) -> None:
        """``bias_terms`` 0: no bias."""
        super().__init__()
        self.heads = heads
        self.input = nn.Linear(width, 3 * width)
        self.query_norm = nn.RMSNorm(width // heads)
        self.key_norm = nn.RMSNorm(width // heads)
        self.bias = nn.Linear(bias_terms, heads, bias=False) if bias_terms else None
        if self.bias is not None:
            nn.init.zeros_(self.bias.weight)
        self.output = nn.Linear(width, width)

    def forward(self, sensors_TD: Tensor, padding: Padding, terms: list[Tensor]) -> Tensor:
        """Values of an event's sensors, weighted by attention. (T, D), (G, N, N, K) for each group -> (T, D)."""
        if not padding.groups:
            return sensors_TD  # no sensors in any event
        query_THW, key_THW, value_THW = self.input(sensors_TD).unflatten(1, (3, self.heads, -1)).unbind(1)
        query_THW, key_THW = (
            norm(of_THW.float()).to(value_THW.dtype)
            for norm, of_THW in ((self.query_norm, query_THW), (self.key_norm, key_THW))
        )
        all_THW = torch.stack([query_THW, key_THW, value_THW], 1)
        results = []
        for place, rows_GND in enumerate(padding.padded(all_THW.flatten(1))):
            query, key, value = rows_GND.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (G, H, N, W)
            mask = padding.groups[place].present_GN[:, None, None, :]
            if self.bias is not None:
                mask = self.bias(terms[place]).permute(0, 3, 1, 2).masked_fill(~mask, -torch.inf).to(query.dtype)
            result_GHNW = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            results.append(result_GHNW.transpose(1, 2).flatten(2))
        output_TD: Tensor = self.output(padding.packed(results))
        return output_TD


@torch.no_grad()
def interval_terms(position_T3: Tensor, time_T1: Tensor, num_terms: int, padding: Padding) -> list[Tensor]:
    """Functions of the space-time interval of two sensors. (T, 3) m, (T, 1) ns -> (G, N, N, K) for each group.

    The interval is s = ±√|c²Δt² − Δx²|, positive if light could connect both pulses in a vacuum, as in the attention
    bias of IceMix (arXiv:2310.15674, second place of the Kaggle competition). The terms are Gaussians of s, at
    equidistant centres, in place of sines.
    """
    place_T4 = torch.cat([position_T3, time_T1 * LIGHT_SPEED_M_NS], 1) / _INTERVAL_M
    centre_K = torch.linspace(-_LARGEST_INTERVAL, _LARGEST_INTERVAL, num_terms, device=place_T4.device)
    inverse_width = num_terms / (2 * _LARGEST_INTERVAL)
    terms = []
    for place_GN4 in padding.padded(place_T4):
        square_GNN4 = (place_GN4.unsqueeze(2) - place_GN4.unsqueeze(1)).square()
        square_GNN = square_GNN4[..., 3] - square_GNN4[..., :3].sum(-1)
        interval_GNN1 = (square_GNN.sign() * square_GNN.abs().sqrt()).unsqueeze(3)
        terms.append((-((interval_GNN1 - centre_K) * inverse_width).square()).exp())
    return terms
