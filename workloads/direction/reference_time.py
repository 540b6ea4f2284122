"""Reference time of an event, the zero of its other times: one definition for the classical fits and the models.

E events, P pulses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.base.segments import Segments, segment_sum, sort_within_events, spread


def reference_times(time_P: Tensor, clean_P: Tensor, offsets_E1: Tensor) -> Tensor:
    """Median time of each event's clean pulses; of all its pulses if none is clean; 0 if it has none. -> (E,).

    Of an even number the lower of the two in the middle, so that the result is the time of a pulse.
    ``time_P``: float, ns; ``clean_P``: bool, not auxiliary; ``offsets_E1``: int64, event e owns the pulses
    offsets[e] to offsets[e + 1], in any order. No synchronisation with the device.
    """
    num_pulses = time_P.shape[0]
    segments = Segments.from_offsets(offsets_E1, num_pulses)
    if num_pulses == 0:
        return time_P.new_zeros(segments.num_events)
    num_clean_E = segment_sum(clean_P.to(torch.float32), segments).long()
    has_clean_E = num_clean_E > 0
    used_P = clean_P | ~spread(has_clean_E.unsqueeze(1), segments).squeeze(1)
    by_time_P = sort_within_events(time_P.masked_fill(~used_P, torch.inf), segments)  # those not used come last
    num_used_E = torch.where(has_clean_E, num_clean_E, segments.counts_E)
    middle_E = (segments.starts_E + (num_used_E - 1).clamp_min(0) // 2).clamp_max(num_pulses - 1)
    return time_P[by_time_P[middle_E]].masked_fill(segments.counts_E == 0, 0)
