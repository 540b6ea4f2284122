"""The pictures of an evaluation of directions: where predictions point, how far they are off, whether κ is right.

E events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from workloads.base.random_streams import numpy_stream
from workloads.base.report.evaluation import BLACK, ORANGE, SERIES, Gallery, grid
from workloads.base.report.page import Picture
from workloads.direction.columns import CASCADE, TRACK
from workloads.direction.metrics import (
    BASELINES,
    Bool,
    Float64,
    PredictedEvents,
    azimuth_zenith_rad,
    kappa_bins,
    mean_angle_rad,
    pull,
    roc_curve,
    track_auc,
)
from workloads.direction.purposes import DirectionPurpose

MODEL, TRUTH = ORANGE, BLACK
COLOR_OF = {"": MODEL, "line": SERIES[0], "pandel": SERIES[2]}
"""Colours of the model and of the baselines."""
LABEL_OF = {"": "model", **BASELINES}
KINDS = ((TRACK, "tracks", SERIES[0]), (CASCADE, "cascades", SERIES[3]))
"""Topology, label, colour."""
BOOTSTRAPS = 100


@dataclass(frozen=True)
class ShownEvents:
    """Events with a predicted direction, as pictures need them."""

    events: PredictedEvents
    seed: int

    @cached_property
    def angle_deg_E(self) -> Float64:
        """Angle between prediction and truth."""
        return np.degrees(self.events.angle_rad_E)

    @cached_property
    def azimuth_zenith_E(self) -> tuple[Float64, Float64]:
        """True azimuth and zenith, in radians."""
        return azimuth_zenith_rad(self.events.true_E3)

    @cached_property
    def kinds(self) -> list[tuple[str, str, Bool]]:
        """Label, colour and mask of tracks and of cascades, or, without any, of all events."""
        found = [(label, color, self.events.of_kind(kind)) for kind, label, color in KINDS]
        known = [(label, color, mask_E) for label, color, mask_E in found if mask_E.any()]
        return known or [("events", MODEL, self.events.of_kind(None))]

    def draws(self, number: int) -> Iterator[np.ndarray]:
        """Yield indices of bootstraps of ``number`` events."""
        random = numpy_stream(DirectionPurpose.PICTURE_BOOTSTRAPS, self.seed)
        for _ in range(BOOTSTRAPS):
            yield random.integers(0, number, number)


def row(columns: int, *, projection: str | None = None) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes side by side."""
    figure, cells = grid(columns, 1, width=6.4, height=4.8)
    return figure, [cell.inside().axes(figure, projection=projection) for cell in cells]


def use_log_angles(axes: Axes) -> None:
    """Set a logarithmic y axis, with plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.5)))


def equal_bins(values_E: Float64, most: int, smallest: int = 30) -> list[np.ndarray]:
    """Return indices of the events in bins of about equal numbers, equal values together."""
    number = max(min(most, len(values_E) // smallest), 1)
    edges = np.unique(np.quantile(values_E, np.linspace(0, 1, number + 1)[1:-1]))
    bin_E = np.searchsorted(edges, values_E, side="right")
    return [np.flatnonzero(bin_E == index) for index in range(len(edges) + 1) if (bin_E == index).any()]


_RESOLUTION_BINS = 12
_LEAST_DEG = 0.05


GALLERY = Gallery[ShownEvents]()


@GALLERY.picture(
    "angles",
    "Angles",
    "Part of the events whose prediction is within an angle of the truth. In the legends: mean / median / 68 %.",
)
def cumulative(shown: ShownEvents) -> Figure:
    of_kinds = [(label, mask_E) for label, _, mask_E in shown.kinds]
    panels = [("all events", shown.events.of_kind(None)), *(of_kinds if len(of_kinds) > 1 else [])]
    figure, places = row(len(panels))
    for axes, (title, mask_E) in zip(places, panels, strict=True):
        for source, angle_deg_E in shown.events.angles_deg().items():
            angle_deg = np.sort(angle_deg_E[mask_E & np.isfinite(angle_deg_E)])
            if not len(angle_deg):
                continue
            figures = f"{angle_deg.mean():.1f} / {np.median(angle_deg):.2f} / {np.quantile(angle_deg, 0.68):.2f}°"
            axes.plot(
                np.maximum(angle_deg, _LEAST_DEG),
                (1 + np.arange(len(angle_deg))) / len(angle_deg),
                color=COLOR_OF[source],
                linestyle="--" if source else "-",
                label=f"{LABEL_OF[source]}: {figures}",
            )
        chance = np.geomspace(_LEAST_DEG, 180, 200)
        axes.plot(chance, np.sin(np.radians(chance) / 2) ** 2, color="0.6", linestyle=":", label="chance")
        axes.set(xscale="log", xlim=(_LEAST_DEG, 180), ylim=(0, 1.02), title=title, xlabel="angle / °")
        axes.legend(loc="upper left", fontsize=9)
    places[0].set_ylabel("part of the events within")
    return figure


@GALLERY.picture(
    "by-sensors",
    "Resolution by clean sensors",
    "Angle against the number of sensors with a pulse that is not auxiliary, in bins of equal numbers of events.",
)
def by_clean_sensors(shown: ShownEvents) -> Figure:
    return _resolution(shown, np.asarray(shown.events.clean_sensors_E, np.float64), "sensors with a clean pulse")


@GALLERY.picture(
    "by-energy",
    "Resolution by energy",
    "The same against the energy of the neutrino.",
)
def by_energy(shown: ShownEvents) -> Figure | None:
    """Draw the angle against the neutrino's energy, of the events with a known one; None without any."""
    if not (shown.events.energy_gev_E > 0).any():
        return None
    return _resolution(shown, shown.events.energy_gev_E, "neutrino energy / GeV")


@GALLERY.picture(
    "by-zenith",
    "Resolution by zenith",
    "Quantiles of the angle against the true zenith.",
)
def by_zenith(shown: ShownEvents) -> Figure:
    figure, places = row(len(shown.kinds))
    cosine_E = np.cos(shown.azimuth_zenith_E[1])
    for axes, (label, color, mask_E) in zip(places, shown.kinds, strict=True):
        _bands(axes, cosine_E[mask_E], shown.angle_deg_E[mask_E], color)
        axes.set(title=label, xlabel="cos zenith (1: from above)")
        use_log_angles(axes)
    places[0].set_ylabel("angle / °")
    places[0].legend()
    return figure


def _bands(axes: Axes, x: Float64, angle_deg: Float64, color: str) -> None:
    """Draw the median and the bands of 25 to 75 % and 10 to 90 %, in bins of equal numbers."""
    bins = equal_bins(x, _RESOLUTION_BINS)
    middle = np.array([np.median(x[chosen]) for chosen in bins])
    quantiles = np.array([np.quantile(angle_deg[chosen], [0.1, 0.25, 0.5, 0.75, 0.9]) for chosen in bins]).T
    axes.fill_between(middle, quantiles[0], quantiles[4], color=color, alpha=0.15, linewidth=0, label="10 to 90 %")
    axes.fill_between(middle, quantiles[1], quantiles[3], color=color, alpha=0.3, linewidth=0, label="25 to 75 %")
    axes.plot(middle, quantiles[2], color=color, marker="o", markersize=4, label="median")


def _resolution(shown: ShownEvents, x_E: Float64, x_label: str) -> Figure:
    """Draw medians of all methods, and 68 % quantile and mean of the model, against a value above 0."""
    figure, places = row(len(shown.kinds))
    for axes, (label, _, mask_E) in zip(places, shown.kinds, strict=True):
        chosen_E = np.flatnonzero(mask_E & (x_E > 0))
        bins = [chosen_E[one] for one in equal_bins(x_E[chosen_E], _RESOLUTION_BINS)] if len(chosen_E) else []
        middle = [np.median(x_E[one]) for one in bins]
        for source, angle_deg_E in shown.events.angles_deg().items():
            if not source:
                for name, style, of in (
                    ("mean", ":", np.mean),
                    ("68 %", "--", lambda angles: np.quantile(angles, 0.68)),
                    ("median", "-", np.median),
                ):
                    values = [of(angle_deg_E[one]) for one in bins]
                    axes.plot(
                        middle, values, color=MODEL, linestyle=style, marker="o", markersize=3, label=f"model, {name}"
                    )
                continue
            known = [angle_deg_E[one][np.isfinite(angle_deg_E[one])] for one in bins]
            medians = [np.median(angles) if len(angles) else np.nan for angles in known]
            axes.plot(middle, medians, color=COLOR_OF[source], label=f"{LABEL_OF[source]}, median")
        axes.set_xscale("log")
        use_log_angles(axes)
        axes.set(title=label, xlabel=x_label)
    places[0].set_ylabel("angle / °")
    places[0].legend(fontsize=9)
    return figure


_ACROSS, _UP = 24, 12
"""Cells of the sky, of equal solid angle."""
_ZENITH_BINS = 10


@GALLERY.picture(
    "sky",
    "Sky",
    "Cells of equal area. A model that collapsed points to a few of them. Centre: azimuth 0, horizontal.",
)
def sky(shown: ShownEvents) -> Figure:
    """Draw Hammer maps of cells of equal area: density of the predictions, and median angle by true direction."""
    figure, (left, right) = row(2, projection="hammer")
    azimuth_edges = np.linspace(-np.pi, np.pi, _ACROSS + 1)
    cosine_edges = np.linspace(-1, 1, _UP + 1)
    latitude_edges = np.arcsin(cosine_edges)
    number = len(shown.angle_deg_E)
    predicted = _cells(*azimuth_zenith_rad(shown.events.direction_E3))
    true = _cells(*shown.azimuth_zenith_E)
    density = np.bincount(predicted, minlength=_ACROSS * _UP) * (_ACROSS * _UP / number)
    median = np.array(
        [
            np.median(angles) if len(angles := shown.angle_deg_E[true == cell]) else np.nan
            for cell in range(_ACROSS * _UP)
        ]
    )
    for axes, values, label, colors in (
        (left, density, "predictions / uniform", "viridis"),
        (right, median, "median angle / °, by true direction", "magma"),
    ):
        mesh = axes.pcolormesh(azimuth_edges, latitude_edges, values.reshape(_UP, _ACROSS), cmap=colors)
        axes.grid(True, color="0.7", linewidth=0.4)
        axes.tick_params(labelsize=7, labelcolor="0.5")
        figure.colorbar(mesh, ax=axes, orientation="horizontal", label=label, shrink=0.8, pad=0.06)
    return figure


@GALLERY.picture(
    "zenith",
    "Zenith",
    "Left: both distributions should agree. Right: mean shift, with its error. A model that is not sure is drawn "
    "to the middle.",
)
def zenith(shown: ShownEvents) -> Figure:
    figure, (left, right) = row(2)
    predicted_E, true_E = azimuth_zenith_rad(shown.events.direction_E3)[1], shown.azimuth_zenith_E[1]
    edges = np.linspace(-1, 1, 21)
    for values_E, color, label in ((true_E, TRUTH, "true"), (predicted_E, MODEL, "predicted")):
        left.stairs(np.histogram(np.cos(values_E), edges)[0] / len(values_E), edges, color=color, label=label)
    left.set(ylim=(0, None), xlabel="cos zenith (1: from above)", ylabel="part of the events")
    left.legend()
    for label, color, mask_E in shown.kinds:
        cosine, shift = np.cos(true_E[mask_E]), np.degrees(predicted_E - true_E)[mask_E]
        bins = equal_bins(cosine, _ZENITH_BINS)
        middle = [np.median(cosine[one]) for one in bins]
        error = [shift[one].std() / np.sqrt(len(one)) for one in bins]
        right.errorbar(middle, [shift[one].mean() for one in bins], error, fmt="o-", color=color, label=label)
    right.axhline(0.0, color=TRUTH, linewidth=0.9)
    right.set(xlabel="true cos zenith", ylabel="mean of predicted − true zenith / °")
    right.legend()
    return figure


def _cells(azimuth_E: Float64, zenith_E: Float64) -> np.ndarray:
    """Return the number of each direction's cell: row by row from below, azimuth from -π."""
    turned_E = (azimuth_E + np.pi) % (2 * np.pi)
    across_E = np.minimum((turned_E / (2 * np.pi) * _ACROSS).astype(np.int64), _ACROSS - 1)
    up_E = np.minimum(((np.cos(zenith_E) + 1) / 2 * _UP).astype(np.int64), _UP - 1)
    return up_E * _ACROSS + across_E


_WIDEST_PULL = 20.0
_PULL_BINS = 40


@GALLERY.picture(
    "calibration",
    "Is κ right?",
    "Mean angle by decile of κ, beside what von Mises-Fisher distributions of these κ have. Bars: bootstraps of "
    "events. Ratio above 1: the model is too sure.",
)
def by_kappa(shown: ShownEvents) -> Figure:
    angle_E, kappa_E = shown.events.angle_rad_E, shown.events.kappa_E
    bins = kappa_bins(angle_E, kappa_E)
    again = [kappa_bins(angle_E[chosen], kappa_E[chosen]) for chosen in shown.draws(len(kappa_E))]
    figure, (left, right) = row(2)
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
    right.set(ylim=(max(1 - max(reach, 0.2), 0.0), 1 + max(reach, 0.2)), ylabel="real / expected mean angle")
    for axes in (left, right):
        axes.set(xscale="log", xlabel="median κ of a decile")
    return figure


@GALLERY.picture(
    "pulls",
    "Pulls",
    "2κ(1 - cos θ) follows χ² with two degrees of freedom (mean 2, median 1.39) if κ is right and large.",
)
def pulls(shown: ShownEvents) -> Figure:
    figure, places = row(1 + len(shown.kinds))
    panels = [("all events", MODEL, shown.events.of_kind(None)), *shown.kinds]
    edges = np.linspace(0, _WIDEST_PULL, _PULL_BINS + 1)
    for axes, (label, color, mask_E) in zip(places, panels, strict=True):
        pull_E = pull(shown.events.kappa_E[mask_E], shown.events.angle_rad_E[mask_E])
        counts = np.histogram(np.minimum(pull_E, _WIDEST_PULL), edges)[0]
        density = counts / len(pull_E) / np.diff(edges)
        axes.stairs(np.where(counts > 0, density, np.nan), edges, color=color, linewidth=1.5, label="events")
        axes.plot(edges, np.exp(-edges / 2) / 2, color=TRUTH, label="χ²(2)")
        axes.set(
            yscale="log",
            title=f"{label}: mean {pull_E.mean():.2f}, median {np.median(pull_E):.2f}",
            xlabel="2κ(1 − cos θ); the last bin has all above",
        )
    places[0].set_ylabel("density")
    places[0].legend()
    return figure


_KAPPA_BINS = 50


@GALLERY.picture(
    "separation",
    "Tracks and cascades",
    "κ as a sign of tracks: its distributions, and the shares of both above each threshold.",
)
def separation(shown: ShownEvents) -> Figure | None:
    """Draw distributions of κ and the ROC curve; None without tracks or cascades."""
    kappa_E, topology_E = shown.events.kappa_E, shown.events.topology_E
    if (curve := roc_curve(kappa_E, topology_E)) is None:
        return None
    figure, (left, right) = row(2)
    lg_kappa_E = np.log10(kappa_E)
    edges = np.linspace(lg_kappa_E.min(), lg_kappa_E.max() + 1e-9, _KAPPA_BINS + 1)
    for kind, label, color in KINDS:
        of_kind = lg_kappa_E[topology_E == kind]
        left.stairs(np.histogram(of_kind, edges)[0] / len(of_kind), edges, color=color, label=label, linewidth=1.5)
    left.set(xlabel="lg κ", ylabel="part of the events")
    left.legend()
    tracks, cascades = curve
    right.plot([0, *cascades], [0, *tracks], color=MODEL)
    right.plot([0, 1], [0, 1], color="0.6", linestyle=":")
    right.set(
        xlabel="cascades above the threshold",
        ylabel="tracks above the threshold",
        title=f"area {track_auc(kappa_E, topology_E):.3f}",
    )
    return figure


def pictures(events: PredictedEvents, seed: int) -> list[Picture]:
    """Draw the events with a predicted direction; pictures without data are left out."""
    used = events.take(np.isfinite(events.angle_rad_E))
    if not len(used):
        return []
    return GALLERY.draw(ShownEvents(used, seed))
