"""Thinning of events with very many particles. Pure.

A random subset of an event's particles is an unbiased sample of them, and bounds the cost of one event. The original
number is kept beside it: some networks learn it or have it as an input.

Shape suffixes: E events, P particles.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base.batch import Microbatch

COUNT = "count_before_thinning"
"""Event column, (E, 1) int64: particles that each event had."""


def thinned(events: Microbatch, most: int, random: torch.Generator) -> Microbatch:
    """Events with at most ``most`` particles each, chosen at random from larger ones; 0: all."""
    counts = np.diff(events.host_offsets_E1)
    if most == 0 or not len(counts) or counts.max() <= most:
        return events
    kept = np.minimum(counts, most)
    host_offsets_E1 = np.concatenate([[0], np.cumsum(kept)])
    chosen_P = _chosen(events, counts, most, random)
    sizes_E = events.offsets_E1.diff()
    return replace(
        events,
        # Computed again on the device: a copy from the host would make it wait.
        offsets_E1=F.pad(sizes_E.clamp_max(most).cumsum(0), (1, 0)),
        host_offsets_E1=host_offsets_E1,
        event_columns=events.event_columns | {COUNT: sizes_E.unsqueeze(1)},
        particle_columns={name: column[chosen_P] for name, column in events.particle_columns.items()},
        num_particles=int(host_offsets_E1[-1]),
    )


def _chosen(events: Microbatch, counts: np.ndarray, most: int, random: torch.Generator) -> Tensor:
    """Particles that are kept, in order. Loops over the few large events only, without a sort of all particles."""
    device = events.offsets_E1.device
    pieces, done = [], 0
    for event in np.flatnonzero(counts > most).tolist():
        first, last = (int(events.host_offsets_E1[place]) for place in (event, event + 1))
        pieces.append(torch.arange(done, first, device=device))
        order = torch.randperm(last - first, device=device, generator=random)[:most]
        pieces.append(first + order.sort().values)
        done = last
    pieces.append(torch.arange(done, events.num_particles, device=device))
    return torch.cat(pieces)


def counts_of(events: Microbatch) -> Tensor:
    """Particles of each event before it was thinned, (E,) int64."""
    if COUNT in events.event_columns:
        return events.event_columns[COUNT].squeeze(1)
    return events.offsets_E1.diff()
