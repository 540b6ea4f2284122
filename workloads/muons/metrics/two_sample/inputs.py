"""Inputs of the classifiers from events of two samples. Numpy in, torch out.

E events of both samples, real ones first; P their muons; C conditions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from workloads.muons.metrics.bundles import BundleArrays, Float64
from workloads.muons.metrics.event_features import event_summary
from workloads.muons.metrics.sample import Sample

Float32 = npt.NDArray[np.float32]
NUM_CONDITIONS = 5
NUM_MUON_FEATURES = 4


class SetInputs:
    """Raw sets: every muon with energy, radius and direction from the axis, the conditions and the count."""

    def __init__(self, a: Sample, b: Sample, max_muons: int, rng: np.random.Generator) -> None:
        """``max_muons``: most muons of an event in the input, chosen at random; its count is the true one."""
        self._conditions_EC = torch.from_numpy(_conditions(a, b))
        counts_E = np.concatenate([a.bundles.counts_E, b.bundles.counts_E])
        self._log_counts_E1 = torch.from_numpy(np.log1p(counts_E).astype(np.float32) / 2).unsqueeze(1)
        a_PF, b_PF = _raw(a.bundles), _raw(b.bundles)
        centre, scale = a_PF.mean(0), a_PF.std(0) + 1e-6
        muons_PF = (np.concatenate([a_PF, b_PF]) - centre) / scale
        muons_PF, self._counts_E = _at_most(muons_PF, counts_E, max_muons, rng)
        self._muons_PF = torch.from_numpy(muons_PF.astype(np.float32))
        self._first_E = np.cumsum(self._counts_E) - self._counts_E

    def __call__(self, events: npt.NDArray[np.int64]) -> tuple[Tensor, ...]:
        """Muons of these events, their number in each, conditions, log(1 + N) / 2."""
        counts = self._counts_E[events]
        begin = np.cumsum(counts) - counts
        index = np.repeat(self._first_E[events] - begin, counts) + np.arange(counts.sum())
        chosen = torch.from_numpy(events)
        return (
            self._muons_PF[torch.from_numpy(index)],
            torch.from_numpy(counts),
            self._conditions_EC[chosen],
            self._log_counts_E1[chosen],
        )


class SummaryInputs:
    """The nine features of an event and its conditions; features are 0 for an event without muons."""

    def __init__(self, a: Sample, b: Sample) -> None:
        both = [event_summary(one.bundles) for one in (a, b)]
        centre, scale = both[0].mean(0), both[0].std(0) + 1e-6
        all_events = []
        for one, features_FD in zip((a, b), both, strict=True):
            features_ED = np.zeros((len(one), features_FD.shape[1]))
            features_ED[one.bundles.filled_F] = (features_FD - centre) / scale
            # Else an event without muons would look like an average one.
            all_events.append(np.concatenate([features_ED, one.bundles.counts_E[:, None] > 0], 1))
        features = np.concatenate(all_events).astype(np.float32)
        self._all = torch.from_numpy(np.concatenate([features, _conditions(a, b)], 1))
        self.width = self._all.shape[1]

    def __call__(self, events: npt.NDArray[np.int64]) -> tuple[Tensor, ...]:
        return (self._all[torch.from_numpy(events)],)


def _conditions(a: Sample, b: Sample) -> Float32:
    """log10 E, log10 E per nucleon, cos zenith, log10 A, depth: each with mean 0 and standard deviation 1."""
    primary_E4 = np.concatenate([a.primary_E4, b.primary_E4])
    energy_E, zenith_E, mass_E, depth_E = primary_E4.T
    mass_E = np.maximum(mass_E, 1.0)  # a photon has mass number 0 and counts as one nucleon
    columns = [np.log10(energy_E), np.log10(energy_E / mass_E), np.cos(zenith_E), np.log10(mass_E), depth_E]
    conditions_EC = np.stack(columns, 1)
    scaled: Float32 = ((conditions_EC - conditions_EC.mean(0)) / (conditions_EC.std(0) + 1e-9)).astype(np.float32)
    return scaled


def _raw(bundles: BundleArrays) -> Float64:
    """log10 E, log10(r + 0.1 m), x / r, y / r."""
    radius_P = np.maximum(bundles.radius_m_P, 1e-9)
    features = bundles.features
    columns = [features["log10_energy"], features["log10_radius"], bundles.x_m_P / radius_P, bundles.y_m_P / radius_P]
    return np.stack(columns, 1)


def _at_most(
    muons_PF: Float64, counts_E: npt.NDArray[np.int64], most: int, rng: np.random.Generator
) -> tuple[Float64, npt.NDArray[np.int64]]:
    if counts_E.max(initial=0) <= most:
        return muons_PF, counts_E
    event_P = np.repeat(np.arange(len(counts_E)), counts_E)
    order = np.lexsort((rng.random(len(event_P)), event_P))
    place_P = np.arange(len(event_P)) - np.repeat(np.cumsum(counts_E) - counts_E, counts_E)
    return muons_PF[np.sort(order[place_P < most])], np.minimum(counts_E, most)
