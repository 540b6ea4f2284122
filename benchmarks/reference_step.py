"""Reference step of the muon WGAN, written plainly, as in the script that icestream replaces.

The context of an event is repeated for each of its muons before the first layer, real and generated events pass the
critic separately, pooling is `scatter_reduce` on an index, the gradient penalty is autograd's second derivative, every
metric is copied to the host at once, and nothing is fused. Same networks, losses and noise as in
`workloads/muons/models/wgan.py`: the shipped step must agree with it, and is timed against it. The likelihood model is
the shipped one: its steps, and the features that it draws.

Shape suffixes: E events, P particles, F features, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from workloads.base.batch import Batch
from workloads.base.context import Noise, StepContext
from workloads.base.optimiser import GuardedOptimiser, uncompiled
from workloads.base.random_streams import SharedPurpose
from workloads.base.segments import Segments
from workloads.muons.models.config import WganConfig
from workloads.muons.models.likelihood import LikelihoodTask
from workloads.muons.models.likelihood_densities import Draws, known, seen
from workloads.muons.models.wgan import CRITIC_BETAS, GENERATOR_BETAS, MUONS_SCORE_FACTOR, WganTask
from workloads.muons.models.wgan_losses import SCORE_LIMIT
from workloads.muons.models.wgan_networks import GENERATOR_AVERAGE_DECAY, LEAK, Dense, WganNetworks

Fake = Callable[[], Tensor]


class ReferenceStep:
    """Plain step for one microbatch a batch, `mean+max` pooling and layer normalisation: the defaults."""

    def __init__(self, config: WganConfig, device: torch.device, seed: int, *, sgd_rate: float = 0.0) -> None:
        """``sgd_rate``: learning rate of SGD for generator and critic, see `use_sgd`; 0: Adam, as configured."""
        context = StepContext(device, seed)
        self._likelihood = LikelihoodTask(config.of_likelihood(), context)
        self.networks = WganNetworks(config, context, self._likelihood.networks)
        self._config = config
        self._device = device
        self._noise = Noise(SharedPurpose.TRAINING_NOISE, seed, device)
        self._critic = _optimiser(self.networks.critic, sgd_rate, config.critic_lr, CRITIC_BETAS)
        self._generator = _optimiser(self.networks.correction, sgd_rate, config.generator_lr, GENERATOR_BETAS)
        self._steps = self._critic_updates = self._generator_updates = 0
        self._gp_norm = 0.0

    def step(self, batch: Batch) -> dict[str, float]:
        """Do one step. Returns its metrics on the host."""
        self._steps += 1
        if self._steps <= self._config.likelihood_steps:
            return {name: float(value) for name, value in self._likelihood.step(batch).items()}
        (microbatch,) = batch.microbatches
        primary, muons = microbatch.event_columns["primary"], microbatch.particle_columns["muons"]
        standardise = self.networks.standardise
        self._noise.begin(self._steps - 1)
        random = self._noise.of(microbatch)
        conditions = standardise.conditions(primary)
        real = seen(standardise.features(muons))
        counts = microbatch.offsets_E1.diff()
        known_EK = known(standardise, self.networks.likelihood.averaged_count_head.average, primary, counts)
        fakes = self._fakes(known_EK, Segments.from_counts(counts, len(muons)), random)
        event_P = torch.repeat_interleave(torch.arange(len(counts), device=self._device), counts)
        real = real[_sorted(real[:, 0], event_P)]
        metrics: dict[str, float] = {}
        for fake in fakes[: self._config.critic_steps]:
            metrics |= self._update_critic(real, fake, conditions, counts, event_P, random)
        return metrics | self._update_generator(real, fakes, conditions, counts, event_P)

    def _update_critic(
        self, real: Tensor, drawn: Fake, conditions: Tensor, counts: Tensor, event_P: Tensor, random: torch.Generator
    ) -> dict[str, float]:
        """Do one update of the critic. Returns its metrics."""
        metrics: dict[str, float] = {}
        present = counts > 0
        with torch.no_grad():
            fake = drawn()
        mix = torch.rand(len(counts), device=self._device, generator=random)[event_P].unsqueeze(1)
        real_E = self._score(real, conditions, counts, event_P)[present]
        fake_E = self._score(fake, conditions, counts, event_P)[present]
        metrics["w_gap"] = (real_E - fake_E).mean().item()
        loss = (self._saturate(fake_E) - self._saturate(real_E)).mean()
        metrics["c_loss"] = loss.item()

        if self._critic_updates % self._config.gp_every == 0:
            loss = loss + self._config.gp_every * self._penalty(real, fake, mix, conditions, counts, event_P)
        self._critic_updates += 1
        metrics["gp_norm"] = self._gp_norm
        self._critic.zero_grad()
        loss.backward()
        metrics["critic_grad_norm"] = _norm(self.networks.critic)
        self._critic.step()
        return metrics

    def _penalty(
        self, real: Tensor, fake: Tensor, mix: Tensor, conditions: Tensor, counts: Tensor, event_P: Tensor
    ) -> Tensor:
        """Gradient penalty with its weight, as autograd's second derivative."""
        present = counts > 0
        fake = fake[_sorted(fake[:, 0], event_P)]
        between = (mix * real + (1 - mix) * fake).requires_grad_(True)
        score = self._saturate(self._score(between, conditions, counts, event_P)).sum()
        (slope,) = torch.autograd.grad(score, between, create_graph=True)
        weight = counts[event_P].float()
        weight[(counts.cumsum(0) - 1)[present]] = 1.0  # of the leading muons
        square = torch.zeros(len(counts), device=self._device).scatter_add(0, event_P, weight * slope.square().sum(1))
        norm = (square + 1e-12).sqrt()[present]
        self._gp_norm = norm.mean().item()
        return self._config.penalty_weight * (norm - 1).square().mean()

    def _update_generator(
        self, real: Tensor, fakes: list[Fake], conditions: Tensor, counts: Tensor, event_P: Tensor
    ) -> dict[str, float]:
        """Do one update of the generator and of its averaged weights. Returns the metrics."""
        metrics: dict[str, float] = {}
        present = counts > 0
        score_weight = self._config.energy_score_weight
        *others, fake = (drawn() for drawn in fakes[-self.networks.generated_events :])
        fake_E = self._saturate(self._score(fake, conditions, counts, event_P))
        loss = -fake_E[present].mean()
        metrics["g_loss"] = loss.item()
        if others:
            spread = self.networks.standardise.feature_spread_F[0]
            score = _energy_score([*others, fake], real, event_P, counts, spread)
            metrics["energy_score"] = score.item()
            loss = loss + score_weight * score
        self._generator.zero_grad()
        loss.backward()
        metrics["generator_grad_norm"] = _norm(self.networks.correction)
        self._generator.step()
        self._generator_updates += 1
        decay = min(GENERATOR_AVERAGE_DECAY, self._generator_updates / (self._generator_updates + 10))
        with torch.no_grad():
            averaged = self.networks.averaged.average.parameters()
            for mean, new in zip(averaged, self.networks.correction.parameters(), strict=True):
                mean.mul_(decay).add_(new, alpha=1 - decay)
        return metrics

    def _fakes(self, known_EK: Tensor, segments: Segments, random: torch.Generator) -> list[Fake]:
        """Functions that correct a drawn set of events each, as the critic sees them."""
        muons, sets = self.networks.likelihood.averaged.average, []
        for times in self.networks.passes(self.networks.num_sets, segments):
            draws = Draws.of(segments.repeated(times), muons.latent, muons.num_features, random)
            for one in zip(*(one.chunk(times) for one in draws), strict=True):
                sets.append(muons.drawn(known_EK, segments, Draws(*one)))
        return [partial(self._corrected, *drawn, segments) for drawn in sets]

    def _corrected(self, inputs_EI: Tensor, features_PF: Tensor, segments: Segments) -> Tensor:
        correction = self.networks.correction
        context = correction.of_context(correction.context(inputs_EI[segments.event_P]))
        return seen(features_PF + 0.1 * correction.network(context + correction.of_features(seen(features_PF))))

    def _score(self, features: Tensor, conditions: Tensor, counts: Tensor, event_P: Tensor) -> Tensor:
        """Scores of all events, unbounded, (E,)."""
        critic = self.networks.critic
        muons = _dense(critic.muon_input, torch.cat([features, conditions[event_P]], 1))
        muons = _dense(critic.muon_hidden, muons)
        index = event_P.unsqueeze(1).expand_as(muons)
        zeros = torch.zeros(len(counts), muons.shape[1], device=self._device)
        mean = zeros.scatter_add(0, index, muons) / counts.clamp_min(1).unsqueeze(1)
        largest = zeros.scatter_reduce(0, index, muons, "amax", include_self=False)
        event = torch.cat([mean, largest, conditions, counts.float().log1p().unsqueeze(1) / 2], 1)
        event = _dense(critic.event_hidden, _dense(critic.event_input, event))
        projected = (event * critic.projection(conditions)).sum(1) / math.sqrt(event.shape[1])
        scores: Tensor = critic.output(event).squeeze(1) + projected
        return scores

    def _saturate(self, scores: Tensor) -> Tensor:
        return SCORE_LIMIT * torch.tanh(scores / SCORE_LIMIT)


def _energy_score(generated: list[Tensor], real: Tensor, event_P: Tensor, counts: Tensor, spread: Tensor) -> Tensor:
    """Mean energy score of muons and events: workloads.muons.models.wgan_networks with index arithmetic."""
    size = counts.clamp_min(1).float()

    def score(made: list[Tensor], wanted: Tensor) -> Tensor:
        def far(p: Tensor, q: Tensor) -> Tensor:
            return ((p - q).square().sum(1) + 1e-12).sqrt()

        pairs = [far(one, other) for at, one in enumerate(made) for other in made[:at]]
        return torch.stack([far(one, wanted) for one in made]).mean(0) - torch.stack(pairs).mean(0) / 2

    def mean(values: Tensor) -> Tensor:
        index = event_P.unsqueeze(1).expand_as(values)
        return values.new_zeros(len(counts), values.shape[1]).scatter_add(0, index, values) / size.unsqueeze(1)

    def summary(features: Tensor) -> Tensor:
        energy = 10 ** (features[:, 0] * spread)
        largest = features.new_zeros(len(counts)).scatter_reduce(0, event_P, features[:, 0], "amax", include_self=False)
        total = features.new_zeros(len(counts)).scatter_add(0, event_P, energy)
        total = torch.where(counts > 0, total, 1.0).log10() / spread
        products = features[:, :1] * features
        return torch.cat([mean(features), mean(products), largest.unsqueeze(1), total.unsqueeze(1)], 1)

    of_events = score([summary(one) for one in generated], summary(real))[counts > 0]
    weight = (size**-0.25)[event_P]  # an event's muons together: N^0.75
    of_muons = (score(generated, real) * weight).sum() / weight.sum()
    return MUONS_SCORE_FACTOR * of_muons + of_events.mean()


def _dense(layer: Dense, rows: Tensor) -> Tensor:
    return F.leaky_relu(layer.norm(layer.linear(rows)), LEAK)


def _sorted(key: Tensor, event_P: Tensor) -> Tensor:
    by_key = key.argsort(stable=True)
    return by_key[event_P[by_key].argsort(stable=True)]


def _norm(network: nn.Module) -> float:
    squares = [parameter.grad.square().sum() for parameter in network.parameters() if parameter.grad is not None]
    return torch.stack(squares).sum().sqrt().item()


def use_sgd(task: WganTask, rate: float) -> WganTask:
    """Replace Adam of generator and critic, whose first updates are ±rate whatever the rounding of small gradients."""
    for name, network in (("generator", task.networks.correction), ("critic", task.networks.critic)):
        optimiser = uncompiled(SGD)(network.parameters(), rate, fused=True)
        task.optimisers[name] = GuardedOptimiser(network, optimiser, clip=0.0, context=task.context)
    return task


def _optimiser(network: nn.Module, sgd_rate: float, rate: float, betas: tuple[float, float]) -> Optimizer:
    if sgd_rate:
        return SGD(network.parameters(), sgd_rate, foreach=False)
    return Adam(network.parameters(), rate, betas=betas, foreach=False)
