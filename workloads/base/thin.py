"""Thinning of events with very many particles. Pure.

A random subset of an event's particles is an unbiased sample of them, and bounds the cost of one event. The original
number is kept beside it: some networks learn it or have it as an input.

Shape suffixes: E events, P particles, Q particles that are kept.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base.batch import Microbatch
from workloads.base.segments import Segments, sort_within_events

COUNT = "count_before_thinning"
"""Event column, (E, 1) int64: particles that each event had."""


def thinned(events: Microbatch, most: int, random: torch.Generator) -> Microbatch:
    """Events with at most ``most`` particles each, chosen at random from larger ones; 0: all."""
    counts = np.diff(events.host_offsets_E1)
    if most == 0 or not len(counts) or counts.max() <= most:
        return events
    host_offsets_E1 = np.concatenate([[0], np.cumsum(np.minimum(counts, most))])
    num_particles = int(host_offsets_E1[-1])
    # Computed again on the device: a copy from the host would make it wait.
    sizes_E = events.offsets_E1.diff()
    kept_E = sizes_E.clamp_max(most)
    offsets_E1 = F.pad(kept_E.cumsum(0), (1, 0))
    chosen_Q = _chosen(events, Segments.from_counts(kept_E, num_particles), random)
    return replace(
        events,
        offsets_E1=offsets_E1,
        host_offsets_E1=host_offsets_E1,
        event_columns=events.event_columns | {COUNT: sizes_E.unsqueeze(1)},
        particle_columns={name: column[chosen_Q] for name, column in events.particle_columns.items()},
        num_particles=num_particles,
    )


def _chosen(events: Microbatch, kept: Segments, random: torch.Generator) -> Tensor:
    """Particles that are kept, in order: the first of each event in a random order of its own. -> (Q,) int64."""
    whole = Segments.from_offsets(events.offsets_E1, events.num_particles)
    key_P = torch.rand(events.num_particles, device=events.offsets_E1.device, generator=random)
    shift_E = whole.starts_E - kept.starts_E
    place_Q = torch.arange(kept.num_particles, device=key_P.device) + shift_E.index_select(0, kept.event_P)
    return sort_within_events(key_P, whole).index_select(0, place_Q).sort().values


def counts_of(events: Microbatch) -> Tensor:
    """Particles of each event before it was thinned, (E,) int64."""
    if COUNT in events.event_columns:
        return events.event_columns[COUNT].squeeze(1)
    return events.offsets_E1.diff()
