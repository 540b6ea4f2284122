"""Energy score: a distance of generated bundles from real ones, without a critic.

For a real value y and m independent generated ones xᵢ of the same primary and count,

    mean over i of |xᵢ - y|  -  ½ mean over i ≠ j of |xᵢ - xⱼ|

has its smallest mean if and only if the xᵢ have the distribution of y (a strictly proper score: Gneiting & Raftery,
JASA 102 (2007) 359, equation 22; training with it: arXiv:1606.02556, arXiv:2112.08217). It is unbiased on any batch:
its gradient moves generated bundles to the right distribution from the first step on, and vanishes there. It is
computed for single muons, those of an event with the weight N^0.75 together, and for a few features of an event that
depend on its muons' correlations.

Shape suffixes: E events, P particles, F features, S summary numbers of an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from workloads.base.segments import Segments, pool, segment_sum, spread

# Keeps the slope of a distance finite at 0; features are standardised, so it is far below any relevant distance.
_DISTANCE_FLOOR = 1e-12
_MUON_WEIGHT = 0.75
"""Exponent of an event's weight N^x among the scores of muons. With 1, few large events make most of the noise."""


class EnergyScore(NamedTuple):
    """Sums of the energy score, ()."""

    of_muons: Tensor
    """Sum over events of the mean over their muons, with ``event_weight``."""
    of_events: Tensor
    """Sum over events with muons, of their summaries."""


def event_weight(segments: Segments) -> Tensor:
    """Weight of each event among the scores of muons, by its whole number of muons; 0 if it has none. (E,)."""
    return segments.sizes_E.float() ** _MUON_WEIGHT * (segments.counts_E > 0)


def energy_score(
    generated: Sequence[Tensor], real_PF: Tensor, segments: Segments, lg_energy_spread: Tensor
) -> EnergyScore:
    """Energy score of events that were generated m times, m at least 2. m times (P, F), (P, F).

    ``lg_energy_spread``, (): standard deviation of lg E, by which the first feature was divided.

    Muons are paired by position: the generated ones of an event are in no order, so any pairing is independent of
    their values.
    """
    *summaries, real_ES = (event_summary(one_PF, segments, lg_energy_spread) for one_PF in (*generated, real_PF))
    present_E = (segments.counts_E > 0).to(real_PF.dtype)
    mean_E = segment_sum(_score(generated, real_PF), segments) / segments.counts_E.clamp_min(1)
    of_muons = (mean_E * event_weight(segments)).sum()
    return EnergyScore(of_muons, (_score(summaries, real_ES) * present_E).sum())


def event_summary(features_PF: Tensor, segments: Segments, lg_energy_spread: Tensor) -> Tensor:
    """Mean of each feature, largest lg E, lg of the summed energy, mean of (lg E) x feature. (P, F) -> (E, S).

    Units are those of the standardised features; 0 for an empty event.
    """
    ln_energy_P1 = features_PF[:, :1] * (lg_energy_spread * _LN10)
    largest_E1 = pool(ln_energy_P1, segments, ("max",))
    relative_P1 = (ln_energy_P1 - spread(largest_E1, segments)).exp()
    means_E = pool(torch.cat([features_PF, features_PF[:, :1] * features_PF], 1), segments, ("mean",))
    present_E1 = (segments.counts_E > 0).to(features_PF.dtype).unsqueeze(1)
    log_sum_E1 = segment_sum(relative_P1, segments).clamp_min(1.0).log() + largest_E1
    return torch.cat([means_E, torch.cat([largest_E1, log_sum_E1], 1) / (lg_energy_spread * _LN10)], 1) * present_E1


_LN10 = 2.302585092994046


def _score(generated: Sequence[Tensor], real: Tensor) -> Tensor:
    to_real = torch.stack([_distance(one, real) for one in generated]).mean(0)
    among = torch.stack([_distance(one, other) for one, other in combinations(generated, 2)]).mean(0)
    return to_real - among / 2


def _distance(a: Tensor, b: Tensor) -> Tensor:
    return ((a - b).square().sum(1) + _DISTANCE_FLOOR).sqrt()
