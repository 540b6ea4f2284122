"""Figures of docs/explanation/physics.md, from the histograms of the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.physics.runs import LIKELIHOOD, QUALITY, WGAN
from benchmarks.physics.spec import BINS, HISTOGRAMS
from benchmarks.physics.tables import Results

_LABELS = {
    "log10_count": "lg(1 + muons of an event)",
    "log10_energy": "lg(E / GeV) of muons",
    "log10_radius": "lg(r / m + 0.1) of muons",
    "log10_bundle_energy": "lg(ΣE / GeV) of events",
}
_MODELS = (("WGAN", WGAN, "C0"), ("likelihood", LIKELIHOOD, "C1"))
_LEAST_MUONS = 50
_LEAST_PART = 1e-5


def distributions(results: Results, path: Path) -> bool:
    """Draw distributions of the models and of the simulator, first seeds; False if a result is missing."""
    shown = [(label, results[runs[0].name], colour) for label, runs, colour in _MODELS if runs[0].name in results]
    if not shown or QUALITY.floor is None or QUALITY.floor.name not in results:
        return False
    real = results[QUALITY.floor.name]["histograms"]
    figure = Figure(figsize=(12, 6.4), dpi=80, layout="constrained")
    all_axes = figure.subplots(2, 3).flat
    for axes, (name, limits) in zip(all_axes, HISTOGRAMS.items(), strict=False):
        edges = np.linspace(*limits, BINS + 1)
        axes.stairs(real[name], edges, color="0.75", fill=True, label="simulator")
        for label, result, colour in shown:
            axes.stairs(result["histograms"][name], edges, color=colour, label=label)
        axes.set_yscale("log")
        axes.set_ylim(1e-5, 1)
        axes.set_xlabel(_LABELS[name])
        axes.set_ylabel("part of all")
    all_axes = list(figure.axes)
    all_axes[0].legend(fontsize="small")
    _profile(all_axes[4], real, shown)
    _ratios(all_axes[5], real, shown)
    _save(figure, path)
    return True


def _profile(axes: Axes, real: dict[str, Any], shown: list[tuple[str, dict[str, Any], str]]) -> None:
    """Draw the mean radius against the energy: a correlation that no marginal distribution shows."""
    low, high = HISTOGRAMS["log10_energy"]
    centres = low + (np.arange(BINS) + 0.5) * (high - low) / BINS
    for label, of, colour in [
        ("simulator", real, "0.6"),
        *((label, result["histograms"], colour) for label, result, colour in shown),
    ]:
        enough = np.array(of["muons_of_energy"]) >= _LEAST_MUONS
        wide = 4 if label == "simulator" else 1.5
        axes.plot(centres[enough], np.array(of["radius_of_energy"])[enough], color=colour, linewidth=wide, label=label)
    axes.set_xlabel(_LABELS["log10_energy"])
    axes.set_ylabel("mean lg(r / m + 0.1)")


def _ratios(axes: Axes, real: dict[str, Any], shown: list[tuple[str, dict[str, Any], str]]) -> None:
    """Draw generated over simulated lg E, as far as the simulator has enough muons."""
    edges = np.linspace(*HISTOGRAMS["log10_energy"], BINS + 1)
    there = np.array(real["log10_energy"])
    for _, result, colour in shown:
        made = np.array(result["histograms"]["log10_energy"])
        axes.stairs(np.divide(made, there, out=np.full(BINS, np.nan), where=there > _LEAST_PART), edges, color=colour)
    axes.axhline(1.0, color="0.6", linewidth=0.8)
    axes.set_ylim(0.5, 1.5)
    axes.set_xlabel(_LABELS["log10_energy"])
    axes.set_ylabel("generated / simulated")


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
