"""Tails of the energies and radii of all muons: parts too rare for a distance of distributions to see. Pure.

B sets of weights, E events, T tails.
"""

from __future__ import annotations

import numpy as np

from workloads.muons.metrics.bundles import Bool, BundleArrays, Float64

ENERGY_ABOVE_TEV = (1, 10, 30)
RADIUS_ABOVE_M = 100
MIN_MUONS = 10
"""Fewest real muons of a tail; with fewer, an honest generator may have none."""


class TailMetrics:
    """Shares of the muons of ``b`` (generated) in the tails of ``a`` (real)."""

    def __init__(self, a: BundleArrays, b: BundleArrays) -> None:
        self._below_cut_b_E = _per_event(b, b.energy_gev_P < a.energy_gev_P.min(initial=np.inf))
        self._has_muons = len(a.energy_gev_P) > 0
        self._counts_a_E, self._counts_b_E = (one.counts_E.astype(np.float64) for one in (a, b))
        tails_a, tails_b = _tails(a), _tails(b)
        self._names = [name for name, chosen_P in tails_a.items() if chosen_P.sum() >= MIN_MUONS]
        self._a_ET, self._b_ET = (
            np.stack([_per_event(one, tails[name]) for name in self._names], 1)
            if self._names
            else np.zeros((len(one), 0))
            for one, tails in ((a, tails_a), (b, tails_b))
        )

    def __call__(self, weights_a_BE: Float64, weights_b_BE: Float64) -> dict[str, Float64]:
        """Metrics by name; NaN where there is no muon of the weighted sample."""
        muons_a_B, muons_b_B = weights_a_BE @ self._counts_a_E, weights_b_BE @ self._counts_b_E
        with np.errstate(divide="ignore", invalid="ignore"):
            shares_a_BT = (weights_a_BE @ self._a_ET) / muons_a_B[:, None]
            shares_b_BT = (weights_b_BE @ self._b_ET) / muons_b_B[:, None]
            ratios_BT = np.where(shares_a_BT > 0, shares_b_BT / shares_a_BT, np.nan)
            found = dict(zip(self._names, ratios_BT.T, strict=True))
            if self._has_muons:
                found["energy_below_cut_share"] = (weights_b_BE @ self._below_cut_b_E) / muons_b_B
        return found


def _tails(bundles: BundleArrays) -> dict[str, Bool]:
    """Masks of the muons in each tail, (P,), by the name of its metric."""
    found = {f"energy_above_{tev}_tev_ratio": bundles.energy_gev_P > 1e3 * tev for tev in ENERGY_ABOVE_TEV}
    return {**found, f"radius_above_{RADIUS_ABOVE_M}_m_ratio": bundles.radius_m_P > RADIUS_ABOVE_M}


def _per_event(bundles: BundleArrays, chosen_P: Bool) -> Float64:
    """Number of chosen muons of each event. (E,)."""
    return np.bincount(bundles.event_P[chosen_P], minlength=len(bundles)).astype(np.float64)
