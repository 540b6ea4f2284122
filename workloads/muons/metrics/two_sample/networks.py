"""Networks of the two classifiers, small enough that their result depends little on the random start.

E events, P muons, C conditions, W width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workloads.muons.metrics.two_sample.inputs import NUM_CONDITIONS, NUM_MUON_FEATURES


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
        nothing_EW = seen_PW.new_zeros(size, seen_PW.shape[1])
        mean_EW = nothing_EW.index_add(0, event_P, seen_PW) / counts_E.clamp_min(1).unsqueeze(1)
        index_PW = event_P.unsqueeze(1).expand_as(seen_PW)
        most_EW = nothing_EW.scatter_reduce(0, index_PW, seen_PW, "amax", include_self=False)
        answer_E1: Tensor = self.event(torch.cat([mean_EW, most_EW, conditions_EC, log_counts_E1], 1))
        return answer_E1[:, 0]


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
