"""Distances of the panel during the training, from the run's TensorBoard files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from common.tensorboard_names import TENSORBOARD_FOLDER
from workloads.base.plots import DPI, Box
from workloads.muons.evaluation.plots.panel import GENERATED
from workloads.muons.metrics.bundles import Float64

_COLUMNS = 4
_WIDTH, _HEIGHT = 4.0, 3.4
_NOT_DRAWN = ("_floor", "muons_not_finite")


@dataclass(frozen=True)
class TrainingCurve:
    """Values of one scalar over the steps of a training."""

    steps: Float64
    values: Float64


def read_courses(run_dir: Path) -> dict[str, TrainingCurve]:
    """Scalars of the panel by tag, from all sessions; empty if the run has none."""
    folder = run_dir / TENSORBOARD_FOLDER
    if not folder.is_dir():
        return {}
    # Slow to import, and needed only here.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    found: dict[str, dict[int, float]] = {}
    for session in sorted({path.parent for path in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(session), size_guidance={"scalars": 0, "images": 1, "histograms": 1})
        events.Reload()
        for tag in events.Tags()["scalars"]:
            if tag.startswith("panel/"):
                found.setdefault(tag, {}).update({one.step: one.value for one in events.Scalars(tag)})
    return {
        tag: TrainingCurve(np.array(sorted(values), np.float64), np.array([values[step] for step in sorted(values)]))
        for tag, values in found.items()
    }


def distances_by_step(courses: Mapping[str, TrainingCurve]) -> Figure:
    """Curves of each distance and its floor."""
    shown = sorted(tag for tag in courses if not tag.endswith(_NOT_DRAWN))
    rows = -(-len(shown) // _COLUMNS)
    drawn = Figure(figsize=(_WIDTH * _COLUMNS, _HEIGHT * rows), dpi=DPI)
    for index, tag in enumerate(shown):
        row, column = divmod(index, _COLUMNS)
        box = Box(_WIDTH * column, _HEIGHT * (rows - 1 - row), _WIDTH, _HEIGHT)
        axes = drawn.add_axes(box.inside().part_of(drawn))
        course = courses[tag]
        axes.plot(course.steps, course.values, color=GENERATED, marker="o", markersize=3.5, label="generated")
        if (floor := courses.get(f"{tag}_floor")) is not None:
            axes.plot(floor.steps, floor.values, color="0.3", linestyle=":", label="real against real")
        axes.margins(y=0.1)
        axes.set_ylim(bottom=0.0)
        axes.set_title(tag.removeprefix("panel/"))
        axes.set_xlabel("step")
        axes.ticklabel_format(axis="x", style="plain")
        if index == 0:
            axes.legend()
    return drawn
