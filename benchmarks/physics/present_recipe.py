"""Former training recipe of the users, rebuilt from the list of its defects, as a baseline.

No code of it is copied. Each comment describes a property of the recipe and, in brackets, its row of the list in
docs/physics.md. For properties not in the list (widths, noise, activations, the scale of conditions beyond "not
standardised"), we chose favourable ones: noise for the event as well as for each muon, and conditions of order 1.

Shapes: E events, P muons, F = 3 features, C = 4 conditions, D width, Z noise.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base.batch import Batch
from workloads.base.segments import Segments, spread

NUM_CONDITIONS, NUM_FEATURES = 4, 3
GEV_PER_PEV = 1e6
POSITION_M = 500.0
EMPTY = -1e9
"""Pooled value of an event without muons [7]: the critic's score then does not depend on its conditions."""


class PresentRecipe:
    """Former recipe: three networks and two optimisers. ``step`` trains on a batch; also a MuonGenerator."""

    LEARNING_RATE = 1e-4  # constant: no schedule, no average of the generator's weights [26]
    CRITIC_STEPS = 5  # all on the same real batch [17]
    PENALTY_WEIGHT = 10.0
    GP_EVERY = 2  # by the number within the step, and without a factor for the skipped ones [15]
    MAX_COUNT = 100_000

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.multiplicity = Multiplicity()
            self.generator = Generator()
            self.critic = Critic()
        self._random = torch.Generator().manual_seed(seed)
        # One optimiser for generator and multiplicity: the adversarial gradient moves both [3].
        both = [*self.generator.parameters(), *self.multiplicity.parameters()]
        self._generator_optimiser = torch.optim.Adam(both, self.LEARNING_RATE, betas=(0.0, 0.9))
        self._critic_optimiser = torch.optim.Adam(self.critic.parameters(), self.LEARNING_RATE, betas=(0.0, 0.9))

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters of the three networks."""
        networks = (self.multiplicity, self.generator, self.critic)
        return sum(parameter.numel() for network in networks for parameter in network.parameters())

    def step(self, batch: Batch) -> None:
        """Do CRITIC_STEPS critic updates, and one of generator and multiplicity."""
        primary_E4 = torch.cat([part.event_columns["primary"] for part in batch.microbatches])
        muons_P3 = torch.cat([part.particle_columns["muons"] for part in batch.microbatches])
        counts_E = torch.cat([part.offsets_E1.diff() for part in batch.microbatches])
        real, real_PF, conditions_EC = segments_of(counts_E), features(muons_P3), conditions(primary_E4)
        for update in range(self.CRITIC_STEPS):
            with torch.no_grad():
                fake, fake_PF = self._fake(conditions_EC)
            real_E = self.critic(real_PF, real, conditions_EC)
            fake_E = self.critic(fake_PF, fake, conditions_EC)
            loss = fake_E.mean() - real_E.mean()
            if update % self.GP_EVERY == 0:
                loss = loss + self.PENALTY_WEIGHT * self._penalty(real, real_PF, fake, fake_PF, conditions_EC)
            self._critic_optimiser.zero_grad()
            loss.backward()
            self._critic_optimiser.step()
        fake, fake_PF = self._fake(conditions_EC)
        adversarial = -self.critic(fake_PF, fake, conditions_EC).mean()
        # The mean square error of lg(N + 1) gives the mean of lg(N + 1): a geometric mean, below the mean of N [2].
        counted = F.mse_loss(self.multiplicity(conditions_EC), torch.log10(counts_E + 1.0))
        self._generator_optimiser.zero_grad()
        (adversarial + counted).backward()
        self._generator_optimiser.step()

    def _fake(self, conditions_EC: Tensor) -> tuple[Segments, Tensor]:
        log_count_E = self.multiplicity(conditions_EC)
        segments = segments_of(rounded(log_count_E).clamp_max(self.MAX_COUNT))
        return segments, self.generator(conditions_EC, log_count_E, segments, self._random)

    def _penalty(
        self, real: Segments, real_PF: Tensor, fake: Segments, fake_PF: Tensor, conditions_EC: Tensor
    ) -> Tensor:
        """Mean over muons of (norm of the score's gradient with respect to that muon - 1)² [13].

        The i-th real muon of an event is paired with its i-th generated one, in any order; the excess is dropped [11].
        """
        shared_E = torch.minimum(real.counts_E, fake.counts_E)
        between = segments_of(shared_E)
        if not between.num_particles:
            return torch.zeros(())
        rank_P = torch.arange(between.num_particles) - spread(shared_E.cumsum(0) - shared_E, between)
        real_PF = real_PF[spread(real.counts_E.cumsum(0) - real.counts_E, between) + rank_P]
        fake_PF = fake_PF[spread(fake.counts_E.cumsum(0) - fake.counts_E, between) + rank_P]
        mix_P1 = torch.rand(len(rank_P), 1, generator=self._random)
        point_PF = (mix_P1 * real_PF + (1 - mix_P1) * fake_PF).requires_grad_(True)
        scores_E = self.critic(point_PF, between, conditions_EC)
        (slope_PF,) = torch.autograd.grad(scores_E.sum(), point_PF, create_graph=True)
        norm_P = torch.nan_to_num(slope_PF.square().sum(1).add(1e-12).sqrt()).clamp_max(10.0)  # [14]
        return (norm_P - 1).square().mean()

    def sampler(self) -> PresentRecipe:
        """Generator itself: the latest weights are used [26]."""
        return self

    @torch.no_grad()
    def draw_counts(self, primary_E4: Tensor, random: torch.Generator) -> Tensor:
        """Counts, always the same for a primary: no fluctuations at all [1]."""
        return rounded(self.multiplicity(conditions(primary_E4)))

    @torch.no_grad()
    def draw_muons(self, primary_E4: Tensor, counts_E: Tensor, random: torch.Generator) -> Tensor:
        """Muons. (E, 4), (E,) -> (P, 3) = [energy_gev, x_m, y_m]."""
        conditions_EC = conditions(primary_E4)
        made_PF = self.generator(conditions_EC, self.multiplicity(conditions_EC), segments_of(counts_E), random)
        energy_gev_P = (torch.pow(10.0, made_PF[:, 0].clamp(-10.0, 6.0)) - 1e-10).clamp_min(0) * GEV_PER_PEV
        return torch.cat([energy_gev_P.unsqueeze(1), made_PF[:, 1:] * POSITION_M], 1)

    def count_cdf(self, primary_E4: Tensor, counts_E: Tensor) -> None:
        """None: there is no distribution [1]."""

    def state_dict(self) -> dict[str, Any]:
        """State of the networks needed for generation."""
        networks = {"multiplicity": self.multiplicity, "generator": self.generator, "critic": self.critic}
        return {name: network.state_dict() for name, network in networks.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of ``state_dict()``."""
        for name, weights in state.items():
            getattr(self, name).load_state_dict(weights)

    begin_with = load_state_dict


class Multiplicity(nn.Module):
    """Network for lg(N + 1) of each event: one number for each primary."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.layers = _layers(NUM_CONDITIONS, width, width, 1)

    def forward(self, conditions_EC: Tensor) -> Tensor:
        """Predicted lg(N + 1). (E, C) -> (E,)."""
        log_count_E: Tensor = self.layers(conditions_EC).squeeze(1)
        return log_count_E


class Generator(nn.Module):
    """Generator of single muons from noise, conditions and the predicted lg(N + 1)."""

    def __init__(self, width: int = 256, z_event: int = 16, z_muon: int = 32) -> None:
        super().__init__()
        self.z_event, self.z_muon = z_event, z_muon
        self.layers = _layers(z_event + z_muon + NUM_CONDITIONS + 1, width, width, NUM_FEATURES)

    def forward(
        self, conditions_EC: Tensor, log_count_E: Tensor, segments: Segments, random: torch.Generator
    ) -> Tensor:
        """Generated features. -> (P, F)."""
        z_EZ = torch.randn(segments.num_events, self.z_event, generator=random)
        z_PZ = torch.randn(segments.num_particles, self.z_muon, generator=random)
        # The predicted lg(N + 1), with its gradient [3]: the real count is unknown to the generator.
        of_event = spread(torch.cat([z_EZ, conditions_EC, log_count_E.unsqueeze(1)], 1), segments)
        made_PF: Tensor = self.layers(torch.cat([of_event, z_PZ], 1))
        return made_PF


class Critic(nn.Module):
    """Critic with the maximum over an event's muons, without a count: two copies of each muon score like one [8]."""

    def __init__(self, width: int = 128, decay: float = 0.99) -> None:
        super().__init__()
        self.muon = _layers(NUM_FEATURES + NUM_CONDITIONS, width, width)
        # Because of layer normalisation -1e9 gives a constant score and not a huge one.
        self.event = nn.Sequential(
            nn.Linear(width + NUM_CONDITIONS, width), nn.LayerNorm(width), nn.LeakyReLU(0.2), nn.Linear(width, 1)
        )
        self.decay = decay
        self.register_buffer("scale", torch.ones(()))

    def raw(self, features_PF: Tensor, segments: Segments, conditions_EC: Tensor) -> Tensor:
        """Scores before scaling. (P, F), (E, C) -> (E,)."""
        muons_PD = self.muon(torch.cat([features_PF, spread(conditions_EC, segments)], 1))
        index_PD = segments.event_P.unsqueeze(1).expand(-1, muons_PD.shape[1])
        empty_ED = muons_PD.new_full((segments.num_events, muons_PD.shape[1]), EMPTY)
        pooled_ED = empty_ED.scatter_reduce(0, index_PD, muons_PD, "amax", include_self=False)
        scores_E: Tensor = self.event(torch.cat([pooled_ED, conditions_EC], 1)).squeeze(1)
        return scores_E

    def forward(self, features_PF: Tensor, segments: Segments, conditions_EC: Tensor) -> Tensor:
        """Scores over a running mean of |score| that each call updates [9], cut at ±5, at most 10 tanh 1 = 7.6 [10]."""
        scores_E = self.raw(features_PF, segments, conditions_EC)
        with torch.no_grad():
            self.scale.lerp_(scores_E.abs().mean(), 1 - self.decay)
        return 10 * torch.tanh((scores_E / (self.scale + 1e-8)).clamp(-5, 5) / 5)


def conditions(primary_E4: Tensor) -> Tensor:
    """Conditions lg(E / PeV), zenith, mass, depth: not standardised, no energy per nucleon [6]. (E, 4) -> (E, C)."""
    energy_E, zenith_E, mass_E, depth_E = primary_E4.unbind(1)
    return torch.stack([(energy_E / GEV_PER_PEV + 1e-10).log10(), zenith_E, mass_E / 56, depth_E / 1e3], 1)


def features(muons_P3: Tensor) -> Tensor:
    """Features lg(E / PeV + 1e-10), x and y over 500 m: -3.9 ± 0.6 and 0 ± 0.02, very different [5]. -> (P, F)."""
    energy_P1, position_P2 = muons_P3.split([1, 2], 1)
    return torch.cat([(energy_P1 / GEV_PER_PEV + 1e-10).log10(), position_P2 / POSITION_M], 1)


def rounded(log_count_E: Tensor) -> Tensor:
    """Nearest count; NaN becomes 0 [4]. (E,) -> (E,) int64."""
    count_E = torch.nan_to_num(torch.pow(10.0, log_count_E.detach()) - 1, nan=0.0, posinf=0.0)
    return count_E.round().clamp_min(0).long()


def segments_of(counts_E: Tensor) -> Segments:
    """Segments of contiguous muons for each event."""
    return Segments.from_counts(counts_E, int(counts_E.sum()))


def _layers(*widths: int) -> nn.Sequential:
    """Linear layers with a LeakyReLU between them, and after the last one if it is not an output."""
    made: list[nn.Module] = []
    for before, after in pairwise(widths):
        made += [nn.Linear(before, after), nn.LeakyReLU(0.2)]
    return nn.Sequential(*(made[:-1] if widths[-1] in (1, NUM_FEATURES) else made))
