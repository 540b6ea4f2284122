"""Sample of events for the gradient penalty: consecutive ones, since the stream is shuffled. Pure."""

from __future__ import annotations

import math

import numpy as np

from workloads.base.batch import Microbatch
from workloads.base.random_streams import stream_seed
from workloads.muons.purposes import MuonPurpose


def penalised_events(events: Microbatch, *, fraction: float, max_particles: float, update: int) -> tuple[int, int]:
    """First and last (exclusive) event: about ``fraction`` of them, with at most ``max_particles`` (0: any number).

    The position is random for each ``update``. Empty if the event there alone has more particles.
    """
    wanted = math.ceil(events.num_events * fraction)
    if 0 < max_particles < events.num_particles:
        wanted = min(wanted, max(1, math.floor(events.num_events * max_particles / events.num_particles)))
    if wanted >= events.num_events:
        return 0, events.num_events
    places = math.ceil(events.num_events / wanted)
    first = wanted * (stream_seed(MuonPurpose.PENALTY, events.unit, events.index, update) % places)
    last = min(first + wanted, events.num_events)
    if max_particles > 0:
        offsets = events.host_offsets_E1
        last = min(last, int(np.searchsorted(offsets, offsets[first] + max_particles, side="right")) - 1)
    return first, last
