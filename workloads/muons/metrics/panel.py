"""Panel: a few distances between two sets of muon bundles, and their picture, fast enough for use during training.

All metrics of a trained model: workloads.muons.metrics.evaluate.

W1 is the first Wasserstein distance of two one-dimensional distributions, in the unit of the feature; TV the total
variation distance of two discrete ones, 0 to 1. Both are above 0 for two samples of the same distribution. This is the
floor; a distance has a meaning only in comparison with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.stats import wasserstein_distance

from workloads.muons.metrics.bundles import Bool, BundleArrays, Float64, Int64

W1_FEATURES = (
    *("log10_energy", "log10_radius", "radius_m"),
    *("log10_bundle_energy", "log10_leading_energy", "weighted_radius_m"),
)

_LABELS = {
    "log10_count": "log10(1 + muons of an event)",
    "log10_energy": "log10(E / GeV) of muons",
    "log10_radius": "log10(r / m + 0.1) of muons",
    "log10_bundle_energy": "log10(sum of E / GeV) of events",
    "log10_leading_energy": "log10(largest E / GeV) of events",
    "weighted_radius_m": "energy-weighted mean r / m of events",
}
_DPI = 60
_COLUMNS = 3


def count_tv(a_E: Int64, b_E: Int64) -> float:
    """Return the total variation distance of the counts: half the sum of |p(N) - q(N)| over all N."""
    size = int(max(a_E.max(initial=0), b_E.max(initial=0))) + 1
    p, q = np.bincount(a_E, minlength=size) / len(a_E), np.bincount(b_E, minlength=size) / len(b_E)
    return float(np.abs(p - q).sum() / 2)


def distances(a: BundleArrays, b: BundleArrays) -> dict[str, float]:
    """Return distances ``count_tv``, and ``<feature>_w1`` for each of W1_FEATURES with values in both samples."""
    found: dict[str, float] = {}
    if len(a) and len(b):
        found["count_tv"] = count_tv(a.counts_E, b.counts_E)
    for name in W1_FEATURES:
        values_a, values_b = a.features[name].values, b.features[name].values
        if len(values_a) and len(values_b):
            found[f"{name}_w1"] = float(wasserstein_distance(values_a, values_b))
    return found


def floor(real: BundleArrays, splits: Iterable[Bool]) -> dict[str, float]:
    """Return distances of one half of the real events from the other, mean over the splits."""
    return _mean(distances(real.only(first), real.only(~first)) for first in splits)


def panel(real: BundleArrays, generated: BundleArrays, splits: Iterable[Bool]) -> dict[str, float]:
    """Return distances of generated from real events, to be compared with ``floor``, mean over the splits.

    Event i of both has the same primary. One half of the real events is compared with the generated ones of the other
    half's primaries, and the other way round. So a perfect generator's mean values are those of the floor: as many
    events, and primaries that differ as much.
    """
    return _mean(distances(real.only(one), generated.only(~one)) for first in splits for one in (first, ~first))


def score(found: Mapping[str, float], floors: Mapping[str, float]) -> float:
    """Return the mean of the distances in units of their floors: about 1 at best. NaN if there is none."""
    ratios = [value / floors[name] for name, value in found.items() if floors.get(name, 0.0) > 0.0]
    return sum(ratios) / len(ratios) if ratios else float("nan")


def _mean(many: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return means by name; names that are not in all are left out."""
    found = list(many)
    names = [name for name in (found[0] if found else {}) if all(name in one for one in found)]
    return {name: sum(one[name] for one in found) / len(found) for name in names}


def comparison(histograms: Mapping[str, tuple[Float64, Int64, Int64]], title: str) -> npt.NDArray[np.uint8]:
    """Return an image of each feature's real and generated distributions, with their ratio below. (height, width, 3).

    ``histograms``: feature -> edges (B + 1,), and the numbers of real and generated values in each bin.
    """
    rows = -(-len(histograms) // _COLUMNS)
    figure = Figure(figsize=(14, 4.2 * rows), dpi=_DPI)
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(title)
    # Fixed positions: matplotlib's layout takes as long as the whole drawing.
    outer = figure.add_gridspec(rows, _COLUMNS, left=0.06, right=0.99, top=0.93, bottom=0.08, hspace=0.3, wspace=0.22)
    for index, (name, (edges, real, generated)) in enumerate(histograms.items()):
        row, column = divmod(index, _COLUMNS)
        inner = outer[row, column].subgridspec(2, 1, height_ratios=[3, 1], hspace=0.05)
        upper = figure.add_subplot(inner[0])
        lower = figure.add_subplot(inner[1], sharex=upper)
        _distributions(upper, edges, real, generated)
        _ratio(lower, edges, real, generated)
        upper.tick_params(labelbottom=False)
        lower.set_xlabel(_LABELS.get(name, name))
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels: npt.NDArray[np.uint8] = np.asarray(canvas.buffer_rgba())[:, :, :3].copy()  # type: ignore[no-untyped-call]
    return pixels


def _distributions(axes: Axes, edges: Float64, real: Int64, generated: Int64) -> None:
    for counts, label in ((real, "real"), (generated, "generated")):
        axes.stairs(counts / max(counts.sum(), 1), edges, label=label)
    if real.any() or generated.any():
        axes.set_yscale("log")
    axes.set_ylabel("fraction of all")
    axes.minorticks_off()
    axes.legend(loc="upper right")


def _ratio(axes: Axes, edges: Float64, real: Int64, generated: Int64) -> None:
    """Draw generated / real where real > 0, with the statistical error (one sigma, independent counts)."""
    filled = (real > 0) & (generated > 0)
    centres = ((edges[1:] + edges[:-1]) / 2)[filled]
    ratio = (generated[filled] / generated.sum()) / (real[filled] / real.sum())
    error = ratio * np.sqrt(1 / generated[filled] + 1 / real[filled])
    axes.axhline(1.0, linewidth=0.8, color="grey")
    axes.errorbar(centres, ratio, error, fmt=".", markersize=3, linewidth=0.8)
    axes.set_ylim(0, 2)
    axes.set_ylabel("ratio")
