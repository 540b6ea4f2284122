"""Count head p(N | c): distribution of the number of muons, given the primary.

Shape suffixes: E events, C conditions, K mixture components.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from workloads.muons.models.config import MuonNetworkConfig
from workloads.muons.models.standardise import NUM_CONDITIONS

LOG_MEAN_RANGE = (-12.0, 12.0)
LOG_SHAPE_RANGE = (-4.0, 8.0)
CONDITION_LIMIT = 6.0
"""Bound on each condition, in standard deviations: a line goes on for ever, and far from all data it must not."""
AVERAGE_DECAY = 0.995
"""Decay per step of the running mean of the count head's weights, from which counts are drawn."""
_LINE_RATE, _FORM_LINE_RATE = 6.0, 0.1
"""Factors on the lines to ln μ and to the form of the mixture: how much faster than the other layers they learn."""
_LEAST_PRESENT = 1e-12
_HIDDEN = 64
"""Width of both hidden layers to ln μ: the measured default of docs/explanation/models.md."""
_COMPONENTS_AT_FIRST = ((-1.1, 0.15, 2.2), (0.0, 0.0, 2.6), (-1.1, -0.15, 2.2))
"""Logit, ln of mean / μ and ln of shape / μ^¼ of each component at first: as counts of showers are spread.

Two components that begin alike stay a single negative binomial for thousands of steps, and its skewness is not free.
"""
_SHAPE_POWER = 0.25
"""Power of μ by which the shapes of real showers rise with their energy, at first."""
_SHAPE_HIDDEN = 16
"""Width of the layers to the form of the mixture, which few numbers decide: 32 fitted noise."""


class CountMixture(NamedTuple):
    """Mixture of negative binomials for each event: mean μ, shape k, variance μ + μ²/k. All (E, K)."""

    log_weights_EK: Tensor
    log_means_EK: Tensor
    log_shapes_EK: Tensor

    def chosen(self, uniform_E: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and shape of the component that a uniform random number chooses. (E,) -> (E,), (E,)."""
        # By the inverse of the cumulative weights: torch.multinomial takes five times as long for so few components.
        steps_KE = cumulative(self.log_weights_EK.exp().t())[:-1]
        component_E1 = (uniform_E > steps_KE).sum(0).unsqueeze(1)
        mean_E1, shape_E1 = (values_EK.exp().gather(1, component_E1) for values_EK in self[1:])
        return mean_E1.squeeze(1), shape_E1.squeeze(1)

    def excess(self, counts_E: Tensor) -> Tensor:
        """Counts above the mean of the mixture, in its standard deviations, within ±CONDITION_LIMIT. (E,) -> (E,)."""
        weights_EK, means_EK, shapes_EK = (values_EK.exp() for values_EK in self)
        mean_E1 = (weights_EK * means_EK).sum(1, keepdim=True)
        variances_EK = means_EK + means_EK.square() / shapes_EK + (means_EK - mean_E1).square()
        spread_E = (weights_EK * variances_EK).sum(1).sqrt()
        return ((counts_E - mean_E1.squeeze(1)) / spread_E).clamp(-CONDITION_LIMIT, CONDITION_LIMIT)


class MixtureCountHead(nn.Module):
    """Count head with a mixture of negative binomials; N = 0 needs no special case.

    N is nearly a power of E/A, a line from conditions to ln μ: no MLP bends to it in a few hundred steps. The form of
    the mixture is a function of ln μ, energy and mass only: rare events of all zeniths and depths teach it together.
    """

    def __init__(self, config: MuonNetworkConfig) -> None:
        super().__init__()
        self.zero_truncated = config.zero_truncated_counts
        self.network = nn.Sequential(
            nn.Linear(NUM_CONDITIONS, _HIDDEN), nn.SiLU(), nn.Linear(_HIDDEN, _HIDDEN), nn.SiLU()
        )
        self.output = nn.Linear(_HIDDEN, 1)
        self.line = nn.Linear(NUM_CONDITIONS, 1, bias=False)
        nn.init.zeros_(self.line.weight)
        self.form_line = nn.Linear(3, 3 * len(_COMPONENTS_AT_FIRST), bias=False)
        at_first_3K = torch.tensor(_COMPONENTS_AT_FIRST).t()
        self.form = nn.Sequential(
            nn.Linear(3, _SHAPE_HIDDEN), nn.SiLU(), nn.Linear(_SHAPE_HIDDEN, _SHAPE_HIDDEN), nn.SiLU(),
            last := nn.Linear(_SHAPE_HIDDEN, at_first_3K.numel()),
        )  # fmt: skip
        with torch.no_grad():
            last.weight.mul_(0.1)
            last.bias.copy_(at_first_3K.flatten())
            nn.init.zeros_(self.form_line.weight).view(3, -1, 3)[2, :, 2] = _SHAPE_POWER / _FORM_LINE_RATE

    def forward(self, conditions_EC: Tensor) -> CountMixture:
        """Mixture of each event. (E, C) -> 3 times (E, K)."""
        conditions_EC = conditions_EC.clamp(-CONDITION_LIMIT, CONDITION_LIMIT)
        log_mean_E1 = (self.output(self.network(conditions_EC)) + _LINE_RATE * self.line(conditions_EC)).float()
        # Bounded: an extreme primary gives a large number of muons and not infinity, which would become 0.
        log_mean_E1 = _bounded(log_mean_E1, LOG_MEAN_RANGE)
        energy_and_mass_E2 = 2 * conditions_EC[:, ::3]
        inputs_E3 = torch.cat([energy_and_mass_E2, log_mean_E1], 1)
        form_EX = (self.form(inputs_E3) + _FORM_LINE_RATE * self.form_line(inputs_E3)).float()
        logits_EK, log_ratios_EK, log_shapes_EK = form_EX.chunk(3, dim=1)
        return CountMixture(
            logits_EK.log_softmax(1),
            _bounded(log_mean_E1 + log_ratios_EK, LOG_MEAN_RANGE),
            _bounded(log_shapes_EK, LOG_SHAPE_RANGE),
        )

    def loss(self, conditions_EC: Tensor, counts_E: Tensor) -> Tensor:
        """Negative log likelihood in nats, summed over events; see count_nll. -> ()."""
        mixture: CountMixture = self(conditions_EC)
        return count_nll(mixture, counts_E, zero_truncated=self.zero_truncated)

    @torch.no_grad()
    def sample(self, conditions_EC: Tensor, random: torch.Generator | None = None) -> Tensor:
        """Random counts: component, then Gamma, then Poisson. (E, C) -> (E,) int64, unbounded."""
        mixture: CountMixture = self(conditions_EC)
        uniform_E = torch.rand(len(conditions_EC), device=conditions_EC.device, generator=random)
        mean_E, shape_E = mixture.chosen(uniform_E)
        rate_E = torch._standard_gamma(shape_E, generator=random) * (mean_E / shape_E)
        return torch.poisson(rate_E, generator=random).long()

    @torch.no_grad()
    def sample_showers(self, conditions_EC: Tensor, shower_E: Tensor, random: torch.Generator) -> Tensor:
        """Random counts of rows that belong to showers, numbered from 0. (E, C), (E,) -> (E,) int64, unbounded.

        A shower has one component and one quantile of the Gamma. With depth its muons are thinned where the rate falls,
        and independent ones added where it rises: N is Poisson of each row's own rate (thinning of a Poisson).
        """
        from scipy.special import gammaincinv

        of_E, depth_E = shower_E.cpu().numpy(), conditions_EC[:, -1].cpu().numpy()
        rng = np.random.default_rng(int(torch.randint(2**62, (), device=conditions_EC.device, generator=random)))
        uniform_E, quantile_E = rng.random((2, of_E.max() + 1))[:, of_E]
        of_gamma = self(conditions_EC).chosen(torch.from_numpy(uniform_E).to(conditions_EC))
        mean_E, shape_E = (values_E.double().cpu().numpy() for values_E in of_gamma)
        rate_E = gammaincinv(shape_E, quantile_E) * (mean_E / shape_E)
        order = np.lexsort((depth_E, of_E))
        rank = np.arange(len(order)) - np.searchsorted(of_E[order], of_E[order])
        rate_S, count_S = np.zeros(of_E.max() + 1), np.zeros(of_E.max() + 1, np.int64)
        counts_E = np.empty(len(of_E), np.int64)
        for depth in range(rank.max() + 1):
            rows = order[rank == depth]
            showers, rate, above = of_E[rows], rate_E[rows], rate_S[of_E[rows]]
            kept = rng.binomial(count_S[showers], np.minimum(rate, above) / np.maximum(above, _LEAST_PRESENT))
            counts_E[rows] = count_S[showers] = kept + rng.poisson(np.maximum(rate - above, 0))
            rate_S[showers] = rate
        return torch.from_numpy(counts_E).to(conditions_EC.device)

    @torch.no_grad()
    def cdf(self, conditions_EC: Tensor, counts_E: Tensor) -> tuple[Tensor, Tensor]:
        """P(N < n) and P(N <= n) for each event's n, in float64. (E, C), (E,) -> (E,), (E,)."""
        mixture: CountMixture = self(conditions_EC)
        return count_cdf(mixture, counts_E - 1), count_cdf(mixture, counts_E)


def count_nll(mixture: CountMixture, counts_E: Tensor, *, zero_truncated: bool = False) -> Tensor:
    """Negative log likelihood -Σ ln p(N | c) in nats, summed over events. (E, K), (E,) int64 -> ().

    ``zero_truncated``: -Σ ln p(N | N ≥ 1, c) over events with N ≥ 1; empty ones are skipped.
    """
    log_p_E = _log_p(mixture, counts_E)
    if zero_truncated:
        # p(0) rounds to 1 for a very small mean; the event exists nevertheless.
        log_p0_E = _log_p(mixture, torch.zeros_like(counts_E)).clamp_max(-_LEAST_PRESENT)
        log_p_E = torch.where(counts_E > 0, log_p_E - torch.log(-torch.expm1(log_p0_E)), 0.0)
    return -log_p_E.sum().to(mixture.log_means_EK.dtype)


def _log_p(mixture: CountMixture, counts_E: Tensor) -> Tensor:
    """Log probability ln p(N | c), (E,) float64: at N = 1e5, lgamma is 1e6, and float32 would round it by 0.06 nats."""
    log_weights_EK, log_means_EK, log_shapes_EK = (values.double() for values in mixture)
    counts_E1 = counts_E.double().unsqueeze(1)
    shapes_EK = log_shapes_EK.exp()
    log_total_EK = torch.logaddexp(log_means_EK, log_shapes_EK)
    log_p_EK = (
        torch.lgamma(counts_E1 + shapes_EK)
        - torch.lgamma(shapes_EK)
        - torch.lgamma(counts_E1 + 1)
        + shapes_EK * (log_shapes_EK - log_total_EK)
        + counts_E1 * (log_means_EK - log_total_EK)
    )
    return torch.logsumexp(log_weights_EK + log_p_EK, 1)


def count_cdf(mixture: CountMixture, counts_E: Tensor) -> Tensor:
    """Cumulative probability P(N <= n) in float64, 0 for n < 0. (E, K), (E,) -> (E,).

    For a negative binomial: the regularised incomplete beta function I_p(k, n + 1) with p = k / (k + μ).
    """
    from scipy.special import betainc

    log_weights_EK, log_means_EK, log_shapes_EK = (values.double().cpu() for values in mixture)
    counts_E1 = counts_E.double().cpu().unsqueeze(1)
    chances_EK = torch.sigmoid(log_shapes_EK - log_means_EK)
    arguments = (log_shapes_EK.exp(), counts_E1.clamp_min(0) + 1, chances_EK)
    cdf_EK = torch.from_numpy(betainc(*(values.numpy() for values in arguments)))
    cdf_E = (log_weights_EK.exp() * cdf_EK).sum(1)
    return torch.where(counts_E1.squeeze(1) < 0, 0.0, cdf_E).to(counts_E.device)


def cumulative(weights_KE: Tensor) -> Tensor:
    """Cumulative sums over the rows, (K, E) -> (K, E). CUDA has no deterministic cumsum of floating-point numbers."""
    return torch.stack(list(accumulate(weights_KE.unbind(0))))


def _bounded(values: Tensor, limits: tuple[float, float]) -> Tensor:
    """Clamped values whose gradient is that of the values: behind a plain clamp a weight would stay for good."""
    return values + (values.clamp(*limits) - values).detach()
