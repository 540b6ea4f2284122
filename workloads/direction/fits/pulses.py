"""Pulses that the likelihood fits use, padded: the clean ones, and auxiliary ones that may be of the same light.

E events, P pulses; of a batch: B events, L places for pulses, a multiple of 8 that depends on the event alone, so
that an event's fits don't depend on the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from workloads.base.segments import Segments, segment_sum, sort_within_events
from workloads.direction.reference_time import trusted_pulses

MOST_PULSES = 96
"""Pulses of an event that the fits use, at most."""

NEAR_M, NEAR_NS, FARTHEST = 150.0, 1000.0, 1.5
"""An auxiliary pulse is used if it is nearer than FARTHEST to a clean one, in these units of space and time."""

LEAST_CHARGE_PE = 0.01

_PLACES = 8
_BATCH_PLACES = 1 << 15
"""Places of a batch, about: its tensors stay in the processor's cache."""
_PAIRS = 1 << 17
"""Pairs of pulses whose distances are taken at once."""


class EventPulses(NamedTuple):
    """Pulses of events, in any order inside an event."""

    position_P3: Tensor
    """m."""
    time_P: Tensor
    """ns, relative to the event's reference time."""
    charge_P: Tensor
    """Photo-electrons."""
    clean_P: Tensor
    """True for pulses that are not auxiliary."""
    segments: Segments

    def of(self, kept_P: Tensor) -> EventPulses:
        """Pulses where ``kept`` (P,) bool, of the same events."""
        num_kept = int(kept_P.sum())
        counts_E = segment_sum(kept_P.to(torch.float32), self.segments).long()
        return EventPulses(
            self.position_P3[kept_P],
            self.time_P[kept_P],
            self.charge_P[kept_P],
            self.clean_P[kept_P],
            Segments.from_counts(counts_E, num_kept),
        )


class PaddedPulses(NamedTuple):
    """Pulses of a batch of events; empty places are 0."""

    event_B: Tensor
    """Rows of the events among all, int64."""
    position_B3L: Tensor
    time_BL: Tensor
    charge_BL: Tensor
    """Photo-electrons of clean pulses, LEAST_CHARGE_PE at least; 0 for others."""
    present_BL: Tensor
    """1 for a pulse, 0 for an empty place."""

    def repeated(self, times: int) -> PaddedPulses:
        """``times`` copies of the batch, one behind the other."""
        return PaddedPulses(*(values.repeat(times, *[1] * (values.dim() - 1)) for values in self))


def used_pulses(pulses: EventPulses) -> EventPulses:
    """Pulses that the fits use, at most MOST_PULSES of an event.

    Clean ones first (all, if none is clean), of too many the earliest; then the auxiliary ones nearest to them in space
    and time. Cost: the auxiliary pulses times MOST_PULSES at most, however many clean ones there are.
    """
    clean_P = trusted_pulses(pulses.clean_P, pulses.segments)
    pulses = pulses._replace(clean_P=clean_P)
    clean = pulses.of(clean_P)
    kept_P = clean_P.clone()
    kept_P[clean_P] = _first_of_events(clean.time_P, clean.segments)
    anchors = pulses.of(kept_P)
    distance_P = torch.where(kept_P, -1.0, torch.inf)
    free_E = anchors.segments.counts_E < MOST_PULSES
    candidates_P = (~clean_P & free_E[pulses.segments.event_P]).nonzero().squeeze(1)
    distance_P[candidates_P] = _distances(pulses, candidates_P, anchors)
    near_P = distance_P < FARTHEST
    near = pulses.of(near_P)
    near_P[near_P.clone()] = _first_of_events(distance_P[near_P], near.segments)
    return pulses.of(near_P)


def padded_batches(pulses: EventPulses) -> Iterator[PaddedPulses]:
    """Batches of events with as many places; events without pulses are in none."""
    places_E = (pulses.segments.counts_E + _PLACES - 1) // _PLACES * _PLACES
    for places in places_E.unique().tolist():
        if places:
            events = (places_E == places).nonzero().squeeze(1)
            for event_B in events.split(max(_BATCH_PLACES // places, 1)):
                yield _padded(pulses, event_B, places)


def _padded(pulses: EventPulses, event_B: Tensor, places: int) -> PaddedPulses:
    place_L = torch.arange(places)
    present_BL = place_L < pulses.segments.counts_E[event_B].unsqueeze(1)
    pulse_BL = (pulses.segments.starts_E[event_B].unsqueeze(1) + place_L).masked_fill(~present_BL, 0)
    present = present_BL.float()
    position_B3L = (pulses.position_P3[pulse_BL] * present.unsqueeze(2)).transpose(1, 2).contiguous()
    charge_BL = pulses.charge_P[pulse_BL].clamp_min(LEAST_CHARGE_PE) * pulses.clean_P[pulse_BL] * present
    return PaddedPulses(event_B, position_B3L, pulses.time_P[pulse_BL] * present, charge_BL, present)


def _first_of_events(key_P: Tensor, segments: Segments) -> Tensor:
    """True for the MOST_PULSES pulses of each event with the smallest keys; the first ones of equals. -> (P,) bool."""
    kept_P = torch.empty_like(key_P, dtype=torch.bool)
    rank_P = torch.arange(len(key_P)) - segments.starts_E[segments.event_P]
    kept_P[sort_within_events(key_P, segments)] = rank_P < MOST_PULSES
    return kept_P


def _distances(pulses: EventPulses, candidates_C: Tensor, anchors: EventPulses) -> Tensor:
    """Distance in space and time from each candidate to the nearest anchor of its event; infinite without. -> (C,)."""
    scale_4 = torch.tensor([NEAR_M, NEAR_M, NEAR_M, NEAR_NS])
    point_C4 = torch.cat([pulses.position_P3, pulses.time_P.unsqueeze(1)], 1)[candidates_C] / scale_4
    event_C = pulses.segments.event_P[candidates_C]
    square_C = torch.full((len(candidates_C),), torch.inf)
    row_E = torch.full((anchors.segments.num_events,), -1)
    for batch in padded_batches(anchors):
        row_E.fill_(-1)
        row_E[batch.event_B] = torch.arange(len(batch.event_B))
        anchor_B4L = torch.cat([batch.position_B3L, batch.time_BL.unsqueeze(1)], 1) / scale_4.unsqueeze(1)
        anchor_B4L.masked_fill_(batch.present_BL.unsqueeze(1) == 0, torch.inf)
        here = (row_E[event_C] >= 0).nonzero().squeeze(1)
        for some in here.split(max(_PAIRS // anchor_B4L.shape[2], 1)):
            apart_N4L = anchor_B4L[row_E[event_C[some]]] - point_C4[some].unsqueeze(2)
            square_C[some] = apart_N4L.square().sum(1).amin(1)
    return square_C.sqrt()
