"""Batches of simulated events, made in memory: real counts, from no muon to hundreds in an event."""

from __future__ import annotations

import numpy as np
import torch

from workloads.base.batch import Batch, Microbatch
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.muons import sample_primaries, simulate


def simulated(num_events: int, seed: int = 1) -> Microbatch:
    """Events of the simulator's `bench` preset, in one microbatch, on the host."""
    config, rng = preset("bench"), np.random.default_rng(seed)
    bundles = simulate(sample_primaries(num_events, config, rng), config, rng)
    offsets = np.concatenate([[0], np.cumsum(bundles.counts_E)])
    return Microbatch(
        epoch=0,
        unit=0,
        index=0,
        offsets_E1=torch.from_numpy(offsets),
        host_offsets_E1=offsets,
        event_columns={"primary": torch.from_numpy(bundles.primary_E4)},
        particle_columns={"muons": torch.from_numpy(bundles.muons_P3)},
        num_events=num_events,
        num_particles=int(offsets[-1]),
    )


def batch_of(events: Microbatch, num_events: int, device: torch.device) -> Batch:
    """Batch of the first ``num_events``, on the device, in one microbatch."""
    return Batch((events.part(0, num_events).to(device),))


def as_fed(batch: Batch, max_particles: int) -> Batch:
    """The same batch in microbatches of at most ``max_particles``, as the trainer gets it from the stream.

    Their tensors are separate, as those of separate copies are.
    """
    (whole,) = batch.microbatches
    return Batch(tuple(_copied(part) for part in whole.chunks(max_particles)))


def _copied(part: Microbatch) -> Microbatch:
    return Microbatch(
        epoch=part.epoch,
        unit=part.unit,
        index=part.index,
        offsets_E1=part.offsets_E1.clone(),
        host_offsets_E1=part.host_offsets_E1,
        event_columns={name: column.clone() for name, column in part.event_columns.items()},
        particle_columns={name: column.clone() for name, column in part.particle_columns.items()},
        num_events=part.num_events,
        num_particles=part.num_particles,
    )
