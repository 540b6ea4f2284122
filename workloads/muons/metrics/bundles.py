"""Muon bundles as flat arrays with their observables; samples of them, how they are split, and their bootstraps. Pure.

E events, P muons, F events with muons, B sets of weights. The muons of an event are contiguous, events in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workloads.base.random_streams import numpy_stream
from workloads.muons.purposes import MuonPurpose

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

RADIUS_OFFSET_M = 0.1
"""Offset in log10(r + offset): smaller distances to the shower axis are not resolved."""
_MIN_ENERGY_GEV = 1e-9

PANEL_SPLITS = 2
"""Halvings of the real showers of which the distances of generated events are the mean."""
FLOOR_SPLITS = 8
"""Halvings of the real showers for the floors."""

_WEIGHTS_AT_A_TIME = 1 << 22
"""Weights in memory at once: 32 MiB."""

MUON_FEATURES = ("log10_energy", "log10_radius", "radius_m", "x_m")
"""Features with one value for each muon."""
BUNDLE_FEATURES = ("log10_bundle_energy", "log10_leading_energy", "mean_radius_m", "weighted_radius_m")
"""Features with one value for each event with muons, or for some of these."""


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of an evaluation. Larger values take longer; the meaning of the metrics stays the same."""

    bootstraps: int = 100
    """Number of bootstraps of the showers, for the errors."""

    c2st_epochs: int = 12
    """Epochs of a classifier over its half of up to 40,000 events; fewer epochs of more events, in as many steps.

    0: no classifiers, which take more than half of the time.
    """

    seed: int = 0
    """Seed of every random choice here: one seed, one report."""


class Feature(NamedTuple):
    """Values of a feature, and the event of each: features are of muons, of events, or of those with muons."""

    values: Float64
    events: Int64


@dataclass(frozen=True)
class BundleArrays:
    """Events with the energies of their muons and positions relative to the shower axis."""

    counts_E: Int64
    energy_gev_P: Float64
    x_m_P: Float64
    y_m_P: Float64

    @classmethod
    def of(cls, counts_E: npt.NDArray[np.integer], muons_P3: npt.NDArray[np.floating]) -> BundleArrays:
        """Return bundles from counts and muons (P, 3) = [energy_gev, x_m, y_m]."""
        wide_P3 = muons_P3.astype(np.float64)
        return cls(counts_E.astype(np.int64), *(np.ascontiguousarray(column_P) for column_P in wide_P3.T))

    def __len__(self) -> int:
        return len(self.counts_E)

    def only(self, chosen_E: Bool) -> BundleArrays:
        """Return the bundles of the chosen events."""
        return self._muons(self.counts_E[chosen_E], np.repeat(chosen_E, self.counts_E))

    def finite(self) -> tuple[BundleArrays, int]:
        """Return the bundles without muons of non-finite energy or position, and the number of these muons."""
        good_P = np.isfinite(self.energy_gev_P) & np.isfinite(self.x_m_P) & np.isfinite(self.y_m_P)
        if good_P.all():
            return self, 0
        kept_before = np.concatenate([[0], np.cumsum(good_P)])
        offsets = np.concatenate([[0], np.cumsum(self.counts_E)])
        return self._muons(np.diff(kept_before[offsets]), good_P), int((~good_P).sum())

    @cached_property
    def radius_m_P(self) -> Float64:
        """Distance of each muon to the shower axis."""
        radius_m_P: Float64 = np.hypot(self.x_m_P, self.y_m_P)
        return radius_m_P

    @cached_property
    def event_P(self) -> Int64:
        """Event of each muon."""
        return np.repeat(np.arange(len(self)), self.counts_E)

    @cached_property
    def filled_F(self) -> Int64:
        """Indices of the F events with muons."""
        return np.flatnonzero(self.counts_E)

    @cached_property
    def features(self) -> dict[str, Feature]:
        """Features by name: of events, MUON_FEATURES and BUNDLE_FEATURES."""
        energy_P = np.maximum(self.energy_gev_P, _MIN_ENERGY_GEV)
        sum_energy_F = self.per_event(energy_P)
        of_events = {"log10_count": np.log10(1.0 + self.counts_E)}
        of_muons = {
            "log10_energy": np.log10(energy_P),
            "log10_radius": np.log10(self.radius_m_P + RADIUS_OFFSET_M),
            "radius_m": self.radius_m_P,
            "x_m": self.x_m_P,
        }
        of_bundles = {
            "log10_bundle_energy": np.log10(sum_energy_F),
            "log10_leading_energy": np.log10(self.per_event(energy_P, np.maximum)),
            "mean_radius_m": self.per_event(self.radius_m_P) / self.counts_E[self.filled_F],
            "weighted_radius_m": self.per_event(energy_P * self.radius_m_P) / sum_energy_F,
        }
        kinds = (of_events, np.arange(len(self))), (of_muons, self.event_P), (of_bundles, self.filled_F)
        return {name: Feature(values, events) for kind, events in kinds for name, values in kind.items()}

    def per_event(self, values_P: Float64, operation: np.ufunc = np.add) -> Float64:
        """Return values reduced for each event with muons, by default to their sum. (P,) -> (F,)."""
        if not len(self.filled_F):
            return np.zeros(0)
        reduced_F: Float64 = operation.reduceat(values_P, (np.cumsum(self.counts_E) - self.counts_E)[self.filled_F])
        return reduced_F

    def _muons(self, counts_E: Int64, chosen_P: Bool) -> BundleArrays:
        return BundleArrays(counts_E, self.energy_gev_P[chosen_P], self.x_m_P[chosen_P], self.y_m_P[chosen_P])


@dataclass(frozen=True)
class Sample:
    """Primaries, and one bundle for each."""

    primary_E4: Float64
    """energy_gev, zenith_rad, mass_a, depth_m (vertical)."""
    shower_E: Int64
    """Number of the shower of each event: events of one shower are correlated, and are never split."""
    bundles: BundleArrays
    weight_E: Float64 | None = None
    """Weight of each event; None: all equal."""

    def __len__(self) -> int:
        return len(self.shower_E)

    @property
    def weights_E(self) -> Float64:
        """Weight of each event, 1 if all are equal."""
        return np.ones(len(self)) if self.weight_E is None else self.weight_E.astype(np.float64)

    def only(self, chosen_E: Bool) -> Sample:
        """Return the sample of the chosen events."""
        weight_E = None if self.weight_E is None else self.weight_E[chosen_E]
        return Sample(self.primary_E4[chosen_E], self.shower_E[chosen_E], self.bundles.only(chosen_E), weight_E)

    def with_bundles(self, bundles: BundleArrays) -> Sample:
        """Return a sample of the same primaries with other muons."""
        return replace(self, bundles=bundles)


def halves(shower_E: Int64, splits: int, seed: int = 0) -> list[Bool]:
    """Return random splits of the events into two halves, as masks (E,). No shower is split: its events correlate."""
    showers, index_E = np.unique(shower_E, return_inverse=True)
    masks = []
    for number in range(splits):
        in_first = np.zeros(len(showers), np.bool_)
        order = numpy_stream(MuonPurpose.SPLITS, seed, number).permutation(len(showers))
        in_first[order[: len(showers) // 2]] = True
        masks.append(in_first[index_E])
    return masks


def at_most(shower_E: Int64, most: int, rng: np.random.Generator) -> Bool:
    """Return a mask of whole showers, chosen at random, with at most ``most`` events; at least one shower. (E,)."""
    showers, index_E, sizes = np.unique(shower_E, return_inverse=True, return_counts=True)
    if len(shower_E) <= most:
        return np.ones(len(shower_E), np.bool_)
    order = rng.permutation(len(showers))
    fits = np.cumsum(sizes[order]) <= most
    fits[0] = True
    chosen = np.zeros(len(showers), np.bool_)
    chosen[order[fits]] = True
    return chosen[index_E]


@dataclass(frozen=True)
class WeightSets:
    """Sets of event weights: first the sample's, then those of bootstraps of its showers; equal in each iteration."""

    weight_E: Float64
    shower_E: Int64
    bootstraps: int
    seed: int

    def __iter__(self) -> Iterator[Float64]:
        """Yield sets of weights, (B, E) at a time, because all may not fit in memory."""
        yield self.weight_E[None]
        rng = numpy_stream(MuonPurpose.BOOTSTRAPS, self.seed)
        most = max(_WEIGHTS_AT_A_TIME // len(self.weight_E), 1)
        for first in range(0, self.bootstraps, most):
            yield self.weight_E * resampled(self.shower_E, min(most, self.bootstraps - first), rng)

    def sample(self) -> WeightSets:
        """Return the weights of the sample only, for metrics without an error."""
        return replace(self, bootstraps=0)


def resampled(shower_E: Int64, num: int, rng: np.random.Generator) -> Float64:
    """Return the number of times that each event is drawn in each of ``num`` bootstraps. (num, E).

    Showers are drawn, not events: events of one shower are correlated, and errors would be too small.
    """
    showers, index_E = np.unique(shower_E, return_inverse=True)
    size = len(showers)
    times_BS = np.stack([np.bincount(rng.integers(0, size, size), minlength=size) for _ in range(num)])
    return times_BS[:, index_E].astype(np.float64)
