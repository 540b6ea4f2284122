"""Networks of the muon WGAN. Terms of the losses are in wgan_losses.py.

The generator draws muons from the densities of a trained likelihood model and corrects their features.

The gradient penalty trains on the critic's slope. Autograd can differentiate its own backward pass, but slowly
and compilers refuse it. Written explicitly, with a pullback for each layer, the slope is a forward computation: its
gradient is of first order.

Shape suffixes: E events, P particles, R rows (events or particles), F features (G as the critic sees them),
C conditions, K known numbers, I inputs of an event's context, A inputs, D width, M generated events for each real one,
S sets of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from workloads.base.batch import Microbatch
from workloads.base.context import StepContext
from workloads.base.device import CPU_CHUNK_PARTICLES, require_compiler
from workloads.base.native import layers as native
from workloads.base.optimiser import AveragedWeights
from workloads.base.segments import Segments, by_count, segment_max, segment_mean, sort_within_events, spread, wide
from workloads.muons.models import wgan_losses as losses
from workloads.muons.models.config import MuonNetworkConfig, WganConfig
from workloads.muons.models.likelihood import LikelihoodNetworks
from workloads.muons.models.likelihood_densities import Correction, Draws, ExactLinear, known, seen
from workloads.muons.models.standardise import NUM_CONDITIONS

CPU_CHUNK = 2 * CPU_CHUNK_PARTICLES
"""Largest number of particles in a part on a CPU: more than other models', since layers in C++ divide its rows anew."""
SCORE_EVENTS = 8
"""Generated events for each real one in the energy score: more make its gradient less noisy."""
_DRAWN_ROWS = 1 << 18
"""Muons that are drawn at once on a GPU, 1.2 kB each: all sets of a step together would need more than an update."""
GENERATOR_AVERAGE_DECAY = 0.995
"""Decay per step of the running mean of the generator's weights, from which events are generated: the last iterate of
a GAN oscillates, the mean of its weights less (arXiv:1806.04498); 0.999 lags a short run."""
LEAST_COMPILED = 32
"""Events and muons of all sets in a pass, below which networks aren't compiled: torch compiles anew for a size of 1."""
LEAK = 0.2
"""Slope of the activation below 0."""
_XAVIER_GAIN = 0.5
"""Gain of the initial weights: first scores are small beside SCORE_LIMIT."""

_aten = torch.ops.aten
Pullback = Callable[[Tensor], Tensor]
"""Gradient with respect to a layer's output -> gradient with respect to its input, row by row."""


class Dense(nn.Module):
    """Linear layer, layer normalisation in float32, leaky ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, input_RA: Tensor) -> Tensor:
        """Output of the layer. (R, A) -> (R, D)."""
        linear_RD = self.linear(input_RA)
        return F.leaky_relu(self.norm(wide(linear_RD)), LEAK, inplace=True).to(linear_RD.dtype)

    def with_pullback(self, input_RA: Tensor) -> tuple[Tensor, Pullback]:
        """Output and pullback of a gradient through the layer; both are differentiable."""
        linear_RD, norm = self.linear(input_RA), self.norm
        row_RD, shape = wide(linear_RD), norm.normalized_shape
        normal_RD, *statistics = torch.native_layer_norm(row_RD, shape, norm.weight, norm.bias, norm.eps)
        output_RD = F.leaky_relu(normal_RD, LEAK, inplace=True)

        def pullback(gradient_RD: Tensor) -> Tensor:
            slope_RD = _aten.leaky_relu_backward(wide(gradient_RD), output_RD.detach(), LEAK, True)
            arguments = slope_RD, row_RD, norm.weight, *statistics
            if torch.compiler.is_compiling():  # torch's compiler fuses what autograd makes of it
                return _norm_back(*arguments) @ self.linear.weight
            pulled_RD: Tensor = _NormBack.apply(*arguments)
            return pulled_RD @ self.linear.weight

        return output_RD.to(linear_RD.dtype), pullback


def _norm_back(u_RD: Tensor, row_RD: Tensor, scale_D: Tensor | None, mean_R1: Tensor, inverse_R1: Tensor) -> Tensor:
    """Pullback J(γ u) of a gradient through the normalisation of rows. (R, D) -> (R, D).

    With n̂ the normalised row, σ its spread: J v = (v - mean(v) - n̂ mean(n̂ v)) / σ, which is symmetric.
    """
    shape, of_input = row_RD.shape[1:], [True, False, False]
    arguments = u_RD.contiguous(), row_RD, shape, mean_R1, inverse_R1, scale_D, None, of_input
    pulled_RD: Tensor = _aten.native_layer_norm_backward(*arguments)[0]
    return pulled_RD


class _NormBack(torch.autograd.Function):
    """The same, with its derivative: autograd's own is 60 operators more."""

    @staticmethod
    def forward(ctx: Any, *arguments: Tensor) -> Tensor:
        pulled_RD = _norm_back(*arguments)
        ctx.save_for_backward(*arguments, pulled_RD)
        return pulled_RD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of ⟨s, r⟩, r = J(γ u), by u, row and scale.

        That by γ u is J s, that by the row -((s·r) n̂ + (n̂·s) r + (n̂·γu) J s) / (n σ), n its length.
        """
        u_RD, row_RD, scale_D, mean_R1, inverse_R1, r_RD = ctx.saved_tensors
        (s_RD,) = gradients
        js_RD = _norm_back(s_RD, row_RD, None, mean_R1, inverse_R1)
        # Each pass over the rows is expensive: row products are shared, and summed by matrix-vector products.
        centred_RD, products_RD = row_RD - mean_R1, u_RD * js_RD
        to_scale_D = products_RD.sum(0)
        factor_R = (inverse_R1 * inverse_R1 / -row_RD.shape[1]).squeeze(1)
        of_row_R = (products_RD @ scale_D) * factor_R  # s·r = J(γ u)·s = γ u·J s
        of_r_R = torch.mul(centred_RD, s_RD, out=products_RD).sum(1) * factor_R
        of_js_R = (torch.mul(centred_RD, u_RD, out=products_RD) @ scale_D) * factor_R
        to_row_RD = centred_RD.mul_(of_row_R.unsqueeze(1))
        to_row_RD.addcmul_(r_RD, of_r_R.unsqueeze(1)).addcmul_(js_RD, of_js_R.unsqueeze(1))
        return js_RD.mul_(scale_D), to_row_RD, to_scale_D, None, None


class Critic(nn.Module):
    """Critic: a score for an event as a whole, independent of the order of its muons but not of their number.

    Muons are embedded one by one and pooled by mean and maximum (DeepSets, arXiv:1703.06114). Neither depends on the
    number of muons, so ln(1 + N) is an input (EPiC-GAN, arXiv:2301.08128). The conditions also enter
    as a projection on the last layer (arXiv:1802.05637).
    """

    def __init__(self, num_features: int, config: MuonNetworkConfig) -> None:
        super().__init__()
        width = config.hidden
        self.num_features = num_features
        self.muon_input = Dense(num_features + NUM_CONDITIONS, width)
        self.muon_hidden = Dense(width, width)
        self.event_input = Dense(2 * width + NUM_CONDITIONS + 1, width)
        self.event_hidden = Dense(width, width)
        self.output = nn.Linear(width, 1)
        self.projection = ExactLinear(NUM_CONDITIONS, width, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, gain=_XAVIER_GAIN)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def raw_scores(self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments) -> Tensor:
        """Unbounded score of each event. (P, F), (E, C) -> (E,). The score of an empty event has no meaning."""
        pooled_ED = self._pooled(features_PF, conditions_EC, segments)
        event_ED = torch.cat([pooled_ED, conditions_EC, _size_E1(segments, features_PF.dtype)], 1)
        event_ED = self.event_hidden(self.event_input(event_ED))
        return losses.raw_score(event_ED, self.projection(conditions_EC), self.output.weight, self.output.bias)

    def slope(self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments) -> Tensor:
        """Derivative of each event's score with respect to the features of its muons. (P, F), (E, C) -> (P, F).

        Of the score as its loss sees it, `bounded`. Equal to autograd's derivative, but itself a forward computation:
        see `Dense.with_pullback`.
        """
        pooled_ED, muons_back = self._pooled_with_pullback(features_PF, conditions_EC, segments)
        event_ED = torch.cat([pooled_ED, conditions_EC, _size_E1(segments, features_PF.dtype)], 1)
        event_ED, third_back = self.event_input.with_pullback(event_ED)
        event_ED, fourth_back = self.event_hidden.with_pullback(event_ED)

        slope_ED = losses.score_slope(event_ED, self.projection(conditions_EC), self.output.weight, self.output.bias)
        pooled_slopes_ED = third_back(fourth_back(slope_ED))[:, : pooled_ED.shape[1]]
        return muons_back(pooled_slopes_ED)

    def _pooled(self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments) -> Tensor:
        """Embedded muons, pooled over each event. (P, F), (E, C) -> (E, 2 D)."""
        if pooled := self._pooled_in_cpp(features_PF, conditions_EC, segments):
            return pooled[0]
        muons_PD = torch.cat([features_PF, spread(conditions_EC, segments)], 1)
        muons_PD = self.muon_hidden(self.muon_input(muons_PD))
        return torch.cat([segment_mean(muons_PD, segments), segment_max(muons_PD, segments)[0]], 1)

    def _pooled_with_pullback(
        self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments
    ) -> tuple[Tensor, Pullback]:
        """Result of `_pooled`, and the pullback of a gradient through it, (E, 2 D) -> (P, F)."""
        if pooled := self._pooled_in_cpp(features_PF, conditions_EC, segments):
            return pooled
        muons_PD = torch.cat([features_PF, spread(conditions_EC, segments)], 1)
        muons_PD, first_back = self.muon_input.with_pullback(muons_PD)
        muons_PD, second_back = self.muon_hidden.with_pullback(muons_PD)
        largest_ED, is_largest_PD = segment_max(muons_PD, segments)

        def pullback(slopes_ED: Tensor) -> Tensor:
            of_mean_ED, of_largest_ED = slopes_ED.chunk(2, 1)
            of_both_ED = torch.cat([by_count(of_mean_ED, segments), of_largest_ED], 1)
            slopes_PD, of_largest_PD = spread(of_both_ED, segments).chunk(2, 1)
            slopes_PD = slopes_PD + torch.where(is_largest_PD, of_largest_PD, 0)
            return first_back(second_back(slopes_PD))[:, : self.num_features]

        return torch.cat([segment_mean(muons_PD, segments), largest_ED], 1), pullback

    def _pooled_in_cpp(
        self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments
    ) -> tuple[Tensor, Pullback] | None:
        """Result of `_pooled_with_pullback` from the library in C++, None if it can't compute it."""
        first, second = self.muon_input, self.muon_hidden
        library = native.library_for(features_PF, first.linear.weight)
        if library is None:
            return None
        of_muon_DF, of_event_DC = first.linear.weight.split([self.num_features, conditions_EC.shape[1]], 1)
        of_event_ED = F.linear(conditions_EC, of_event_DC, first.linear.bias)
        return native.pooled(
            *(library, features_PF, of_event_ED, segments, (of_muon_DF, first.norm)),
            *((second.linear.weight, second.linear.bias, second.norm), LEAK),
        )


def _size_E1(segments: Segments, dtype: torch.dtype) -> Tensor:
    """Size input ln(1 + N) / 2 of each event, about 0 to 5. -> (E, 1)."""
    return segments.sizes_E.to(dtype).log1p().unsqueeze(1) / 2


@dataclass(frozen=True)
class WganEvents:
    """Input of the networks from a part of a microbatch."""

    conditions_EC: Tensor
    segments: Segments
    present_E: Tensor
    """Flag, (E,) float32: 1 for an event with muons, else 0."""
    signs_2E: Tensor
    """Signs of the scores in the critic's loss: see score_loss."""
    muons_weight_E: Tensor
    """Weight among the energy scores of muons: see event_weight."""
    real_PG: Tensor
    """Muons' features as the critic sees them, sorted by energy in each event: the penalty pairs them by rank."""
    twice: tuple[Tensor, Segments]
    """Conditions and segments of the events, twice in sequence: for real and generated ones in one pass."""
    inputs_SEI: Tensor
    drawn_SPF: Tensor
    """Draws of the likelihood model for the same primaries and counts, and the inputs of its context: S sets."""
    source: Microbatch
    random: torch.Generator
    remake: Callable[[Microbatch], WganEvents]
    """Function that builds the same input from some of its events."""

    @property
    def num_particles(self) -> int:
        """Muons of all events."""
        return self.source.num_particles

    def halves(self) -> tuple[WganEvents, ...]:
        """Two parts with about half of the muons each; the part itself if it has one event."""
        return tuple(self.remake(half) for half in self.source.halves())


class WganNetworks:
    """Generator's correction of what the likelihood model draws, its running mean, and critic."""

    def __init__(self, config: WganConfig, context: StepContext, likelihood: LikelihoodNetworks) -> None:
        self.config = config
        self.device = device = context.device
        # Of several sets of generated events, as many pass the networks at once as a CPU's cache holds.
        self._most_rows = config.chunk_particles or (CPU_CHUNK if device.type == "cpu" else sys.maxsize)
        self.likelihood = likelihood
        self.standardise = likelihood.standardise
        num_features = self.standardise.num_features
        with context.initial_weights():
            self.correction = Correction(num_features, config.network).to(device)
            self.critic = Critic(seen(torch.empty(0, num_features)).shape[1], config.network).to(device)
        self.averaged = AveragedWeights(self.correction, GENERATOR_AVERAGE_DECAY)
        self._precision = context.precision
        self._correct: Callable[..., Tensor] = self.correction
        self._raw_scores, self._slope = self.critic.raw_scores, self.critic.slope
        if config.compile:
            require_compiler(device, "trainer.wgan.compile")
            self._correct, self._raw_scores, self._slope = map(
                self._compiled, (self.correction.forward, self.critic.raw_scores, self.critic.slope)
            )
        self.is_compiled = False  # set before the first pass in compiled code, for whose sizes it is compiled

    def _compiled(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a function of (rows, events, segments) that is compiled for all sizes, but not without gradients: for
        these torch would compile anew, and little would be gained."""
        compiled = torch.compile(function, fullgraph=True)

        def call(rows: Tensor, events: Tensor, segments: Segments) -> Tensor:
            is_small = min(segments.num_events, segments.num_particles) < LEAST_COMPILED
            if is_small or not (self.is_compiled and torch.is_grad_enabled()):
                return function(rows, events, segments)
            rows, events = rows.clone(), events.clone()  # for a view, torch compiles anew if its base has another shape
            for one in (rows, events, *vars(segments).values()):
                torch._dynamo.maybe_mark_dynamic(one, 0)
            return compiled(rows, events, segments)

        return call

    def modules(self) -> dict[str, nn.Module]:
        """Modules by their name in a checkpoint."""
        return {
            **self.likelihood.modules(),
            "correction": self.correction,
            "correction_average": self.averaged.average,
            "critic": self.critic,
        }

    def events(self, source: Microbatch, random: torch.Generator, num_sets: int = 0) -> WganEvents:
        """Input of the networks from ``source``, with ``num_sets`` sets of drawn events, by default those of a step."""
        segments = Segments.from_offsets(source.offsets_E1, source.num_particles)
        real_PG = seen(self.standardise.features(source.particle_columns["muons"]))
        primary_E4 = source.event_columns["primary"]
        conditions_EC = self.standardise.conditions(primary_E4)
        present_E = (segments.counts_E > 0).float()
        known_EK = known(self.standardise, self.likelihood.averaged_count_head.average, primary_E4, segments.sizes_E)
        inputs_SEI, drawn_SPF = self._drawn(known_EK, segments, random, num_sets or self.num_sets)
        return WganEvents(
            conditions_EC=conditions_EC,
            segments=segments,
            present_E=present_E,
            signs_2E=torch.cat([-present_E, present_E]),
            muons_weight_E=losses.event_weight(segments, present_E),
            real_PG=real_PG[sort_within_events(real_PG[:, 0], segments)],
            twice=(conditions_EC.repeat(2, 1), segments.repeated(2)),
            inputs_SEI=inputs_SEI,
            drawn_SPF=drawn_SPF,
            source=source,
            random=random,
            remake=lambda half: self.events(half, random),
        )

    @torch.no_grad()
    def _drawn(
        self, known_EK: Tensor, segments: Segments, random: torch.Generator, num_sets: int
    ) -> tuple[Tensor, Tensor]:
        muons, sets = self.likelihood.averaged.average, []
        for times in self.passes(num_sets, segments, min(self._most_rows, _DRAWN_ROWS)):
            some = segments.repeated(times)
            draws = Draws.of(some, muons.latent, muons.num_features, random)
            drawn = muons.drawn(known_EK.repeat(times, 1), some, draws)
            sets.append([one.unflatten(0, (times, -1)) for one in drawn])
        inputs_SEI, drawn_SPF = (torch.cat(some) if len(some) > 1 else some[0] for some in zip(*sets, strict=True))
        return inputs_SEI, drawn_SPF

    def passes(self, num_sets: int, segments: Segments, most_rows: int = 0) -> list[int]:
        """Numbers of sets of events that pass the networks at once."""
        at_once = min(max((most_rows or self._most_rows) // max(segments.num_particles, 1), 1), num_sets)
        return [min(at_once, num_sets - first) for first in range(0, num_sets, at_once)]

    @property
    def generated_events(self) -> int:
        """Generated events for each real one in the generator's update."""
        return SCORE_EVENTS if self.config.energy_score_weight > 0 else 1

    @property
    def num_sets(self) -> int:
        """Sets of drawn events of a step: one for each update of the critic, and one that it scores for the generator,
        the last. The energy score, which doesn't know the critic, compares the last ones, used before or not."""
        return max(self.config.critic_steps + 1, self.generated_events)

    def mix(self, part: WganEvents) -> Tensor:
        """Position between real and generated event for the penalty, uniform in [0, 1], (E,)."""
        return torch.rand(part.present_E.shape, device=self.device, generator=part.random)

    def fake(self, part: WganEvents, first: int, times: int = 1) -> Tensor:
        """Features of generated events, ``times`` sets from ``first`` on. -> (times P, G)."""
        passes = []
        for num in self.passes(times, part.segments):
            some = slice(first, first + num)
            inputs = part.inputs_SEI[some].flatten(0, 1), part.drawn_SPF[some].flatten(0, 1)
            with self._precision():
                passes.append(seen(self._correct(*inputs, part.segments.repeated(num))))
            first += num
        return torch.cat(passes) if len(passes) > 1 else passes[0]

    def raw_scores(self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments) -> Tensor:
        """See Critic."""
        with self._precision():
            return self._raw_scores(features_PF, conditions_EC, segments)

    def penalty(self, part: WganEvents, fake_PG: Tensor, mix_E: Tensor) -> losses.GradientPenalty:
        """Gradient penalty, summed over events."""
        fake_PG = fake_PG[sort_within_events(fake_PG[:, 0], part.segments)]
        between_PG = losses.between(part.real_PG, fake_PG, part.segments, mix_E)
        with self._precision():
            slope_PG = self._slope(between_PG, part.conditions_EC, part.segments)
        return losses.gradient_penalty(wide(slope_PG), part.segments, part.present_E)

    def generator_loss(self, part: WganEvents) -> tuple[Tensor, losses.EnergyScore]:
        """Generator loss -Σ D(fake), summed over events, and the energy score, 0 if its weight is 0."""
        times = self.generated_events
        fake_MPG = self.fake(part, self.num_sets - times, times).unflatten(0, (times, -1))
        raw_E = self.raw_scores(fake_MPG[-1], part.conditions_EC, part.segments)
        loss = losses.score_loss(raw_E, part.signs_2E[: len(raw_E)]).loss
        if times == 1:
            return loss, losses.EnergyScore(torch.zeros_like(loss), torch.zeros_like(loss))
        weights = part.muons_weight_E, part.present_E
        return loss, losses.energy_score(
            fake_MPG, part.real_PG, part.segments, weights, self.standardise.feature_spread_F[0]
        )
