"""Training step of the muon WGAN: `critic_steps` critic updates, one of the generator, one of the count head."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize
from torch.optim import Adam

from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.base.graphs import make_graphs
from workloads.base.noise import Noise
from workloads.base.optimiser import PartGradients, uncompiled
from workloads.base.random_streams import SharedPurpose
from workloads.base.step import BaseTask
from workloads.base.thin import thinned
from workloads.muons.models.bundles import Bundles
from workloads.muons.models.fit import fit_standardise
from workloads.muons.models.wgan import adaptive
from workloads.muons.models.wgan.config import WganConfig
from workloads.muons.models.wgan.networks import CPU_CHUNK, Draw, WganEvents, WganNetworks
from workloads.muons.models.wgan.optimiser import make_optimiser
from workloads.muons.models.wgan.spread import least_spread, moments

logger = logging.getLogger(__name__)

MUONS_SCORE_FACTOR = 3.0
"""Weight of the mean score of muons relative to that of events: a muon has two features, an event six."""


class WganTask(BaseTask[WganConfig, WganEvents]):
    """Task of count head, generator and critic.

    Metrics of a step: c_loss (without the penalty), w_gap, saturation, fake_spread and critic_grad_norm are those of
    the last critic update; w_gap is the mean of D(real) - D(fake) over events with muons, before the score is
    saturated, saturation the share of scores near their bound, fake_spread the standard deviation of generated muons
    over that of real ones, for the feature where it is smallest. energy_score is that of the generator's update,
    gp_norm is the mean gradient norm at the latest gradient penalty, m_loss the count head's loss per event,
    skipped_updates the number of updates that were skipped because a loss or gradient was not finite, or beyond the
    limits. held_out_gap, with the adaptive critic: w_gap of events before training on them.

    A batch without muons trains only the count head, one without events nothing.
    """

    SECTION = "trainer.wgan"
    CPU_CHUNK = CPU_CHUNK
    METRICS = (
        *("c_loss", "g_loss", "energy_score", "m_loss", "w_gap", "gp_norm", "saturation", "fake_spread"),
        *("generator_grad_norm", "critic_grad_norm", "count_grad_norm", "skipped_updates"),
    )
    RECIPE = ("optimiser", "schedule", "schedule_steps", "warmup_steps", "generator_lr", "critic_lr", "count_lr")
    RESTARTS = {"optimiser": ("generator", "critic")}  # noqa: RUF012
    COUNTERS = ("steps", "generator_updates", "critic_updates", "rate_scale", "gap_measured_at", "gap_checked_at")

    def __init__(self, config: WganConfig, context: StepContext) -> None:
        """Raises BadInputError if compilation is configured and not possible here."""
        self.networks = networks = WganNetworks(config, context)
        count_adam = uncompiled(Adam)(networks.count_head.parameters(), config.count_lr, fused=True)
        generator_optimiser = make_optimiser(networks.generator, config, config.generator_lr, config.generator_betas)
        critic_optimiser = make_optimiser(networks.critic, config, config.critic_lr, config.critic_betas)
        super().__init__(
            config,
            context,
            networks.modules(),
            {
                "count": (networks.count_head, count_adam),
                "generator": (networks.generator, generator_optimiser),
                "critic": (networks.critic, critic_optimiser),
            },
            particle_bytes=_particle_bytes(config),
            # Spectral normalisation changes its state in the forward pass, and compiled code runs its own threads.
            parallel=not (config.network.spectral_norm or config.compile),
        )
        self.graphs = make_graphs(config.cuda_graphs, self.SECTION, _obstacle_to_graphs(config, context.device))
        networks.pads = self.graphs is not None
        self._adaptive = adaptive.AdaptiveState(config.critic_steps, config.penalty_weight)
        self.generator_updates = 0
        self.critic_updates = 0
        self.gap_measured_at = self.gap_checked_at = -1
        self._gp_norm = self._held_out_gap = self.zero

    @property
    def is_fitted(self) -> bool:
        """True once events can be generated: after a training batch with two muons."""
        return self.networks.standardise.is_fitted

    @property
    def critic_steps(self) -> int:
        """Present number of critic updates per step."""
        return self._adaptive.critic_steps

    @property
    def penalty_weight(self) -> float:
        """Present weight λ of the gradient penalty."""
        return self._adaptive.penalty_weight

    # ---- The step.

    def observe(self, batch: Batch) -> bool:
        """Fit the standardisation if that can be done now; True if something was fitted."""
        return fit_standardise(self.networks.standardise, batch, self.context)

    def prepare(self, microbatch: Microbatch, random: torch.Generator) -> Microbatch:
        """Thinned microbatch: generator and critic get a sample of a large event."""
        return thinned(microbatch, self.config.critic_max_muons, random)

    def part(self, chunk: Microbatch, whole: Microbatch, random: torch.Generator) -> WganEvents:
        """See WganNetworks.events."""
        return self.networks.events(chunk, random)

    def train(self, batch: Batch, parts: list[WganEvents], metrics: dict[str, Tensor]) -> None:
        """Update critic, generator and count head, in this order."""
        if batch.total_particles > 0 and self.networks.standardise.has_features:
            num_present = self._num_present(batch)
            if self.config.adaptive.enabled and self.steps % self.config.adaptive.every == 0:
                self._measure_gap(parts, num_present)
            for more in reversed(range(self.critic_steps)):
                with parametrize.cached():
                    self.networks.normalise()
                    parts = self._update_critic(parts, num_present, metrics, is_last=more == 0)
            with parametrize.cached():
                self.networks.normalise()
                parts = self._update_generator(parts, num_present, self._score_weight(parts), metrics)
        if batch.total_events > 0:
            loss = self.networks.count_loss
            metrics["m_loss"] = self.update_by_loss("count", loss, parts, batch.total_events, metrics)
            if self.config.old_definitions:
                error = sum((self.networks.count_error(part) for part in parts), torch.zeros_like(self.zero))
                self.context.sum_over_ranks([error])
                metrics["m_loss"] = error / batch.total_events
            self.networks.averaged_count_head.update(self.steps + 1)
        if self.config.adaptive.enabled:
            metrics["held_out_gap"] = self._held_out_gap

    def _update_critic(
        self, parts: list[WganEvents], num_present: Tensor, metrics: dict[str, Tensor], *, is_last: bool
    ) -> list[WganEvents]:
        """One update; the parts that fitted in memory. The last one of a step is described by metrics."""
        # The penalty is the most expensive part. Computed every k-th time, it is weighted by k (arXiv:1912.04958);
        # counted over the whole run, so that its strength does not depend on `critic_steps`.
        penalise = self.penalty_weight > 0 and self.critic_updates % self.config.gp_every == 0
        penalty_weight = self.penalty_weight if penalise else 0.0

        def gradients_of(part: WganEvents, draw: Draw) -> PartGradients:
            return self.compute(self._critic_gradients, part, draw, num_present, penalty_weight, is_last)

        num_sums = 5 + 2 * (1 + 2 * self.networks.standardise.num_features) if is_last else 3
        updated, parts = self.update("critic", self._over_parts(gradients_of), parts, metrics, num_sums=num_sums)
        self.critic_updates += 1
        if penalise:
            self._gp_norm = updated.sums[1]
        if is_last:
            loss, _, penalty, gap, saturation = updated.sums[:5]
            metrics |= {"c_loss": loss, "w_gap": gap, "gp_norm": self._gp_norm, "saturation": saturation}
            metrics["fake_spread"] = least_spread(updated.sums[5:].unflatten(0, (2, -1)))
            if self.config.old_definitions:
                metrics |= {"c_loss": loss + penalty * penalty_weight, "w_gap": -loss}
        return parts

    def _critic_gradients(
        self, part: WganEvents, draw: Draw, num_present: Tensor, penalty_weight: float, described: bool
    ) -> PartGradients:
        """Gradients of the critic. Sums: c_loss, gp_norm, penalty without its weight; if ``described``, also w_gap,
        saturation and `moments`."""
        networks, critic = self.networks, self.optimisers["critic"]
        with torch.no_grad():
            fake_PF = networks.fake(part, draw.noise)
        both_PF = torch.cat([part.real_PF, fake_PF])
        raw_2E = networks.critic_scores(part, both_PF)
        loss, gap_and_near_2 = networks.critic_loss(part, raw_2E)
        per_event = num_present.reciprocal()
        gradients = critic.gradients(loss, per_event)  # frees its graph
        norm = penalised = self.zero
        if penalty_weight > 0:
            assert draw.mix_E is not None
            penalty = networks.penalty(part, fake_PF, draw.mix_E)
            weight = per_event * (penalty_weight * self.config.gp_every)
            torch._foreach_add_(gradients, critic.gradients(penalty.penalty, weight))
            norm, penalised = penalty.norm, penalty.penalty.detach()
        sums = [loss.detach(), norm, penalised]
        if not described:
            return PartGradients(gradients, torch.stack(sums) / num_present)
        means = torch.cat([torch.stack(sums), gap_and_near_2]) / num_present
        moments_2M = moments(both_PF.unflatten(0, (2, -1)), part.counted_P1)
        return PartGradients(gradients, torch.cat([means, moments_2M.flatten()]))

    def _update_generator(
        self, parts: list[WganEvents], num_present: Tensor, muons_weight: Tensor, metrics: dict[str, Tensor]
    ) -> list[WganEvents]:
        """One update; the parts that fitted in memory."""

        def gradients_of(part: WganEvents, draw: Draw) -> PartGradients:
            return self.compute(self._generator_gradients, part, draw, num_present, muons_weight)

        over_parts = self._over_parts(gradients_of, for_generator=True)
        updated, parts = self.update("generator", over_parts, parts, metrics, num_sums=2)
        self.generator_updates += 1
        self.networks.averaged.update(self.generator_updates)
        metrics |= {"g_loss": updated.sums[0], "energy_score": updated.sums[1]}
        return parts

    def _generator_gradients(
        self, part: WganEvents, draw: Draw, num_present: Tensor, muons_weight: Tensor
    ) -> PartGradients:
        """Gradients of the generator. Sums: g_loss and energy_score."""
        loss, score = self.networks.generator_loss(part, draw)
        per_event, per_muons_weight = num_present.reciprocal(), MUONS_SCORE_FACTOR / muons_weight
        losses, weights = [loss], [per_event]
        if (weight := self.config.energy_score_weight) > 0:
            losses += [score.of_muons, score.of_events]
            weights += [weight * per_muons_weight, weight * per_event]
        gradients = self.optimisers["generator"].gradients(losses, weights)
        with torch.no_grad():
            mean = score.of_muons * per_muons_weight + score.of_events * per_event
            return PartGradients(gradients, torch.stack([loss * per_event, mean]))

    def _over_parts(
        self, gradients_of: Callable[[WganEvents, Draw], PartGradients], *, for_generator: bool = False
    ) -> Callable[[list[WganEvents]], Iterator[PartGradients]]:
        """Gradients of each part with muons, in order, each with separate noise."""

        def over(parts: list[WganEvents]) -> Iterator[PartGradients]:
            with_muons = [part for part in parts if part.num_particles > 0]
            draws = (self.networks.draw(part, for_generator=for_generator) for part in with_muons)
            return self.pool.map(gradients_of, with_muons, draws)

        return over

    def _num_present(self, batch: Batch) -> Tensor:
        """Events with muons of all ranks, at least 1, ()."""
        return self.context.total(sum(microbatch.num_present for microbatch in batch.microbatches)).clamp_min(1)

    def _score_weight(self, parts: list[WganEvents]) -> Tensor:
        """Sum of the events' weights among the scores of muons, over all ranks, at least 1. -> ()."""
        sums = [part.muons_weight_E.sum() for part in parts]
        total = sum(sums[1:], sums[0]) if sums else torch.zeros((), device=self.device)
        if self.config.energy_score_weight > 0:
            self.context.sum_over_ranks([total])
        return total.clamp_min(1)

    # ---- The adaptive critic.

    def observed(self, metrics: Mapping[str, float]) -> None:
        """Take the newest step's metrics, now on the host: the adaptive critic checks a new gap, if there is one."""
        if not self.config.adaptive.enabled or self.gap_measured_at == self.gap_checked_at:
            return
        self.gap_checked_at = self.gap_measured_at
        decision = adaptive.check(
            self._adaptive,
            self.config.adaptive,
            gap=metrics["held_out_gap"],
            gp_norm=metrics["gp_norm"],
            critic_steps=self.config.critic_steps,
            penalty_weight=self.config.penalty_weight,
        )
        self._adaptive = decision.state
        if decision.reason:
            logger.info("adaptive critic, step %d: %s", self.steps, decision.reason)

    def _measure_gap(self, parts: list[WganEvents], num_present: Tensor) -> None:
        """Measure w_gap of events before training on them, over all ranks."""
        gap = torch.zeros_like(self.zero)  # it is summed over the ranks in place
        self.networks.critic.eval()  # spectral normalisation must not move: ranks have different numbers of parts
        with torch.no_grad():
            for part in parts:
                if part.num_particles > 0:
                    gap = gap + self._gap(part) / num_present
        self.networks.critic.train()
        self.context.sum_over_ranks([gap])
        self._held_out_gap = gap
        self.gap_measured_at = self.steps

    def _gap(self, part: WganEvents) -> Tensor:
        """Gap D(real) - D(fake), summed over the part's events."""
        fake_PF = self.networks.fake(part, self.networks.draw(part).noise)
        return self.networks.gap(part, self.networks.critic_scores(part, torch.cat([part.real_PF, fake_PF])))

    # ---- Use without training.

    @torch.no_grad()
    def held_out(self, batch: Batch) -> dict[str, Tensor]:
        """Metrics m_loss and w_gap, as in ``step``, on events outside the training. The same noise at each call.

        Raises RuntimeError before the first batch with muons.
        """
        self.networks.standardise.require_fit()
        noise = Noise(SharedPurpose.HELD_OUT_NOISE, 0, self.device)
        count_head = self.networks.averaged_count_head.used
        num_present = max(sum(microbatch.num_present for microbatch in batch.microbatches), 1)
        m_loss = w_gap = self.zero
        for microbatch in batch.microbatches:
            if microbatch.num_events == 0:
                continue
            random = noise.of(microbatch)
            part = self.networks.events(self.prepare(microbatch, random), random)
            m_loss = m_loss + self.networks.count_loss(part, count_head) / max(batch.num_events, 1)
            if part.num_particles > 0:
                w_gap = w_gap + self._gap(part) / num_present
        return {"m_loss": m_loss, "w_gap": w_gap}

    def generate(self, primary_E4: Tensor) -> Bundles:
        """See WganNetworks.generate."""
        return self.networks.generate(primary_E4)

    # ---- Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """See BaseTask; with the adaptive critic's state."""
        return {
            **super().state_dict(),
            "adaptive": asdict(self._adaptive),
            "gp_norm": self._gp_norm,
            "held_out_gap": self._held_out_gap,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See BaseTask."""
        super().load_state_dict(state)
        self._gp_norm = state["gp_norm"].to(self.device)
        self._held_out_gap = state["held_out_gap"].to(self.device)
        if self.config.adaptive.enabled:
            self._adaptive = adaptive.AdaptiveState(**state["adaptive"] | {"gaps": tuple(state["adaptive"]["gaps"])})


def _particle_bytes(config: WganConfig) -> int:
    """Memory of an update for each muon, about: measured on a CPU for 2, 4 and 8 generated events for each real one."""
    generated = config.score_events if config.energy_score_weight > 0 else 2
    return 4 * config.network.hidden * (10 + 6 * generated)


def _obstacle_to_graphs(config: WganConfig, device: torch.device) -> str:
    """Reason why CUDA graphs can't be used; empty: they can."""
    if device.type != "cuda":
        return "on a CPU"
    if config.compile:
        return "with compile = true"
    return "with network.spectral_norm = true, which changes with each pass" if config.network.spectral_norm else ""
