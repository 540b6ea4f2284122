"""The training step of the muon WGAN.

Shape suffixes: E events, P particles, F features, C conditions.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from services.trainer.batch import Batch, Microbatch
from services.trainer.segments import Segments
from services.trainer.wgan import losses
from services.trainer.wgan.config import WganConfig
from services.trainer.wgan.model import CountHead, Critic, Generator
from services.trainer.wgan.standardise import Standardise

COSINE_END = 0.05
MIN_PARTICLES_TO_FIT = 2


@dataclass(frozen=True)
class _Events:
    """A microbatch as the networks see it."""

    conditions_EC: Tensor
    segments: Segments
    present_E: Tensor
    """(E,) float32: 1 for an event with muons, 0 for an empty one."""
    real_PF: Tensor | None
    """Standardised muons; None until the standardisation is fitted."""


class Bundles(NamedTuple):
    """Generated events. The muons of an event are neighbours, events in order."""

    counts_E: Tensor
    """(E,) int64."""
    muons_P3: Tensor
    """(P, 3) float32: energy_gev, x_m, y_m."""
    num_capped: int
    """Events whose count was cut down to ``sampling.max_count``."""


class WganTask:
    """Networks, optimisers and counters of the muon WGAN, and the step that trains them.

    ``critic_steps`` and ``penalty_weight`` start as configured and may be changed while training; both are
    saved. Noise comes from torch's global generator of the device, which the caller seeds and saves.
    """

    def __init__(self, config: WganConfig, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        # Weights are drawn on the host, so that a seed means the same start on every device, and the caller's
        # generator is left as it was.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.standardise = Standardise(config.network).to(device)
            self.count_head = CountHead(config.network).to(device)
            self.generator = Generator(self.standardise.num_features, config.network).to(device)
            self.critic = Critic(self.standardise.num_features, config.network).to(device)
        self.generator_average = copy.deepcopy(self.generator).requires_grad_(False)
        self.count_optimiser = Adam(self.count_head.parameters(), config.count_lr)
        self.generator_optimiser = _optimiser(self.generator, config, config.generator_lr)
        self.critic_optimiser = _optimiser(self.critic, config, config.critic_lr)
        self.critic_steps = config.critic_steps
        self.penalty_weight = config.penalty_weight
        self.steps = 0
        self.generator_updates = 0
        self.critic_updates = 0
        self._zero = torch.zeros((), device=device)
        self._gp_norm = self._zero

    @property
    def num_parameters(self) -> int:
        """Trained numbers of the three networks."""
        networks = (self.count_head, self.generator, self.critic)
        return sum(parameter.numel() for network in networks for parameter in network.parameters())

    # ---- The step: `critic_steps` critic updates, one generator update, one of the count head. Nothing in it
    # waits for the device, and the metrics stay there.

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One optimiser step; 0-dim metrics on the device, 0 where a network could not be trained.

        c_loss (without the penalty), w_gap and critic_grad_norm are those of the last critic update: w_gap is
        the mean of D(real) - D(fake) over events with muons, before the score is saturated. gp_norm is the
        mean gradient norm at the latest gradient penalty, m_loss the negative log likelihood of the counts in
        nats per event, skipped_updates the number of updates whose gradient was not finite.

        A batch without muons trains the count head alone, one without events nothing.
        """
        self.observe(batch)
        self._set_learning_rates()
        names = ("c_loss", "g_loss", "m_loss", "w_gap", "gp_norm", "generator_grad_norm", "critic_grad_norm")
        metrics = dict.fromkeys((*names, "skipped_updates"), self._zero)

        microbatches = [self._events(part) for part in batch.microbatches if part.num_events > 0]
        if batch.num_particles > 0 and self.standardise.has_features:
            # Empty events weigh nothing. Where all are empty the sums are 0, whatever they are divided by.
            num_present = sum((part.present_E.sum() for part in microbatches), self._zero).clamp_min(1)
            for _ in range(self.critic_steps):
                self._update_critic(microbatches, num_present, metrics)
            self._update_generator(microbatches, num_present, metrics)
        if batch.num_events > 0:
            self._update_count_head(microbatches, batch.num_events, metrics)
        self.steps += 1
        return metrics

    def _update_critic(self, microbatches: list[_Events], num_present: Tensor, metrics: dict[str, Tensor]) -> None:
        # The penalty is the dearest part. Computed every k-th time, it is weighted by k (arXiv:1912.04958);
        # counted over the whole run, so that its strength does not depend on `critic_steps`.
        penalise = self.penalty_weight > 0 and self.critic_updates % self.config.gp_every == 0
        c_loss = w_gap = gp_norm = self._zero
        for part in microbatches:
            with torch.no_grad():
                fake_PF = self._fake(part)
            loss, gap = self._critic_loss(part, fake_PF)
            c_loss = c_loss + loss.detach() / num_present
            w_gap = w_gap + gap / num_present
            if penalise:
                penalty = self._penalty(part, fake_PF)
                loss = loss + self.penalty_weight * self.config.gp_every * penalty.penalty
                gp_norm = gp_norm + penalty.norm / num_present
            # Gradients add up over microbatches; each is a sum over events divided by those of the batch.
            (loss / num_present).backward()
        if penalise:
            self._gp_norm = gp_norm
        grad_norm = self._apply(self.critic, self.critic_optimiser, metrics)
        self.critic_updates += 1
        metrics |= {"c_loss": c_loss, "w_gap": w_gap, "gp_norm": self._gp_norm, "critic_grad_norm": grad_norm}

    def _update_generator(self, microbatches: list[_Events], num_present: Tensor, metrics: dict[str, Tensor]) -> None:
        parameters = list(self.generator.parameters())
        g_loss = self._zero
        for part in microbatches:
            scores_E = self.critic(self._fake(part), part.conditions_EC, part.segments)
            loss = losses.generator_loss(scores_E, part.present_E) / num_present
            loss.backward(inputs=parameters)  # the critic's own gradients are left alone
            g_loss = g_loss + loss.detach()
        grad_norm = self._apply(self.generator, self.generator_optimiser, metrics)
        self.generator_updates += 1
        self._average_generator()
        metrics |= {"g_loss": g_loss, "generator_grad_norm": grad_norm}

    def _update_count_head(self, microbatches: list[_Events], num_events: int, metrics: dict[str, Tensor]) -> None:
        m_loss = self._zero
        for part in microbatches:
            loss = losses.count_nll(self.count_head(part.conditions_EC), part.segments.counts_E) / num_events
            loss.backward()
            m_loss = m_loss + loss.detach()
        self._apply(self.count_head, self.count_optimiser, metrics)
        metrics["m_loss"] = m_loss

    def _apply(self, network: nn.Module, optimiser: Optimizer, metrics: dict[str, Tensor]) -> Tensor:
        """Updates the weights by their gradients, which are then cleared; the gradients' norm, ().

        A gradient that is not finite is replaced by zeros and counted: decided on the device, without a sync.
        """
        parameters = [parameter for parameter in network.parameters() if parameter.grad is not None]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        finite = norm.isfinite()
        clip = self.config.gradient_clip
        scale = (clip / norm.clamp_min(clip)) if clip > 0 else torch.ones_like(norm)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.where(finite, gradient * scale, 0.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        metrics["skipped_updates"] = metrics["skipped_updates"] + (~finite).float()
        return norm

    # ---- What the step is made of.

    def observe(self, batch: Batch) -> bool:
        """Fits what of the standardisation is not fitted yet and can be; True if it fitted something.

        Conditions need an event, features two particles. Called by ``step``. Several ranks must call it first
        and agree on one of them, or each would train on features of its own.
        """
        fitted = False
        if not self.standardise.has_conditions and batch.num_events > 0:
            self.standardise.fit_conditions(torch.cat([part.event_columns["primary"] for part in batch.microbatches]))
            fitted = True
        if not self.standardise.has_features and batch.num_particles >= MIN_PARTICLES_TO_FIT:
            self.standardise.fit_features(torch.cat([part.particle_columns["muons"] for part in batch.microbatches]))
            fitted = True
        return fitted

    def _events(self, part: Microbatch) -> _Events:
        segments = Segments.from_offsets(part.offsets_E1, part.num_particles)
        has_features = self.standardise.has_features
        return _Events(
            conditions_EC=self.standardise.conditions(part.event_columns["primary"]),
            segments=segments,
            present_E=(segments.counts_E > 0).float(),
            real_PF=self.standardise.features(part.particle_columns["muons"]) if has_features else None,
        )

    def _fake(self, part: _Events) -> Tensor:
        """Generated features with the real counts, so that both have the same segments. -> (P, F)."""
        features_PF: Tensor = self.generator(part.conditions_EC, part.segments)
        return features_PF

    def _critic_loss(self, part: _Events, fake_PF: Tensor) -> tuple[Tensor, Tensor]:
        """The critic's loss without penalty, and the gap D(real) - D(fake), unsaturated; sums over events."""
        assert part.real_PF is not None
        real_E = self.critic.raw_scores(part.real_PF, part.conditions_EC, part.segments)
        fake_E = self.critic.raw_scores(fake_PF, part.conditions_EC, part.segments)
        gap = -losses.critic_loss(real_E.detach(), fake_E.detach(), part.present_E)
        saturate = self.critic.saturate
        return losses.critic_loss(saturate(real_E), saturate(fake_E), part.present_E), gap

    def _penalty(self, part: _Events, fake_PF: Tensor) -> losses.GradientPenalty:
        assert part.real_PF is not None
        return losses.gradient_penalty(
            lambda features_PF: self.critic(features_PF, part.conditions_EC, part.segments),
            part.real_PF,
            fake_PF,
            part.segments,
            torch.rand_like(part.present_E),
            one_sided=self.config.one_sided,
        )

    def _average_generator(self) -> None:
        """Running mean of the weights, arXiv:1806.04498; short at first, to forget the random start."""
        updates = self.generator_updates
        decay = min(self.config.generator_average_decay, updates / (updates + 10))
        with torch.no_grad():
            for mean, latest in zip(self.generator_average.parameters(), self.generator.parameters(), strict=True):
                mean.lerp_(latest, 1 - decay)

    def _set_learning_rates(self) -> None:
        factor = learning_rate_factor(self.steps, self.config)
        for optimiser, rate in (
            (self.count_optimiser, self.config.count_lr),
            (self.generator_optimiser, self.config.generator_lr),
            (self.critic_optimiser, self.config.critic_lr),
        ):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor

    def learning_rates(self) -> dict[str, float]:
        """Of the latest step, by network."""
        optimisers = {
            "count": self.count_optimiser,
            "generator": self.generator_optimiser,
            "critic": self.critic_optimiser,
        }
        return {name: float(optimiser.param_groups[0]["lr"]) for name, optimiser in optimisers.items()}

    # ---- Use without training.

    @torch.no_grad()
    def held_out(self, batch: Batch) -> dict[str, Tensor]:
        """m_loss and w_gap, as in ``step``, of events that are not trained on. Draws noise.

        RuntimeError before the first batch with muons.
        """
        self._require_fit()
        microbatches = [self._events(part) for part in batch.microbatches if part.num_events > 0]
        num_present = sum((part.present_E.sum() for part in microbatches), self._zero).clamp_min(1)
        m_loss = w_gap = self._zero
        for part in microbatches:
            nll = losses.count_nll(self.count_head(part.conditions_EC), part.segments.counts_E)
            m_loss = m_loss + nll / max(batch.num_events, 1)
            w_gap = w_gap + self._critic_loss(part, self._fake(part))[1] / num_present
        return {"m_loss": m_loss, "w_gap": w_gap}

    @torch.no_grad()
    def generate(self, primary_E4: Tensor) -> Bundles:
        """An event for each primary. (E, 4) = [energy_gev, zenith_rad, mass_a, depth_m].

        Waits for the device, and holds all events at once: split long lists. RuntimeError before the first
        batch with muons.
        """
        self._require_fit()
        sampling = self.config.sampling
        conditions_EC = self.standardise.conditions(primary_E4.to(self.device))
        drawn_E = self.count_head.sample(conditions_EC)
        counts_E = drawn_E.clamp_max(sampling.max_count)
        segments = Segments.from_counts(counts_E, int(counts_E.sum()))
        averaged = self.config.generator_average_decay > 0
        features_PF = (self.generator_average if averaged else self.generator)(conditions_EC, segments)
        bounded_PF = features_PF.clamp(-sampling.max_deviation, sampling.max_deviation)
        num_capped = int((drawn_E > sampling.max_count).sum())
        return Bundles(counts_E, self.standardise.muons(bounded_PF), num_capped)

    def _require_fit(self) -> None:
        if not (self.standardise.has_conditions and self.standardise.has_features):
            raise RuntimeError("the standardisation is not fitted: no batch with two muons has been trained on")

    # ---- Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """All that training goes on from, except torch's random numbers.

        ``torch.load(weights_only=True)`` reads it. Tensors are not copied: save it before the next step.
        """
        return {
            **{name: part.state_dict() for name, part in self._stateful()},
            "counters": {name: getattr(self, name) for name in _COUNTERS},
            "gp_norm": self._gp_norm,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from ``state_dict()``. KeyError or RuntimeError, of torch, if the networks differ."""
        for name, part in self._stateful():
            part.load_state_dict(state[name])
        for name in _COUNTERS:
            setattr(self, name, state["counters"][name])
        self._gp_norm = state["gp_norm"].to(self.device)

    def _stateful(self) -> Iterable[tuple[str, nn.Module | Optimizer]]:
        return (
            ("standardise", self.standardise),
            ("count_head", self.count_head),
            ("generator", self.generator),
            ("generator_average", self.generator_average),
            ("critic", self.critic),
            ("count_optimiser", self.count_optimiser),
            ("generator_optimiser", self.generator_optimiser),
            ("critic_optimiser", self.critic_optimiser),
        )


_COUNTERS = ("steps", "generator_updates", "critic_updates", "critic_steps", "penalty_weight")


def learning_rate_factor(step: int, config: WganConfig) -> float:
    """Share of the configured learning rates that is used in ``step``: 1, or a cosine from 1 to 5 %.

    A function of the step alone, so that the schedule has no state of its own to save.
    """
    if config.schedule == "constant" or config.schedule_steps == 0:
        return 1.0
    progress = min(step / config.schedule_steps, 1.0)
    return COSINE_END + (1 - COSINE_END) * (1 + math.cos(math.pi * progress)) / 2


def _optimiser(network: nn.Module, config: WganConfig, rate: float) -> Optimizer:
    if config.optimiser == "sgd":
        return SGD(network.parameters(), rate, momentum=config.momentum)
    return Adam(network.parameters(), rate, betas=config.betas)
