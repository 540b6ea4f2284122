"""Work of `icestream predict`: a file of directions from files of events and a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from common.config import MOST_TRAINERS, StreamConfig
from common.errors import BadInputError
from common.slow_progress import SlowProgress
from workloads.base.device import device_named
from workloads.base.front import FileSettings, Front, OrderedUnit
from workloads.direction.columns import WITHOUT_TARGET
from workloads.direction.models.detector import check_same_detector
from workloads.direction.prediction.vectors import DirectionPredictor, PulseLimits, predicted_vectors
from workloads.direction.prediction.write import check_output, prediction_file, prediction_table

MOST_PULSES = 1 << 22
"""Largest event that is read. Kaggle's largest of 132 million has 178,000 pulses."""
_UNIT_EVENTS = 8192
_SLOT_MIB = 128.0

Load = Callable[[Path, torch.device], DirectionPredictor]


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """The values of the command's options, under the names that click gives them."""

    checkpoint: Path
    inputs: tuple[str, ...]
    out: Path
    device: str
    threads: int
    force: bool
    toml: Path | None
    assignments: tuple[str, ...]


@dataclass
class PredictionCounts:
    """Numbers of events so far."""

    events: int = 0
    cut: int = 0
    dropped: int = 0
    empty: int = 0
    first_empty: str = ""
    """First event without a predicted direction."""


def run_predict(front: Front, options: PredictOptions, load: Load) -> list[str]:
    """Lines about what was written. ``load``: see workloads.direction.models.load. Raises BadInputError."""
    check_output(options.out, force=options.force)
    torch.set_num_threads(options.threads)
    device = device_named(options.device)
    predictor = load(options.checkpoint, device)
    run = predictor.run
    settings = front.file_settings(
        options.inputs, toml=options.toml, assignments=options.assignments, config_json=run.config_json
    )
    limits = PulseLimits.of(settings.stream)
    model = {"model": run.model, "step": run.step, "events_trained": run.events_trained, "config": run.config_digest}
    counts = PredictionCounts()
    started_s = time.perf_counter()
    with prediction_file(options.out, model) as write:
        for table in predicted_tables(front, predictor, settings, limits, device, counts, options.out):
            write(table)
    rate = counts.events / max(time.perf_counter() - started_s, 1e-9)
    source = f"step {run.step:,} of {run.path}"
    return [f"{options.out}: {counts.events:,} events, {rate:,.0f} events/s ({source})", *remarks(counts, limits)]


def predicted_tables(
    front: Front,
    predictor: DirectionPredictor,
    settings: FileSettings,
    limits: PulseLimits,
    device: torch.device,
    counts: PredictionCounts,
    out: Path | None = None,
) -> Iterator[pa.Table]:
    """Predictions of all events in the order of the files, a table a unit; ``counts`` is kept up to date.

    ``settings``: of the files, read as in the training. Raises BadInputError, also if ``out`` is one of the files.
    """
    check_same_detector(predictor.position_S3, settings.inputs)
    settings = replace(settings, stream=prediction_stream(settings.stream))
    with (
        SlowProgress("predicting", 100, to_text="{} %".format) as progress,
        front.each_unit(WITHOUT_TARGET.stored_as(settings.source), settings) as units,
    ):
        for unit in units:
            _check(unit, out)
            try:
                found = predicted_vectors(predictor, unit.arrays, limits, device)
            except BadInputError as error:
                raise BadInputError(f"{unit.file}: {error}") from None
            event_id_E = np.array(unit.arrays.event_columns["event_id"][:, 0], np.int64)
            table = prediction_table(event_id_E, found.p_E3)
            _count(counts, unit, event_id_E[table["kappa"].to_numpy() == 0], found.num_cut)
            yield table
            progress.reach(int(100 * unit.done), 100)


def prediction_stream(stream: StreamConfig) -> StreamConfig:
    """Stream settings of the run for all events in order: none is an outlier, and memory is bounded."""
    return stream.model_copy(
        update={"unit_events": _UNIT_EVENTS, "batch_events": _UNIT_EVENTS * MOST_TRAINERS, "shuffle": False}
        | {"slot_mib": _SLOT_MIB, "max_particles": MOST_PULSES, "max_particles_per_event": 0, "drop_empty": False}
        | {"max_squared_particles": 0}
    )


def _check(unit: OrderedUnit, out: Path | None) -> None:
    """Check that no event is missing, and that the file is not what will be replaced. Raises BadInputError."""
    if out is not None and Path(unit.file).resolve() == out.resolve():
        raise BadInputError(f"{out} is one of the inputs: choose another -o")
    if unit.tally.outliers:
        raise BadInputError(
            f"{unit.file}: {unit.tally.outliers} events with more than {MOST_PULSES:,} pulses; no detector has such"
            " events: import the file again, with a limit on the pulses of an event"
        )


def _count(counts: PredictionCounts, unit: OrderedUnit, no_direction: np.ndarray, num_cut: int) -> None:
    counts.events += len(unit.arrays.offsets) - 1
    counts.cut += num_cut
    counts.empty += len(no_direction)
    counts.dropped += unit.tally.empty
    if len(no_direction) and not counts.first_empty:
        counts.first_empty = f"event {no_direction[0]} of {unit.file}"


def remarks(counts: PredictionCounts, limits: PulseLimits) -> list[str]:
    """Lines about events that were not predicted as all others."""
    lines = []
    if counts.cut:
        lines.append(
            f"{counts.cut:,} events with more than {limits.most_of_event:,} pulses, the limit of the training:"
            " predicted from so many, the clean and earliest ones"
        )
    if counts.empty:
        lines.append(
            f"{counts.empty:,} events without a predicted direction, such as {counts.first_empty}:"
            " azimuth, zenith and kappa 0"
        )
    if counts.dropped:
        lines.append(f"{counts.dropped:,} rows hold no event (nulls) and were left out")
    return lines
