"""Networks of the muon WGAN, and the sampler of a trained one.

p(N, muons | c) = p(N | c) p(muons | N, c): count_head.py models the first factor, the generator the second. Terms of
the losses are in wgan_losses.py.

The gradient penalty trains on the critic's slope. Autograd can differentiate its own backward pass, but slowly
(half of a step was the second derivative of layer normalisation), and compilers refuse it. Written explicitly, with a
pullback for each layer, the slope is a forward computation: its gradient is of first order.

Shape suffixes: E events, P particles, R rows (events or particles), F features, C conditions, A inputs, D width,
Z noise, M generated events for each real one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base.batch import Microbatch, runs_of_events
from workloads.base.bf16 import Linear, joined, rounded_product
from workloads.base.compiler import require_compiler
from workloads.base.context import StepContext
from workloads.base.device import CPU_CHUNK_PARTICLES, PartPool
from workloads.base.kernels.layers import activate, pull
from workloads.base.native import layers as native
from workloads.base.optimiser import AveragedWeights
from workloads.base.segments import Segments, pool, pool_with_argmax, sort_within_events, spread, unpool
from workloads.muons.models.config import MAX_DEVIATION, WganConfig
from workloads.muons.models.config import WganNetworkConfig as NetworkConfig
from workloads.muons.models.count_head import AVERAGE_DECAY, MixtureCountHead
from workloads.muons.models.standardise import NUM_CONDITIONS, Standardise
from workloads.muons.models.wgan_losses import (
    EnergyScore,
    GradientPenalty,
    between,
    energy_score,
    event_weight,
    gradient_penalty,
    raw_score,
    score_loss,
    score_slope,
)

CPU_CHUNK = 2 * CPU_CHUNK_PARTICLES
"""Largest number of particles in a part on a CPU: more than other models', since layers in C++ divide its rows anew."""
SCORE_EVENTS = 8
"""Generated events for each real one in the energy score: more make its gradient less noisy."""
GENERATOR_AVERAGE_DECAY = 0.995
"""Decay per step of the running mean of the generator's weights, from which events are generated: the last iterate of
a GAN oscillates, the mean of its weights less (arXiv:1806.04498); 0.999 lags a short run."""
LEAK = 0.2
"""Slope of the activation below 0."""
LOCAL_TAILS = 2
"""Local noises with exponential tails instead of normal ones, so that rare large energies can be generated."""
_XAVIER_GAIN = 0.5
"""Gain of the initial weights: first scores are small beside SCORE_LIMIT."""
_POOLS = ("mean", "max")

Pullback = Callable[[Tensor], Tensor]
"""Gradient with respect to a layer's output -> gradient with respect to its input, row by row."""


class Dense(nn.Module):
    """Linear layer, optional layer normalisation, leaky ReLU. Results are bfloat16 with rounded weights."""

    def __init__(self, inputs: int, outputs: int, *, layer_norm: bool) -> None:
        super().__init__()
        self.linear = Linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs) if layer_norm else None

    def forward(self, input_RA: Tensor) -> Tensor:
        """Output of the layer. (R, A) -> (R, D)."""
        linear = self.linear
        if linear.is_rounded:
            linear_RD = rounded_product(input_RA, linear.pair, linear.rounded_D)
            return activate(linear_RD, linear.bias, self.norm, LEAK)[0]
        weight_DA = linear.weight
        if library := native.library_for(input_RA, weight_DA):
            return native.dense(library, input_RA, weight_DA, linear.bias, self.norm, LEAK)[0]
        if torch.compiler.is_exporting():
            return self.activate(linear(input_RA))
        return activate(F.linear(input_RA, weight_DA, linear.bias.detach()), linear.bias, self.norm, LEAK)[0]

    def activate(self, linear_RD: Tensor) -> Tensor:
        """Normalisation and activation after the linear part. (R, D) -> (R, D)."""
        if torch.compiler.is_exporting():  # an exported program must run without these operators
            return F.leaky_relu(linear_RD if self.norm is None else self.norm(linear_RD), LEAK)
        return activate(linear_RD, None, self.norm, LEAK)[0]

    def with_pullback(self, input_RA: Tensor) -> tuple[Tensor, Pullback]:
        """Output and pullback of a gradient through a layer with normalisation; both are differentiable.

        What the pullback gives has the type of the input.
        """
        assert self.norm is not None
        weight_DA, scale_D = self.linear.weight, self.norm.weight
        library = None if self.linear.is_rounded else native.library_for(input_RA, weight_DA)
        if library is not None:
            layer = native.dense(library, input_RA, weight_DA, self.linear.bias, self.norm, LEAK)
            return layer[0], lambda slope_RD: native.pullback(library, slope_RD, layer, weight_DA, scale_D, LEAK)
        # The pullback depends on the rows as well: the bias has its gradient from both.
        linear_RD = self.linear(input_RA)
        output_RD, normal = activate(linear_RD, None, self.norm, LEAK)

        def pullback(gradient_RD: Tensor) -> Tensor:
            row_RD = pull(gradient_RD.to(linear_RD.dtype), output_RD.detach(), normal, LEAK)
            if not self.linear.is_rounded:
                return row_RD @ weight_DA
            weight, rounded = self.linear.pair
            return rounded_product(row_RD, (weight.t(), rounded.t()), wide=input_RA.dtype == torch.float32)

        return output_RD, pullback


class Generator(nn.Module):
    """Generator of standardised muon features for events with given numbers of muons."""

    def __init__(self, num_features: int, config: NetworkConfig) -> None:
        super().__init__()
        width = config.hidden
        self.z_global, self.z_local = config.z_global, config.z_local
        self.event_network = nn.Sequential(
            Dense(config.z_global + NUM_CONDITIONS + 1, width, layer_norm=True), Dense(width, width, layer_norm=True)
        )
        self.muon_input = Dense(width + config.z_local, width, layer_norm=False)
        self.muon_network = nn.Sequential(Dense(width, width, layer_norm=False), Linear(width, num_features, wide=True))
        _start_xavier(self)

    def noise(self, segments: Segments, random: torch.Generator | None = None, times: int = 1) -> tuple[Tensor, Tensor]:
        """New normal numbers, ``times`` rows per event (times E, Z) and per particle (times P, Z)."""
        device = segments.event_P.device
        return (
            torch.randn(times * segments.num_events, self.z_global, device=device, generator=random),
            torch.randn(times * segments.num_particles, self.z_local, device=device, generator=random),
        )

    def forward(self, conditions_EC: Tensor, segments: Segments, noise: tuple[Tensor, Tensor]) -> Tensor:
        """Features of one muon for each particle of ``segments``. (E, C), ``noise()`` -> (P, F)."""
        z_EZ, z_PZ = noise
        context_ED = self.event_network(torch.cat([z_EZ, conditions_EC, _size_E1(segments, z_EZ.dtype)], 1))
        z_PZ = long_tails(z_PZ, LOCAL_TAILS)
        # The event's part of the first layer is computed once for each event, not for each of its muons.
        linear = self.muon_input.linear
        sizes = [context_ED.shape[1], self.z_local]
        features_PF: Tensor
        if linear.is_rounded:
            of_event, of_muon = zip(*(one.split(sizes, 1) for one in linear.pair), strict=True)
            of_event_ED = rounded_product(context_ED, of_event, linear.rounded_D, bias_D=linear.bias)
            muons_PD = rounded_product(z_PZ, of_muon, spread(of_event_ED, segments))
            features_PF = self.muon_network(self.muon_input.activate(muons_PD))
            return features_PF
        of_event_DD, of_muon_DZ = linear.weight.split(sizes, 1)
        of_event_ED = F.linear(context_ED, of_event_DD, linear.bias)
        if library := native.library_for(z_PZ, of_muon_DZ):
            layers = (of_muon_DZ, *self.muon_network.parameters())
            features_PF = native.chain(library, z_PZ, of_event_ED, segments, layers, LEAK)
        else:
            muons_PD = torch.addmm(spread(of_event_ED, segments), z_PZ, of_muon_DZ.t())
            features_PF = self.muon_network(self.muon_input.activate(muons_PD))
        return features_PF


class Critic(nn.Module):
    """Critic: a score for an event as a whole, independent of the order of its muons but not of their number.

    Muons are embedded one by one and pooled by mean and maximum (DeepSets, arXiv:1703.06114). Neither depends on the
    number of muons, so ln(1 + N) is an input (EPiC-GAN, arXiv:2301.08128). The conditions also enter
    as a projection on the last layer (arXiv:1802.05637).
    """

    def __init__(self, num_features: int, config: NetworkConfig) -> None:
        super().__init__()
        width = config.hidden
        self.num_features = num_features
        self.muon_input = Dense(num_features + NUM_CONDITIONS, width, layer_norm=True)
        self.muon_hidden = Dense(width, width, layer_norm=True)
        self.event_input = Dense(2 * width + NUM_CONDITIONS + 1, width, layer_norm=True)
        self.event_hidden = Dense(width, width, layer_norm=True)
        self.output = nn.Linear(width, 1)
        self.projection = nn.Linear(NUM_CONDITIONS, width, bias=False)
        _start_xavier(self)

    def raw_scores(self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments) -> Tensor:
        """Unbounded score of each event. (P, F), (E, C) -> (E,). The score of an empty event has no meaning."""
        pooled_ED = self._pooled(features_PF, conditions_EC, segments)
        event_ED = joined([pooled_ED, conditions_EC, _size_E1(segments, features_PF.dtype)], pooled_ED.dtype)
        event_ED = self.event_hidden(self.event_input(event_ED))
        return raw_score(event_ED, self.projection(conditions_EC), self.output.weight, self.output.bias)

    def slope(self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments) -> Tensor:
        """Derivative of each event's score with respect to the features of its muons. (P, F), (E, C) -> (P, F).

        Of the score as its loss sees it, `bounded`. Equal to autograd's derivative, but itself a forward computation:
        see `Dense.with_pullback`.
        """
        pooled_ED, muons_back = self._pooled_with_pullback(features_PF, conditions_EC, segments)
        event_ED = joined([pooled_ED, conditions_EC, _size_E1(segments, features_PF.dtype)], pooled_ED.dtype)
        event_ED, third_back = self.event_input.with_pullback(event_ED)
        event_ED, fourth_back = self.event_hidden.with_pullback(event_ED)

        slope_ED = score_slope(event_ED, self.projection(conditions_EC), self.output.weight, self.output.bias)
        pooled_slopes_ED = third_back(fourth_back(slope_ED))[:, : pooled_ED.shape[1]]
        return muons_back(pooled_slopes_ED)

    def _pooled(self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments) -> Tensor:
        """Embedded muons, pooled over each event. (P, F), (E, C) -> (E, 2 D)."""
        if pooled := self._pooled_in_cpp(features_PF, conditions_EC, segments):
            return pooled[0]
        muons_PD = torch.cat([features_PF, spread(conditions_EC, segments)], 1)
        return pool(self.muon_hidden(self.muon_input(muons_PD)), segments, _POOLS)

    def _pooled_with_pullback(
        self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments
    ) -> tuple[Tensor, Pullback]:
        """Result of `_pooled`, and the pullback of a gradient through it, (E, 2 D) -> (P, F)."""
        if pooled := self._pooled_in_cpp(features_PF, conditions_EC, segments):
            return pooled
        muons_PD = torch.cat([features_PF, spread(conditions_EC, segments)], 1)
        muons_PD, first_back = self.muon_input.with_pullback(muons_PD)
        muons_PD, second_back = self.muon_hidden.with_pullback(muons_PD)
        pooled_ED, argmax_ED = pool_with_argmax(muons_PD, segments, _POOLS)

        def pullback(slopes_ED: Tensor) -> Tensor:
            slopes_PD = unpool(slopes_ED, segments, _POOLS, argmax_ED)
            return first_back(second_back(slopes_PD))[:, : self.num_features]

        return pooled_ED, pullback

    def _pooled_in_cpp(
        self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments
    ) -> tuple[Tensor, Pullback] | None:
        """Result of `_pooled_with_pullback` from the library in C++, None if it can't compute it."""
        first, second = self.muon_input, self.muon_hidden
        library = None if first.linear.is_rounded else native.library_for(features_PF, first.linear.weight)
        if library is None:
            return None
        assert first.norm is not None
        assert second.norm is not None
        of_muon_DF, of_event_DC = first.linear.weight.split([self.num_features, conditions_EC.shape[1]], 1)
        of_event_ED = F.linear(conditions_EC, of_event_DC, first.linear.bias)
        return native.pooled(
            *(library, features_PF, of_event_ED, segments, (of_muon_DF, first.norm)),
            *((second.linear.weight, second.linear.bias, second.norm), LEAK),
        )


def _size_E1(segments: Segments, dtype: torch.dtype) -> Tensor:
    """Size input ln(1 + N) / 2 of each event, about 0 to 5. -> (E, 1)."""
    return segments.sizes_E.to(dtype).log1p().unsqueeze(1) / 2


def long_tails(normal_PZ: Tensor, tails: int) -> Tensor:
    """z·|z| / √3 in the first ``tails`` columns, z in the others. (P, Z) -> (P, Z).

    Tails are exponential, as those of lg E are, and the variance is 1: leaky ReLUs keep the shape of a tail.
    """
    tails_PT, others = normal_PZ[:, :tails], normal_PZ[:, tails:]
    return torch.cat([tails_PT * tails_PT.abs() * 3**-0.5, others], 1)


def _start_xavier(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, gain=_XAVIER_GAIN)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


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
        """Muons of all events."""
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
        # Of several sets of generated events, as many pass the networks at once as a CPU's cache holds.
        self._most_rows = config.chunk_particles or (CPU_CHUNK if device.type == "cpu" else sys.maxsize)
        with context.initial_weights():
            self.standardise = Standardise(config.network).to(device)
            self.count_head = MixtureCountHead(config.network).to(device)
            self.generator = Generator(self.standardise.num_features, config.network).to(device)
            self.critic = Critic(self.standardise.num_features, config.network).to(device)
        self.averaged = AveragedWeights(self.generator, GENERATOR_AVERAGE_DECAY)
        self.averaged_count_head = AveragedWeights(self.count_head, AVERAGE_DECAY)
        self._generate: Callable[..., Tensor] = self.generator
        self.raw_scores, self._slope = self.critic.raw_scores, self.critic.slope
        if config.compile:
            require_compiler(device, "trainer.wgan.compile")
            self._generate = torch.compile(self._generate, dynamic=True, fullgraph=True)
            self.raw_scores = torch.compile(self.raw_scores, dynamic=True, fullgraph=True)
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

    def events(self, source: Microbatch, random: torch.Generator) -> WganEvents:
        """Input of the networks from ``source``."""
        segments = Segments.from_offsets(source.offsets_E1, source.num_particles)
        muons = source.particle_columns["muons"]
        real_PF = self.standardise.features(muons) if self.standardise.has_features else muons.new_zeros(muons.shape)
        conditions_EC = self.standardise.conditions(source.event_columns["primary"])
        present_E = (segments.counts_E > 0).float()
        return WganEvents(
            conditions_EC=conditions_EC,
            segments=segments,
            present_E=present_E,
            signs_2E=torch.cat([-present_E, present_E]),
            muons_weight_E=event_weight(segments, present_E),
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
        return SCORE_EVENTS if self.config.energy_score_weight > 0 else 1

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

    def penalty(self, part: WganEvents, fake_PF: Tensor, mix_E: Tensor) -> GradientPenalty:
        """Gradient penalty, summed over events."""
        fake_PF = fake_PF[sort_within_events(fake_PF[:, 0], part.segments)]
        between_PF = between(part.real_PF, fake_PF, part.segments, mix_E)
        slope_PF = self._slope(between_PF, part.conditions_EC, part.segments)
        return gradient_penalty(slope_PF, part.segments, part.present_E)

    def generator_loss(self, part: WganEvents, draw: Draw) -> tuple[Tensor, EnergyScore]:
        """Generator loss -Σ D(fake), summed over events, and the energy score, 0 if its weight is 0."""
        times = self.generated_events
        fake_MPF = self.fake(part, draw.noise, times).unflatten(0, (times, -1))
        raw_E = self.raw_scores(fake_MPF[0], part.conditions_EC, part.segments)
        loss = score_loss(raw_E, part.signs_2E[: len(raw_E)]).loss
        if times == 1:
            return loss, EnergyScore(torch.zeros_like(loss), torch.zeros_like(loss))
        weights = part.muons_weight_E, part.present_E
        return loss, energy_score(fake_MPF, part.real_PF, part.segments, weights, self.standardise.feature_spread_F[0])

    def count_loss(self, part: WganEvents, count_head: MixtureCountHead | None = None) -> Tensor:
        """Loss of the count head, by default the trained weights, summed over events."""
        return (count_head or self.count_head).loss(part.conditions_EC, part.segments.sizes_E)


@dataclass(frozen=True)
class PieceSizes:
    """Sizes of the pieces in one pass through the networks."""

    events: int
    """Events whose noise is drawn at once: that of an event depends on this number and on the events before it only."""
    particles: int
    """Particles that torch computes at once, or one larger event; the library in C++ has blocks of its own."""
    counts: int
    """Events in one draw of numbers of muons."""


CPU_PIECES = PieceSizes(events=1024, particles=1024, counts=2048)
"""Sizes on a CPU: 1,024 particles 128 wide take half a MiB a layer, so that all layers fit a core's L2 cache."""
GPU_PIECES = PieceSizes(events=65_536, particles=262_144, counts=262_144)
"""Sizes on a GPU, which is limited by launches, not by caches."""
_CPP_PARTICLES = 4096
"""Particles of a pass by the library in C++, one a thread. Not by their number: a product of other sizes is rounded
otherwise, and a seed would mean other muons."""


class WganSampler:
    """Standardisation, count head and the generator with the weights for generation; no critic."""

    def __init__(self, config: WganConfig, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.standardise = Standardise(config.network).to(device)
        self.count_head = MixtureCountHead(config.network).to(device)
        self.generator = Generator(self.standardise.num_features, config.network).to(device)
        for module in (self.standardise, self.count_head, self.generator):
            module.requires_grad_(False).eval()
        self._pool = PartPool(torch.get_num_threads())
        self.num_shared = self.generator.z_global

    @classmethod
    def from_state(cls, config: WganConfig, task_state: dict[str, Any], device: torch.device) -> WganSampler:
        """Return a sampler from the result of WganTask.state_dict().

        Raises KeyError or RuntimeError if the networks differ, or before the first training batch.
        """
        sampler = cls(config, device)
        networks = task_state["networks"]
        sampler.standardise.load_state_dict(networks["standardise"])
        sampler.count_head.load_state_dict(networks["count_head_average"])
        sampler.generator.load_state_dict(networks["generator_average"])
        sampler.standardise.require_fit()
        return sampler

    @torch.no_grad()
    def draw_counts(self, primary_E4: Tensor, random: torch.Generator) -> Tensor:
        """Numbers of muons. (E, 4) = [energy_gev, zenith_rad, mass_a, depth_m (vertical)] -> (E,) int64, unbounded."""
        pieces = (GPU_PIECES if primary_E4.is_cuda else CPU_PIECES).counts
        conditions_EC = self.standardise.conditions(primary_E4)
        return torch.cat([self.count_head.sample(piece_EC, random) for piece_EC in conditions_EC.split(pieces)])

    @torch.inference_mode()
    def draw_muons(
        self, primary_E4: Tensor, counts_E: Tensor, random: torch.Generator, shared_EZ: Tensor | None = None
    ) -> Tensor:
        """Muons of events with these counts. -> (P, 3) float32 = [energy_gev, x_m, y_m].

        ``shared_EZ``: normal numbers of what an event's muons share, (E, num_shared); None: they are drawn, too.
        Waits for the device once, for the counts. Memory depends on the size of a piece, apart from the result.
        """
        pieces = GPU_PIECES if counts_E.is_cuda else CPU_PIECES
        counts = counts_E.cpu().numpy()
        present = np.flatnonzero(counts)  # empty events are skipped
        if len(present) < len(counts):
            rows = torch.from_numpy(present).to(counts_E.device)
            primary_E4, counts_E, counts = primary_E4[rows], counts_E[rows], counts[present]
            shared_EZ = None if shared_EZ is None else shared_EZ[rows]
        ends = np.concatenate([[0], np.cumsum(counts)])
        conditions_EC = self.standardise.conditions(primary_E4)
        with torch.inference_mode(False):  # the caller may change it
            muons_P3 = torch.empty((int(ends[-1]), 3), device=counts_E.device)
        for first in range(0, len(counts), pieces.events):
            events = slice(first, min(first + pieces.events, len(counts)))
            of_piece = ends[events.start : events.stop + 1]
            shared = None if shared_EZ is None else shared_EZ[events]
            features_PF = self._features(
                conditions_EC[events], counts_E[events], of_piece - of_piece[0], random, pieces.particles, shared
            )
            muons_P3[of_piece[0] : of_piece[-1]] = self.standardise.muons(
                features_PF.clamp(-MAX_DEVIATION, MAX_DEVIATION), random
            )
        return muons_P3

    def _features(
        self,
        conditions_EC: Tensor,
        counts_E: Tensor,
        ends: npt.NDArray[np.int64],
        random: torch.Generator,
        at_once: int,
        z_EZ: Tensor | None,
    ) -> Tensor:
        """Features of the muons of a piece: of ``at_once`` in a pass, or of more by the library in C++."""
        num_events, num_particles = len(counts_E), int(ends[-1])
        if z_EZ is None:
            z_EZ = torch.randn(num_events, self.num_shared, device=self.device, generator=random)
        z_PZ = torch.randn(num_particles, self.generator.z_local, device=self.device, generator=random)

        def compute(run: tuple[int, int]) -> Tensor:
            events, (first, last) = slice(*run), ends[[*run]].tolist()
            segments = Segments.from_counts(counts_E[events], last - first)
            features_PF: Tensor = self.generator(conditions_EC[events], segments, (z_EZ[events], z_PZ[first:last]))
            return features_PF

        if native.used() is None or counts_E.is_cuda:
            features = [compute(run) for run in runs_of_events(ends, at_once)]
        else:
            features = list(self._pool.map(torch.inference_mode()(compute), runs_of_events(ends, _CPP_PARTICLES)))
        return torch.cat(features) if len(features) > 1 else features[0]

    @torch.no_grad()
    def count_cdf(self, primary_E4: Tensor, counts_E: Tensor) -> tuple[Tensor, Tensor]:
        """P(N < n) and P(N <= n) for each event's n, each (E,) float64."""
        return self.count_head.cdf(self.standardise.conditions(primary_E4), counts_E)
