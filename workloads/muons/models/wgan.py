"""Training step of the muon WGAN: at first the likelihood model's, then `critic_steps` critic updates and one of the
generator, which corrects what that model draws."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam

from workloads.base.batch import Batch, Microbatch, joined
from workloads.base.context import Noise, StepContext
from workloads.base.optimiser import PartGradients, uncompiled
from workloads.base.random_streams import SharedPurpose
from workloads.base.step import BaseTask
from workloads.base.training import Alarm, Evaluation, ModelTraining
from workloads.muons.models.config import WganConfig
from workloads.muons.models.likelihood import LikelihoodTask
from workloads.muons.models.panel import SCORE, Bundles, MuonPanel
from workloads.muons.models.wgan_losses import ScoreLoss, score_loss
from workloads.muons.models.wgan_networks import CPU_CHUNK, LEAST_COMPILED, SCORE_EVENTS, WganEvents, WganNetworks

logger = logging.getLogger(__name__)

GENERATOR_BETAS = (0.5, 0.9)
"""Decay of Adam's means of the generator's gradient and of its square: without momentum it follows the noise of the
score."""
CRITIC_BETAS = (0.0, 0.9)
"""The same for the critic: no momentum against a moving opponent, as in arXiv:1704.00028."""
MUONS_SCORE_FACTOR = 3.0
"""Weight of the mean score of muons relative to that of events: a muon has two features, an event six."""


class WganTask(BaseTask[WganConfig, WganEvents]):
    """Task of the likelihood model, then of generator and critic.

    Metrics of the first ``likelihood_steps`` steps: see LikelihoodTask. Of the later ones: c_loss (without the
    penalty), w_gap, saturation and critic_grad_norm are those of the last critic update; w_gap is the mean of D(real) -
    D(fake) over events with muons, before the score is saturated, saturation the share of scores near their bound.
    energy_score is that of the generator's update, gp_norm is the mean gradient norm at the latest gradient penalty,
    skipped_updates the number of updates that were skipped because a loss or gradient was not finite, or beyond the
    limits. Then a batch without muons trains nothing.
    """

    SECTION = "trainer.wgan"
    CPU_CHUNK = CPU_CHUNK
    METRICS = (
        *LikelihoodTask.METRICS,
        *("c_loss", "g_loss", "energy_score", "w_gap", "gp_norm", "saturation"),
        *("generator_grad_norm", "critic_grad_norm"),
    )
    RECIPE = ("schedule_steps", "likelihood_steps", "generator_lr", "critic_lr")
    COUNTERS = ("steps", "generator_updates", "critic_updates", "rate_scale")

    def __init__(self, config: WganConfig, context: StepContext) -> None:
        """Raises BadInputError if compilation is configured and not possible here."""
        self.likelihood = LikelihoodTask(config.of_likelihood(), context)
        self.likelihood.SECTION = self.SECTION  # where a user sets what its messages name
        self.networks = networks = WganNetworks(config, context, self.likelihood.networks)
        adam = uncompiled(Adam)
        generator_adam = adam(networks.correction.parameters(), config.generator_lr, betas=GENERATOR_BETAS, fused=True)
        critic_adam = adam(networks.critic.parameters(), config.critic_lr, betas=CRITIC_BETAS, fused=True)
        # Memory of an update for each muon, measured on a CPU for 2, 4 and 8 generated events for each real one.
        generated = SCORE_EVENTS if config.energy_score_weight > 0 else 2
        super().__init__(
            config,
            context,
            networks.modules(),
            {"generator": (networks.correction, generator_adam), "critic": (networks.critic, critic_adam)},
            particle_bytes=4 * config.network.hidden * (10 + 6 * generated),
            parallel=not config.compile,  # compiled code runs its own threads
        )
        self.generator_updates = 0
        self.critic_updates = 0
        self._gp_norm = self.zero

    @property
    def is_fitted(self) -> bool:
        """True once events can be generated: after a training batch with two muons."""
        return self.likelihood.is_fitted

    @property
    def num_parameters(self) -> int:
        """See BaseTask."""
        return super().num_parameters + self.likelihood.num_parameters

    def learning_rates(self) -> dict[str, float]:
        """See BaseTask."""
        of_likelihood = self.generator_updates == 0
        return self.likelihood.learning_rates() if of_likelihood else super().learning_rates()

    def scale_learning_rates(self, factor: float) -> None:
        """See BaseTask."""
        super().scale_learning_rates(factor)
        self.likelihood.scale_learning_rates(factor)

    # ---- The step.

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """See BaseTask."""
        # Once the critic has begun, densities stay: it has learned against these.
        if self.steps >= self.config.likelihood_steps or self.generator_updates > 0:
            return super().step(batch)
        self._compile(batch)
        self.steps += 1
        return dict.fromkeys(self.METRICS, self.zero) | self.likelihood.step(batch)

    def _compile(self, batch: Batch) -> None:
        """Compile what a step needs, once, with a batch's sizes: by them torch chooses how to divide sums over rows."""
        if self.networks.is_compiled or not (self.config.compile and self.is_fitted and batch.num_particles):
            return
        chunks = joined([one for one in batch.microbatches if one.num_events > 0]).chunks(self.most_particles)
        largest = max(chunks, key=lambda chunk: min(chunk.num_events, chunk.num_particles))
        if min(largest.num_events, largest.num_particles) < LEAST_COMPILED:
            return
        logger.info("compiling generator and critic: up to some minutes, or seconds if a run before has done it")
        begun_s, self.networks.is_compiled = time.monotonic(), True
        one = torch.ones((), device=self.device)
        with suppress(torch.OutOfMemoryError):  # the step that follows halves its parts
            part = self.networks.events(largest, torch.Generator(self.device).manual_seed(0))
            self._critic_gradients(part, 0, self.networks.mix(part), one, penalise=self.config.penalty_weight > 0)
            self._generator_gradients(part, one, one)
            logger.info("compiled in %.0f s", time.monotonic() - begun_s)

    def observe(self, batch: Batch) -> bool:
        """See LikelihoodTask."""
        return self.generator_updates == 0 and self.likelihood.observe(batch)

    def part(self, chunk: Microbatch, whole: Microbatch, random: torch.Generator) -> WganEvents:
        """See WganNetworks.events."""
        return self.networks.events(chunk, random)

    def train(self, batch: Batch, parts: list[WganEvents], metrics: dict[str, Tensor]) -> None:
        """Update critic and generator, in this order."""
        if batch.total_particles == 0 or not self.networks.standardise.has_features:
            return
        self._compile(batch)
        present = sum(microbatch.num_present for microbatch in batch.microbatches)
        num_present = self.context.total(present).clamp_min(1)
        for number in range(self.config.critic_steps):
            parts = self._update_critic(parts, num_present, metrics, number)
        sums = [part.muons_weight_E.sum() for part in parts]
        weight = sum(sums[1:], sums[0]) if sums else torch.zeros((), device=self.device)
        if self.config.energy_score_weight > 0:
            self.context.sum_over_ranks([weight])
        self._update_generator(parts, num_present, weight.clamp_min(1), metrics)

    def _update_critic(
        self, parts: list[WganEvents], num_present: Tensor, metrics: dict[str, Tensor], number: int
    ) -> list[WganEvents]:
        """Update ``number`` of a step; the parts that fitted in memory. Metrics are those of the last one."""
        # The penalty is the most expensive part. Computed every k-th time, it is weighted by k (arXiv:1912.04958);
        # counted over the whole run, so that its strength does not depend on `critic_steps`.
        penalise = self.config.penalty_weight > 0 and self.critic_updates % self.config.gp_every == 0
        over_parts = self._over_parts(
            lambda part, mix_E: self._critic_gradients(part, number, mix_E, num_present, penalise), self.networks.mix
        )
        updated, parts = self.update("critic", over_parts, parts, metrics, num_sums=4)
        self.critic_updates += 1
        if penalise:
            self._gp_norm = updated.sums[1]
        loss, _, gap, saturation = updated.sums
        metrics |= {"c_loss": loss, "w_gap": gap, "gp_norm": self._gp_norm, "saturation": saturation}
        return parts

    def _critic_gradients(
        self, part: WganEvents, number: int, mix_E: Tensor, num_present: Tensor, penalise: bool
    ) -> PartGradients:
        """Gradients of the critic. Sums: c_loss, gp_norm, w_gap, saturation."""
        critic = self.optimisers["critic"]
        fake_PG, (loss, gap_and_near_2) = self._scored(part, number)
        per_event = num_present.reciprocal()
        gradients = critic.gradients(loss, per_event)  # frees its graph
        norm = self.zero
        if penalise:
            penalty = self.networks.penalty(part, fake_PG, mix_E)
            weight = per_event * (self.config.penalty_weight * self.config.gp_every)
            torch._foreach_add_(gradients, critic.gradients(penalty.penalty, weight))
            norm = penalty.norm
        means = torch.cat([torch.stack([loss.detach(), norm]), gap_and_near_2]) / num_present
        return PartGradients(gradients, means)

    def _update_generator(
        self, parts: list[WganEvents], num_present: Tensor, muons_weight: Tensor, metrics: dict[str, Tensor]
    ) -> None:
        over_parts = self._over_parts(lambda part: self._generator_gradients(part, num_present, muons_weight))
        updated, _ = self.update("generator", over_parts, parts, metrics, num_sums=2)
        self.generator_updates += 1
        self.networks.averaged.update(self.generator_updates)
        metrics |= {"g_loss": updated.sums[0], "energy_score": updated.sums[1]}

    def _generator_gradients(self, part: WganEvents, num_present: Tensor, muons_weight: Tensor) -> PartGradients:
        """Gradients of the generator. Sums: g_loss and energy_score."""
        loss, score = self.networks.generator_loss(part)
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
        self, gradients_of: Callable[..., PartGradients], *random: Callable[[WganEvents], Tensor]
    ) -> Callable[[list[WganEvents]], Iterator[PartGradients]]:
        """Gradients of each part with muons, in order; ``random``: further arguments, made one part after the other."""

        def over(parts: list[WganEvents]) -> Iterator[PartGradients]:
            with_muons = [part for part in parts if part.num_particles > 0]
            return self.pool.map(gradients_of, with_muons, *(map(one, with_muons) for one in random))

        return over

    def _scored(self, part: WganEvents, number: int) -> tuple[Tensor, ScoreLoss]:
        """Generated muons for update ``number``, and the critic's loss: real and generated events in one pass."""
        with torch.no_grad():
            fake_PG = self.networks.fake(part, number)
        raw_2E = self.networks.raw_scores(torch.cat([part.real_PG, fake_PG]), *part.twice)
        return fake_PG, score_loss(raw_2E, part.signs_2E)

    # ---- Use without training.

    @torch.no_grad()
    def held_out(self, batch: Batch) -> dict[str, Tensor]:
        """Metrics of the likelihood model, and w_gap as in ``step``, on events outside the training.

        The same noise at each call. Raises RuntimeError before the first batch with muons.
        """
        found = self.likelihood.held_out(batch)
        noise = Noise(SharedPurpose.HELD_OUT_NOISE, 0, self.device)
        w_gap, num_present = self.zero, max(sum(one.num_present for one in batch.microbatches), 1)
        for microbatch in batch.microbatches:  # one at a time, as there
            if microbatch.num_particles > 0:
                part = self.networks.events(microbatch, noise.of(microbatch), 1)
                w_gap = w_gap + self._scored(part, 0)[1].gap_and_near_2[0] / num_present
        return found | {"w_gap": w_gap}

    def generate(self, primary_E4: Tensor) -> Bundles:
        """Events, one for each primary. (E, 4) = [energy_gev, zenith_rad, mass_a, depth_m].

        See MuonSampler.bundles. Raises RuntimeError before the first batch with muons.
        """
        sampler = self.likelihood.sampler()
        sampler.correction = self.networks.averaged.average
        return sampler.bundles(primary_E4)

    # ---- Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """See BaseTask; with the latest gradient norm, which steps without a penalty report, too."""
        likelihood = {name: value for name, value in self.likelihood.state_dict().items() if name != "networks"}
        return {**super().state_dict(), "likelihood": likelihood, "gp_norm": self._gp_norm}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See BaseTask."""
        super().load_state_dict(state)
        recipe = self.likelihood.state_dict()["recipe"]  # changes are told by the names of this model's settings
        self.likelihood.load_state_dict({"networks": state["networks"], **state["likelihood"], "recipe": recipe})
        self._gp_norm = state["gp_norm"].to(self.device)


class WganPanel(MuonPanel):
    """Panel without a score while the likelihood model is trained: ``best.pt`` is of generator and critic."""

    _task: WganTask

    def evaluate(self, block: Batch) -> Evaluation | None:
        """See MuonPanel."""
        found = super().evaluate(block)
        if found is None or self._task.generator_updates > 0:
            return found
        return replace(found, scalars={name: value for name, value in found.scalars.items() if name != SCORE})


ALARMS: Mapping[str, float | Alarm] = MappingProxyType(
    {
        "below_cut": 0.0,
        "saturation": Alarm(
            above=0.1,
            steps=20,
            meaning="the critic's scores are at their bound, where gradients vanish: lower trainer.wgan.critic_lr, or"
            " use trainer.wgan.penalty_weight = 1",
        ),
        "gp_norm": Alarm(
            below=0.1,
            above=5.0,
            steps=100,
            zero_is_nothing=True,
            meaning="the penalty holds it near 1 in a normal training, and w_gap is a distance only then: change"
            " trainer.wgan.critic_lr or trainer.wgan.penalty_weight",
        ),
    }
)
"""Limits far from a normal training: docs/how-to/diagnose.md."""


TRAINING = ModelTraining(
    "w_gap",
    ("muon_nll", "c_loss", "g_loss", "w_gap"),
    ALARMS,
    WganTask,
    WganPanel,
    meaning_of_weights=("network.energy_cut_gev",),
)
