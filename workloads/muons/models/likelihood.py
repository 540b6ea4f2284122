"""Training of the likelihood model: one update of the densities, one of the count head in a step.

Shape suffixes: E events, P particles, Q particles that are kept, F features, K known numbers, Z latent; G events with
muons.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

from common.errors import BadInputError
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import Noise, StepContext
from workloads.base.optimiser import AveragedWeights, PartGradients, uncompiled
from workloads.base.random_streams import SharedPurpose
from workloads.base.segments import Segments, sort_within_events
from workloads.base.step import BaseTask
from workloads.base.training import Evaluation, ModelTraining
from workloads.muons.models.config import LikelihoodConfig
from workloads.muons.models.count_head import AVERAGE_DECAY as COUNT_AVERAGE_DECAY
from workloads.muons.models.count_head import MixtureCountHead
from workloads.muons.models.likelihood_densities import MuonDensities, MuonSampler, known
from workloads.muons.models.panel import SCORE, Bundles, MuonPanel
from workloads.muons.models.standardise import Standardise, fit_standardise

BETAS = (0.9, 0.99)
"""Decay of Adam's means of the gradient and of its square, for both networks."""
_PARTICLE_FLOATS = 18
"""Memory of an update for each muon in float32 numbers, by the width of the layers: measured on a CPU."""
AVERAGE_DECAY = 0.998
"""Decay per step of the running mean of the densities' weights, from which events are generated."""
MUON_WEIGHT = 0.75
"""Exponent of an event's weight N^x in the loss, for N muons: at 0, the mean over events, single muons of large events
are not learned, at 1, the mean over muons, the largest events are nearly all of a batch."""
_NOISE = "latent_noise"

COUNT = "count_before_thinning"
"""Event column, (E, 1) int64: particles that each event had."""


def thinned(events: Microbatch, most: int, random: torch.Generator) -> Microbatch:
    """Return events with at most ``most`` particles each, chosen at random from larger ones.

    A random subset of an event's particles is an unbiased sample of them, and bounds the cost of one event. The
    original number is kept beside it: the networks have it as an input, and the count head learns it.
    """
    counts = np.diff(events.host_offsets_E1)
    if not len(counts) or counts.max() <= most:
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


class PresentEvents(NamedTuple):
    """Events with muons of a part of a microbatch, as input of the densities."""

    known_GK: Tensor
    segments: Segments
    features_PF: Tensor
    noise_GZ: Tensor


class LikelihoodNetworks:
    """Standardisation, count head, densities, and the running means of the last two."""

    def __init__(self, config: LikelihoodConfig, context: StepContext) -> None:
        self.config = config
        self.device = device = context.device
        self._precision = context.precision
        with context.initial_weights():
            self.standardise = Standardise(config.network).to(device)
            self.count_head = MixtureCountHead(config.network).to(device)
            self.muons = MuonDensities(self.standardise.num_features, config.network).to(device)
        self.averaged = AveragedWeights(self.muons, AVERAGE_DECAY)
        self.averaged_count_head = AveragedWeights(self.count_head, COUNT_AVERAGE_DECAY)

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
        """Microbatch with the noise of z in an additional column: the same wherever it is cut."""
        noise_EZ = torch.randn(source.num_events, self.muons.latent, device=self.device, generator=random)
        return replace(source, event_columns=source.event_columns | {_NOISE: noise_EZ})

    def present(self, source: Microbatch) -> PresentEvents:
        """Events with muons, in order. No host sync: their number is known on the host."""
        counts_E, sizes_E = source.offsets_E1.diff(), counts_of(source)
        # Events with muons first: a stable sort, since a mask would wait for the device.
        rows_G = (counts_E == 0).sort(stable=True).indices[: source.num_present]
        primary_E4 = source.event_columns["primary"]
        segments = Segments.from_counts(counts_E[rows_G], source.num_particles, sizes_E[rows_G])
        return PresentEvents(
            known(self.standardise, self.averaged_count_head.average, primary_E4[rows_G], sizes_E[rows_G]),
            segments,
            self.standardise.features(source.particle_columns["muons"]),
            source.event_columns[_NOISE][rows_G],
        )

    def weighted_bound(self, source: Microbatch) -> tuple[Tensor, Tensor]:
        """Sum over events of N^MUON_WEIGHT / n × bound in nats, and sum of the price of z. -> (), ().

        n of an event's N muons are seen: its weight is that of all of them.
        """
        events = self.present(source)
        with self._precision():
            bound = self.muons.bound(events.features_PF, events.known_GK, events.segments, events.noise_GZ)
        weight_G = events.segments.sizes_E**MUON_WEIGHT / events.segments.counts_E
        return ((bound.muons_E + bound.shared_E) * weight_G).sum(), bound.shared_E.detach().sum()

    def total_weight(self, source: Microbatch) -> Tensor:
        """Sum of N ** MUON_WEIGHT over the events with muons. -> () float64. No host sync."""
        sizes_E = counts_of(source).double()
        return torch.where(sizes_E > 0, sizes_E**MUON_WEIGHT, 0.0).sum()

    def count_loss(self, source: Microbatch, head: MixtureCountHead | None = None) -> Tensor:
        """Loss of the count head, by default the trained weights, summed over events."""
        conditions_EC = self.standardise.conditions(source.event_columns["primary"])
        return (head or self.count_head).loss(conditions_EC, counts_of(source))

    def held_out(self, source: Microbatch) -> tuple[Tensor, Tensor]:
        """Negative log likelihood of counts and of muons in nats, sums over events that are not thinned. -> (), ().

        Of the weights for generation. The second is an upper bound: muons and what they share.
        """
        counts = self.count_loss(source, self.averaged_count_head.average)
        if source.num_particles == 0:
            return counts, torch.zeros_like(counts)
        events = self.present(source)
        bound = self.averaged.average.bound(events.features_PF, events.known_GK, events.segments, events.noise_GZ)
        scale_P = self.standardise.log_scale(source.particle_columns["muons"])
        return counts, (bound.muons_E + bound.shared_E).sum() - scale_P.sum()


class LikelihoodTask(BaseTask[LikelihoodConfig, Microbatch]):
    """Task of count head and densities.

    Metrics of a step: muon_nll is the bound of the muons' negative log likelihood in nats, in standardised features, a
    mean over muons but for the weights of the events; kl the mean price of z in nats an event; m_loss the count head's
    loss per event; below_cut the share of muons below the energy cut; skipped_updates the number of updates that were
    skipped because a loss or gradient was not finite, or beyond the limits.

    A batch without muons trains only the count head, one without events nothing.
    """

    SECTION = "trainer.likelihood"
    METRICS = ("muon_nll", "kl", "m_loss", "below_cut", "muons_grad_norm", "count_grad_norm", "skipped_updates")
    RECIPE = ("schedule_steps", "likelihood_lr")

    def __init__(self, config: LikelihoodConfig, context: StepContext) -> None:
        self.networks = networks = LikelihoodNetworks(config, context)
        adam = uncompiled(Adam)
        count_adam = adam(networks.count_head.parameters(), 2 * config.likelihood_lr, betas=BETAS, fused=True)
        muons_adam = adam(networks.muons.parameters(), config.likelihood_lr, betas=BETAS, fused=True)
        optimisers = {"count": (networks.count_head, count_adam), "muons": (networks.muons, muons_adam)}
        particle_bytes = _PARTICLE_FLOATS * 4 * config.network.hidden
        super().__init__(config, context, networks.modules(), optimisers, particle_bytes=particle_bytes)

    @property
    def is_fitted(self) -> bool:
        """True once events can be generated: after a training batch with two muons."""
        return self.networks.standardise.is_fitted

    # ---- The step.

    def observe(self, batch: Batch) -> bool:
        """Fit the standardisation if that can be done now; True if something was fitted.

        Raises BadInputError if a muon of a new run's first batch with muons is below the energy cut.
        """
        cut_gev, is_first = self.config.network.energy_cut_gev, self.steps == 0 or not self.is_fitted
        for part in batch.microbatches if is_first else ():
            if part.num_particles == 0:
                continue
            lowest_gev = float(part.particle_columns["muons"][:, 0].min())
            if lowest_gev < np.float32(cut_gev):  # as the energies are stored
                raise BadInputError(
                    f"{self.SECTION}.network.energy_cut_gev = {cut_gev:g}, but the first batch has a muon of"
                    f" {lowest_gev:.9g} GeV: set it to the lowest energy that the simulation recorded, or to 0"
                )
        return fit_standardise(self.networks.standardise, batch, self.context)

    def prepare(self, microbatch: Microbatch, random: torch.Generator) -> Microbatch:
        """Thinned microbatch with the noise of z."""
        return self.networks.with_noise(thinned(microbatch, self.config.max_muons, random), random)

    def train(self, batch: Batch, parts: list[Microbatch], metrics: dict[str, Tensor]) -> None:
        """Update densities and count head, in this order."""
        networks = self.networks
        if batch.total_particles > 0 and networks.standardise.has_features:
            self._update_muons([part for part in parts if part.num_particles > 0], metrics)
            networks.averaged.update(self.steps + 1)
        if batch.total_events > 0:
            metrics["m_loss"] = self.update_by_loss("count", networks.count_loss, parts, batch.total_events, metrics)
            networks.averaged_count_head.update(self.steps + 1)

    def _update_muons(self, parts: list[Microbatch], metrics: dict[str, Tensor]) -> None:
        networks, optimiser = self.networks, self.optimisers["muons"]
        # Not copied from a tensor of the host, for which the host would wait.
        sums = sum(part.num_present for part in parts), sum(part.num_particles for part in parts)
        counted = [torch.full((), float(one), device=self.device) for one in sums]
        totals = torch.stack([sum(map(networks.total_weight, parts), self.zero).float(), *counted])
        self.context.sum_over_ranks([totals])
        weight, num_present, num_muons = totals.clamp_min(1)

        def gradients(part: Microbatch) -> PartGradients:
            bound, price = networks.weighted_bound(part)
            loss = bound / weight
            # Their features are those of the cut.
            below = (part.particle_columns["muons"][:, 0] < networks.standardise.energy_cut_gev).sum()
            sums = torch.stack([loss.detach(), price / num_present, below / num_muons])
            return PartGradients(optimiser.gradients(loss), sums)

        updated, _ = self.update("muons", lambda parts: self.pool.map(gradients, parts), parts, metrics, num_sums=3)
        metrics["muon_nll"], metrics["kl"], metrics["below_cut"] = updated.sums

    # ---- Use without training.

    @torch.no_grad()
    def held_out(self, batch: Batch) -> dict[str, Tensor]:
        """Metrics nll and m_loss on events outside the training, of the weights for generation, in nats per event.

        nll is a bound of -ln p(N, muons | primary), a density in lg(E / GeV) and in x and y in metres: it can be
        compared between runs. Of all muons: a bound for a subset is none for the event. The same noise at each call.
        Raises RuntimeError before the first batch with muons.
        """
        networks = self.networks
        networks.standardise.require_fit()
        counts = muons = self.zero
        noise = Noise(SharedPurpose.HELD_OUT_NOISE, 0, self.device)
        for microbatch in batch.microbatches:  # one at a time: of a large block, each comes to the device alone
            for part in self.parts(Batch((microbatch,)), noise, networks.with_noise):
                of_counts, of_muons = networks.held_out(part)
                counts, muons = counts + of_counts / batch.num_events, muons + of_muons / batch.num_events
        return {"nll": counts + muons, "m_loss": counts}

    @torch.no_grad()
    def generate(self, primary_E4: Tensor) -> Bundles:
        """Events, one for each primary. (E, 4) = [energy_gev, zenith_rad, mass_a, depth_m].

        See MuonSampler.bundles. Raises RuntimeError before the first batch with muons.
        """
        return self.sampler().bundles(primary_E4)

    def sampler(self) -> MuonSampler:
        """Sampler with the present weights. Raises RuntimeError before the first batch with muons."""
        networks = self.networks
        head, muons = networks.averaged_count_head.average, networks.averaged.average
        return MuonSampler(networks.standardise, head, muons)


class LikelihoodPanel(MuonPanel):
    """Panel whose score is the held-out negative log likelihood, nats per event: it sees all there is to see."""

    def evaluate(self, block: Batch) -> Evaluation | None:
        """See MuonPanel."""
        found = super().evaluate(block)
        if found is None:
            return None
        return replace(found, scalars={**found.scalars, SCORE: found.scalars["train/held_out_nll"]})


TRAINING = ModelTraining(
    "muon_nll",
    ("muon_nll", "kl", "m_loss"),
    MappingProxyType({"below_cut": 0.0}),
    LikelihoodTask,
    LikelihoodPanel,
    meaning_of_weights=("network.energy_cut_gev",),
)
