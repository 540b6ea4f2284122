"""Networks of the classifiers, small enough that their result depends little on the random start.

E events, P muons, C conditions, W width, H heads, L most muons of an event in a bucket.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from workloads.muons.metrics.two_sample.inputs import NUM_CONDITIONS, NUM_MUON_FEATURES

_HEADS = 4


class DeepSets(nn.Module):
    """Network on muons, mean and maximum over the event's muons, network on events (arXiv:1703.06114)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.muon = nn.Sequential(
            nn.Linear(NUM_MUON_FEATURES + NUM_CONDITIONS, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.event = dense(2 * width + NUM_CONDITIONS + 1, width)

    def forward(self, muons_PF: Tensor, counts_E: Tensor, conditions_EC: Tensor, log_counts_E1: Tensor) -> Tensor:
        """(E,): the larger, the more likely generated."""
        size = len(counts_E)
        event_P = torch.repeat_interleave(torch.arange(size), counts_E)
        seen_PW: Tensor = self.muon(torch.cat([muons_PF, conditions_EC[event_P]], 1))
        seen_PW = self.together(seen_PW, counts_E)
        nothing_EW = seen_PW.new_zeros(size, seen_PW.shape[1])
        mean_EW = nothing_EW.index_add(0, event_P, seen_PW) / counts_E.clamp_min(1).unsqueeze(1)
        index_PW = event_P.unsqueeze(1).expand_as(seen_PW)
        most_EW = nothing_EW.scatter_reduce(0, index_PW, seen_PW, "amax", include_self=False)
        answer_E1: Tensor = self.event(torch.cat([mean_EW, most_EW, conditions_EC, log_counts_E1], 1))
        return answer_E1[:, 0]

    def together(self, seen_PW: Tensor, counts_E: Tensor) -> Tensor:
        """Features of muons that depend on the event's other muons: none here."""
        return seen_PW


class AttentionSets(DeepSets):
    """DeepSets with one attention block between the muons of an event (arXiv:1810.00825)."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.before = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.after = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def together(self, seen_PW: Tensor, counts_E: Tensor) -> Tensor:
        """Features after attention and a dense network, each added to what was there."""
        seen_PW = seen_PW + self.attended(_attention(self.queries_keys_values(self.before(seen_PW)), counts_E))
        changed_PW: Tensor = seen_PW + self.after(seen_PW)
        return changed_PW


def _attention(inputs_PW: Tensor, counts_E: Tensor) -> Tensor:
    """Attention of the muons of each event to each other: queries, keys and values (P, 3 W) -> (P, W).

    Events are padded in buckets of up to 1, 2, 4, 8, ... muons.
    """
    first_E = torch.cumsum(counts_E, 0) - counts_E
    bucket_E = torch.ceil(torch.log2(counts_E.double()))
    indices, found = [], []
    for bucket in torch.unique(bucket_E[counts_E > 0]):
        chosen = torch.nonzero(bucket_E == bucket)[:, 0]
        place_L = torch.arange(int(counts_E[chosen].max()))
        known_EL = place_L < counts_E[chosen, None]
        index_EL = torch.where(known_EL, first_E[chosen, None] + place_L, first_E[chosen, None])
        heads_ELHW = inputs_PW[index_EL].unflatten(2, (3 * _HEADS, -1))
        query, key, value = heads_ELHW.transpose(1, 2).chunk(3, 1)
        answer = scaled_dot_product_attention(query, key, value, attn_mask=known_EL[:, None, None])
        found.append(answer.transpose(1, 2).flatten(2)[known_EL])
        indices.append(index_EL[known_EL])
    if not found:
        return inputs_PW[:, : inputs_PW.shape[1] // 3]
    order = torch.argsort(torch.cat(indices))
    return torch.cat(found)[order]


class EventClassifier(nn.Module):
    """Network on features of an event."""

    def __init__(self, num_inputs: int, width: int) -> None:
        super().__init__()
        self.event = dense(num_inputs, width)

    def forward(self, inputs_EF: Tensor) -> Tensor:
        """(E,): the larger, the more likely generated."""
        answer_E1: Tensor = self.event(inputs_EF)
        return answer_E1[:, 0]


def dense(num_inputs: int, width: int) -> nn.Sequential:
    """Network of two hidden layers with one output."""
    return nn.Sequential(
        nn.Linear(num_inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
    )
