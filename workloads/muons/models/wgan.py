"""Training step of the muon WGAN: `critic_steps` critic updates, one of the generator, one of the count head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam

from workloads.base.batch import Batch, Microbatch
from workloads.base.context import Noise, StepContext
from workloads.base.optimiser import PartGradients, uncompiled
from workloads.base.random_streams import SharedPurpose
from workloads.base.segments import Segments
from workloads.base.step import BaseTask
from workloads.base.training import Alarm, ModelTraining
from workloads.muons.models.config import MAX_COUNT, MAX_DEVIATION, WganConfig
from workloads.muons.models.panel import Bundles, MuonPanel
from workloads.muons.models.standardise import fit_standardise
from workloads.muons.models.wgan_losses import least_spread, moments, score_loss
from workloads.muons.models.wgan_networks import CPU_CHUNK, SCORE_EVENTS, Draw, WganEvents, WganNetworks

GENERATOR_BETAS = (0.5, 0.9)
"""Decay of Adam's means of the generator's gradient and of its square: without momentum it follows the noise of the
score."""
CRITIC_BETAS = (0.0, 0.9)
"""The same for the critic: no momentum against a moving opponent, as in arXiv:1704.00028."""
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
    limits.

    A batch without muons trains only the count head, one without events nothing.
    """

    SECTION = "trainer.wgan"
    CPU_CHUNK = CPU_CHUNK
    METRICS = (
        *("c_loss", "g_loss", "energy_score", "m_loss", "w_gap", "gp_norm", "saturation", "fake_spread"),
        *("generator_grad_norm", "critic_grad_norm", "count_grad_norm", "skipped_updates"),
    )
    RECIPE = ("schedule_steps", "generator_lr", "critic_lr", "count_lr")
    COUNTERS = ("steps", "generator_updates", "critic_updates", "rate_scale")

    def __init__(self, config: WganConfig, context: StepContext) -> None:
        """Raises BadInputError if compilation is configured and not possible here."""
        self.networks = networks = WganNetworks(config, context)
        adam = uncompiled(Adam)
        generator_adam = adam(networks.generator.parameters(), config.generator_lr, betas=GENERATOR_BETAS, fused=True)
        critic_adam = adam(networks.critic.parameters(), config.critic_lr, betas=CRITIC_BETAS, fused=True)
        # Memory of an update for each muon, measured on a CPU for 2, 4 and 8 generated events for each real one.
        generated = SCORE_EVENTS if config.energy_score_weight > 0 else 2
        super().__init__(
            config,
            context,
            networks.modules(),
            {
                "count": (networks.count_head, adam(networks.count_head.parameters(), config.count_lr, fused=True)),
                "generator": (networks.generator, generator_adam),
                "critic": (networks.critic, critic_adam),
            },
            particle_bytes=4 * config.network.hidden * (10 + 6 * generated),
            parallel=not config.compile,  # compiled code runs its own threads
        )
        self.generator_updates = 0
        self.critic_updates = 0
        self._gp_norm = self.zero

    @property
    def is_fitted(self) -> bool:
        """True once events can be generated: after a training batch with two muons."""
        return self.networks.standardise.is_fitted

    # ---- The step.

    def observe(self, batch: Batch) -> bool:
        """Fit the standardisation if that can be done now; True if something was fitted."""
        return fit_standardise(self.networks.standardise, batch, self.context)

    def part(self, chunk: Microbatch, whole: Microbatch, random: torch.Generator) -> WganEvents:
        """See WganNetworks.events."""
        return self.networks.events(chunk, random)

    def train(self, batch: Batch, parts: list[WganEvents], metrics: dict[str, Tensor]) -> None:
        """Update critic, generator and count head, in this order."""
        if batch.total_particles > 0 and self.networks.standardise.has_features:
            num_present = self._num_present(batch)
            for more in reversed(range(self.config.critic_steps)):
                parts = self._update_critic(parts, num_present, metrics, is_last=more == 0)
            parts = self._update_generator(parts, num_present, self._score_weight(parts), metrics)
        if batch.total_events > 0:
            loss = self.networks.count_loss
            metrics["m_loss"] = self.update_by_loss("count", loss, parts, batch.total_events, metrics)
            self.networks.averaged_count_head.update(self.steps + 1)

    def _update_critic(
        self, parts: list[WganEvents], num_present: Tensor, metrics: dict[str, Tensor], *, is_last: bool
    ) -> list[WganEvents]:
        """One update; the parts that fitted in memory. The last one of a step is described by metrics."""
        # The penalty is the most expensive part. Computed every k-th time, it is weighted by k (arXiv:1912.04958);
        # counted over the whole run, so that its strength does not depend on `critic_steps`.
        penalise = self.config.penalty_weight > 0 and self.critic_updates % self.config.gp_every == 0

        def gradients_of(part: WganEvents, draw: Draw) -> PartGradients:
            return self._critic_gradients(part, draw, num_present, penalise, is_last)

        num_sums = 4 + 2 * (1 + 2 * self.networks.standardise.num_features) if is_last else 2
        updated, parts = self.update("critic", self._over_parts(gradients_of), parts, metrics, num_sums=num_sums)
        self.critic_updates += 1
        if penalise:
            self._gp_norm = updated.sums[1]
        if is_last:
            loss, _, gap, saturation = updated.sums[:4]
            metrics |= {"c_loss": loss, "w_gap": gap, "gp_norm": self._gp_norm, "saturation": saturation}
            metrics["fake_spread"] = least_spread(updated.sums[4:].unflatten(0, (2, -1)))
        return parts

    def _critic_gradients(
        self, part: WganEvents, draw: Draw, num_present: Tensor, penalise: bool, described: bool
    ) -> PartGradients:
        """Gradients of the critic. Sums: c_loss, gp_norm; if ``described``, also w_gap, saturation and `moments`."""
        networks, critic = self.networks, self.optimisers["critic"]
        with torch.no_grad():
            fake_PF = networks.fake(part, draw.noise)
        both_PF = torch.cat([part.real_PF, fake_PF])
        raw_2E = networks.raw_scores(both_PF, *part.twice)  # of real and generated events in one pass
        loss, gap_and_near_2 = score_loss(raw_2E, part.signs_2E)
        per_event = num_present.reciprocal()
        gradients = critic.gradients(loss, per_event)  # frees its graph
        norm = self.zero
        if penalise:
            assert draw.mix_E is not None
            penalty = networks.penalty(part, fake_PF, draw.mix_E)
            weight = per_event * (self.config.penalty_weight * self.config.gp_every)
            torch._foreach_add_(gradients, critic.gradients(penalty.penalty, weight))
            norm = penalty.norm
        sums = [loss.detach(), norm]
        if not described:
            return PartGradients(gradients, torch.stack(sums) / num_present)
        means = torch.cat([torch.stack(sums), gap_and_near_2]) / num_present
        moments_2M = moments(both_PF.unflatten(0, (2, -1)))
        return PartGradients(gradients, torch.cat([means, moments_2M.flatten()]))

    def _update_generator(
        self, parts: list[WganEvents], num_present: Tensor, muons_weight: Tensor, metrics: dict[str, Tensor]
    ) -> list[WganEvents]:
        """One update; the parts that fitted in memory."""

        def gradients_of(part: WganEvents, draw: Draw) -> PartGradients:
            return self._generator_gradients(part, draw, num_present, muons_weight)

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

    def _gap(self, part: WganEvents) -> Tensor:
        """Gap D(real) - D(fake), summed over the part's events."""
        fake_PF = self.networks.fake(part, self.networks.draw(part).noise)
        raw_2E = self.networks.raw_scores(torch.cat([part.real_PF, fake_PF]), *part.twice)
        return score_loss(raw_2E, part.signs_2E).gap_and_near_2[0]

    # ---- Use without training.

    @torch.no_grad()
    def held_out(self, batch: Batch) -> dict[str, Tensor]:
        """Metrics m_loss and w_gap, as in ``step``, on events outside the training. The same noise at each call.

        Raises RuntimeError before the first batch with muons.
        """
        self.networks.standardise.require_fit()
        noise = Noise(SharedPurpose.HELD_OUT_NOISE, 0, self.device)
        count_head = self.networks.averaged_count_head.average
        num_present = max(sum(microbatch.num_present for microbatch in batch.microbatches), 1)
        m_loss = w_gap = self.zero
        for microbatch in batch.microbatches:
            if microbatch.num_events == 0:
                continue
            random = noise.of(microbatch)
            part = self.networks.events(microbatch, random)
            m_loss = m_loss + self.networks.count_loss(part, count_head) / max(batch.num_events, 1)
            if part.num_particles > 0:
                w_gap = w_gap + self._gap(part) / num_present
        return {"m_loss": m_loss, "w_gap": w_gap}

    @torch.no_grad()
    def generate(self, primary_E4: Tensor) -> Bundles:
        """Events, one for each primary. (E, 4) = [energy_gev, zenith_rad, mass_a, depth_m].

        Waits for the device, and holds all events in memory: split long lists. Draws from torch's global generator.
        Raises RuntimeError before the first batch with muons.
        """
        networks = self.networks
        networks.standardise.require_fit()
        conditions_EC = networks.standardise.conditions(primary_E4.to(self.device))
        counts_E = networks.averaged_count_head.average.sample(conditions_EC).clamp_max(MAX_COUNT)
        segments = Segments.from_counts(counts_E, int(counts_E.sum()))
        generator = networks.averaged.average
        features_PF = generator(conditions_EC, segments, generator.noise(segments))
        return Bundles(counts_E, networks.standardise.muons(features_PF.clamp(-MAX_DEVIATION, MAX_DEVIATION)))

    # ---- Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """See BaseTask; with the latest gradient norm, which steps without a penalty report, too."""
        return {**super().state_dict(), "gp_norm": self._gp_norm}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See BaseTask."""
        super().load_state_dict(state)
        self._gp_norm = state["gp_norm"].to(self.device)


_DEAD = "nothing is learned from such gradients: roll back to an earlier checkpoint, or lower trainer.wgan.critic_lr"

ALARMS: Mapping[str, Alarm] = MappingProxyType(
    {
        "saturation": Alarm(
            above=0.1,
            steps=20,
            meaning="the critic's scores are at their bound, where gradients vanish: lower trainer.wgan.critic_lr, or"
            " use trainer.wgan.penalty_weight = 1",
        ),
        "critic_grad_norm": Alarm(below=1e-6, steps=20, meaning=_DEAD),
        "generator_grad_norm": Alarm(below=1e-6, steps=20, meaning=_DEAD),
        "gp_norm": Alarm(
            below=0.1,
            above=5.0,
            steps=100,
            zero_is_nothing=True,
            meaning="the penalty holds it near 1 in a normal training, and w_gap is a distance only then: change"
            " trainer.wgan.critic_lr or trainer.wgan.penalty_weight",
        ),
        "fake_spread": Alarm(
            below=0.3,
            steps=100,
            meaning="the generated muons are nearly all the same: the generator has collapsed, or learns nothing",
        ),
    }
)
"""Limits chosen on seeds 0 to 4 of the defaults and on five bad recipes: docs/how-to/diagnose.md."""


TRAINING = ModelTraining("w_gap", ("c_loss", "g_loss", "m_loss", "w_gap"), ALARMS, WganTask, MuonPanel)
