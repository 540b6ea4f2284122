"""Generator and critic of the GAN.

p(N, muons | c) = p(N | c) p(muons | N, c): count_head.py models the first factor, the generator the second.

Shape suffixes: E events, P particles, F features, C conditions, D width, Z noise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from workloads.base.bf16 import Linear, joined, rounded_product
from workloads.base.kernels.elementwise import LOG_SIZES, LONG_TAILS
from workloads.base.kernels.elementwise_torch import log_sizes, long_tails
from workloads.base.kernels.scores import SCORE, SCORE_SLOPE
from workloads.base.native import dense as native
from workloads.base.native import particles as native_particles
from workloads.base.segments import Segments, pool, pool_with_argmax, spread, unpool
from workloads.muons.models.standardise import NUM_CONDITIONS
from workloads.muons.models.wgan.config import NetworkConfig
from workloads.muons.models.wgan.layers import LEAK, Dense, Pullback


class Generator(nn.Module):
    """Generator of standardised muon features for events with given numbers of muons."""

    def __init__(self, num_features: int, config: NetworkConfig) -> None:
        super().__init__()
        width = config.hidden
        self.z_global, self.z_local, self.local_tails = config.z_global, config.z_local, config.local_tails
        self.event_network = nn.Sequential(
            Dense(config.z_global + NUM_CONDITIONS + 1, width, layer_norm=True), Dense(width, width, layer_norm=True)
        )
        self.muon_input = Dense(width + config.z_local, width, layer_norm=False)
        self.muon_network = nn.Sequential(Dense(width, width, layer_norm=False), Linear(width, num_features, wide=True))
        _start_xavier(self, config.xavier_gain)

    def noise(self, segments: Segments, random: torch.Generator | None = None, times: int = 1) -> tuple[Tensor, Tensor]:
        """New normal numbers, ``times`` rows per event (times E, Z) and per particle (times P, Z)."""
        device = segments.event_P.device
        return (
            torch.randn(times * segments.num_events, self.z_global, device=device, generator=random),
            torch.randn(times * segments.num_particles, self.z_local, device=device, generator=random),
        )

    def local_inputs(self, z_PZ: Tensor) -> Tensor:
        """Local noise as the network gets it: z·|z| / √3 in the first `local_tails` columns. (P, Z) -> (P, Z).

        Its tails are exponential, as those of lg E are, and its variance is 1: leaky ReLUs keep the shape of a tail.
        """
        if self.local_tails == 0:
            return z_PZ
        # An exported program must run without operators of ours.
        tails: Callable[[Tensor, int], Tensor] = long_tails if torch.compiler.is_exporting() else LONG_TAILS
        return tails(z_PZ, self.local_tails)

    def forward(self, conditions_EC: Tensor, segments: Segments, noise: tuple[Tensor, Tensor]) -> Tensor:
        """Features of one muon for each particle of ``segments``. (E, C), ``noise()`` -> (P, F)."""
        z_EZ, z_PZ = noise
        context_ED = self.event_network(torch.cat([z_EZ, conditions_EC, _size_E1(segments, z_EZ.dtype)], 1))
        # The event's part of the first layer is computed once for each event, not for each of its muons.
        linear = self.muon_input.linear
        if linear.is_rounded:
            return self._rounded_features(context_ED, self.local_inputs(z_PZ), segments)
        of_event_DD, of_muon_DZ = linear.weight.split([context_ED.shape[1], self.z_local], 1)
        of_event_ED = F.linear(context_ED, of_event_DD, linear.bias)
        z_PZ = self.local_inputs(z_PZ)
        features_PF: Tensor
        if library := native.library_for(z_PZ, of_muon_DZ):
            layers = (of_muon_DZ, *self.muon_network.parameters())
            features_PF = native_particles.chain(library, z_PZ, of_event_ED, segments, layers, LEAK)
        else:
            muons_PD = torch.addmm(spread(of_event_ED, segments), z_PZ, of_muon_DZ.t())
            features_PF = self.muon_network(self.muon_input.activate(muons_PD))
        return features_PF

    def _rounded_features(self, context_ED: Tensor, z_PZ: Tensor, segments: Segments) -> Tensor:
        """Features in float32, from rows in bfloat16. (E, D), (P, Z) -> (P, F)."""
        linear, sizes = self.muon_input.linear, [context_ED.shape[1], self.z_local]
        of_event, of_muon = zip(*(one.split(sizes, 1) for one in linear.pair), strict=True)
        of_event_ED = rounded_product(context_ED, of_event, linear.rounded_D, bias_D=linear.bias)
        muons_PD = rounded_product(z_PZ, of_muon, spread(of_event_ED, segments))
        features_PF: Tensor = self.muon_network(self.muon_input.activate(muons_PD))
        return features_PF


class Critic(nn.Module):
    """Critic: a score for an event as a whole, independent of the order of its muons but not of their number.

    Muons are embedded one by one and pooled, by default by mean and maximum (DeepSets, arXiv:1703.06114). Neither
    depends on the number of muons, so ln(1 + N) is an input (EPiC-GAN, arXiv:2301.08128). The conditions also enter
    as a projection on the last layer (arXiv:1802.05637).
    """

    def __init__(self, num_features: int, config: NetworkConfig) -> None:
        super().__init__()
        width = config.hidden
        self.num_features = num_features
        self.score_limit = config.score_limit
        self.pools = tuple(config.pooling.split("+"))
        norm = config.layer_norm
        self.muon_input = Dense(num_features + NUM_CONDITIONS, width, layer_norm=norm)
        self.muon_hidden = Dense(width, width, layer_norm=norm)
        self.event_input = Dense(len(self.pools) * width + NUM_CONDITIONS + 1, width, layer_norm=norm)
        self.event_hidden = Dense(width, width, layer_norm=norm)
        self.output = nn.Linear(width, 1)
        self.projection = nn.Linear(NUM_CONDITIONS, width, bias=False)
        _start_xavier(self, config.xavier_gain)
        if config.spectral_norm:
            for module in list(self.modules()):
                if isinstance(module, nn.Linear):
                    spectral_norm(module)

    def raw_scores(self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments) -> Tensor:
        """Unbounded score of each event. (P, F), (E, C) -> (E,). The score of an empty event has no meaning."""
        pooled_ED = self._pooled(features_PF, conditions_EC, segments)
        event_ED = joined([pooled_ED, conditions_EC, _size_E1(segments, features_PF.dtype)], pooled_ED.dtype)
        return self._score(self.event_hidden(self.event_input(event_ED)), conditions_EC)

    def saturate(self, scores_E: Tensor) -> Tensor:
        """Bounded score L·tanh(score / L) with L = ``score_limit``: the identity near 0. (E,) -> (E,)."""
        if self.score_limit == 0:
            return scores_E
        return self.score_limit * torch.tanh(scores_E / self.score_limit)

    def forward(self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments) -> Tensor:
        """Bounded score of each event, as used in training. (P, F), (E, C) -> (E,)."""
        return self.saturate(self.raw_scores(features_PF, conditions_EC, segments))

    def slope(self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments) -> Tensor:
        """Derivative of each event's score with respect to the features of its muons. (P, F), (E, C) -> (P, F).

        Equal to autograd's derivative of ``forward``, but itself a forward computation: see layers.py.
        """
        pooled_ED, muons_back = self._pooled_with_pullback(features_PF, conditions_EC, segments)
        event_ED = joined([pooled_ED, conditions_EC, _size_E1(segments, features_PF.dtype)], pooled_ED.dtype)
        event_ED, third_back = self.event_input.with_pullback(event_ED)
        event_ED, fourth_back = self.event_hidden.with_pullback(event_ED)

        weights = self.output.weight, self.output.bias
        slope_ED = SCORE_SLOPE(event_ED, self.projection(conditions_EC), *weights, self.score_limit)
        pooled_slopes_ED = third_back(fourth_back(slope_ED))[:, : pooled_ED.shape[1]]
        return muons_back(pooled_slopes_ED)

    def _pooled(self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments) -> Tensor:
        """Embedded muons, pooled over each event. (P, F), (E, C) -> (E, D x pools)."""
        if pooled := self._pooled_in_cpp(features_PF, conditions_EC, segments):
            return pooled[0]
        muons_PD = torch.cat([features_PF, spread(conditions_EC, segments)], 1)
        return pool(self.muon_hidden(self.muon_input(muons_PD)), segments, self.pools)

    def _pooled_with_pullback(
        self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments
    ) -> tuple[Tensor, Pullback]:
        """Result of `_pooled`, and the pullback of a gradient through it, (E, D x pools) -> (P, F)."""
        if pooled := self._pooled_in_cpp(features_PF, conditions_EC, segments):
            return pooled
        muons_PD = torch.cat([features_PF, spread(conditions_EC, segments)], 1)
        muons_PD, first_back = self.muon_input.with_pullback(muons_PD)
        muons_PD, second_back = self.muon_hidden.with_pullback(muons_PD)
        pooled_ED, argmax_ED = pool_with_argmax(muons_PD, segments, self.pools)

        def pullback(slopes_ED: Tensor) -> Tensor:
            slopes_PD = unpool(slopes_ED, segments, self.pools, argmax_ED)
            return first_back(second_back(slopes_PD))[:, : self.num_features]

        return pooled_ED, pullback

    def _pooled_in_cpp(
        self, features_PF: Tensor, conditions_EC: Tensor, segments: Segments
    ) -> tuple[Tensor, Pullback] | None:
        """Result of `_pooled_with_pullback` from the library in C++, None if it can't compute it."""
        first, second = self.muon_input, self.muon_hidden
        library = None if first.linear.is_rounded else native.library_for(features_PF, first.linear.weight)
        if library is None or first.norm is None or second.norm is None or self.pools != ("mean", "max"):
            return None
        of_muon_DF, of_event_DC = first.linear.weight.split([self.num_features, conditions_EC.shape[1]], 1)
        of_event_ED = F.linear(conditions_EC, of_event_DC, first.linear.bias)
        return native_particles.pooled(
            *(library, features_PF, of_event_ED, segments, (of_muon_DF, first.norm)),
            *((second.linear.weight, second.linear.bias, second.norm), LEAK),
        )

    def _score(self, event_ED: Tensor, conditions_EC: Tensor) -> Tensor:
        scores_E: Tensor = SCORE(event_ED, self.projection(conditions_EC), self.output.weight, self.output.bias)
        return scores_E


def size_E1(sizes_E: Tensor, dtype: torch.dtype) -> Tensor:
    """Size input ln(1 + N) / 2 of each event, about 0 to 5. (E,) -> (E, 1)."""
    # An exported program must run without operators of ours.
    size: Callable[[Tensor, torch.dtype], Tensor] = log_sizes if torch.compiler.is_exporting() else LOG_SIZES
    return size(sizes_E, dtype)


def _size_E1(segments: Segments, dtype: torch.dtype) -> Tensor:
    known_E1 = segments.log_sizes_E1
    return size_E1(segments.sizes_E, dtype) if known_E1 is None or known_E1.dtype != dtype else known_E1


def _start_xavier(network: nn.Module, gain: float) -> None:
    if gain == 0:
        return
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, gain=gain)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
