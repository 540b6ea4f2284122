"""Coupling between the muons of an event: the second half is drawn given the first.

Half of an event's N muons, N / 2 rounded up, are drawn as ever, independently given z. Those of the other half are
independent given z and the mean of an embedding of the first half's features. Which muon is in which half is random,
a permutation s of them, and nothing that is recorded:

    p(muons | z, c, N) = mean over s of p(first half | z, c, N) p(second half | z, first half, c, N)

This is exchangeable. The mean can't be computed, but ln of it is at least the mean of ln (Jensen): the loss of one
permutation, drawn again in each step, is a bound above -ln p, as that of one z is. It is the closer the less the
second factor depends on s. For generated muons their order is as good as a permutation.

Halves by a fair coin for each muon would do too, but would leave half of the pairs in one half, uncoupled, and the
size of a half would have to be drawn.

Shape suffixes: E events, H = 2 E halves (first and second of event 0, of event 1, …), P particles, F features, I inputs
of an event's context, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workloads.base.bf16 import Linear
from workloads.base.segments import Segments, pool

_WIDTH = 16
_HIDDEN = 32


class Coupling(nn.Module):
    """Embedding of an event's first half, and its place among the inputs of the second's context."""

    num_inputs = _WIDTH + 1
    """Additional inputs of a context: what is known of the other half, and 1; zeros for the first half."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.embedding = nn.Sequential(Linear(num_features, _HIDDEN), nn.SiLU(), Linear(_HIDDEN, _WIDTH))

    def alone(self, inputs_EI: Tensor) -> Tensor:
        """Inputs of first halves. (E, I) -> (E, I + num_inputs)."""
        return torch.cat([inputs_EI, inputs_EI.new_zeros(inputs_EI.shape[0], self.num_inputs)], 1)

    def forward(self, inputs_EI: Tensor, features_PF: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
        """Inputs of both halves of each event, and the halves. (E, I), (P, F) -> (H, I + num_inputs).

        An event's particles are in the random order that makes the halves.
        """
        parts = halves(segments)
        pooled_ED = _mean(self.embedding(features_PF), parts)[::2].float()
        second_EI = torch.cat([inputs_EI, pooled_ED, torch.ones_like(pooled_ED[:, :1])], 1)
        return torch.stack([self.alone(inputs_EI), second_EI], 1).flatten(0, 1), parts


def halves(segments: Segments) -> Segments:
    """Halves of events as events, two for each: the particles stay in order. No host sync."""
    second_E = segments.counts_E // 2
    first_E = segments.counts_E - second_E
    counts_H = torch.stack([first_E, second_E], 1).flatten()
    middle_P = (segments.starts_E + first_E)[segments.event_P]
    event_P = 2 * segments.event_P + (segments.particles_P >= middle_P)
    starts_H = counts_H.cumsum(0) - counts_H
    return Segments(event_P, counts_H, starts_H, segments.sizes_E.repeat_interleave(2), segments.particles_P)


def _mean(values_PD: Tensor, segments: Segments) -> Tensor:
    """Mean of each event's particles, 0 for an empty one. (P, D) -> (E, D)."""
    if not torch.compiler.is_exporting():
        return pool(values_PD, segments, ("mean",))
    # In ONNX a pool becomes a loop over events. This sum is not the same each time on a GPU.
    sums_ED = values_PD.new_zeros(segments.num_events, values_PD.shape[1]).index_add(0, segments.event_P, values_PD)
    return sums_ED / segments.counts_E.clamp_min(1).unsqueeze(1)
