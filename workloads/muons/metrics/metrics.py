"""Panel: a few distances between two sets of muon bundles, fast enough for use during training. Pure.

All metrics of a trained model: workloads.muons.metrics.evaluate.

W1 is the first Wasserstein distance of two one-dimensional distributions, in the unit of the feature; TV the total
variation distance of two discrete ones, 0 to 1. Both are above 0 for two samples of the same distribution. This is the
floor; a distance has a meaning only in comparison with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from scipy.stats import wasserstein_distance

from workloads.muons.metrics.bundles import Bool, BundleArrays, Float64, Int64

W1_FEATURES = (
    *("log10_energy", "log10_radius", "radius_m"),
    *("log10_bundle_energy", "log10_leading_energy", "weighted_radius_m"),
)
FLOOR_SPLITS = 8
PANEL_SPLITS = 2


def count_tv(a_E: Int64, b_E: Int64) -> float:
    """Total variation distance of the counts: half the sum of |p(N) - q(N)| over all N."""
    size = int(max(a_E.max(initial=0), b_E.max(initial=0))) + 1
    p, q = np.bincount(a_E, minlength=size) / len(a_E), np.bincount(b_E, minlength=size) / len(b_E)
    return float(np.abs(p - q).sum() / 2)


def w1(a: Float64, b: Float64) -> float:
    """First Wasserstein distance of two samples of any sizes."""
    return float(wasserstein_distance(a, b))


def distances(a: BundleArrays, b: BundleArrays) -> dict[str, float]:
    """Distances ``count_tv``, and ``<feature>_w1`` for each of W1_FEATURES with values in both samples."""
    found: dict[str, float] = {}
    if len(a) and len(b):
        found["count_tv"] = count_tv(a.counts_E, b.counts_E)
    for name in W1_FEATURES:
        if len(a.features[name]) and len(b.features[name]):
            found[f"{name}_w1"] = w1(a.features[name], b.features[name])
    return found


def floor(real: BundleArrays, splits: Iterable[Bool]) -> dict[str, float]:
    """Distances of one half of the real events from the other, mean over the splits."""
    return _mean(distances(real.only(first), real.only(~first)) for first in splits)


def panel(real: BundleArrays, generated: BundleArrays, splits: Iterable[Bool]) -> dict[str, float]:
    """Distances of generated from real events, to be compared with ``floor``, mean over the splits.

    Event i of both has the same primary. One half of the real events is compared with the generated ones of the other
    half's primaries, and the other way round. So a perfect generator's mean values are those of the floor: as many
    events, and primaries that differ as much.
    """
    return _mean(distances(real.only(one), generated.only(~one)) for first in splits for one in (first, ~first))


def score(found: Mapping[str, float], floors: Mapping[str, float]) -> float:
    """Mean of the distances in units of their floors: about 1 at best. NaN if there is none."""
    ratios = [value / floors[name] for name, value in found.items() if floors.get(name, 0.0) > 0.0]
    return sum(ratios) / len(ratios) if ratios else float("nan")


def _mean(many: Iterable[dict[str, float]]) -> dict[str, float]:
    """Mean by name; names that are not in all are left out."""
    found = list(many)
    names = [name for name in (found[0] if found else {}) if all(name in one for one in found)]
    return {name: sum(one[name] for one in found) / len(found) for name in names}
