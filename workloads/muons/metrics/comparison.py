"""Comparison of two samples with many sets of event weights. Pure.

B sets of weights, E events, F events with muons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workloads.base.random_streams import numpy_stream
from workloads.muons.metrics import frechet
from workloads.muons.metrics.bundles import BUNDLE_FEATURES, MUON_FEATURES, Bool, Float64, Int64
from workloads.muons.metrics.conditional import (
    ConditionalCounts,
    ConditionBins,
    conditional_distances,
    plain_distance,
)
from workloads.muons.metrics.counts import CountMetrics
from workloads.muons.metrics.decoherence import pair_distances
from workloads.muons.metrics.event_features import event_summary, standardised
from workloads.muons.metrics.intra_event import IntraEvent
from workloads.muons.metrics.kernel_distance import KernelDistance
from workloads.muons.metrics.sample import Sample
from workloads.muons.metrics.splits import parts
from workloads.muons.metrics.tails import TailMetrics
from workloads.muons.metrics.wasserstein import BinnedWasserstein, Values
from workloads.muons.purposes import MuonPurpose

Measure = Callable[[Float64, Float64], dict[str, Float64]]
"""Weights (B, E) of the events of both samples -> metrics by name, each (B,)."""
_MIN_SHOWERS_OF_PART = 20


@dataclass(frozen=True)
class Comparison:
    """Real events ``a`` and the events ``b`` compared with them, each with its indices among all events."""

    a: Sample
    b: Sample
    chosen_a_E: Bool
    chosen_b_E: Bool

    def measures(self, bins: ConditionBins, seed: int) -> list[Measure]:
        """All metrics except the classifiers. Sorts the samples, once."""
        a, b = self.a, self.b
        distances = {
            f"{feature}_w1": distance
            for feature in (*MUON_FEATURES, *BUNDLE_FEATURES)
            if (distance := plain_distance(a, b, feature)) is not None
        }
        if (decoherence := _decoherence(a, b, seed)) is not None:
            distances["decoherence_m_w1"] = decoherence
        distances |= conditional_distances(a, b, bins)
        named = [_named(name, one) for name, one in distances.items()]
        return [*self.moments(), *named, ConditionalCounts(a, b, bins), *_many_dimensions(a, b, seed)]

    def moments(self) -> list[Measure]:
        """The fast metrics, which include all two-sided ones (differences and ratios)."""
        a, b = self.a.bundles, self.b.bundles
        return [CountMetrics(a.counts_E, b.counts_E), IntraEvent(a, b), TailMetrics(a, b)]

    def weights(self, weights_BE: Float64) -> tuple[Float64, Float64]:
        """Weights of the events of both samples, from those of all events."""
        return weights_BE[:, self.chosen_a_E], weights_BE[:, self.chosen_b_E]


def _named(name: str, distance: BinnedWasserstein) -> Measure:
    return lambda weights_a_BE, weights_b_BE: {name: distance(weights_a_BE, weights_b_BE)}


def _decoherence(a: Sample, b: Sample, seed: int) -> BinnedWasserstein | None:
    pairs_a, pairs_b = (
        Values(*pair_distances(one.bundles, numpy_stream(purpose, seed)), np.zeros(len(one), np.int64))
        for one, purpose in ((a, MuonPurpose.PAIRS_REAL), (b, MuonPurpose.PAIRS_GENERATED))
    )
    return BinnedWasserstein(pairs_a, pairs_b) if len(pairs_a.values) and len(pairs_b.values) else None


def _many_dimensions(a: Sample, b: Sample, seed: int) -> list[Measure]:
    """Distances of the event summaries, if there are enough events with muons, of enough showers."""
    filled_a_F, filled_b_F = a.bundles.filled_F, b.bundles.filled_F
    showers = np.concatenate([a.shower_E, b.shower_E])
    too_few_events = min(len(filled_a_F), len(filled_b_F)) < frechet.MIN_EVENTS
    filled_showers = min(len(np.unique(one.shower_E[one.bundles.filled_F])) for one in (a, b))
    if too_few_events or filled_showers < _MIN_SHOWERS_OF_PART * frechet.PARTS:
        return []
    part_a_E, part_b_E = np.split(parts(showers, frechet.PARTS, numpy_stream(MuonPurpose.PARTS, seed)), [len(a)])
    features = standardised(event_summary(a.bundles), event_summary(b.bundles))
    part_a_F, part_b_F = part_a_E[filled_a_F], part_b_E[filled_b_F]
    return [
        _of_filled("fpd", frechet.FrechetDistance(*features, part_a_F, part_b_F), filled_a_F, filled_b_F),
        _of_filled("kpd", KernelDistance(*features), filled_a_F, filled_b_F),
    ]


def _of_filled(
    name: str, distance: Callable[[Float64, Float64], Float64], filled_a_F: Int64, filled_b_F: Int64
) -> Measure:
    return lambda weights_a_BE, weights_b_BE: {name: distance(weights_a_BE[:, filled_a_F], weights_b_BE[:, filled_b_F])}
