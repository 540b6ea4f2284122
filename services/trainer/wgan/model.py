"""The three networks: how many muons, what they look like, and whether they look real.

p(N, muons | c) = p(N | c) p(muons | N, c): the count head is the first factor; generator and critic are the
second.

Shape suffixes: E events, P particles, F features, C conditions, D width, K mixture components, Z noise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Gamma

from services.trainer.segments import Segments, segment_max, segment_mean, spread
from services.trainer.wgan.config import NetworkConfig
from services.trainer.wgan.standardise import NUM_CONDITIONS

LEAK = 0.2
LOG_MEAN_RANGE = (-12.0, 12.0)
LOG_SHAPE_RANGE = (-4.0, 8.0)


class CountMixture(NamedTuple):
    """A mixture of negative binomials for each event: mean μ, shape k, variance μ + μ²/k. All (E, K)."""

    log_weights_EK: Tensor
    log_means_EK: Tensor
    log_shapes_EK: Tensor


class CountHead(nn.Module):
    """p(N | c), the number of muons of an event given its primary; N = 0 needs no special case."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        width, components = config.count_hidden, config.count_components
        self.network = nn.Sequential(nn.Linear(NUM_CONDITIONS, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.output = nn.Linear(width, 3 * components)

    def forward(self, conditions_EC: Tensor) -> CountMixture:
        """The mixture of each event. (E, C) -> 3 times (E, K)."""
        logits_EK, log_means_EK, log_shapes_EK = self.output(self.network(conditions_EC)).chunk(3, dim=1)
        # Clamped so that a wild primary gives a large number of muons and not infinity, which would become 0.
        return CountMixture(
            logits_EK.log_softmax(1),
            log_means_EK.clamp(*LOG_MEAN_RANGE),
            log_shapes_EK.clamp(*LOG_SHAPE_RANGE),
        )

    @torch.no_grad()
    def sample(self, conditions_EC: Tensor) -> Tensor:
        """Random counts: component, then Gamma, then Poisson. (E, C) -> (E,) int64, unbounded."""
        mixture: CountMixture = self(conditions_EC)
        component_E1 = torch.multinomial(mixture.log_weights_EK.exp(), 1)
        mean_E = mixture.log_means_EK.exp().gather(1, component_E1).squeeze(1)
        shape_E = mixture.log_shapes_EK.exp().gather(1, component_E1).squeeze(1)
        rate_E = Gamma(shape_E, shape_E / mean_E, validate_args=False).sample()
        return torch.poisson(rate_E).long()


class Generator(nn.Module):
    """Standardised muon features of events whose number of muons is given."""

    def __init__(self, num_features: int, config: NetworkConfig) -> None:
        super().__init__()
        width = config.hidden
        self.z_global, self.z_local = config.z_global, config.z_local
        self.event_network = nn.Sequential(
            *_layer(config.z_global + NUM_CONDITIONS + 1, width, layer_norm=True),
            *_layer(width, width, layer_norm=True),
        )
        self.muon_network = nn.Sequential(
            *_layer(width + config.z_local, width, layer_norm=False),
            *_layer(width, width, layer_norm=False),
            nn.Linear(width, num_features),
        )
        _start_xavier(self, config.xavier_gain)

    def noise(self, segments: Segments) -> tuple[Tensor, Tensor]:
        """Fresh normal numbers, one row per event (E, Z) and one per particle (P, Z)."""
        device = segments.event_P.device
        return (
            torch.randn(segments.num_events, self.z_global, device=device),
            torch.randn(segments.num_particles, self.z_local, device=device),
        )

    def forward(self, conditions_EC: Tensor, segments: Segments, noise: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Features of one muon per particle of ``segments``. (E, C) -> (P, F).

        ``noise`` as ``noise()`` makes it; without, fresh.
        """
        z_EZ, z_PZ = self.noise(segments) if noise is None else noise
        context_ED = self.event_network(torch.cat([z_EZ, conditions_EC, _size_E1(segments, z_EZ.dtype)], 1))
        features_PF: Tensor = self.muon_network(torch.cat([spread(context_ED, segments), z_PZ], 1))
        return features_PF


class Critic(nn.Module):
    """A score for an event as a whole: the order of its muons does not matter, their number does.

    Muons are embedded one by one and pooled by mean and maximum (DeepSets, arXiv:1703.06114). Neither sees
    how many there are, so ln(1 + N) is an input (EPiC-GAN, arXiv:2301.08128). The conditions enter once more
    as a projection on the last layer (arXiv:1802.05637).
    """

    def __init__(self, num_features: int, config: NetworkConfig) -> None:
        super().__init__()
        width = config.hidden
        self.score_limit = config.score_limit
        self.muon_network = nn.Sequential(
            *_layer(num_features + NUM_CONDITIONS, width, layer_norm=config.layer_norm),
            *_layer(width, width, layer_norm=config.layer_norm),
        )
        self.event_network = nn.Sequential(
            *_layer(2 * width + NUM_CONDITIONS + 1, width, layer_norm=config.layer_norm),
            *_layer(width, width, layer_norm=config.layer_norm),
        )
        self.output = nn.Linear(width, 1)
        self.projection = nn.Linear(NUM_CONDITIONS, width, bias=False)
        _start_xavier(self, config.xavier_gain)

    def raw_scores(self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments) -> Tensor:
        """Unbounded score of each event. (P, F), (E, C) -> (E,). That of an empty event means nothing."""
        muons_PD = self.muon_network(torch.cat([features_PF, spread(conditions_EC, segments)], 1))
        pooled_ED = torch.cat([segment_mean(muons_PD, segments), segment_max(muons_PD, segments)], 1)
        event_ED = self.event_network(torch.cat([pooled_ED, conditions_EC, _size_E1(segments, features_PF.dtype)], 1))
        projected_E = (event_ED * self.projection(conditions_EC)).sum(1) / math.sqrt(event_ED.shape[1])
        scores_E: Tensor = self.output(event_ED).squeeze(1) + projected_E
        return scores_E

    def saturate(self, scores_E: Tensor) -> Tensor:
        """L·tanh(score / L) with L = ``score_limit``: bounded, and the identity near 0. (E,) -> (E,)."""
        if self.score_limit == 0:
            return scores_E
        return self.score_limit * torch.tanh(scores_E / self.score_limit)

    def forward(self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments) -> Tensor:
        """Score of each event, the one that is trained. (P, F), (E, C) -> (E,)."""
        return self.saturate(self.raw_scores(features_PF, conditions_EC, segments))


def _size_E1(segments: Segments, dtype: torch.dtype) -> Tensor:
    """ln(1 + N) / 2 of each event, about 0 to 5. -> (E, 1)."""
    return segments.counts_E.to(dtype).log1p().unsqueeze(1) / 2


def _layer(inputs: int, outputs: int, *, layer_norm: bool) -> list[nn.Module]:
    normalisation = [nn.LayerNorm(outputs)] if layer_norm else []
    return [nn.Linear(inputs, outputs), *normalisation, nn.LeakyReLU(LEAK)]


def _start_xavier(network: nn.Module, gain: float) -> None:
    if gain == 0:
        return
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, gain=gain)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
