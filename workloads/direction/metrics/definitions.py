"""Names, units, best values and meanings of the metrics, in the order in which they are shown. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from workloads.base.report.metric import Definition
from workloads.direction.metrics.resolution import QUANTILES, SMALL_DEG

BASELINES = {"line": "LineFit", "pandel": "Pandel fit of a track"}
"""Other methods, as the names of metrics begin."""

_KINDS = {"": "all events", "track_": "tracks", "cascade_": "cascades"}
_WHAT = "angle between predicted and true direction"
_FIGURES = {
    "angle_mean_deg": "mean",
    "angle_median_deg": "median",
    "angle_68_deg": "68 % quantile",
}
_OTHER_QUANTILES = [name for name in QUANTILES if f"angle_{name}_deg" not in _FIGURES]

DEFINITIONS: Mapping[str, Definition] = {
    **{
        f"{prefix}{name}": Definition("°", "lower", f"{figure} of the {_WHAT}, {kind}")
        for prefix, kind in _KINDS.items()
        for name, figure in _FIGURES.items()
    },
    "kappa_pull_mean": Definition("", "two", "mean of 2κ(1 - cos θ); above 2: the model is too sure of itself"),
    "kappa_pull_median_ratio": Definition("", "one", "median of 2κ(1 - cos θ) / ln 4, the median of χ²(2)"),
    "kappa_decile_lowest_ratio": Definition(
        "", "one", "mean angle / the one expected from κ, by decile of κ: the lowest"
    ),
    "kappa_decile_highest_ratio": Definition(
        "", "one", "mean angle / the one expected from κ, by decile of κ: the highest"
    ),
    "kappa_nll_mean": Definition("nat", "lower", "mean -ln of the predicted density at the true direction"),
    "zenith_bias_deg": Definition("°", "zero", "mean of the predicted - the true zenith"),
    "mean_direction_norm": Definition(
        "", "lower", "length of the mean predicted unit vector; 1: all events point one way; floor: the true one"
    ),
    "no_direction_share": Definition("", "lower", "events whose prediction is no direction: 0, or not finite"),
    "topology_auc": Definition("", "one", "κ as a sign of tracks: P(κ of a track > κ of a cascade)"),
    "topology_balanced_accuracy": Definition(
        "", "one", "tracks and cascades told apart by a threshold of κ, chosen on half of the events, on the others"
    ),
    **{
        f"{prefix}angle_{name}_deg": Definition("°", "lower", f"{name} % quantile of the {_WHAT}, {kind}")
        for prefix, kind in _KINDS.items()
        for name in _OTHER_QUANTILES
    },
    **{
        f"{prefix}angle_below_{limit}_deg_share": Definition("", "one", f"share of {kind} nearer than {limit}°")
        for prefix, kind in _KINDS.items()
        for limit in SMALL_DEG
    },
    **{
        f"{source}_{prefix}{name}": Definition("°", "lower", f"for comparison, {method}: {figure}, {kind}")
        for source, method in BASELINES.items()
        for prefix, kind in _KINDS.items()
        for name, figure in _FIGURES.items()
    },
}
