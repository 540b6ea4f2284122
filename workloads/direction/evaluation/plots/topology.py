"""Tracks and cascades, told apart by κ."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from workloads.direction.evaluation.plots.frame import KINDS, MODEL, ShownEvents, row
from workloads.direction.metrics.evaluate import halves
from workloads.direction.metrics.topology import confusion, roc_curve, track_auc

_BINS = 50


def separation(shown: ShownEvents) -> Figure | None:
    """Distributions of κ, ROC curve and confusion; None without tracks or cascades on either half of the events."""
    kappa_E, topology_E = shown.events.kappa_E, shown.events.topology_E
    curve, confused = roc_curve(kappa_E, topology_E), confusion(kappa_E, topology_E, halves(len(kappa_E), shown.seed))
    if curve is None or confused is None:
        return None
    drawn, (left, middle, right) = row(3)
    lg_kappa_E = np.log10(kappa_E)
    edges = np.linspace(lg_kappa_E.min(), lg_kappa_E.max() + 1e-9, _BINS + 1)
    for kind, label, color in KINDS:
        of_kind = lg_kappa_E[topology_E == kind]
        left.stairs(np.histogram(of_kind, edges)[0] / len(of_kind), edges, color=color, label=label, linewidth=1.5)
    left.axvline(np.log10(confused.threshold), color="0.4", linestyle=":", label="threshold")
    left.set_xlabel("lg κ")
    left.set_ylabel("part of the events")
    left.legend()
    middle.plot([0, *curve.cascades], [0, *curve.tracks], color=MODEL)
    middle.plot([0, 1], [0, 1], color="0.6", linestyle=":")
    middle.set_xlabel("cascades above the threshold")
    middle.set_ylabel("tracks above the threshold")
    middle.set_title(f"area {track_auc(kappa_E, topology_E):.3f}")
    parts = confused.counts / confused.counts.sum(1, keepdims=True)
    right.imshow(parts, cmap="Blues", vmin=0, vmax=1)
    for true, told in np.ndindex(2, 2):
        text = f"{parts[true, told]:.1%}\n{confused.counts[true, told]:,}"
        right.text(told, true, text, ha="center", va="center", color="white" if parts[true, told] > 0.6 else "black")
    right.set_xticks([0, 1], ["κ below: cascade", "κ above: track"])
    right.set_yticks([0, 1], ["cascade", "track"], rotation=90, va="center")
    right.set_title(f"balanced accuracy {confused.balanced_accuracy:.3f}")
    return drawn
