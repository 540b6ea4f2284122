"""Nine summary features of an event, for distances in many dimensions. Pure."""

from __future__ import annotations

import numpy as np

from workloads.muons.metrics.bundles import RADIUS_OFFSET_M, BundleArrays, Float64

EVENT_SUMMARY = (
    "log10(1 + N)",
    "log10 sum E",
    "log10 max E",
    "mean log10 E",
    "std log10 E",
    "mean log10 r",
    "std log10 r",
    "cov(log10 E, log10 r)",
    "log10 of the energy-weighted mean r",
)


def event_summary(bundles: BundleArrays) -> Float64:
    """EVENT_SUMMARY of each event with muons, (F, 9). It is not defined for events without muons."""
    features = bundles.features
    counts_F = bundles.counts_E[bundles.filled_F].astype(np.float64)
    energy_P, radius_P = features["log10_energy"], features["log10_radius"]
    pairs = ((energy_P, energy_P), (radius_P, radius_P), (energy_P, radius_P))
    energy_F, radius_F = (bundles.per_event(values_P) / counts_F for values_P in (energy_P, radius_P))
    ee_F, rr_F, er_F = (bundles.per_event(one_P * other_P) / counts_F for one_P, other_P in pairs)
    return np.stack(
        [
            np.log10(1.0 + counts_F),
            features["log10_bundle_energy"],
            features["log10_leading_energy"],
            energy_F,
            np.sqrt(np.maximum(ee_F - energy_F**2, 0.0)),
            radius_F,
            np.sqrt(np.maximum(rr_F - radius_F**2, 0.0)),
            er_F - energy_F * radius_F,
            np.log10(features["weighted_radius_m"] + RADIUS_OFFSET_M),
        ],
        1,
    )


def standardised(real_FD: Float64, other_FD: Float64) -> tuple[Float64, Float64]:
    """Both samples minus the real means, in units of the real standard deviations."""
    centre, scale = real_FD.mean(0), real_FD.std(0)
    scale[scale < 1e-9] = 1.0
    return (real_FD - centre) / scale, (other_FD - centre) / scale
