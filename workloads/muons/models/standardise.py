"""Standardisation of physical columns to mean 0 and spread 1, and its inverse.

Shape suffixes: E events, P particles, F features, C conditions.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from workloads.base.batch import Batch
from workloads.base.context import StepContext, SumOverRanks, one_rank
from workloads.muons.models.config import MuonNetworkConfig

NUM_CONDITIONS = 5
"""Number of conditions: lg E, lg(E/A), cos zenith, lg A, lg depth. The energy per nucleon E/A determines the count."""

MIN_ENERGY_GEV = 1e-3
"""Lower limit of energies, above the energy cut, before the logarithm; lower ones are raised to it."""
MIN_RADIUS_M = 1e-3
"""Lower limit of distances to the shower axis in a density, which diverges there."""
RADIUS_OFFSET_M = 0.1
"""r0 in lg(r + r0): smaller distances to the shower axis are not resolved."""
DEPTH_OFFSET_M = 1.0
"""Offset in lg(depth + offset), which is finite for a bundle recorded at the surface."""
MIN_PARTICLES_TO_FIT = 2
"""Muons that a batch needs for a standard deviation of their features."""
MIN_SPREAD = 1e-4
"""Lower limit of a standard deviation; a smaller one means a constant with rounding errors, and is replaced by 1."""

_LN_10 = math.log(10)


class Standardise(nn.Module):
    """Standardisation of primaries and muons, fitted to data once and saved with the weights."""

    condition_mean_C: Tensor
    condition_spread_C: Tensor
    feature_mean_F: Tensor
    feature_spread_F: Tensor
    conditions_fitted: Tensor
    features_fitted: Tensor

    def __init__(self, config: MuonNetworkConfig) -> None:
        super().__init__()
        self.energy_cut_gev = config.energy_cut_gev
        self.symmetric = config.azimuth == "symmetric"
        self.num_features = 2 if self.symmetric else 3
        self.register_buffer("condition_mean_C", torch.zeros(NUM_CONDITIONS))
        self.register_buffer("condition_spread_C", torch.ones(NUM_CONDITIONS))
        self.register_buffer("feature_mean_F", torch.zeros(self.num_features))
        self.register_buffer("feature_spread_F", torch.ones(self.num_features))
        self.register_buffer("conditions_fitted", torch.tensor(False))
        self.register_buffer("features_fitted", torch.tensor(False))
        # Copies of the two flags on the host: reading a flag from the GPU would be a host sync in every step.
        self.has_conditions = False
        self.has_features = False
        self.register_load_state_dict_post_hook(_copy_flags_to_host)

    def fit_conditions(self, primary_E4: Tensor, total: int = 0, sum_over_ranks: SumOverRanks = one_rank) -> None:
        """Set mean and spread of the conditions from primaries (E, 4). Raises RuntimeError if already set.

        ``total``: events of all ranks, at least 1; 0: there is one rank. A rank may have none.
        """
        if self.has_conditions:
            raise RuntimeError("conditions are already fitted: a refit would change what the weights mean")
        mean_and_spread = self.condition_mean_C, self.condition_spread_C
        _fit(_raw_conditions(primary_E4), total or len(primary_E4), sum_over_ranks, *mean_and_spread)
        self.conditions_fitted.fill_(True)
        self.has_conditions = True

    def fit_features(self, muons_P3: Tensor, total: int = 0, sum_over_ranks: SumOverRanks = one_rank) -> None:
        """Set mean and spread of the features from muons (P, 3), likewise. Raises RuntimeError if already set."""
        if self.has_features:
            raise RuntimeError("features are already fitted: a refit would change what the weights mean")
        mean_and_spread = self.feature_mean_F, self.feature_spread_F
        _fit(self._raw_features(muons_P3), total or len(muons_P3), sum_over_ranks, *mean_and_spread)
        self.feature_mean_F[2:], self.feature_spread_F[2:] = 0.0, 1.0  # an angle stays what it is
        self.features_fitted.fill_(True)
        self.has_features = True

    @property
    def is_fitted(self) -> bool:
        """True once events can be generated: after a training batch with two muons."""
        return self.has_conditions and self.has_features

    def require_fit(self) -> None:
        """Raise RuntimeError if conditions or features are not fitted."""
        if not self.is_fitted:
            raise RuntimeError("the standardisation is not fitted: no batch with two muons has been trained on")

    def conditions(self, primary_E4: Tensor) -> Tensor:
        """Standardised conditions. (E, 4) = [energy_gev, zenith_rad, mass_a, depth_m] -> (E, C)."""
        return (_raw_conditions(primary_E4) - self.condition_mean_C) / self.condition_spread_C

    def features(self, muons_P3: Tensor) -> Tensor:
        """Standardised features, lg E first. (P, 3) = [energy_gev, x_m, y_m] -> (P, F)."""
        return (self._raw_features(muons_P3) - self.feature_mean_F) / self.feature_spread_F

    def muons(
        self, features_PF: Tensor, random: torch.Generator | None = None, turns_P: Tensor | None = None
    ) -> Tensor:
        """Muons from features: the inverse of ``features``. (P, F) -> (P, 3) = [energy_gev, x_m, y_m].

        With symmetric azimuth, the angle is ``turns_P`` or drawn uniformly, from ``random`` or torch's global one:
        energy and radius are recovered, x and y are not. Energies below ``MIN_ENERGY_GEV`` become that value.
        """
        raw_PF = features_PF * self.feature_spread_F + self.feature_mean_F
        energy_P = torch.pow(10.0, raw_PF[:, 0]) + self.energy_cut_gev
        radius_P = (torch.pow(10.0, raw_PF[:, 1]) - RADIUS_OFFSET_M).clamp_min(0)
        if not self.symmetric:
            turns_P = raw_PF[:, 2] / (2 * math.pi)
        elif turns_P is None:
            turns_P = torch.rand(radius_P.shape, device=radius_P.device, generator=random)
        azimuth_P = turns_P * (2 * math.pi)
        x_P, y_P = radius_P * azimuth_P.cos(), radius_P * azimuth_P.sin()
        return torch.stack([energy_P, x_P, y_P], 1)

    def log_scale(self, muons_P3: Tensor) -> Tensor:
        """Log of the features' volume per volume of (lg E, x, y), x and y in metres. (P, 3) -> (P,) float32.

        Added to a log density of standardised features, it gives one that doesn't depend on the standardisation.
        """
        energy_P, x_P, y_P = muons_P3.unbind(1)
        above_P = self._above_cut(energy_P)
        log_scale_P = (above_P + self.energy_cut_gev).log() - above_P.log() - self.feature_spread_F.log().sum()
        radius_P = torch.hypot(x_P, y_P).clamp_min(MIN_RADIUS_M)
        turn = 2 * math.pi if self.symmetric else 1.0  # an azimuth that isn't learned is flat
        return log_scale_P - ((radius_P + RADIUS_OFFSET_M) * _LN_10 * turn * radius_P).log()

    def _above_cut(self, energy_P: Tensor) -> Tensor:
        return (energy_P - self.energy_cut_gev).clamp_min(MIN_ENERGY_GEV)

    def _raw_features(self, muons_P3: Tensor) -> Tensor:
        energy_P, x_P, y_P = muons_P3.unbind(1)
        lg_energy_P = self._above_cut(energy_P).log10()
        lg_radius_P = (torch.hypot(x_P, y_P) + RADIUS_OFFSET_M).log10()
        return torch.stack([lg_energy_P, lg_radius_P, torch.atan2(y_P, x_P)][: self.num_features], 1)


def fit_standardise(standardise: Standardise, batch: Batch, context: StepContext) -> bool:
    """Fit the parts of the standardisation that are not fitted yet and can be; return True if any was.

    Conditions need an event, features two particles. Several ranks fit it together, to the batch of all ranks: else
    each would train on different features.
    """
    parts, fitted = batch.microbatches, False
    if not standardise.has_conditions and batch.total_events > 0:
        none = torch.empty((0, 4), device=context.device)
        primary_E4 = torch.cat([none, *(part.event_columns["primary"] for part in parts)])
        standardise.fit_conditions(primary_E4, batch.total_events, context.sum_over_ranks)
        fitted = True
    if not standardise.has_features and batch.total_particles >= MIN_PARTICLES_TO_FIT:
        none = torch.empty((0, 3), device=context.device)
        muons_P3 = torch.cat([none, *(part.particle_columns["muons"] for part in parts)])
        standardise.fit_features(muons_P3, batch.total_particles, context.sum_over_ranks)
        fitted = True
    return fitted


def _raw_conditions(primary_E4: Tensor) -> Tensor:
    energy_E, zenith_E, mass_E, depth_E = primary_E4.unbind(1)
    lg_energy_E = energy_E.clamp_min(MIN_ENERGY_GEV).log10()
    lg_mass_E = mass_E.clamp_min(1.0).log10()  # a photon has mass number 0 and counts as one nucleon
    lg_depth_E = (depth_E.clamp_min(0.0) + DEPTH_OFFSET_M).log10()
    return torch.stack([lg_energy_E, lg_energy_E - lg_mass_E, zenith_E.cos(), lg_mass_E, lg_depth_E], 1)


def _fit(raw: Tensor, total: int, sum_over_ranks: SumOverRanks, mean: Tensor, spread: Tensor) -> None:
    """Overwrite ``mean`` and ``spread`` with those of the columns, over the ``total`` rows of all ranks.

    Computed in float64: a constant has spread 0.
    """
    wide = raw.double()
    wide_mean = wide.sum(0)
    sum_over_ranks([wide_mean])
    wide_mean /= total
    deviation = (wide - wide_mean).square().sum(0)
    sum_over_ranks([deviation])
    deviation = (deviation / total).sqrt()
    mean.copy_(wide_mean)
    spread.copy_(torch.where(deviation < MIN_SPREAD, 1.0, deviation))


def _copy_flags_to_host(module: nn.Module, _incompatible_keys: Any) -> None:
    assert isinstance(module, Standardise)
    module.has_conditions = bool(module.conditions_fitted)
    module.has_features = bool(module.features_fitted)
