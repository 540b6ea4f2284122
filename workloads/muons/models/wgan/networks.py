"""Networks of the muon WGAN, and the terms of their losses, for a part of a microbatch.

Shape suffixes: E events, P particles, C conditions.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from workloads.base.averaged import AveragedWeights
from workloads.base.batch import Microbatch
from workloads.base.buckets import padded
from workloads.base.compiler import require_compiler
from workloads.base.context import StepContext
from workloads.base.parts import CPU_CHUNK_PARTICLES
from workloads.base.segments import Segments, sort_within_events, spread
from workloads.base.thin import counts_of
from workloads.muons.models.bundles import Bundles
from workloads.muons.models.count_head import AVERAGE_DECAY, CountMixture, MixtureCountHead
from workloads.muons.models.standardise import Standardise
from workloads.muons.models.wgan import losses
from workloads.muons.models.wgan.config import WganConfig
from workloads.muons.models.wgan.energy_score import EnergyScore, energy_score, event_weight
from workloads.muons.models.wgan.model import Critic, Generator

CPU_CHUNK = 2 * CPU_CHUNK_PARTICLES
"""Largest number of particles in a part on a CPU: more than other models', since layers in C++ divide its rows anew."""


@dataclass(frozen=True)
class WganEvents:
    """Input of the networks from a part of a microbatch."""

    conditions_EC: Tensor
    segments: Segments
    counted_E: Tensor
    """Flag, (E,) float32: 1 for an event of the batch, 0 for one that only fills a bucket."""
    present_E: Tensor
    """Flag, (E,) float32: 1 for an event of the batch with muons, else 0."""
    signs_2E: Tensor
    """Signs of the scores in the critic's loss: see losses.signs."""
    muons_weight_E: Tensor
    """Weight among the energy scores of muons: see event_weight."""
    counted_P1: Tensor
    """Flag, (P, 1) float32: 1 for a muon of an event that is present."""
    real_PF: Tensor
    """Standardised muons, sorted by energy in each event: the penalty pairs them by rank."""
    twice: tuple[Tensor, Segments]
    """Conditions and segments of the events, twice in sequence: for real and generated ones in one pass."""
    source: Microbatch
    random: torch.Generator
    remake: Callable[[Microbatch], WganEvents]
    """Function that builds the same input from some of its events."""

    @property
    def num_particles(self) -> int:
        """Muons of all events of the batch."""
        return self.source.num_particles

    def halves(self) -> tuple[WganEvents, ...]:
        """Two parts with about half of the muons each; the part itself if it has one event."""
        return tuple(self.remake(half) for half in self.source.halves())


class Draw(NamedTuple):
    """Random numbers of an update for a part."""

    z_EZ: Tensor
    """Noise of the generator, of each event and each muon; for the generator's update as many sets of them, one after
    the other, as the energy score needs events for the same primaries and counts."""
    z_PZ: Tensor
    mix_E: Tensor | None = None
    """Position between real and generated event for the penalty, uniform in [0, 1]; none for the generator."""

    @property
    def noise(self) -> tuple[Tensor, Tensor]:
        """Noise of the generator: z_EZ and z_PZ."""
        return self.z_EZ, self.z_PZ


class WganNetworks:
    """Standardisation, count head, generator and its running mean, critic."""

    def __init__(self, config: WganConfig, context: StepContext) -> None:
        self.config = config
        self.device = device = context.device
        self.pads = False
        """True: each part is padded to one of few sizes. Its further events count nowhere."""
        # Of several sets of generated events, as many pass the networks at once as a CPU's cache holds.
        self._most_rows = config.chunk_particles or (CPU_CHUNK if device.type == "cpu" else sys.maxsize)
        with context.initial_weights():
            self.standardise = Standardise(config.network).to(device)
            self.count_head = MixtureCountHead(config.network).to(device)
            self.generator = Generator(self.standardise.num_features, config.network).to(device)
            self.critic = Critic(self.standardise.num_features, config.network).to(device)
        self.averaged = AveragedWeights(self.generator, config.generator_average_decay)
        self.averaged_count_head = AveragedWeights(self.count_head, AVERAGE_DECAY)
        self._generate: Callable[..., Tensor] = self.generator
        self._raw_scores, self._slope = self.critic.raw_scores, self.critic.slope
        if config.compile:
            require_compiler(device, "trainer.wgan.compile")
            self._generate = torch.compile(self._generate, dynamic=True, fullgraph=True)
            self._raw_scores = torch.compile(self._raw_scores, dynamic=True, fullgraph=True)
            self._slope = torch.compile(self._slope, dynamic=True, fullgraph=True)

    def modules(self) -> dict[str, nn.Module]:
        """Modules by their name in a checkpoint."""
        return {
            "standardise": self.standardise,
            "count_head": self.count_head,
            "count_head_average": self.averaged_count_head.average,
            "generator": self.generator,
            "generator_average": self.averaged.average,
            "critic": self.critic,
        }

    def normalise(self) -> None:
        """Compute the critic's normalised weights: once an update, also on a rank without muons."""
        for module in self.critic.modules():
            if parametrize.is_parametrized(module, "weight"):
                _ = module.weight

    def events(self, source: Microbatch, random: torch.Generator) -> WganEvents:
        """Input of the networks from ``source``."""
        whole = padded(source) if self.pads else source
        segments = Segments.from_offsets(whole.offsets_E1, whole.num_particles, counts_of(whole))
        segments = segments.with_log_sizes(torch.float32)
        muons = whole.particle_columns["muons"]
        real_PF = self.standardise.features(muons) if self.standardise.has_features else muons.new_zeros(muons.shape)
        conditions_EC = self.standardise.conditions(whole.event_columns["primary"])
        counted_E = torch.ones(whole.num_events, device=self.device)
        if whole is not source:
            counted_E[source.num_events :].zero_()
        present_E = counted_E * (segments.counts_E > 0)
        return WganEvents(
            conditions_EC=conditions_EC,
            segments=segments,
            counted_E=counted_E,
            present_E=present_E,
            signs_2E=losses.signs(present_E),
            muons_weight_E=event_weight(segments, present_E),
            counted_P1=spread(present_E.unsqueeze(1), segments),
            real_PF=real_PF[sort_within_events(real_PF[:, 0], segments)],
            twice=(conditions_EC.repeat(2, 1), segments.repeated(2)),
            source=source,
            random=random,
            remake=lambda half: self.events(half, random),
        )

    def draw(self, part: WganEvents, *, for_generator: bool = False) -> Draw:
        """Random numbers for a critic's update, or a generator's. Advances the part's random generator."""
        if for_generator:
            return Draw(*self.generator.noise(part.segments, part.random, self.generated_events))
        mix_E = torch.rand(part.present_E.shape, device=self.device, generator=part.random)
        return Draw(*self.generator.noise(part.segments, part.random), mix_E)

    @property
    def generated_events(self) -> int:
        """Generated events for each real one in the generator's update."""
        return self.config.score_events if self.config.energy_score_weight > 0 else 1

    def fake(self, part: WganEvents, noise: tuple[Tensor, Tensor], times: int = 1) -> Tensor:
        """Generated features for the real counts, so that both have the same segments. -> (times P, F)."""
        z_MEZ, z_MPZ = (one.unflatten(0, (times, -1)) for one in noise)
        at_once = min(max(self._most_rows // max(part.segments.num_particles, 1), 1), times)
        passes = []
        for first in range(0, times, at_once):
            sets = slice(first, first + at_once)
            input_of = part.conditions_EC, part.segments
            if at_once > 1:
                num = len(z_MEZ[sets])
                input_of = part.conditions_EC.repeat(num, 1), part.segments.repeated(num)
            passes.append(self._generate(*input_of, (z_MEZ[sets].flatten(0, 1), z_MPZ[sets].flatten(0, 1))))
        return torch.cat(passes) if len(passes) > 1 else passes[0]

    def critic_scores(self, part: WganEvents, both_PF: Tensor) -> Tensor:
        """Unbounded scores of the part's events, then of generated ones; their muons are ``both_PF``. -> (2 E,)."""
        raw_2E: Tensor = self._raw_scores(both_PF, *part.twice)  # real and generated events in one pass
        return raw_2E

    def critic_loss(self, part: WganEvents, raw_2E: Tensor) -> losses.ScoreLoss:
        """Critic loss without penalty, summed over events with muons, and what describes the scores."""
        return losses.critic_loss(raw_2E, part.signs_2E, self.critic.score_limit)

    def gap(self, part: WganEvents, raw_2E: Tensor) -> Tensor:
        """D(real) - D(fake) before saturation, summed over events with muons. -> ()."""
        return self.critic_loss(part, raw_2E).gap_and_near_2[0]

    def penalty(self, part: WganEvents, fake_PF: Tensor, mix_E: Tensor) -> losses.GradientPenalty:
        """Gradient penalty, summed over events."""
        fake_PF = fake_PF[sort_within_events(fake_PF[:, 0], part.segments)]
        between_PF = losses.between(part.real_PF, fake_PF, part.segments, mix_E)
        slope_PF = self._slope(between_PF, part.conditions_EC, part.segments)
        plain_norm = self.config.gradient_norm == "plain"
        return losses.gradient_penalty(
            slope_PF, part.segments, part.present_E, one_sided=self.config.one_sided, plain_norm=plain_norm
        )

    def generator_loss(self, part: WganEvents, draw: Draw) -> tuple[Tensor, EnergyScore]:
        """Generator loss -Σ D(fake), summed over events, and the energy score, 0 if its weight is 0."""
        times = self.generated_events
        fake_MPF = self.fake(part, draw.noise, times).unflatten(0, (times, -1))
        raw_E = self._raw_scores(fake_MPF[0], part.conditions_EC, part.segments)
        loss = losses.generator_loss(raw_E, part.signs_2E, self.critic.score_limit)
        if times == 1:
            return loss, EnergyScore(torch.zeros_like(loss), torch.zeros_like(loss))
        weights = part.muons_weight_E, part.present_E
        return loss, energy_score(fake_MPF, part.real_PF, part.segments, weights, self.standardise.feature_spread_F[0])

    def count_loss(self, part: WganEvents, count_head: MixtureCountHead | None = None) -> Tensor:
        """Loss of the count head, by default the trained weights, summed over events."""
        return (count_head or self.count_head).loss(part.conditions_EC, part.segments.sizes_E, part.counted_E)

    @torch.no_grad()
    def count_error(self, part: WganEvents) -> Tensor:
        """Squared error of lg(1 + mean count), summed over events. -> ()."""
        mixture: CountMixture = self.count_head(part.conditions_EC)
        mean_E: Tensor = (mixture.log_weights_EK + mixture.log_means_EK).logsumexp(1).exp()
        square_E = (mean_E.log1p() - part.segments.sizes_E.float().log1p()).square()
        return (square_E * part.counted_E).sum() / math.log(10) ** 2

    @torch.no_grad()
    def generate(self, primary_E4: Tensor) -> Bundles:
        """Events, one for each primary. (E, 4) = [energy_gev, zenith_rad, mass_a, depth_m].

        Waits for the device, and holds all events in memory: split long lists. Draws from torch's global generator.
        Raises RuntimeError before the first batch with muons.
        """
        self.standardise.require_fit()
        sampling = self.config.sampling
        conditions_EC = self.standardise.conditions(primary_E4.to(self.device))
        drawn_E = self.averaged_count_head.used.sample(conditions_EC)
        counts_E = drawn_E.clamp_max(sampling.max_count)
        segments = Segments.from_counts(counts_E, int(counts_E.sum()))
        generator = self.averaged.used
        features_PF = generator(conditions_EC, segments, generator.noise(segments))
        bounded_PF = features_PF.clamp(-sampling.max_deviation, sampling.max_deviation)
        num_capped = int((drawn_E > sampling.max_count).sum())
        return Bundles(counts_E, self.standardise.muons(bounded_PF), num_capped)
