"""Calibration of the predicted concentration κ."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from workloads.direction.evaluation.plots.frame import MODEL, TRUTH, ShownEvents, row, use_log_angles
from workloads.direction.metrics.calibration import kappa_bins
from workloads.direction.metrics.von_mises_fisher import mean_angle_rad, pull

_WIDEST_PULL = 20.0
_PULL_BINS = 40


def by_kappa(shown: ShownEvents) -> Figure:
    """Mean angle by decile of κ, and its ratio to the expected one, with bootstrap errors."""
    angle_E, kappa_E = shown.events.angle_rad_E, shown.events.kappa_E
    bins = kappa_bins(angle_E, kappa_E)
    again = [kappa_bins(angle_E[chosen], kappa_E[chosen]) for chosen in shown.draws(len(kappa_E))]
    drawn, (left, right) = row(2)
    line = np.geomspace(bins.kappa_B[0], bins.kappa_B[-1], 200)
    left.plot(line, np.degrees(mean_angle_rad(line)), color=TRUTH, label="expected from κ")
    error = np.degrees(np.std([one.angle_B for one in again], axis=0))
    left.errorbar(bins.kappa_B, np.degrees(bins.angle_B), error, fmt="o", color=MODEL, label="real")
    use_log_angles(left)
    left.set_ylabel("mean angle / °")
    left.legend()
    right.axhline(1.0, color=TRUTH, linewidth=0.9)
    error = np.std([one.ratio_B for one in again], axis=0)
    right.errorbar(bins.kappa_B, bins.ratio_B, error, fmt="o-", color=MODEL)
    reach = float(np.max(np.abs(bins.ratio_B - 1) + error)) * 1.2
    right.set_ylim(max(1 - max(reach, 0.2), 0.0), 1 + max(reach, 0.2))
    right.set_ylabel("real / expected mean angle")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlabel("median κ of a decile")
    return drawn


def pulls(shown: ShownEvents) -> Figure:
    """Distribution of the pull 2κ(1 - cos θ) beside χ² with two degrees of freedom."""
    drawn, places = row(1 + len(shown.kinds))
    panels = [("all events", MODEL, shown.events.of_kind(None)), *shown.kinds]
    edges = np.linspace(0, _WIDEST_PULL, _PULL_BINS + 1)
    for axes, (label, color, mask_E) in zip(places, panels, strict=True):
        pull_E = pull(shown.events.kappa_E[mask_E], shown.events.angle_rad_E[mask_E])
        counts = np.histogram(np.minimum(pull_E, _WIDEST_PULL), edges)[0]
        density = counts / len(pull_E) / np.diff(edges)
        axes.stairs(np.where(counts > 0, density, np.nan), edges, color=color, linewidth=1.5, label="events")
        axes.plot(edges, np.exp(-edges / 2) / 2, color=TRUTH, label="χ²(2)")
        axes.set_yscale("log")
        axes.set_title(f"{label}: mean {pull_E.mean():.2f}, median {np.median(pull_E):.2f}")
        axes.set_xlabel("2κ(1 − cos θ); the last bin has all above")
    places[0].set_ylabel("density")
    places[0].legend()
    return drawn
