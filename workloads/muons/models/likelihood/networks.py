"""Networks of the likelihood model, and their losses for a part of a microbatch.

Shape suffixes: E events, P particles, F features, K known numbers, Z latent; G events with muons.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from workloads.base.averaged import AveragedWeights
from workloads.base.batch import Microbatch
from workloads.base.context import StepContext
from workloads.base.segments import Segments, sort_within_events
from workloads.base.thin import counts_of
from workloads.muons.models.count_head import AVERAGE_DECAY, CONDITION_LIMIT, MixtureCountHead
from workloads.muons.models.likelihood.config import LikelihoodConfig
from workloads.muons.models.likelihood.model import Bound, MuonDensities
from workloads.muons.models.standardise import Standardise

_NOISE = "latent_noise"
_ORDER = "coupling_order"


class PresentEvents(NamedTuple):
    """Events with muons of a part of a microbatch, as input of the densities.

    With a coupling, the muons of an event are in random order.
    """

    known_GK: Tensor
    segments: Segments
    features_PF: Tensor
    noise_GZ: Tensor


class HeldOut(NamedTuple):
    """Negative log likelihood of events outside the training in nats, sums, ()."""

    counts: Tensor
    muons: Tensor
    """Upper bound: muons and what they share. A density in lg(E / GeV) and in x and y in metres."""


class LikelihoodNetworks:
    """Standardisation, count head, densities, and the running means of the last two."""

    def __init__(self, config: LikelihoodConfig, context: StepContext) -> None:
        self.config = config
        self.device = device = context.device
        with context.initial_weights():
            self.standardise = Standardise(config.network, config.network.energy_cut_gev).to(device)
            self.count_head = MixtureCountHead(config.network).to(device)
            self.muons = MuonDensities(self.standardise.num_features, config.network).to(device)
        self.averaged = AveragedWeights(self.muons, config.average_decay)
        self.averaged_count_head = AveragedWeights(self.count_head, AVERAGE_DECAY)

    def modules(self) -> dict[str, nn.Module]:
        """Modules by their name in a checkpoint."""
        return {
            "standardise": self.standardise,
            "count_head": self.count_head,
            "count_head_average": self.averaged_count_head.average,
            "muons": self.muons,
            "muons_average": self.averaged.average,
        }

    def with_noise(self, source: Microbatch, random: torch.Generator) -> Microbatch:
        """Microbatch with the noise of z, and the coupling's, in additional columns: the same wherever it is cut."""
        noise_EZ = torch.randn(source.num_events, self.muons.latent, device=self.device, generator=random)
        noisy = replace(source, event_columns=source.event_columns | {_NOISE: noise_EZ})
        if not self.config.network.coupling:
            return noisy
        order_P = torch.rand(source.num_particles, device=self.device, generator=random)
        return replace(noisy, particle_columns=source.particle_columns | {_ORDER: order_P})

    def present(self, source: Microbatch) -> PresentEvents:
        """Events with muons, in order. No host sync: their number is known on the host."""
        counts_E, sizes_E = source.offsets_E1.diff(), counts_of(source)
        # Events with muons first: a stable sort, since a mask would wait for the device.
        rows_G = (counts_E == 0).sort(stable=True).indices[: source.num_present]
        primary_E4 = source.event_columns["primary"]
        segments = Segments.from_counts(counts_E[rows_G], source.num_particles, sizes_E[rows_G])
        features_PF = self.standardise.features(source.particle_columns["muons"])
        if self.config.network.coupling:
            features_PF = features_PF[sort_within_events(source.particle_columns[_ORDER], segments)]
        return PresentEvents(
            known(self.standardise, primary_E4[rows_G], sizes_E[rows_G]),
            segments,
            features_PF,
            source.event_columns[_NOISE][rows_G],
        )

    def weighted_bound(self, source: Microbatch) -> tuple[Tensor, Tensor]:
        """Sum over events of N^muon_weight / n × bound in nats, and sum of the price of z. -> (), ().

        n of an event's N muons are seen: its weight is that of all of them.
        """
        events = self.present(source)
        bound = self._bound(self.muons, events)
        weight_G = events.segments.sizes_E**self.config.muon_weight / events.segments.counts_E
        return ((bound.muons_E + bound.shared_E) * weight_G).sum(), bound.shared_E.detach().sum()

    def total_weight(self, source: Microbatch) -> Tensor:
        """Sum of N ** muon_weight over the events with muons. -> () float64. No host sync."""
        sizes_E = counts_of(source).double()
        return torch.where(sizes_E > 0, sizes_E**self.config.muon_weight, 0.0).sum()

    def count_loss(self, source: Microbatch) -> Tensor:
        """Loss of the count head, summed over events."""
        return self._count_loss(self.count_head, source)

    def held_out(self, source: Microbatch) -> HeldOut:
        """Negative log likelihood of the weights for generation, of events that are not thinned."""
        counts = self._count_loss(self.averaged_count_head.used, source)
        if source.num_particles == 0:
            return HeldOut(counts, torch.zeros_like(counts))
        events = self.present(source)
        bound = self._bound(self.averaged.used, events)
        scale_P = self.standardise.log_scale(source.particle_columns["muons"])
        return HeldOut(counts, (bound.muons_E + bound.shared_E).sum() - scale_P.sum())

    def _bound(self, muons: MuonDensities, events: PresentEvents) -> Bound:
        return muons.bound(events.features_PF, events.known_GK, events.segments, events.noise_GZ)

    def _count_loss(self, head: MixtureCountHead, source: Microbatch) -> Tensor:
        loss: Tensor = head.loss(self.standardise.conditions(source.event_columns["primary"]), counts_of(source))
        return loss


def known(standardise: Standardise, primary_E4: Tensor, sizes_E: Tensor) -> Tensor:
    """Known numbers of events: bounded conditions and ln(1 + N) / 2. (E, 4), (E,) int64 -> (E, K)."""
    conditions_EC = standardise.conditions(primary_E4).clamp(-CONDITION_LIMIT, CONDITION_LIMIT)
    return torch.cat([conditions_EC, sizes_E.to(conditions_EC.dtype).log1p().unsqueeze(1) / 2], 1)
