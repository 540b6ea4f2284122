"""Figures of docs/physics.md, from the histograms of the results."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.physics.runs import ABLATIONS, FLOW, PRESENT, WGAN
from benchmarks.physics.spec import BINS, HISTOGRAMS
from benchmarks.physics.tables import Results, of_run

_LABELS = {
    "log10_count": "lg(1 + muons of an event)",
    "log10_energy": "lg(E / GeV) of muons",
    "log10_radius": "lg(r / m + 0.1) of muons",
    "log10_bundle_energy": "lg(ΣE / GeV) of events",
}
_MODELS = (("WGAN", WGAN, "C0"), ("flow matching", FLOW, "C2"), ("present recipe", PRESENT, "C3"))
_LEAST_MUONS = 50
_MARKERS = {
    "log10_energy_w1": "o",
    "log10_radius_w1": "s",
    "log10_bundle_energy_w1": "^",
    "conditional_log10_energy_w1": "D",
}


def distributions(results: Results, path: Path) -> bool:
    """Draw distributions of the models and of the simulator, first seeds; False if a result is missing."""
    shown = [(label, results[runs[0].name], colour) for label, runs, colour in _MODELS if runs[0].name in results]
    if not any(label == "WGAN" for label, _, _ in shown):
        return False
    real = shown[0][1]["histograms"]["real"]
    figure = Figure(figsize=(12, 6.4), dpi=80, layout="constrained")
    all_axes = figure.subplots(2, 3).flat
    for axes, (name, limits) in zip(all_axes, HISTOGRAMS.items(), strict=False):
        edges = np.linspace(*limits, BINS + 1)
        axes.stairs(real[name], edges, color="0.75", fill=True, label="simulator")
        for label, result, colour in shown:
            axes.stairs(result["histograms"]["generated"][name], edges, color=colour, label=label)
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
        *((label, result["histograms"]["generated"], colour) for label, result, colour in shown),
    ]:
        enough = np.array(of["muons_of_energy"]) >= _LEAST_MUONS
        wide = 4 if label == "simulator" else 1.5
        axes.plot(centres[enough], np.array(of["radius_of_energy"])[enough], color=colour, linewidth=wide, label=label)
    axes.set_xlabel(_LABELS["log10_energy"])
    axes.set_ylabel("mean lg(r / m + 0.1)")


def _ratios(axes: Axes, real: dict[str, Any], shown: list[tuple[str, dict[str, Any], str]]) -> None:
    """Draw generated over simulated lg E, in bins with at least one muon in ten thousand."""
    edges = np.linspace(*HISTOGRAMS["log10_energy"], BINS + 1)
    there = np.array(real["log10_energy"])
    for _, result, colour in shown:
        made = np.array(result["histograms"]["generated"]["log10_energy"])
        axes.stairs(np.divide(made, there, out=np.full(BINS, np.nan), where=there > 1e-4), edges, color=colour)
    axes.axhline(1.0, color="0.6", linewidth=0.8)
    axes.set_ylim(0.5, 1.5)
    axes.set_xlabel(_LABELS["log10_energy"])
    axes.set_ylabel("generated / simulated")


def ablations(results: Results, path: Path) -> bool:
    """Draw the distances of each ablation in units of the floor; False if results are missing."""
    rows = [row for row in ABLATIONS.rows if all(run.name in results for run in row.runs)]
    if len(rows) < len(ABLATIONS.rows):
        return False
    figure = Figure(figsize=(9, 0.32 * len(rows) + 1), dpi=80, layout="constrained")
    axes = figure.subplots()
    for name, marker in _MARKERS.items():
        ratios = []
        for row in rows:
            found = [results[run.name] for run in row.runs]
            ratios.append(statistics.median(of_run(one, name, "value") / of_run(one, name, "floor") for one in found))
        axes.plot(ratios, np.arange(len(rows)), marker, label=name.removesuffix("_w1").replace("_", " "), alpha=0.8)
    axes.set_yticks(np.arange(len(rows)), [row.label for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1.0, color="0.6", linewidth=0.8)
    axes.set_xlabel("distance in units of the floor")
    axes.grid(axis="y", linewidth=0.4)
    axes.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=len(_MARKERS))
    _save(figure, path)
    return True


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(path)
