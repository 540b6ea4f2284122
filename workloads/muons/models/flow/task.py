"""Training step of the muon flow: one update of the velocity field, one of the count head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Adam

from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.base.noise import Noise
from workloads.base.optimiser import uncompiled
from workloads.base.random_streams import SharedPurpose, stream_seed
from workloads.base.step import BaseTask
from workloads.base.thin import thinned
from workloads.muons.models.bundles import Bundles
from workloads.muons.models.fit import fit_standardise
from workloads.muons.models.flow.config import FlowConfig
from workloads.muons.models.flow.networks import FlowNetworks
from workloads.muons.models.flow.sampler import FlowSampler
from workloads.muons.purposes import MuonPurpose


class FlowTask(BaseTask[FlowConfig, Microbatch]):
    """Task of count head and velocity field.

    Metrics of a step: flow_loss is the squared error of the velocity field (about 1 at the start; 0 can't be reached:
    docs/flow.md), m_loss the count head's loss per event, skipped_updates the number of updates that were skipped
    because a loss or gradient was not finite, or beyond the limits.

    A batch without muons trains only the count head, one without events nothing.
    """

    SECTION = "trainer.flow"
    METRICS = ("flow_loss", "m_loss", "flow_grad_norm", "count_grad_norm", "skipped_updates")
    RECIPE = ("schedule", "schedule_steps", "warmup_steps", "flow_lr", "count_lr", "muon_weight", "pair_by_energy")

    def __init__(self, config: FlowConfig, context: StepContext) -> None:
        self.networks = networks = FlowNetworks(config, context)
        count_adam = uncompiled(Adam)(networks.count_head.parameters(), config.count_lr, fused=True)
        flow_adam = uncompiled(Adam)(networks.velocity.parameters(), config.flow_lr, betas=config.betas, fused=True)
        optimisers = {"count": (networks.count_head, count_adam), "flow": (networks.velocity, flow_adam)}
        super().__init__(config, context, networks.modules(), optimisers)

    @property
    def is_fitted(self) -> bool:
        """True once events can be generated: after a training batch with two muons."""
        return self.networks.standardise.is_fitted

    # ---- The step.

    def observe(self, batch: Batch) -> bool:
        """Fit the standardisation if that can be done now; True if something was fitted."""
        return fit_standardise(self.networks.standardise, batch, self.context)

    def prepare(self, microbatch: Microbatch, random: torch.Generator) -> Microbatch:
        """Thinned microbatch with its noise."""
        return self.networks.with_noise(thinned(microbatch, self.config.max_muons, random), random)

    def part(self, chunk: Microbatch, whole: Microbatch, random: torch.Generator) -> Microbatch:
        """Chunk itself, which has its noise."""
        return chunk

    def train(self, batch: Batch, parts: list[Microbatch], metrics: dict[str, Tensor]) -> None:
        """Update velocity field and count head, in this order."""
        networks = self.networks
        if batch.total_particles > 0 and networks.standardise.has_features:
            with_muons = [part for part in parts if part.num_particles > 0]
            total = self.context.total(sum(networks.total_weight(part) for part in batch.microbatches))
            metrics["flow_loss"] = self.update_by_loss("flow", networks.flow_loss, with_muons, total, metrics)
            networks.averaged.update(self.steps + 1)
        if batch.total_events > 0:
            metrics["m_loss"] = self.update_by_loss("count", networks.count_loss, parts, batch.total_events, metrics)

    # ---- Use without training.

    @torch.no_grad()
    def held_out(self, batch: Batch) -> dict[str, Tensor]:
        """Metrics m_loss and flow_loss, as in ``step``, on events outside the training; flow_loss of the weights for
        generation. The same noise at each call. Raises RuntimeError before the first batch with muons.
        """
        networks = self.networks
        networks.standardise.require_fit()
        total = sum(networks.total_weight(part) for part in batch.microbatches)
        m_loss = flow_loss = self.zero
        for part in self.parts(batch, Noise(SharedPurpose.HELD_OUT_NOISE, 0, self.device)):
            m_loss = m_loss + networks.count_loss(part) / batch.num_events
            if part.num_particles > 0:
                flow_loss = flow_loss + networks.flow_loss(part, networks.averaged.used) / total
        return {"m_loss": m_loss, "flow_loss": flow_loss}

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

    def sampler(self) -> FlowSampler:
        """Sampler with the present weights. Raises RuntimeError before the first batch with muons."""
        networks = self.networks
        return FlowSampler(self.config, networks.standardise, networks.count_head, networks.averaged.used)
