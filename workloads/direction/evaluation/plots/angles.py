"""Angles between prediction and truth: their distribution, and how it depends on the event."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workloads.direction.evaluation.plots.frame import (
    COLOR_OF,
    LABEL_OF,
    MODEL,
    ShownEvents,
    equal_bins,
    row,
    use_log_angles,
)
from workloads.direction.metrics.angles import Float64

_BINS = 12
_LEAST_DEG = 0.05


def cumulative(shown: ShownEvents) -> Figure:
    """Part of the events within an angle: the model and other methods, for all, tracks and cascades."""
    of_kinds = [(label, mask_E) for label, _, mask_E in shown.kinds]
    panels = [("all events", shown.events.of_kind(None)), *(of_kinds if len(of_kinds) > 1 else [])]
    drawn, places = row(len(panels))
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
        axes.set_xscale("log")
        axes.set_xlim(_LEAST_DEG, 180)
        axes.set_ylim(0, 1.02)
        axes.set_title(title)
        axes.set_xlabel("angle / °")
        axes.legend(loc="upper left", fontsize=9)
    places[0].set_ylabel("part of the events within")
    return drawn


def by_clean_sensors(shown: ShownEvents) -> Figure:
    """Angle against the number of sensors with a clean pulse."""
    return _resolution(shown, np.asarray(shown.events.clean_sensors_E, np.float64), "sensors with a clean pulse")


def by_energy(shown: ShownEvents) -> Figure:
    """Angle against the neutrino's energy, of the events with a known one."""
    return _resolution(shown, shown.events.energy_gev_E, "neutrino energy / GeV")


def by_zenith(shown: ShownEvents) -> Figure:
    """Angle against the cosine of the true zenith, with quantile bands."""
    drawn, places = row(len(shown.kinds))
    cosine_E = np.cos(shown.azimuth_zenith_E[1])
    for axes, (label, color, mask_E) in zip(places, shown.kinds, strict=True):
        _bands(axes, cosine_E[mask_E], shown.angle_deg_E[mask_E], color)
        axes.set_title(label)
        axes.set_xlabel("cos zenith (1: from above)")
        use_log_angles(axes)
    places[0].set_ylabel("angle / °")
    places[0].legend()
    return drawn


def _bands(axes: Axes, x: Float64, angle_deg: Float64, color: str) -> None:
    """Median and the bands of 25 to 75 % and 10 to 90 %, in bins of equal numbers."""
    bins = equal_bins(x, _BINS)
    middle = np.array([np.median(x[chosen]) for chosen in bins])
    quantiles = np.array([np.quantile(angle_deg[chosen], [0.1, 0.25, 0.5, 0.75, 0.9]) for chosen in bins]).T
    axes.fill_between(middle, quantiles[0], quantiles[4], color=color, alpha=0.15, linewidth=0, label="10 to 90 %")
    axes.fill_between(middle, quantiles[1], quantiles[3], color=color, alpha=0.3, linewidth=0, label="25 to 75 %")
    axes.plot(middle, quantiles[2], color=color, marker="o", markersize=4, label="median")


def _resolution(shown: ShownEvents, x_E: Float64, x_label: str) -> Figure:
    """Median of the model and of other methods, and the model's 68 % quantile and mean, against a value above 0."""
    drawn, places = row(len(shown.kinds))
    for axes, (label, _, mask_E) in zip(places, shown.kinds, strict=True):
        chosen_E = np.flatnonzero(mask_E & (x_E > 0))
        bins = [chosen_E[one] for one in equal_bins(x_E[chosen_E], _BINS)] if len(chosen_E) else []
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
            medians = [_median(angle_deg_E[one]) for one in bins]
            axes.plot(middle, medians, color=COLOR_OF[source], label=f"{LABEL_OF[source]}, median")
        axes.set_xscale("log")
        use_log_angles(axes)
        axes.set_title(label)
        axes.set_xlabel(x_label)
    places[0].set_ylabel("angle / °")
    places[0].legend(fontsize=9)
    return drawn


def _median(angle_deg: Float64) -> float:
    known = angle_deg[np.isfinite(angle_deg)]
    return float(np.median(known)) if len(known) else float("nan")
