"""Separation of tracks from cascades by κ alone: tracks have more lever arm, so that a model is surer of them. Pure.

The models have no output for the topology. A threshold on κ is the plain classifier that every one of them offers.
E events.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from workloads.direction.columns import CASCADE, TRACK
from workloads.direction.metrics.angles import Bool, Float64

Topology = npt.NDArray[np.int8]


@dataclass(frozen=True)
class RocCurve:
    """Shares of tracks and of cascades with κ above a threshold, from the highest threshold to the lowest."""

    threshold: Float64
    tracks: Float64
    cascades: Float64


@dataclass(frozen=True)
class Confusion:
    """Events by true topology and by κ at or above the threshold."""

    threshold: float
    counts: npt.NDArray[np.int64]
    """[[cascades below, cascades above], [tracks below, tracks above]]."""

    @property
    def balanced_accuracy(self) -> float:
        """Mean of the shares of cascades and of tracks on their own side: 0.5 by chance."""
        return float((np.diag(self.counts) / self.counts.sum(1)).mean())


def roc_curve(kappa_E: Float64, topology_E: Topology) -> RocCurve | None:
    """ROC curve of κ; None unless there are both tracks and cascades."""
    is_track, is_cascade = topology_E == TRACK, topology_E == CASCADE
    if not (is_track.any() and is_cascade.any()):
        return None
    threshold = np.unique(kappa_E[is_track | is_cascade])[::-1]
    shares = [
        1 - np.searchsorted(np.sort(kappa_E[chosen]), threshold, side="left") / chosen.sum()
        for chosen in (is_track, is_cascade)
    ]
    return RocCurve(threshold, *shares)


def track_auc(kappa_E: Float64, topology_E: Topology) -> float:
    """P(κ of a track > κ of a cascade), ties counted half; NaN unless there are both."""
    is_track, is_cascade = topology_E == TRACK, topology_E == CASCADE
    tracks, cascades = int(is_track.sum()), int(is_cascade.sum())
    if not (tracks and cascades):
        return float("nan")
    rank = rankdata(np.concatenate([kappa_E[is_track], kappa_E[is_cascade]]))[:tracks].sum()
    return float((rank - tracks * (tracks + 1) / 2) / (tracks * cascades))


def confusion(kappa_E: Float64, topology_E: Topology, chooses_E: Bool) -> Confusion | None:
    """Confusion of the events that did not choose the threshold; None unless both halves have tracks and cascades.

    The threshold maximises Youden's J, share of tracks - share of cascades above it, among the events ``chooses_E``.
    """
    curve = roc_curve(kappa_E[chooses_E], topology_E[chooses_E])
    told_kappa, told = kappa_E[~chooses_E], topology_E[~chooses_E]
    if curve is None or not ((told == TRACK).any() and (told == CASCADE).any()):
        return None
    threshold = float(curve.threshold[np.argmax(curve.tracks - curve.cascades)])
    above = told_kappa >= threshold
    counts = [[int(((told == kind) & (above == side)).sum()) for side in (False, True)] for kind in (CASCADE, TRACK)]
    return Confusion(threshold, np.array(counts))
