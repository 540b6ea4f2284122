"""Toy events for the steps of the muon models: negative binomial counts, lognormal energies and radii."""

from __future__ import annotations

import torch
from torch import Tensor

from workloads.base.batch import Batch, Microbatch


def make_microbatch(primary: Tensor, counts: Tensor, muons: Tensor) -> Microbatch:
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64, device=counts.device), counts.cumsum(0)])
    return Microbatch(
        epoch=0,
        unit=0,
        index=0,
        offsets_E1=offsets,
        host_offsets_E1=offsets.cpu().numpy(),
        event_columns={"primary": primary},
        particle_columns={"muons": muons},
        num_events=len(counts),
        num_particles=len(muons),
    )


def toy_microbatch(num_events: int, seed: int, counts: list[int] | None = None) -> Microbatch:
    """Events whose mean count and muon energy rise with the energy of the primary."""
    rng = torch.Generator().manual_seed(seed)
    lg_energy = 5 + 2 * torch.rand(num_events, generator=rng)
    primary = torch.stack(
        [
            10**lg_energy,
            torch.rand(num_events, generator=rng),
            torch.tensor([1.0, 56.0])[torch.randint(2, (num_events,), generator=rng)],
            1500 + 500 * torch.rand(num_events, generator=rng),
        ],
        1,
    )
    if counts is None:
        shape = 3
        gamma = -torch.rand(num_events, shape, generator=rng).log().sum(1) / shape
        counts_E = torch.poisson(10 ** (lg_energy - 5.8) * gamma, generator=rng).long()
    else:
        counts_E = torch.tensor(counts)
    total = int(counts_E.sum())
    lg_primary = lg_energy.repeat_interleave(counts_E)
    energy = 10 ** (lg_primary / 3 + 0.4 * torch.randn(total, generator=rng))
    radius = 10 ** (1 + 0.3 * torch.randn(total, generator=rng))
    azimuth = 6.2832 * torch.rand(total, generator=rng)
    muons = torch.stack([energy, radius * azimuth.cos(), radius * azimuth.sin()], 1)
    return make_microbatch(primary, counts_E, muons)


def toy_batch(num_events: int = 32, seed: int = 0, counts: list[int] | None = None) -> Batch:
    return Batch((toy_microbatch(num_events, seed, counts),))


def on(device: torch.device, batch: Batch) -> Batch:
    """The same events there."""
    return batch.with_microbatches(tuple(part.to(device) for part in batch.microbatches))


def split(batch: Batch, sizes: list[int]) -> Batch:
    """The same events in microbatches of ``sizes`` events."""
    (whole,) = batch.microbatches
    counts = whole.offsets_E1.diff().split(sizes)
    primaries = whole.event_columns["primary"].split(sizes)
    muons = whole.particle_columns["muons"].split([int(part.sum()) for part in counts])
    return Batch(tuple(make_microbatch(*parts) for parts in zip(primaries, counts, muons, strict=True)))
