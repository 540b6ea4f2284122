"""The training step of the muon flow: one update of the velocity field, one of the count head."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam

from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.base.noise import Noise
from workloads.base.optimiser import GuardedOptimiser, Learned, uncompiled
from workloads.base.schedule import learning_rate_factor
from workloads.base.thin import thinned
from workloads.muons.models.bundles import Bundles
from workloads.muons.models.fit import fit_standardise
from workloads.muons.models.flow.config import FlowConfig
from workloads.muons.models.flow.model import VelocityField
from workloads.muons.models.flow.networks import Networks
from workloads.muons.models.flow.sampler import FlowSampler

logger = logging.getLogger(__name__)

CPU_CHUNK_PARTICLES = 2048
_METRICS = ("flow_loss", "m_loss", "flow_grad_norm", "count_grad_norm", "skipped_updates")
_RECIPE = ("schedule", "schedule_steps", "warmup_steps", "flow_lr", "count_lr", "muon_weight", "pair_by_energy")
_COUNTERS = ("steps", "rate_scale")


class FlowTask:
    """Networks, optimisers and counters of the muon flow, and the step that trains them.

    Noise depends on seed, step and lane alone (noise.py), so that there is none to save.
    """

    def __init__(
        self,
        config: FlowConfig,
        context: StepContext,
    ) -> None:
        """On a CPU, ``context.threads`` parts of a batch are computed at once."""
        device, seed, threads = context.device, context.seed, context.threads
        limits, sum_over_ranks = context.limits, context.sum_over_ranks
        self.config = config
        self.device = device
        self.networks = networks = Networks(config, device, seed, bf16=context.bf16)
        self._averaged: list[Tensor] = list(networks.velocity_average.parameters())
        self._latest: list[Tensor] = list(networks.velocity.parameters())

        def optimiser_of(network: nn.Module, rate: float, **adam: Any) -> GuardedOptimiser:
            return GuardedOptimiser(
                network,
                uncompiled(Adam)(network.parameters(), rate, fused=True, **adam),
                learning_rate=rate,
                clip=config.gradient_clip,
                limits=limits,
                sum_over_ranks=sum_over_ranks,
            )

        self._optimisers = {
            "count": optimiser_of(networks.count_head, config.count_lr),
            "flow": optimiser_of(networks.velocity, config.flow_lr, betas=config.betas),
        }
        self._sum_over_ranks = sum_over_ranks
        self._pool = ThreadPoolExecutor(threads, "step") if device.type == "cpu" and threads > 1 else None
        self._noise = Noise(seed, device)
        self._chunk_particles = config.chunk_particles or (CPU_CHUNK_PARTICLES if device.type == "cpu" else 0)
        self.steps = 0
        self.rate_scale = 1.0
        self._zero = torch.zeros((), device=device)

    @property
    def num_parameters(self) -> int:
        """Trained numbers of both networks."""
        networks = (self.networks.count_head, self.networks.velocity)
        return sum(parameter.numel() for network in networks for parameter in network.parameters())

    @property
    def is_fitted(self) -> bool:
        """True once events can be generated: a batch with two muons was trained on."""
        return self.networks.standardise.has_conditions and self.networks.standardise.has_features

    def learning_rates(self) -> dict[str, float]:
        """Of the newest step."""
        return {name: optimiser.learning_rate for name, optimiser in self._optimisers.items()}

    def scale_learning_rates(self, factor: float) -> None:
        """Multiply all learning rates from now on."""
        self.rate_scale *= factor

    def observed(self, metrics: Mapping[str, float]) -> None:
        """Nothing here depends on what the host sees."""

    # ---- The step. Nothing in it waits for the device, and the metrics stay there.

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One optimiser step; 0-dim metrics on the device, 0 where a network could not be trained.

        flow_loss is the squared error of the velocity field (1 is about what it begins with, and an error of 0 can't be
        reached: docs/flow.md), m_loss the count head's loss per event, skipped_updates the number of updates that were
        left out: a loss or gradient was not finite, or beyond the limits.

        A batch without muons trains the count head alone, one without events nothing.
        """
        fit_standardise(self.networks.standardise, batch, self.device, self._sum_over_ranks)
        self._noise.begin(self.steps)
        for optimiser in self._optimisers.values():
            optimiser.set_rate_factor(self.rate_scale * learning_rate_factor(self.steps, self.config))
        metrics = dict.fromkeys(_METRICS, self._zero)
        parts = list(self._parts(batch, self._noise))
        if batch.total_particles > 0 and self.networks.standardise.has_features:
            with_muons = [part for part in parts if part.num_particles > 0]
            total = self._total_weight(batch)
            self._update("flow", self.networks.flow_loss, with_muons, total, metrics)
            self._average_velocity()
        if batch.total_events > 0:
            self._update("count", self.networks.count_loss, parts, batch.total_events, metrics)
        self.steps += 1
        return metrics

    def _update(
        self,
        name: str,
        loss_of: Callable[[Microbatch], Tensor],
        parts: list[Microbatch],
        total: Tensor | float,
        metrics: dict[str, Tensor],
    ) -> None:
        """Out of memory, once more with every part halved: parts add up, so that the update is the same."""
        optimiser = self._optimisers[name]

        def learn(part: Microbatch) -> Learned:
            loss = loss_of(part) / total
            return Learned(optimiser.gradients(loss), loss.detach().unsqueeze(0))

        def over(parts: list[Microbatch]) -> Iterable[Learned]:
            return map(learn, parts) if self._pool is None else self._pool.map(learn, parts)

        try:
            updated = optimiser.update(over(parts), num_sums=1)
        except torch.OutOfMemoryError:  # outside of this block, nothing of the failed pass is held any more
            updated = None
        if updated is None:
            torch.cuda.empty_cache()
            num_particles = sum(part.num_particles for part in parts)
            logger.warning("out of memory with %d particles: the batch is split in two", num_particles)
            updated = optimiser.update(over([half for part in parts for half in part.halves()]), num_sums=1)
        metrics["m_loss" if name == "count" else "flow_loss"] = updated.sums[0]
        metrics[f"{name}_grad_norm"] = updated.grad_norm
        metrics["skipped_updates"] = metrics["skipped_updates"] + updated.skipped

    def _parts(self, batch: Batch, noise: Noise) -> Iterator[Microbatch]:
        """The batch, thinned and with its noise, in chunks that stay in the cache."""
        for microbatch in batch.microbatches:
            if microbatch.num_events > 0:
                random = noise.of(microbatch.lane)
                drawn = self.networks.with_noise(thinned(microbatch, self.config.max_muons, random), random)
                yield from drawn.chunks(self._chunk_particles) if self._chunk_particles else (drawn,)

    def _total_weight(self, batch: Batch) -> Tensor:
        """Of all ranks' events with muons, ()."""
        own = sum(self.networks.total_weight(part) for part in batch.microbatches)
        total = torch.full((), own, device=self.device)
        self._sum_over_ranks([total])
        return total

    def _average_velocity(self) -> None:
        """Running mean of the weights; short at first, to forget the random start."""
        decay = min(self.config.average_decay, (self.steps + 1) / (self.steps + 11))
        with torch.no_grad():
            torch._foreach_lerp_(self._averaged, self._latest, 1 - decay)

    # ---- Use without training.

    @torch.no_grad()
    def held_out(self, batch: Batch) -> dict[str, Tensor]:
        """m_loss and flow_loss, as in ``step``, of events that are not trained on; the flow's by the weights that are
        meant to be used. The same noise at each call. RuntimeError before the first batch with muons.
        """
        self.networks.standardise.require_fit()
        total = sum(self.networks.total_weight(part) for part in batch.microbatches)
        m_loss = flow_loss = self._zero
        for part in self._parts(batch, Noise(0, self.device)):
            m_loss = m_loss + self.networks.count_loss(part) / batch.num_events
            if part.num_particles > 0:
                flow_loss = flow_loss + self.networks.flow_loss(part, self._used) / total
        return {"m_loss": m_loss, "flow_loss": flow_loss}

    @torch.no_grad()
    def generate(self, primary_E4: Tensor) -> Bundles:
        """An event for each primary. (E, 4) = [energy_gev, zenith_rad, mass_a, depth_m].

        Waits for the device, and holds all events at once: split long lists. Its seed is drawn from torch's global
        generator. RuntimeError before the first batch with muons.
        """
        sampler = self.sampler()
        random = torch.Generator(self.device).manual_seed(int(torch.randint(2**62, ())))
        primary_E4 = primary_E4.to(self.device)
        drawn_E = sampler.draw_counts(primary_E4, random)
        counts_E = drawn_E.clamp_max(self.config.max_count)
        muons_P3 = sampler.draw_muons(primary_E4, counts_E, random)
        return Bundles(counts_E, muons_P3, int((drawn_E > self.config.max_count).sum()))

    def sampler(self) -> FlowSampler:
        """Of the weights as they are now. RuntimeError before the first batch with muons."""
        networks = self.networks
        return FlowSampler(self.config, networks.standardise, networks.count_head, self._used)

    @property
    def _used(self) -> VelocityField:
        return self.networks.velocity_average if self.config.average_decay > 0 else self.networks.velocity

    # ---- Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """All that training goes on from.

        ``torch.load(weights_only=True)`` reads it. Tensors are not copied: save it before the next step.
        """
        return {
            "networks": {name: module.state_dict() for name, module in self.networks.modules().items()},
            "optimisers": {name: optimiser.state_dict() for name, optimiser in self._optimisers.items()},
            "counters": {name: getattr(self, name) for name in _COUNTERS},
            "recipe": {name: getattr(self.config, name) for name in _RECIPE},
        }

    def load_weights(self, state: dict[str, Any]) -> None:
        """Networks and standardisation of ``state_dict()``. KeyError or RuntimeError, of torch, if they differ."""
        for name, module in self.networks.modules().items():
            module.load_state_dict(state["networks"][name])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from ``state_dict()``. KeyError or RuntimeError, of torch, if the networks differ.

        Another recipe goes on from this step, and is told.
        """
        self.load_weights(state)
        for name in _COUNTERS:
            setattr(self, name, state["counters"][name])
        for name in _RECIPE:
            old, new = state["recipe"][name], getattr(self.config, name)
            if old != new:
                told = "trainer.flow.%s was %s in the checkpoint and is %s now; the weights are kept"
                logger.warning(told, name, old, new)
        for name, optimiser in self._optimisers.items():
            optimiser.load_state_dict(state["optimisers"][name])
