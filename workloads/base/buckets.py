"""Parts of a batch padded to few sizes, so that what is made for a size once serves many batches. Pure.

Shape suffixes: E events, P particles.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from workloads.base.batch import Microbatch

_STEPS_OF_OCTAVE = 8


def bucket(size: int) -> int:
    """Smallest of the sizes 0 to 16, 18, 20 … 32, 36 … that is not below ``size``: less than 1/8 above it."""
    step = 1 << max((size - 1).bit_length() - _STEPS_OF_OCTAVE.bit_length(), 0)
    return -(-size // step) * step


def padded(events: Microbatch) -> Microbatch:
    """Events with others behind them, which must not count: one at least. No host sync.

    Their particles, as evenly distributed as possible, and their columns are copies of the first ones.
    """
    more_events = bucket(events.num_events + 1) - events.num_events
    more_particles = bucket(events.num_particles) - events.num_particles
    number_M = torch.arange(1, more_events + 1, device=events.offsets_E1.device)
    ends_M = events.num_particles + torch.div(number_M * more_particles, more_events, rounding_mode="floor")
    host_ends_M = events.num_particles + np.arange(1, more_events + 1) * more_particles // more_events
    return replace(
        events,
        offsets_E1=torch.cat([events.offsets_E1, ends_M]),
        host_offsets_E1=np.concatenate([events.host_offsets_E1, host_ends_M]),
        event_columns={name: _longer(column, more_events) for name, column in events.event_columns.items()},
        particle_columns={name: _longer(column, more_particles) for name, column in events.particle_columns.items()},
        num_events=events.num_events + more_events,
        num_particles=events.num_particles + more_particles,
    )


def _longer(column: Tensor, more: int) -> Tensor:
    return torch.cat([column, column[:1].expand(more, *column.shape[1:])])
