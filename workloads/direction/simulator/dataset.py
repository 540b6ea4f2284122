"""Simulated data sets by the options of `icestream simulate`, for the command and for Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from common.errors import BadInputError
from workloads.base.dataset import Written
from workloads.direction.simulator.kaggle import write_kaggle_dataset
from workloads.direction.simulator.plan import EventsPlan
from workloads.direction.simulator.write import write_dataset

LAYOUTS = {"converted": write_dataset, "kaggle": write_kaggle_dataset}


def simulate_dataset(
    out: Path,
    *,
    events: int,
    files: int,
    seed: int,
    cascades: int = 0,
    bright: int = 0,
    array: str = "icecube",
    layout: str = "converted",
    force: bool = False,
    on_file: Callable[[Written], None] | None = None,
) -> Written:
    """Write neutrino events to the folder ``out``, with ``cascades`` and ``bright`` ones added.

    Raises BadInputError.
    """
    if layout not in LAYOUTS:
        raise BadInputError(f"layout = {layout!r}: use one of {', '.join(LAYOUTS)}")
    plan = EventsPlan(events, files, seed, cascades, bright, array)
    return LAYOUTS[layout](out, plan, overwrite=force, on_file=on_file)
