"""The pictures of an evaluation: where predictions point, how far they are off, whether κ is right; and energies.

E events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from scipy.stats import binned_statistic_2d

from workloads.base.random_streams import numpy_stream
from workloads.base.report.evaluation import BLACK, MODELS, SERIES, Gallery, grid
from workloads.base.report.page import Picture
from workloads.direction.columns import CASCADE, TRACK
from workloads.direction.grouping import Bool, Float64
from workloads.direction.metrics import (
    BASELINES,
    FIGURES,
    DirectionPurpose,
    PredictedEvents,
    azimuth_zenith_rad,
    kappa_bins,
    mean_angle_rad,
    pull,
    resolution,
    roc_curve,
    spread_68,
    track_auc,
)

TRUTH = BLACK
BASELINE_COLORS = {"line": SERIES[4], "pandel": SERIES[2]}
KINDS = ((TRACK, "tracks", "-"), (CASCADE, "cascades", "--"))
"""Topology, label, line style."""
BOOTSTRAPS = 100


@dataclass(frozen=True)
class ShownEvents:
    """Events to which one model or two give a direction, as pictures need them."""

    predicted: Mapping[str, PredictedEvents]
    """The same events with each model's predictions, by its name."""
    seed: int

    @property
    def events(self) -> PredictedEvents:
        """Events, where only the truth matters."""
        return next(iter(self.predicted.values()))

    @property
    def models(self) -> list[tuple[str, str, PredictedEvents]]:
        """Name, colour and events of each model."""
        return [(name, color, of) for (name, of), (color, _) in zip(self.predicted.items(), MODELS, strict=False)]

    @property
    def with_energy(self) -> list[tuple[str, str, PredictedEvents]]:
        """Likewise of the models that predict energies, if true ones are known."""
        return [one for one in self.models if np.isfinite(one[2].lg_energy_residual_E).any()]

    @cached_property
    def baselines(self) -> list[tuple[str, str, Float64]]:
        """Label, colour and angles (E,) of each baseline; NaN: none."""
        of = self.events.angles_deg()
        return [(label, BASELINE_COLORS[name], of[name]) for name, label in BASELINES.items() if name in of]

    @cached_property
    def azimuth_zenith_E(self) -> tuple[Float64, Float64]:
        """True azimuth and zenith, in radians."""
        return azimuth_zenith_rad(self.events.true_E3)

    @cached_property
    def kinds(self) -> list[tuple[str, str, Bool]]:
        """Label, line style and mask of tracks and of cascades, or, without any, of all events."""
        found = [(label, style, self.events.of_kind(kind)) for kind, label, style in KINDS]
        known = [(label, style, mask_E) for label, style, mask_E in found if mask_E.any()]
        return known or [("events", "-", self.events.of_kind(None))]

    def draws(self, number: int) -> Iterator[np.ndarray]:
        """Yield indices of bootstraps of ``number`` events."""
        random = numpy_stream(DirectionPurpose.PICTURE_BOOTSTRAPS, self.seed)
        for _ in range(BOOTSTRAPS):
            yield random.integers(0, number, number)


def row(columns: int, rows: int = 1, *, projection: str | None = None) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes side by side, or several rows of them."""
    figure, cells = grid(columns, rows, width=6.4, height=4.8)
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
        of_models = [(name, color, np.degrees(events.angle_rad_E)) for name, color, events in shown.models]
        for label, color, angle_deg_E in of_models + shown.baselines:
            angle_deg = np.sort(angle_deg_E[mask_E & np.isfinite(angle_deg_E)])
            if not len(angle_deg):
                continue
            figures = f"{angle_deg.mean():.1f} / {np.median(angle_deg):.2f} / {np.quantile(angle_deg, 0.68):.2f}°"
            axes.plot(
                np.maximum(angle_deg, _LEAST_DEG),
                (1 + np.arange(len(angle_deg))) / len(angle_deg),
                color=color,
                linestyle="-" if label in shown.predicted else "--",
                label=f"{label}: {figures}",
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
    for axes, (label, _, mask_E) in zip(places, shown.kinds, strict=True):
        for name, color, events in shown.models:
            _bands(axes, cosine_E[mask_E], np.degrees(events.angle_rad_E[mask_E]), color, name)
        axes.set(title=label, xlabel="cos zenith (1: from above)")
        use_log_angles(axes)
    places[0].set_ylabel("angle / °")
    places[0].legend()
    return figure


def _bands(axes: Axes, x: Float64, angle_deg: Float64, color: str, name: str) -> None:
    """Draw the median and the bands of 25 to 75 % and 10 to 90 %, in bins of equal numbers."""
    bins = equal_bins(x, _RESOLUTION_BINS)
    middle = np.array([np.median(x[chosen]) for chosen in bins])
    quantiles = np.array([np.quantile(angle_deg[chosen], [0.1, 0.25, 0.5, 0.75, 0.9]) for chosen in bins]).T
    for low, alpha, words in ((0, 0.15, "10 to 90 %"), (1, 0.3, "25 to 75 %")):
        look: dict[str, Any] = {"color": color, "alpha": alpha, "linewidth": 0, "label": f"{name}, {words}"}
        axes.fill_between(middle, quantiles[low], quantiles[4 - low], **look)
    axes.plot(middle, quantiles[2], color=color, marker="o", markersize=4, label=f"{name}, median")


def _resolution(shown: ShownEvents, x_E: Float64, x_label: str) -> Figure:
    """Draw medians of all methods, and 68 % quantiles and means of models, against a value above 0."""
    figure, places = row(len(shown.kinds))
    for axes, (label, _, mask_E) in zip(places, shown.kinds, strict=True):
        chosen_E = np.flatnonzero(mask_E & (x_E > 0))
        bins = [chosen_E[one] for one in equal_bins(x_E[chosen_E], _RESOLUTION_BINS)] if len(chosen_E) else []
        middle = [np.median(x_E[one]) for one in bins]
        for name, color, events in shown.models:
            figures = [resolution(np.degrees(events.angle_rad_E[one])) for one in bins]
            for (key, what), style in zip(FIGURES.items(), (":", "-", "--"), strict=True):
                values, of_model = [one[key] for one in figures], f"{name}, {what}"
                axes.plot(middle, values, color=color, linestyle=style, marker="o", markersize=3, label=of_model)
        for method, color, angle_deg_E in shown.baselines:
            known = [angle_deg_E[one][np.isfinite(angle_deg_E[one])] for one in bins]
            medians = [np.median(angles) if len(angles) else np.nan for angles in known]
            axes.plot(middle, medians, color=color, label=f"{method}, median")
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
    figure, places = row(2, len(shown.models), projection="hammer")
    edges, true = (
        [np.linspace(-np.pi, np.pi, _ACROSS + 1), np.linspace(-1, 1, _UP + 1)],
        _on_map(*shown.azimuth_zenith_E),
    )
    maps = []
    for _, _, events in shown.models:
        number = np.histogram2d(*_on_map(*azimuth_zenith_rad(events.direction_E3)), edges)[0]
        median = binned_statistic_2d(*true, np.degrees(events.angle_rad_E), "median", edges).statistic
        maps.append((number.T * (number.size / len(events)), median.T))
    for column, (label, colors) in enumerate(
        (("predictions / uniform", "viridis"), ("median angle / °, by true direction", "magma"))
    ):
        limits = [end([of_model[column] for of_model in maps]) for end in (np.nanmin, np.nanmax)]
        for axes, (name, *_), of_model in zip(places[column::2], shown.models, maps, strict=True):
            cells = edges[0], np.arcsin(edges[1]), of_model[column]
            mesh = axes.pcolormesh(*cells, cmap=colors, vmin=limits[0], vmax=limits[1])
            axes.grid(True, color="0.7", linewidth=0.4)
            axes.tick_params(labelsize=7, labelcolor="0.5")
            bar_label = f"{name}: {label}"
            figure.colorbar(mesh, ax=axes, orientation="horizontal", label=bar_label, shrink=0.8, pad=0.06)
    return figure


@GALLERY.picture(
    "zenith",
    "Zenith",
    "Left: both distributions should agree. Right: mean shift, with its error. A model that is not sure is drawn "
    "to the middle.",
)
def zenith(shown: ShownEvents) -> Figure:
    figure, (left, right) = row(2)
    true_E, edges = shown.azimuth_zenith_E[1], np.linspace(-1, 1, 21)
    zeniths = [(name, color, azimuth_zenith_rad(events.direction_E3)[1]) for name, color, events in shown.models]
    for label, color, values_E in [("true", TRUTH, true_E), *zeniths]:
        left.stairs(np.histogram(np.cos(values_E), edges)[0] / len(values_E), edges, color=color, label=label)
    left.set(ylim=(0, None), xlabel="cos zenith (1: from above)", ylabel="part of the events")
    left.legend()
    for (name, color, predicted_E), (label, style, mask_E) in product(zeniths, shown.kinds):
        cosine, shift = np.cos(true_E[mask_E]), np.degrees(predicted_E - true_E)[mask_E]
        bins = equal_bins(cosine, _ZENITH_BINS)
        middle, mean = ([of(values[one]) for one in bins] for of, values in ((np.median, cosine), (np.mean, shift)))
        error = [shift[one].std() / np.sqrt(len(one)) for one in bins]
        right.errorbar(middle, mean, error, fmt=f"o{style}", color=color, label=f"{name}, {label}")
    right.axhline(0.0, color=TRUTH, linewidth=0.9)
    right.set(xlabel="true cos zenith", ylabel="mean of predicted − true zenith / °")
    right.legend()
    return figure


def _on_map(azimuth_E: Float64, zenith_E: Float64) -> tuple[Float64, Float64]:
    """Return azimuth from -π to π, and cosine of the zenith."""
    return (azimuth_E + np.pi) % (2 * np.pi) - np.pi, np.cos(zenith_E)


_WIDEST_PULL = 20.0
_PULL_BINS = 40


@GALLERY.picture(
    "calibration",
    "Is κ right?",
    "Mean angle by decile of κ, beside what von Mises-Fisher distributions of these κ have. Bars: bootstraps of "
    "events. Ratio above 1: the model is too sure.",
)
def by_kappa(shown: ShownEvents) -> Figure:
    figure, (left, right) = row(2)
    ends, reach = [], 0.0
    for name, color, events in shown.models:
        angle_E, kappa_E = events.angle_rad_E, events.kappa_E
        kappa_B, angle_B, ratio_B = kappa_bins(angle_E, kappa_E)
        again = [kappa_bins(angle_E[chosen], kappa_E[chosen]) for chosen in shown.draws(len(kappa_E))]
        _, angle_error_B, ratio_error_B = np.std(again, axis=0)
        left.errorbar(kappa_B, np.degrees(angle_B), np.degrees(angle_error_B), fmt="o", color=color, label=name)
        right.errorbar(kappa_B, ratio_B, ratio_error_B, fmt="o-", color=color)
        ends += [kappa_B[0], kappa_B[-1]]
        reach = max(reach, float(np.max(np.abs(ratio_B - 1) + ratio_error_B)) * 1.2)
    line = np.geomspace(min(ends), max(ends), 200)
    left.plot(line, np.degrees(mean_angle_rad(line)), color=TRUTH, label="expected from κ")
    use_log_angles(left)
    left.set_ylabel("mean angle / °")
    left.legend()
    right.axhline(1.0, color=TRUTH, linewidth=0.9)
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
    panels = [("all events", "-", shown.events.of_kind(None)), *shown.kinds]
    edges = np.linspace(0, _WIDEST_PULL, _PULL_BINS + 1)
    for axes, (title, _, mask_E) in zip(places, panels, strict=True):
        for name, color, events in shown.models:
            pull_E = pull(events.kappa_E[mask_E], events.angle_rad_E[mask_E])
            counts = np.histogram(np.minimum(pull_E, _WIDEST_PULL), edges)[0]
            density = np.where(counts > 0, counts / len(pull_E) / np.diff(edges), np.nan)
            label = f"{name}: mean {pull_E.mean():.2f}, median {np.median(pull_E):.2f}"
            axes.stairs(density, edges, color=color, linewidth=1.5, label=label)
        axes.plot(edges, np.exp(-edges / 2) / 2, color=TRUTH, label="χ²(2)")
        axes.set(yscale="log", title=title, xlabel="2κ(1 − cos θ); the last bin has all above")
        axes.legend()
    places[0].set_ylabel("density")
    return figure


_KAPPA_BINS = 50


@GALLERY.picture(
    "separation",
    "Tracks and cascades",
    "κ as a sign of tracks: its distributions, and the shares of both above each threshold.",
)
def separation(shown: ShownEvents) -> Figure | None:
    """Draw distributions of κ and the ROC curve; None without tracks or cascades."""
    topology_E = shown.events.topology_E
    figure, (left, right) = row(2)
    lg_kappas = [np.log10(events.kappa_E) for _, _, events in shown.models]
    edges = np.linspace(np.min(lg_kappas), np.max(lg_kappas) + 1e-9, _KAPPA_BINS + 1)
    for (name, color, events), lg_kappa_E in zip(shown.models, lg_kappas, strict=True):
        if (curve := roc_curve(events.kappa_E, topology_E)) is None:
            return None
        for kind, label, style in KINDS:
            of_kind = lg_kappa_E[topology_E == kind]
            part = np.histogram(of_kind, edges)[0] / len(of_kind)
            left.stairs(part, edges, color=color, linestyle=style, label=f"{name}, {label}", linewidth=1.5)
        tracks, cascades = curve
        label = f"{name}: area {track_auc(events.kappa_E, topology_E):.3f}"
        right.plot([0, *cascades], [0, *tracks], color=color, label=label)
    left.set(xlabel="lg κ", ylabel="part of the events")
    left.legend()
    right.plot([0, 1], [0, 1], color="0.6", linestyle=":")
    right.set(xlabel="cascades above the threshold", ylabel="tracks above the threshold")
    right.legend()
    return figure


_ENERGY_BINS = 40
_WIDEST_ENERGY_PULL = 5.0


@GALLERY.picture(
    "energy",
    "Energy",
    "Events by true and predicted energy of the neutrino; line: both are equal.",
)
def energy(shown: ShownEvents) -> Figure | None:
    """Draw a histogram in two dimensions for each model with energies; None without any."""
    if not (models := shown.with_energy):
        return None
    figure, places = row(len(models))
    for axes, (name, _, events) in zip(places, models, strict=True):
        known_E = np.isfinite(events.lg_energy_residual_E)
        true, predicted = events.lg_energy_true_E[known_E], events.lg_energy_E2[known_E, 0]
        edges = np.linspace(min(true.min(), predicted.min()), max(true.max(), predicted.max()) + 1e-9, _ENERGY_BINS + 1)
        mesh = axes.hist2d(true, predicted, bins=[edges, edges], cmin=1, cmap="viridis")[3]
        figure.colorbar(mesh, ax=axes, label="events")
        axes.axline((edges[0], edges[0]), slope=1, color=TRUTH, linewidth=0.9)
        axes.set(title=name, xlabel="true lg (E / GeV)", ylabel="predicted lg (E / GeV)")
    return figure


@GALLERY.picture(
    "energy-resolution",
    "Resolution of the energy",
    "Mean of predicted - true lg E and half the width of its central 68 %, by true energy in bins of equal numbers. A "
    "model that is not sure is drawn to the middle. Right: pulls, which are normal if the predicted error is right.",
)
def energy_resolution(shown: ShownEvents) -> Figure | None:
    """Draw bias, resolution and pulls, the first two of tracks and cascades; None without energies."""
    if not (models := shown.with_energy):
        return None
    figure, (left, middle, right) = row(3)
    edges = np.linspace(-_WIDEST_ENERGY_PULL, _WIDEST_ENERGY_PULL, _PULL_BINS + 1)
    for name, color, events in models:
        known_E = np.isfinite(events.lg_energy_residual_E)
        for label, style, mask_E in shown.kinds:
            if not (known_E & mask_E).any():
                continue
            true, residual = events.lg_energy_true_E[known_E & mask_E], events.lg_energy_residual_E[known_E & mask_E]
            bins = equal_bins(true, _RESOLUTION_BINS)
            of_bins = [(np.median(true[one]), residual[one].mean(), spread_68(residual[one])) for one in bins]
            x, *values = np.transpose(of_bins)
            for axes, y in zip((left, middle), values, strict=True):
                axes.plot(x, y, f"o{style}", color=color, markersize=4, label=f"{name}, {label}")
        pull = events.lg_energy_residual_E[known_E] / events.lg_energy_E2[known_E, 1]
        part = np.histogram(np.clip(pull, edges[0], edges[-1]), edges)[0] / len(pull)
        label = f"{name}: mean {pull.mean():.2f}, deviation {pull.std():.2f}"
        right.stairs(part / np.diff(edges), edges, color=color, linewidth=1.5, label=label)
    left.axhline(0.0, color=TRUTH, linewidth=0.9)
    left.set(xlabel="true lg (E / GeV)", ylabel="mean of predicted − true lg E")
    middle.set(xlabel="true lg (E / GeV)", ylabel="half width of 68 %", ylim=(0, None))
    middle.legend()
    right.plot(edges, np.exp(-(edges**2) / 2) / np.sqrt(2 * np.pi), color=TRUTH, label="normal")
    right.set(xlabel="(predicted − true lg E) / error; the last bins have all beyond", ylabel="density")
    right.legend(loc="upper left", fontsize=9)
    return figure


def pictures(predicted: Mapping[str, PredictedEvents], seed: int) -> list[Picture]:
    """Draw the events to which each of the models gives a direction; pictures without data are left out."""
    used_E = np.all([np.isfinite(events.angle_rad_E) for events in predicted.values()], axis=0)
    if not used_E.any():
        return []
    return GALLERY.draw(ShownEvents({name: events.take(used_E) for name, events in predicted.items()}, seed))
