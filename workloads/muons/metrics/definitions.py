"""Names, units, best values and meanings of the metrics, in the order in which they are shown. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from workloads.base.report.metric import Definition
from workloads.muons.metrics.intra_event import VARIANCE_AT_LEAST
from workloads.muons.metrics.tails import ENERGY_ABOVE_TEV, RADIUS_ABOVE_M


def _at_least(number: int) -> Definition:
    return Definition("", "one", f"events with at least {number} muons: generated / real")


def _above(tail: str) -> Definition:
    return Definition("", "one", f"fraction of the muons with {tail}: generated / real")


_DEX = "dex"
_BINS = {
    "conditional": "over bins of primary energy and mass",
    "conditional_zenith": "over bins of zenith",
    "conditional_depth": "over bins of depth",
}
_FEATURES = {
    "log10_energy": "log10 E of the muons",
    "log10_radius": "log10(r + 0.1 m) of the muons",
    "log10_count": "log10(1 + N) of the events",
    "log10_bundle_energy": "log10 of a bundle's sum of E",
}

DEFINITIONS: Mapping[str, Definition] = {
    "count_tv": Definition("", "lower", "total variation distance of the numbers of muons, 0 to 1"),
    "log10_count_w1": Definition(_DEX, "lower", "W1 of log10(1 + N)"),
    "count_empty_difference": Definition("", "zero", "fraction of events without muons: generated - real"),
    "count_mean_ratio": Definition("", "one", "mean number of muons: generated / real"),
    "count_fano_ratio": Definition("", "one", "variance / mean of the number of muons: generated / real"),
    **{f"count_at_least_{number}_ratio": _at_least(number) for number in (2, 4, 10, 100)},
    "count_pit_ks": Definition(
        "", "lower", "are the model's count probabilities right? KS distance of the PIT from uniform"
    ),
    **{
        f"{bins}_count_mean_deviation": Definition("", "lower", f"RMS deviation of the mean number of muons, {where}")
        for bins, where in _BINS.items()
    },
    "log10_energy_w1": Definition(_DEX, "lower", "W1 of log10 E of all muons"),
    "log10_radius_w1": Definition(_DEX, "lower", "W1 of log10(r + 0.1 m) of all muons"),
    "radius_m_w1": Definition("m", "lower", "W1 of the muons' distance to the shower axis"),
    "x_m_w1": Definition("m", "lower", "W1 of the muons' x"),
    "log10_bundle_energy_w1": Definition(_DEX, "lower", "W1 of log10 of a bundle's sum of E"),
    "log10_leading_energy_w1": Definition(_DEX, "lower", "W1 of log10 of a bundle's largest E"),
    "mean_radius_m_w1": Definition("m", "lower", "W1 of a bundle's mean r"),
    "weighted_radius_m_w1": Definition("m", "lower", "W1 of a bundle's energy-weighted mean r"),
    "decoherence_m_w1": Definition("m", "lower", "W1 of the distances between two muons of an event"),
    **{
        f"{bins}_{feature}_w1": Definition(_DEX, "lower", f"W1 of {of}, mean {where}")
        for bins, where in _BINS.items()
        for feature, of in _FEATURES.items()
    },
    **{f"energy_above_{tev}_tev_ratio": _above(f"E > {tev} TeV") for tev in ENERGY_ABOVE_TEV},
    "energy_below_cut_share": Definition("", "lower", "fraction of generated muons with E below the smallest real E"),
    f"radius_above_{RADIUS_ABOVE_M}_m_ratio": _above(f"r > {RADIUS_ABOVE_M} m"),
    **{
        f"mean_log10_radius_variance_ratio_at_least_{least}": Definition(
            "", "one", f"variance of the mean log10 r of events with {least} muons or more: generated / real"
        )
        for least in VARIANCE_AT_LEAST
    },
    "energy_radius_correlation_difference": Definition(
        "", "zero", "correlation of log10 E and log10 r over all muons: generated - real"
    ),
    "energy_radius_correlation_within_events_difference": Definition(
        "", "zero", "correlation of log10 E and log10 r inside events: generated - real"
    ),
    "fpd": Definition("σ²", "lower", "Fréchet distance of nine event features, extrapolated to infinite samples"),
    "kpd": Definition("", "lower", "kernel distance (MMD², degree 4) of nine event features; may be below 0 by chance"),
    "c2st_summary_auc": Definition("", "half", "AUC of a classifier that sees nine features of an event"),
    "c2st_auc": Definition(
        "", "half", "AUC of a classifier that sees every muon of an event (DeepSets, median of three trainings)"
    ),
    "c2st_attention_auc": Definition("", "half", "AUC of a classifier that compares the muons of an event (attention)"),
}
