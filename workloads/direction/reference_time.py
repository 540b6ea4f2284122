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
    segments = Segments.from_offsets(offsets_E1, time_P.shape[0])
    return segment_medians(time_P, trusted_pulses(clean_P, segments), segments)


def trusted_pulses(clean_P: Tensor, segments: Segments) -> Tensor:
    """True for the clean pulses of each event; for all its pulses if none is clean. (P,) bool -> (P,) bool."""
    has_clean_E1 = segment_sum(clean_P.to(torch.float32), segments).unsqueeze(1) > 0
    return clean_P | ~spread(has_clean_E1, segments).squeeze(1)


def segment_medians(values_P: Tensor, used_P: Tensor, segments: Segments) -> Tensor:
    """Median of the used values of each event, the lower one of the two in the middle; 0 if it has none. -> (E,)."""
    if segments.num_particles == 0:
        return values_P.new_zeros(segments.num_events)
    sorted_P = sort_within_events(values_P.masked_fill(~used_P, torch.inf), segments)  # those not used come last
    num_used_E = segment_sum(used_P.to(torch.float32), segments).long()
    middle_E = segments.starts_E + (num_used_E - 1).clamp_min(0) // 2
    median_E = values_P[sorted_P[middle_E.clamp_max(segments.num_particles - 1)]]
    return median_E.masked_fill(num_used_E == 0, 0)
