"""Training step of the likelihood model: one update of the densities, one of the count head."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.optim import Adam

from common.errors import BadInputError
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.base.noise import Noise
from workloads.base.optimiser import PartGradients, uncompiled
from workloads.base.random_streams import SharedPurpose, stream_seed
from workloads.base.step import BaseTask
from workloads.base.thin import thinned
from workloads.muons.models.bundles import Bundles
from workloads.muons.models.fit import fit_standardise
from workloads.muons.models.likelihood.config import LikelihoodConfig
from workloads.muons.models.likelihood.networks import LikelihoodNetworks
from workloads.muons.models.likelihood.sampler import LikelihoodSampler
from workloads.muons.purposes import MuonPurpose

BETAS = (0.9, 0.99)
"""Decay of Adam's means of the gradient and of its square, for both networks."""


_PARTICLE_FLOATS = 18
"""Memory of an update for each muon in float32 numbers, by the width of the layers: measured on a CPU."""


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
    RECIPE = ("schedule", "schedule_steps", "warmup_steps", "likelihood_lr", "count_lr", "muon_weight", "max_muons")

    def __init__(self, config: LikelihoodConfig, context: StepContext) -> None:
        self.networks = networks = LikelihoodNetworks(config, context)
        adam = uncompiled(Adam)
        count_adam = adam(networks.count_head.parameters(), config.count_lr, betas=BETAS, fused=True)
        muons_adam = adam(networks.muons.parameters(), config.likelihood_lr, betas=BETAS, fused=True)
        optimisers = {"count": (networks.count_head, count_adam), "muons": (networks.muons, muons_adam)}
        particle_bytes = _PARTICLE_FLOATS * 4 * config.network.hidden
        super().__init__(config, context, networks.modules(), optimisers, particle_bytes=particle_bytes)
        self._is_checked = False

    @property
    def is_fitted(self) -> bool:
        """True once events can be generated: after a training batch with two muons."""
        return self.networks.standardise.is_fitted

    # ---- The step.

    def observe(self, batch: Batch) -> bool:
        """Fit the standardisation if that can be done now; True if something was fitted.

        Raises BadInputError if a muon of a new run's first batch with muons is below the energy cut.
        """
        if self.steps == 0 or not self.is_fitted:
            self._check_cut(batch)
        return fit_standardise(self.networks.standardise, batch, self.context)

    def _check_cut(self, batch: Batch) -> None:
        cut_gev = self.config.network.energy_cut_gev
        for part in batch.microbatches:
            if part.num_particles == 0:
                continue
            lowest_gev = float(part.particle_columns["muons"][:, 0].min())
            if lowest_gev < np.float32(cut_gev):  # as the energies are stored
                raise BadInputError(
                    f"{self.SECTION}.network.energy_cut_gev = {cut_gev:g}, but the first batch has a muon of"
                    f" {lowest_gev:.9g} GeV: set it to the lowest energy that the simulation recorded, or to 0"
                )

    def prepare(self, microbatch: Microbatch, random: torch.Generator) -> Microbatch:
        """Thinned microbatch with the noise of z."""
        return self.networks.with_noise(thinned(microbatch, self.config.max_muons, random), random)

    def part(self, chunk: Microbatch, whole: Microbatch, random: torch.Generator) -> Microbatch:
        """Chunk itself, which has its noise."""
        return chunk

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
            below = networks.standardise.num_below_cut(part.particle_columns["muons"])
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
                found = networks.held_out(part)
                counts, muons = counts + found.counts / batch.num_events, muons + found.muons / batch.num_events
        return {"nll": counts + muons, "m_loss": counts}

    @torch.no_grad()
    def generate(self, primary_E4: Tensor) -> Bundles:
        """Events, one for each primary. (E, 4) = [energy_gev, zenith_rad, mass_a, depth_m].

        Waits for the device, and holds all events in memory: split long lists. Its seed is drawn from torch's global
        generator. Raises RuntimeError before the first batch with muons.
        """
        sampler = self.sampler()
        random = torch.Generator(self.device).manual_seed(
            stream_seed(MuonPurpose.TASK_EVENTS, int(torch.randint(2**62, ())))
        )
        primary_E4 = primary_E4.to(self.device)
        drawn_E = sampler.draw_counts(primary_E4, random)
        counts_E = drawn_E.clamp_max(self.config.max_count)
        muons_P3 = sampler.draw_muons(primary_E4, counts_E, random)
        return Bundles(counts_E, muons_P3, int((drawn_E > self.config.max_count).sum()))

    def sampler(self) -> LikelihoodSampler:
        """Sampler with the present weights. Raises RuntimeError before the first batch with muons."""
        networks = self.networks
        head, muons = networks.averaged_count_head.used, networks.averaged.used
        return LikelihoodSampler(self.config, networks.standardise, head, muons)
