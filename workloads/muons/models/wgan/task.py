"""The training step of the muon WGAN: which network learns when, with what, and what is counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.base.noise import Noise
from workloads.base.optimiser import GuardedOptimiser, Learned, Updated
from workloads.base.schedule import learning_rate_factor
from workloads.base.thin import thinned
from workloads.muons.models.bundles import Bundles
from workloads.muons.models.fit import fit_standardise
from workloads.muons.models.wgan import adaptive
from workloads.muons.models.wgan.config import WganConfig
from workloads.muons.models.wgan.networks import Draw, Events, Networks
from workloads.muons.models.wgan.optimiser import make_optimiser

logger = logging.getLogger(__name__)

CPU_CHUNK_PARTICLES = 2048
MUONS_SCORE_FACTOR = 3.0
"""What the mean score of muons counts beside that of events: it is one of two numbers against one of six."""
_METRICS = (
    *("c_loss", "g_loss", "energy_score", "m_loss", "w_gap", "gp_norm"),
    *("generator_grad_norm", "critic_grad_norm", "count_grad_norm", "skipped_updates"),
)
_RECIPE = ("optimiser", "schedule", "schedule_steps", "warmup_steps", "generator_lr", "critic_lr", "count_lr")


class WganTask:
    """Networks, optimisers and counters of the muon WGAN, and the step that trains them.

    Noise depends on seed, step and lane alone (noise.py), so that there is none to save.
    """

    def __init__(
        self,
        config: WganConfig,
        context: StepContext,
    ) -> None:
        """On a CPU, ``context.threads`` parts of a batch are computed at once.

        Raises BadInputError if the model can't be compiled here, although that is wanted.
        """
        device, seed, threads = context.device, context.seed, context.threads
        limits, sum_over_ranks = context.limits, context.sum_over_ranks
        self.config = config
        self.device = device
        self.networks = networks = Networks(config, device, seed, bf16=context.bf16)
        self._averaged: list[Tensor] = list(networks.generator_average.parameters())
        self._latest: list[Tensor] = list(networks.generator.parameters())

        def optimiser_of(network: nn.Module, rate: float) -> GuardedOptimiser:
            return make_optimiser(network, config, rate, limits=limits, sum_over_ranks=sum_over_ranks)

        self._optimisers = {
            "count": optimiser_of(networks.count_head, config.count_lr),
            "generator": optimiser_of(networks.generator, config.generator_lr),
            "critic": optimiser_of(networks.critic, config.critic_lr),
        }
        self._sum_over_ranks = sum_over_ranks
        # Spectral normalisation changes its state as it is used, and a compiler runs its own threads.
        several = device.type == "cpu" and threads > 1 and not (config.network.spectral_norm or config.compile)
        self._pool = ThreadPoolExecutor(threads, "step") if several else None
        self._noise = Noise(seed, device)
        self._chunk_particles = config.chunk_particles or (CPU_CHUNK_PARTICLES if device.type == "cpu" else 0)
        self._adaptive = adaptive.AdaptiveState(config.critic_steps, config.penalty_weight)
        self.steps = 0
        self.generator_updates = 0
        self.critic_updates = 0
        self.rate_scale = 1.0
        self.gap_measured_at = self.gap_checked_at = -1
        self._zero = torch.zeros((), device=device)
        self._gp_norm = self._held_out_gap = self._zero

    @property
    def num_parameters(self) -> int:
        """Trained numbers of the three networks."""
        networks = (self.networks.count_head, self.networks.generator, self.networks.critic)
        return sum(parameter.numel() for network in networks for parameter in network.parameters())

    @property
    def is_fitted(self) -> bool:
        """True once events can be generated: a batch with two muons was trained on."""
        return self.networks.standardise.has_conditions and self.networks.standardise.has_features

    @property
    def critic_steps(self) -> int:
        """Critic updates per step, now."""
        return self._adaptive.critic_steps

    @property
    def penalty_weight(self) -> float:
        """λ, now."""
        return self._adaptive.penalty_weight

    def learning_rates(self) -> dict[str, float]:
        """Of the newest step."""
        return {name: optimiser.learning_rate for name, optimiser in self._optimisers.items()}

    def scale_learning_rates(self, factor: float) -> None:
        """Multiply all learning rates from now on."""
        self.rate_scale *= factor

    # ---- The step: `critic_steps` critic updates, one generator update, one of the count head. Nothing in it
    # waits for the device, and the metrics stay there.

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One optimiser step; 0-dim metrics on the device, 0 where a network could not be trained.

        c_loss (without the penalty), w_gap and critic_grad_norm are those of the last critic update: w_gap is
        the mean of D(real) - D(fake) over events with muons, before the score is saturated. energy_score is that of
        the generator's update, gp_norm is the
        mean gradient norm at the latest gradient penalty, m_loss the count head's loss per event, skipped_updates the
        number of updates that were left out: a loss or gradient was not finite, or beyond the limits.

        A batch without muons trains the count head alone, one without events nothing.
        """
        self.observe(batch)
        self._noise.begin(self.steps)
        for optimiser in self._optimisers.values():
            optimiser.set_rate_factor(self.rate_scale * learning_rate_factor(self.steps, self.config))
        metrics = dict.fromkeys(_METRICS, self._zero)
        parts = [part for microbatch in batch.microbatches for part in self._parts(microbatch)]
        if batch.total_particles > 0 and self.networks.standardise.has_features:
            num_present = self._num_present(batch)
            if self.config.adaptive.enabled and self.steps % self.config.adaptive.every == 0:
                self._measure_gap(parts, num_present)
            for _ in range(self.critic_steps):
                with parametrize.cached():
                    self.networks.normalise()
                    parts = self._without_running_out(self._update_critic, parts, num_present, metrics)
            with parametrize.cached():
                self.networks.normalise()
                update = partial(self._update_generator, num_particles=self._num_shown(batch, parts))
                parts = self._without_running_out(update, parts, num_present, metrics)
        if batch.total_events > 0:
            self._update_count_head(parts, batch.total_events, metrics)
        self.steps += 1
        return metrics | ({"held_out_gap": self._held_out_gap} if self.config.adaptive.enabled else {})

    def _without_running_out(
        self,
        update: Callable[[list[Events], Tensor, dict[str, Tensor]], None],
        parts: list[Events],
        num_present: Tensor,
        metrics: dict[str, Tensor],
    ) -> list[Events]:
        """Run an update; out of memory, once more with every part halved. Gradients of parts add up, so the update is
        the same but for its noise. The parts that fitted."""
        try:
            update(parts, num_present, metrics)
            return parts
        except torch.OutOfMemoryError:  # outside of this block, nothing of the failed pass is held any more
            pass
        torch.cuda.empty_cache()
        logger.warning(
            "out of memory with %d particles: the batch is split in two",
            sum(part.source.num_particles for part in parts),
        )
        parts = [half for part in parts for half in self._halves(part)]
        update(parts, num_present, metrics)
        return parts

    def _update_critic(self, parts: list[Events], num_present: Tensor, metrics: dict[str, Tensor]) -> None:
        # The penalty is the dearest part. Computed every k-th time, it is weighted by k (arXiv:1912.04958);
        # counted over the whole run, so that its strength does not depend on `critic_steps`.
        networks, critic = self.networks, self._optimisers["critic"]
        penalise = self.penalty_weight > 0 and self.critic_updates % self.config.gp_every == 0
        weight = self.penalty_weight * self.config.gp_every / num_present

        def learn(part: Events, draw: Draw) -> Learned:
            with torch.no_grad():
                fake_PF = networks.fake(part, draw.noise)
            loss, gap = networks.critic_loss(part, fake_PF)
            gradients = critic.gradients(loss / num_present)  # sets the memory of its graph free
            norm = self._zero
            if penalise and (penalty := networks.penalty(part, fake_PF, draw.mix_E, self.critic_updates)) is not None:
                torch._foreach_add_(gradients, critic.gradients(penalty.penalty * weight))
                norm = penalty.norm
            return Learned(gradients, torch.stack([loss.detach(), gap, norm]) / num_present)

        updated = critic.update(self._over_parts(learn, parts), num_sums=3)
        self.critic_updates += 1
        if penalise:
            self._gp_norm = updated.sums[2]
        metrics |= {"c_loss": updated.sums[0], "w_gap": updated.sums[1], "gp_norm": self._gp_norm}
        _note(metrics, "critic", updated)

    def _update_generator(
        self, parts: list[Events], num_present: Tensor, metrics: dict[str, Tensor], *, num_particles: int | Tensor
    ) -> None:
        generator = self._optimisers["generator"]

        weight = self.config.energy_score_weight

        def learn(part: Events, draw: Draw) -> Learned:
            loss, score = self.networks.generator_loss(part, draw)
            loss = loss / num_present
            mean = MUONS_SCORE_FACTOR * score.of_muons / num_particles + score.of_events / num_present
            return Learned(generator.gradients(loss + weight * mean), torch.stack([loss.detach(), mean.detach()]))

        updated = generator.update(self._over_parts(learn, parts, for_generator=True), num_sums=2)
        self.generator_updates += 1
        self._average_generator()
        metrics |= {"g_loss": updated.sums[0], "energy_score": updated.sums[1]}
        _note(metrics, "generator", updated)

    def _over_parts(
        self, learn: Callable[[Events, Draw], Learned], parts: list[Events], *, for_generator: bool = False
    ) -> Iterator[Learned]:
        """What each part with muons teaches, in order: on a CPU several at once."""
        with_muons = [part for part in parts if part.has_muons]
        draws = (self.networks.draw(part, for_generator=for_generator) for part in with_muons)
        if self._pool is None:
            yield from map(learn, with_muons, draws)
        else:
            yield from self._pool.map(learn, with_muons, draws)

    def _update_count_head(self, parts: list[Events], num_events: int, metrics: dict[str, Tensor]) -> None:
        count = self._optimisers["count"]

        def learn(part: Events) -> Learned:
            loss = self.networks.count_loss(part) / num_events
            return Learned(count.gradients(loss), loss.detach().unsqueeze(0))

        updated = count.update(map(learn, parts), num_sums=1)
        metrics["m_loss"] = updated.sums[0]
        _note(metrics, "count", updated)

    # ---- What the step is made of.

    def observe(self, batch: Batch) -> bool:
        """Fits the standardisation if that can be done now; True if it fitted something. Called by ``step``."""
        return fit_standardise(self.networks.standardise, batch, self.device, self._sum_over_ranks)

    def observed(self, metrics: Mapping[str, float]) -> None:
        """The newest step's metrics have reached the host: the adaptive critic looks at them, if there is a new gap."""
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

    def _measure_gap(self, parts: list[Events], num_present: Tensor) -> None:
        """w_gap of events that have not been trained on, over all ranks."""
        gap = torch.zeros_like(self._zero)  # it is summed over the ranks in place
        self.networks.critic.eval()  # spectral normalisation must not move: ranks have different numbers of parts
        with torch.no_grad():
            for part in parts:
                if part.has_muons:
                    fake_PF = self.networks.fake(part, self.networks.draw(part).noise)
                    gap = gap + self.networks.critic_loss(part, fake_PF)[1] / num_present
        self.networks.critic.train()
        self._sum_over_ranks([gap])
        self._held_out_gap = gap
        self.gap_measured_at = self.steps

    def _num_present(self, batch: Batch) -> Tensor:
        """Events with muons of all ranks, at least 1, ()."""
        own = sum(microbatch.num_present for microbatch in batch.microbatches)
        num_present = torch.full((), float(own), device=self.device)
        self._sum_over_ranks([num_present])
        return num_present.clamp_min(1)

    def _num_shown(self, batch: Batch, parts: list[Events]) -> int | Tensor:
        """Muons of all ranks that generator and critic are trained on, at least 1."""
        if self.config.critic_max_muons == 0:
            return batch.total_particles
        num_shown = torch.full((), float(sum(part.source.num_particles for part in parts)), device=self.device)
        self._sum_over_ranks([num_shown])
        return num_shown.clamp_min(1)

    def _parts(self, microbatch: Microbatch) -> Iterator[Events]:
        """A microbatch in chunks that stay in the cache."""
        if microbatch.num_events == 0:
            return
        microbatch = thinned(microbatch, self.config.critic_max_muons, self._noise.of(microbatch.lane))
        chunks = microbatch.chunks(self._chunk_particles) if self._chunk_particles else (microbatch,)
        for chunk in chunks:
            share = chunk.num_particles / max(microbatch.num_particles, 1)
            yield self.networks.events(chunk, share, self._noise.of(microbatch.lane))

    def _halves(self, part: Events) -> Iterator[Events]:
        for half in part.source.halves():
            share = part.share * half.num_particles / max(part.source.num_particles, 1)
            yield self.networks.events(half, share, part.random)

    def _average_generator(self) -> None:
        """Running mean of the weights, arXiv:1806.04498; short at first, to forget the random start."""
        updates = self.generator_updates
        decay = min(self.config.generator_average_decay, updates / (updates + 10))
        with torch.no_grad():
            torch._foreach_lerp_(self._averaged, self._latest, 1 - decay)

    # ---- Use without training.

    @torch.no_grad()
    def held_out(self, batch: Batch) -> dict[str, Tensor]:
        """m_loss and w_gap, as in ``step``, of events that are not trained on. The same noise at each call.

        RuntimeError before the first batch with muons.
        """
        self.networks.standardise.require_fit()
        noise = Noise(0, self.device)
        num_present = max(sum(microbatch.num_present for microbatch in batch.microbatches), 1)
        m_loss = w_gap = self._zero
        for microbatch in batch.microbatches:
            if microbatch.num_events == 0:
                continue
            random = noise.of(microbatch.lane)
            part = self.networks.events(thinned(microbatch, self.config.critic_max_muons, random), 1.0, random)
            m_loss = m_loss + self.networks.count_loss(part) / max(batch.num_events, 1)
            if part.has_muons:
                fake_PF = self.networks.fake(part, self.networks.draw(part).noise)
                w_gap = w_gap + self.networks.critic_loss(part, fake_PF)[1] / num_present
        return {"m_loss": m_loss, "w_gap": w_gap}

    def generate(self, primary_E4: Tensor) -> Bundles:
        """See Networks.generate."""
        return self.networks.generate(primary_E4)

    # ---- Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """All that training goes on from.

        ``torch.load(weights_only=True)`` reads it. Tensors are not copied: save it before the next step.
        """
        return {
            "networks": {name: module.state_dict() for name, module in self.networks.modules().items()},
            "optimisers": {name: optimiser.state_dict() for name, optimiser in self._optimisers.items()},
            "counters": {name: getattr(self, name) for name in _COUNTERS},
            "adaptive": asdict(self._adaptive),
            "gp_norm": self._gp_norm,
            "held_out_gap": self._held_out_gap,
            "recipe": {name: getattr(self.config, name) for name in _RECIPE},
        }

    def load_weights(self, state: dict[str, Any]) -> None:
        """Networks and standardisation of ``state_dict()``. KeyError or RuntimeError, of torch, if they differ."""
        for name, module in self.networks.modules().items():
            module.load_state_dict(state["networks"][name])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from ``state_dict()``. KeyError or RuntimeError, of torch, if the networks differ.

        Another optimiser begins anew, another schedule goes on from this step; both are told.
        """
        self.load_weights(state)
        for name in _COUNTERS:
            setattr(self, name, state["counters"][name])
        self._gp_norm = state["gp_norm"].to(self.device)
        self._held_out_gap = state["held_out_gap"].to(self.device)
        changed = [name for name in _RECIPE if state["recipe"][name] != getattr(self.config, name)]
        for name in changed:
            logger.warning(
                "trainer.wgan.%s was %s in the checkpoint and is %s now; the weights are kept%s",
                name,
                state["recipe"][name],
                getattr(self.config, name),
                ", the optimisers of generator and critic begin anew" if name == "optimiser" else "",
            )
        for name, optimiser in self._optimisers.items():
            if "optimiser" not in changed or name == "count":
                optimiser.load_state_dict(state["optimisers"][name])
        if self.config.adaptive.enabled:
            self._adaptive = adaptive.AdaptiveState(**state["adaptive"] | {"gaps": tuple(state["adaptive"]["gaps"])})


_COUNTERS = ("steps", "generator_updates", "critic_updates", "rate_scale", "gap_measured_at", "gap_checked_at")


def _note(metrics: dict[str, Tensor], network: str, updated: Updated) -> None:
    metrics[f"{network}_grad_norm"] = updated.grad_norm
    metrics["skipped_updates"] = metrics["skipped_updates"] + updated.skipped
