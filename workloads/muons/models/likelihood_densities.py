"""Densities of the muons of an event, given its primary and their number, and the sampler of a trained model.

    p(muons | c, N) = ∫ dz p(z | c, N) Π_i p(lg E_i | z, c, N) p(position_i | lg E_i, z, c, N)

A learned azimuth is the last feature, with a periodic density.

z is what the muons of an event share, such as the height where the shower began. It is in no condition: a bound (ELBO,
arXiv:1312.6114) integrates it out, with an encoder that sees all muons of an event.

Shape suffixes: E events, P particles, F features, K known numbers (see `known`) or components of a mixture, X = 3 K
parameters of a mixture (logits, means, ln spreads), Z latent, I inputs of an event's context, D width.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base.random_streams import stream_seed
from workloads.base.segments import Segments, segment_mean, segment_sum, spread
from workloads.muons.models.config import MAX_COUNT, MAX_DEVIATION, MuonNetworkConfig
from workloads.muons.models.count_head import CONDITION_LIMIT, MixtureCountHead, cumulative
from workloads.muons.models.panel import Bundles
from workloads.muons.models.standardise import NUM_CONDITIONS, Standardise
from workloads.muons.purposes import MuonPurpose

COMPONENTS = 8
"""Normal distributions in each mixture: 12 gained nothing."""
LOG_SPREAD_RANGE = (-5.0, 3.0)
LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)
NUM_KNOWN = NUM_CONDITIONS + 2
_ENERGY, _RADIUS, _AZIMUTH = 0, 1, 2
_REACH, _LOG_SPREAD = 1.5, -1.0
_AZIMUTH_LOG_SPREAD = -0.5
"""Initial ln spread of components at equal distances on the circle: their sum is flat within 2e-5."""
_MOST_LOG_SPREAD = 0.5
"""Largest ln spread of an angle: three turns of a wider one would not be all of it."""
_CORRECTION = 0.1
"""Factor on a correction and on its first weights: it begins as nearly nothing, and each update is a small step."""
_PRIOR_REACH, _PRIOR_LOG_SPREAD = 1.2, -0.3
_PRIOR_POWER = 0.75
"""Exponent of the muons seen in the additional weight of an event for the prior: large events show their z, small ones
hardly. A right prior is the same with any weight; without one, radii of large events were off by up to 0.02 decades."""


class ExactLinear(nn.Linear):
    """Linear layer in float32, under autocast, too: for numbers that a loss is computed from."""

    def forward(self, input_RA: Tensor) -> Tensor:
        """Result of the layer. (R, A) -> (R, D)."""
        if not torch.is_autocast_enabled(input_RA.device.type):
            return super().forward(input_RA)
        with torch.autocast(input_RA.device.type, enabled=False):
            return F.linear(input_RA.float(), self.weight, self.bias)


def mixture_layer(inputs: int, reach: float, log_spread: float) -> nn.Linear:
    """Layer to the parameters of a mixture, at first one wide peak. (P, inputs) -> (P, X).

    ``reach``: distance of the outermost means from 0 at first; ``log_spread``: ln spread of each component at first.
    """
    layer = ExactLinear(inputs, 3 * COMPONENTS)
    centres_K = torch.linspace(-reach, reach, COMPONENTS)
    with torch.no_grad():
        layer.weight.mul_(0.1)
        layer.bias.copy_(torch.cat([-0.5 * centres_K.square(), centres_K, torch.full_like(centres_K, log_spread)]))
    return layer


def log_density(mixture_PX: Tensor, value_P1: Tensor) -> Tensor:
    """Log density ln p(value) of each row's mixture, (P, X), (P, 1) -> (P,).

    Components are normal and not logistic: tails that fall exponentially in lg E gave twice the muons above 30 TeV.
    """
    logits_PK, means_PK, log_spreads_PK = mixture_PX.chunk(3, 1)
    parts_PK = _log_parts(logits_PK, value_P1 - means_PK, log_spreads_PK)
    return torch.logsumexp(parts_PK, 1) - torch.logsumexp(logits_PK, 1) - LOG_SQRT_2_PI


def _log_parts(logits_PK: Tensor, away_PK: Tensor, log_spreads_PK: Tensor) -> Tensor:
    log_spreads_PK = log_spreads_PK.clamp(*LOG_SPREAD_RANGE)
    return logits_PK - 0.5 * (away_PK * torch.exp(-log_spreads_PK)).square() - log_spreads_PK


def log_angle_density(mixture_PX: Tensor, angle_P1: Tensor) -> Tensor:
    """Log density of angles in radians, by each row's mixture of normals around the circle. (P, X), (P, 1) -> (P,)."""
    logits_PK, means_PK, log_spreads_PK = mixture_PX.chunk(3, 1)
    away_PK = wrapped(angle_P1 - means_PK)
    turns = [_log_parts(logits_PK, away_PK + 2 * math.pi * turn, log_spreads_PK) for turn in (-1, 0, 1)]
    return torch.logsumexp(torch.cat(turns, 1), 1) - torch.logsumexp(logits_PK, 1) - LOG_SQRT_2_PI


def draw(mixture_PX: Tensor, uniform_P1: Tensor, normal_P1: Tensor) -> Tensor:
    """Value of each row's mixture from a uniform and a normal random number. (P, X) -> (P, 1)."""
    # Rows of components, not columns: three times as fast on a CPU.
    logits_KP, means_KP, log_spreads_KP = mixture_PX.t().contiguous().chunk(3, 0)
    steps_KP = cumulative((logits_KP - logits_KP.amax(0)).exp())
    chosen_1P = (uniform_P1.t() * steps_KP[-1] > steps_KP[:-1]).sum(0, keepdim=True)
    spread_1P = log_spreads_KP.gather(0, chosen_1P).clamp(*LOG_SPREAD_RANGE).exp()
    return (means_KP.gather(0, chosen_1P) + spread_1P * normal_P1.t()).t()


def wrapped(angle: Tensor) -> Tensor:
    """Angle from -π to π of each angle in radians, of any shape."""
    return angle - 2 * math.pi * (angle / (2 * math.pi)).round()


class Bound(NamedTuple):
    """Upper bound of -ln p(muons | c, N) in nats: the sum of both."""

    muons_E: Tensor
    """Negative log density of the muons given z, at one z of the encoder."""
    shared_E: Tensor
    """Price of z: ln q(z | muons) - ln p(z). Its mean is a Kullback-Leibler divergence."""


class Draws(NamedTuple):
    """Random numbers of generated events: which component of each mixture, and where in it."""

    z_uniform_E1: Tensor
    z_normal_EZ: Tensor
    uniform_PF: Tensor
    normal_PF: Tensor

    @classmethod
    def of(cls, segments: Segments, latent: int, num_features: int, random: torch.Generator) -> Draws:
        """Random numbers for the events and particles of ``segments``."""
        device = segments.event_P.device
        num_events, num_particles = segments.num_events, segments.num_particles
        return cls(
            torch.rand(num_events, 1, device=device, generator=random),
            torch.randn(num_events, latent, device=device, generator=random),
            torch.rand(num_particles, num_features, device=device, generator=random),
            torch.randn(num_particles, num_features, device=device, generator=random),
        )


class MuonDensities(nn.Module):
    """Prior and encoder of z, densities of lg E and of each further feature given those before."""

    def __init__(self, num_features: int, config: MuonNetworkConfig) -> None:
        super().__init__()
        width, latent = config.hidden, config.latent
        self.latent, self.num_features = latent, num_features
        # Of the first of z; the rest are normal. Showers that begin deep make it skewed: with a normal, large events
        # had 15 % too little variance between them. The mixture follows what the encoder finds.
        self.prior = mixture_layer(NUM_KNOWN, _PRIOR_REACH, _PRIOR_LOG_SPREAD)
        # Not of the azimuth, in which muons of an event hardly have anything in common.
        self.embedding = _silu_layers(_AZIMUTH + NUM_KNOWN, width)
        to_posterior = ExactLinear(width, 2 * latent)
        self.posterior = nn.Sequential(nn.Linear(width + NUM_KNOWN, width), nn.SiLU(), to_posterior)
        # A line from the mean features of an event: z means something before the other layers have found it. Without,
        # one seed of ten had 0.6 of the correlation of two radii after 1,500 steps.
        self.posterior_line = ExactLinear(_AZIMUTH + NUM_KNOWN, latent)
        inputs = NUM_KNOWN + latent
        self.context = _silu_layers(inputs, width)
        self.energy = mixture_layer(width, _REACH, _LOG_SPREAD)
        self.positions = nn.ModuleList(_Position(number, config) for number in range(1, num_features))
        # Shifts of whole mixtures by (c, N, z), learned long before the other layers bend.
        self.shift = ExactLinear(inputs, num_features)
        with torch.no_grad():
            to_posterior.weight.mul_(0.1)
            self.shift.weight.zero_()
            nn.init.zeros_(self.posterior_line.bias)
            nn.init.zeros_(self.posterior_line.weight)[0, _RADIUS] = 1.0
            self.posterior_line.weight[min(latent - 1, 1), _ENERGY] = 0.5
            # z matters from the start. Where it did not, the encoder of some variants stayed at the prior for good.
            self.shift.weight[_RADIUS, NUM_KNOWN] = 0.4
            self.shift.weight[_ENERGY, NUM_KNOWN + min(latent - 1, 1)] = 0.2

    def bound(self, features_PF: Tensor, known_EK: Tensor, segments: Segments, normal_EZ: Tensor) -> Bound:
        """Bound of each event, with z from the encoder by ``normal_EZ``. (P, F), (E, K), (E, Z) -> 2 times (E,)."""
        embedded_PD = self.embedding(torch.cat([features_PF[:, :_AZIMUTH], spread(known_EK, segments)], 1))
        mean_ED = segment_mean(embedded_PD, segments)
        mean_EF = segment_mean(features_PF[:, :_AZIMUTH], segments)
        mean_EZ, log_spread_EZ = self.posterior(torch.cat([mean_ED, known_EK], 1)).chunk(2, 1)
        log_spread_EZ = log_spread_EZ.clamp(*LOG_SPREAD_RANGE)
        mean_EZ = mean_EZ + self.posterior_line(torch.cat([mean_EF, known_EK], 1))
        z_EZ = mean_EZ + log_spread_EZ.exp() * normal_EZ
        # No gradient through q's own parameters: unbiased, and without noise where q is right (arXiv:1703.09194).
        away_EZ = (z_EZ - mean_EZ.detach()) * torch.exp(-log_spread_EZ.detach())
        log_q_E = (-0.5 * away_EZ.square() - log_spread_EZ.detach() - LOG_SQRT_2_PI).sum(1)
        nll_E = self.nll_given(z_EZ, features_PF, known_EK, segments)
        return Bound(nll_E, log_q_E - self.log_prior(z_EZ, known_EK, segments.counts_E))

    def log_prior(self, z_EZ: Tensor, known_EK: Tensor, seen_E: Tensor) -> Tensor:
        """Log density ln p(z | c, N). -> (E,).

        Its gradient weighs an event more for the prior, the more muons of it are seen, (E,).
        """
        prior_EX = self.prior(known_EK)
        fixed_EX = prior_EX.detach()
        prior_EX = fixed_EX + (prior_EX - fixed_EX) * (seen_E.float() ** _PRIOR_POWER).unsqueeze(1)
        of_first_E = log_density(prior_EX, z_EZ[:, :1])
        return of_first_E + (-0.5 * z_EZ[:, 1:].square() - LOG_SQRT_2_PI).sum(1)

    def nll_given(self, z_EZ: Tensor, features_PF: Tensor, known_EK: Tensor, segments: Segments) -> Tensor:
        """Negative log density -ln p(muons | z, c, N) of each event in nats. (E, Z), (P, F), (E, K) -> (E,)."""
        context_ED, energy_EX, shift_EF = self._of_event(torch.cat([known_EK, z_EZ], 1))
        both_PX = spread(torch.cat([energy_EX, shift_EF], 1), segments)
        energy_PX, shift_PF = both_PX.split([energy_EX.shape[1], shift_EF.shape[1]], 1)
        shifted_PF = features_PF - shift_PF
        log_p_P = log_density(energy_PX, shifted_PF[:, :1])
        for number, position in enumerate(self.positions, 1):
            mixture_PX, line_P1 = position(context_ED, features_PF[:, :number], segments)
            value_P1 = shifted_PF[:, number : number + 1] - line_P1
            log_p_P = log_p_P + (log_density if number < _AZIMUTH else log_angle_density)(mixture_PX, value_P1)
        return segment_sum(-log_p_P, segments)

    def draw(self, known_EK: Tensor, segments: Segments, draws: Draws, correction: Correction | None = None) -> Tensor:
        """Standardised features of muons of events with these counts, corrected if wanted. (E, K) -> (P, F)."""
        inputs_EI, features_PF = self.drawn(known_EK, segments, draws)
        return features_PF if correction is None else correction(inputs_EI, features_PF, segments)

    def drawn(self, known_EK: Tensor, segments: Segments, draws: Draws) -> tuple[Tensor, Tensor]:
        """Inputs of the context of each event, and features of its muons. (E, K) -> (E, I), (P, F)."""
        first_E1 = draw(self.prior(known_EK), draws.z_uniform_E1, draws.z_normal_EZ[:, :1])
        inputs_EI = torch.cat([known_EK, first_E1, draws.z_normal_EZ[:, 1:]], 1)
        context_ED, energy_EX, shift_EF = self._of_event(inputs_EI)
        energy_PX, shift_PF = (one.index_select(0, segments.event_P) for one in (energy_EX, shift_EF))
        features_PF = draw(energy_PX, draws.uniform_PF[:, :1], draws.normal_PF[:, :1]) + shift_PF[:, :1]
        for number, position in enumerate(self.positions, 1):
            own = slice(number, number + 1)
            mixture_PX, line_P1 = position(context_ED, features_PF, segments)
            value_P1 = draw(mixture_PX, draws.uniform_PF[:, own], draws.normal_PF[:, own]) + line_P1 + shift_PF[:, own]
            features_PF = torch.cat([features_PF, value_P1 if number < _AZIMUTH else wrapped(value_P1)], 1)
        return inputs_EI, features_PF

    def _of_event(self, inputs_EI: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Context (E, D), mixture of the energies (E, X), shifts of all features (E, F)."""
        context_ED = self.context(inputs_EI)
        return context_ED, self.energy(context_ED), self.shift(inputs_EI)


class _Position(nn.Module):
    """Mixture of one feature, given the event's context and the muon's features before."""

    def __init__(self, number: int, config: MuonNetworkConfig) -> None:
        """``number``: that of the features before."""
        super().__init__()
        width = config.hidden
        self.of_context, self.of_features = nn.Linear(width, width), nn.Linear(number, width, bias=False)
        mixture = mixture_layer(width, _REACH, _LOG_SPREAD)
        if number == _AZIMUTH:
            mixture = mixture_layer(width, math.pi * (1 - 1 / COMPONENTS), _AZIMUTH_LOG_SPREAD)
            nn.init.zeros_(mixture.bias[:COMPONENTS])
        self.network = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), mixture)
        self.slope = ExactLinear(width, number)
        with torch.no_grad():
            self.slope.weight.mul_(0.1)

    def forward(self, context_ED: Tensor, before_PF: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
        """Mixture of each muon (P, X), and its shift (P, 1) by a line in the features before."""
        of_event_PD, slope_PN = (spread(layer(context_ED), segments) for layer in (self.of_context, self.slope))
        mixture_PX: Tensor = self.network(_added(self.of_features, before_PF, of_event_PD))
        if before_PF.shape[1] == _AZIMUTH:
            *others, log_spreads_PK = mixture_PX.chunk(3, 1)
            mixture_PX = torch.cat([*others, log_spreads_PK.clamp_max(_MOST_LOG_SPREAD)], 1)
        return mixture_PX, (slope_PN * before_PF).sum(1, keepdim=True)


def seen(features_PF: Tensor) -> Tensor:
    """Features without a jump: an azimuth, the third, by its cosine and sine. (P, F) -> (P, F), or (P, 4)."""
    if features_PF.shape[1] == _AZIMUTH:
        return features_PF
    angle_P1 = features_PF[:, _AZIMUTH:]
    return torch.cat([features_PF[:, :_AZIMUTH], angle_P1.cos(), angle_P1.sin()], 1)


class Correction(nn.Module):
    """Correction of drawn features, which a critic teaches: see wgan_networks.py."""

    def __init__(self, num_features: int, config: MuonNetworkConfig) -> None:
        super().__init__()
        width = config.hidden
        self.context = _silu_layers(NUM_KNOWN + config.latent, width)
        self.of_context = nn.Linear(width, width)
        self.of_features = nn.Linear(seen(torch.empty(0, num_features)).shape[1], width, bias=False)
        last = ExactLinear(width, num_features)
        self.network = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), last)
        with torch.no_grad():
            last.weight.mul_(_CORRECTION)
            last.bias.zero_()

    def forward(self, inputs_EI: Tensor, features_PF: Tensor, segments: Segments) -> Tensor:
        """Corrected features. (E, I), (P, F) -> (P, F)."""
        of_event_PD = spread(self.of_context(self.context(inputs_EI)), segments)
        change_PF: Tensor = self.network(_added(self.of_features, seen(features_PF), of_event_PD))
        return features_PF + _CORRECTION * change_PF


def _added(layer: nn.Linear, input_PF: Tensor, to_PD: Tensor) -> Tensor:
    """Return ``to_PD`` + layer(input), in the memory of ``to_PD``, so that its rows pass the memory once."""
    # Autocast has no such product, and a compiler fuses the sum with what comes next.
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(to_PD.device.type):
        return to_PD + F.linear(input_PF, layer.weight)
    to_PD.addmm_(input_PF, layer.weight.t())
    return to_PD


def _silu_layers(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())


_CPU_PIECE, _GPU_PIECE = 512, 65_536
"""Events with muons in one pass through the networks: on a CPU, their rows stay in the cache."""


class MuonSampler:
    """Standardisation, count head, densities and, of a WGAN, correction, with the weights for generation."""

    def __init__(
        self,
        standardise: Standardise,
        count_head: MixtureCountHead,
        muons: MuonDensities,
        correction: Correction | None = None,
    ) -> None:
        """Raises RuntimeError before the first training batch."""
        standardise.require_fit()
        self.standardise = standardise
        self.count_head = count_head
        self.muons = muons
        self.correction = correction
        self.num_shared = 1 + muons.latent

    @classmethod
    def from_state(cls, network: MuonNetworkConfig, task_state: dict[str, Any], device: torch.device) -> MuonSampler:
        """Return a sampler from the result of the state_dict() of a LikelihoodTask or WganTask.

        Raises KeyError or RuntimeError if the networks differ, or before the first training batch.
        """
        states = task_state["networks"]
        standardise, head = Standardise(network), MixtureCountHead(network)
        muons = MuonDensities(standardise.num_features, network)
        correction = Correction(standardise.num_features, network) if "correction" in states else None
        for name, module in zip(
            ("standardise", "count_head_average", "muons_average", "correction_average"),
            (standardise, head, muons, correction),
            strict=True,
        ):
            if module is not None:
                module.load_state_dict(states[name])
                module.to(device).requires_grad_(False).eval()
        return cls(standardise, head, muons, correction)

    @property
    def device(self) -> torch.device:
        """Device of the computation."""
        return self.standardise.feature_mean_F.device

    @torch.no_grad()
    def draw_counts(self, primary_E4: Tensor, random: torch.Generator) -> Tensor:
        """Numbers of muons. (E, 4) = [energy_gev, zenith_rad, mass_a, depth_m (vertical)] -> (E,) int64, unbounded."""
        return self.count_head.sample(self.standardise.conditions(primary_E4), random)

    @torch.no_grad()
    def draw_muons(
        self, primary_E4: Tensor, counts_E: Tensor, random: torch.Generator, shared_EZ: Tensor | None = None
    ) -> Tensor:
        """Muons of events with these counts. -> (P, 3) float32 = [energy_gev, x_m, y_m].

        ``shared_EZ``: normal numbers of what an event's muons share, (E, num_shared); None: they are drawn, too.
        Waits for the device once, for the counts.
        """
        counts = counts_E.cpu().numpy()
        rows = np.flatnonzero(counts)  # for the others even the context would be wasted
        muons = [torch.empty(0, 3, device=self.device)]
        size = _GPU_PIECE if counts_E.is_cuda else _CPU_PIECE
        for first in range(0, len(rows), size):
            piece = rows[first : first + size]
            index_E = torch.from_numpy(piece).to(self.device)
            segments = Segments.from_counts(counts_E[index_E], int(counts[piece].sum()))
            draws = Draws.of(segments, self.muons.latent, self.muons.num_features, random)
            if shared_EZ is not None:
                first_E1, normal_EZ = shared_EZ[index_E].split([1, self.muons.latent], 1)
                draws = draws._replace(z_uniform_E1=torch.special.ndtr(first_E1), z_normal_EZ=normal_EZ)
            known_EK = known(self.standardise, self.count_head, primary_E4[index_E], segments.sizes_E)
            features_PF = self.muons.draw(known_EK, segments, draws, self.correction)
            muons.append(self.standardise.muons(features_PF.clamp(-MAX_DEVIATION, MAX_DEVIATION), random))
        return torch.cat(muons)

    def bundles(self, primary_E4: Tensor) -> Bundles:
        """Events, one for each primary, as task.generate gives them. Its seed is drawn from torch's global generator.

        Waits for the device, and holds all events in memory: split long lists.
        """
        random = torch.Generator(self.device).manual_seed(
            stream_seed(MuonPurpose.TASK_EVENTS, int(torch.randint(2**62, ())))
        )
        primary_E4 = primary_E4.to(self.device)
        counts_E = self.draw_counts(primary_E4, random).clamp_max(MAX_COUNT)
        return Bundles(counts_E, self.draw_muons(primary_E4, counts_E, random))

    @torch.no_grad()
    def count_cdf(self, primary_E4: Tensor, counts_E: Tensor) -> tuple[Tensor, Tensor]:
        """P(N < n) and P(N <= n) for each event's n, each (E,) float64."""
        return self.count_head.cdf(self.standardise.conditions(primary_E4), counts_E)


def known(standardise: Standardise, count_head: MixtureCountHead, primary_E4: Tensor, sizes_E: Tensor) -> Tensor:
    """Known numbers of events: bounded conditions, ln(1 + N) / 2, and by how much N is above expectation.

    At fixed primary, radii go with the last: up to 60 % of what those of an event have in common in real showers. From
    the others, as a small difference of ln N and its expectation, it was hardly learned. (E, 4), (E,) int64 -> (E, K).
    """
    conditions_EC = standardise.conditions(primary_E4)
    excess_E1 = count_head(conditions_EC).excess(sizes_E).unsqueeze(1)
    half_log_E1 = sizes_E.to(conditions_EC.dtype).log1p().unsqueeze(1) / 2
    return torch.cat([conditions_EC.clamp(-CONDITION_LIMIT, CONDITION_LIMIT), half_log_E1, excess_E1], 1)
