"""Simulated data sets by the options of `icestream simulate`, for the command and for Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from workloads.base.dataset import Written
from workloads.muons.simulator.config import DepthKind
from workloads.muons.simulator.config import preset as preset_named
from workloads.muons.simulator.write import SAMPLE_PRESET, DatasetPlan, write_dataset


def simulate_dataset(
    out: Path,
    *,
    events: int,
    files: int,
    seed: int,
    preset: str = SAMPLE_PRESET,
    showers: int = 0,
    depth_kind: DepthKind = "vertical",
    files_per_range: int = 0,
    force: bool = False,
    on_file: Callable[[Written], None] | None = None,
) -> Written:
    """Write muon bundles to the folder ``out``. Raises BadInputError.

    ``showers``: rows of a shower, each at another depth; 0: every row is its own event.
    """
    config = replace(preset_named(preset), depth_kind=depth_kind)
    plan = DatasetPlan(events, files, seed, showers, files_per_range)
    return write_dataset(out, config, plan, overwrite=force, on_file=on_file)
