"""Predicted directions of events in files: work of `icestream predict`, and `icestream.load(run).predict(files)`.

E events, P pulses.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch

from common.atomic_file import AS_UMASK_SAYS, part_of_one_writer, replacing
from common.config import MOST_TRAINERS, StreamConfig
from common.errors import BadInputError
from common.options import Paths, given_inputs
from common.paths import require_place
from common.schema import UnitArrays
from common.slow_progress import SlowProgress, no_progress
from workloads.base.batch import Microbatch
from workloads.base.checkpoint import TrainedModel, TrainedRun
from workloads.base.device import device_named
from workloads.base.interface import FileSettings, Front, OrderedUnit
from workloads.direction.columns import WITHOUT_TARGET
from workloads.direction.grouping import Float64, best_pulses, group_by_sensor
from workloads.direction.metrics import azimuth_zenith_rad, unit_and_norm
from workloads.direction.models.network import Prediction, check_same_detector
from workloads.direction.models.task import TrainedPredictor, build_predictor, load_predictor


class Predicted(NamedTuple):
    """Predictions of a model for events, in their order."""

    p_E3: Float64
    """Vectors p: direction p / |p|, concentration |p|; 0 for an event without pulses."""
    lg_energy_E2: Float64
    """lg(E / GeV) and its standard deviation; NaN for an event without pulses, and if the model predicts no energy."""
    num_cut: int
    """Events that were cut."""


def predicted(predictor: TrainedPredictor, arrays: UnitArrays, stream: StreamConfig, device: torch.device) -> Predicted:
    """Return the predictions of all events.

    Bounds on what the model sees are those of the ``stream`` of its training: larger events lose their last auxiliary,
    then their last other pulses.
    """
    cut, num_cut = cut_to(arrays, stream.outlier_above)
    parts = microbatch_of(cut, device).chunks(stream.max_particles)
    prediction = Prediction.joined([predictor.predict(part) for part in parts])
    is_empty_E = np.diff(cut.offsets) == 0
    p_E3 = prediction.p_E3.double().cpu().numpy()
    p_E3[is_empty_E] = 0.0
    lg_energy_E2 = np.full((len(p_E3), 2), np.nan)
    if prediction.energy_E2 is not None:
        mean_E, ln_error_E = prediction.energy_E2.double().cpu().numpy().T
        lg_energy_E2[~is_empty_E] = np.stack([mean_E, np.exp(ln_error_E)], 1)[~is_empty_E]
    return Predicted(p_E3, lg_energy_E2, num_cut)


def cut_to(arrays: UnitArrays, most: int) -> tuple[UnitArrays, int]:
    """Events with at most ``most`` pulses each, and the number of events that had more.

    Pulses that are not auxiliary are kept first, of both kinds the earliest. The arrays themselves if none is larger.
    """
    counts_E = np.diff(arrays.offsets)
    num_large = int(np.count_nonzero(counts_E > most))
    if not num_large:
        return arrays, 0
    columns = arrays.particle_columns
    kept_P = best_pulses(arrays.offsets, columns["pulses"][:, 0], columns["auxiliary"][:, 0], most)
    cut = replace(
        arrays,
        offsets=np.concatenate([[0], np.cumsum(np.minimum(counts_E, most))]),
        particle_columns={name: column[kept_P] for name, column in columns.items()},
    )
    group_by_sensor(cut)  # a sensor may have lost its first pulse
    return cut, num_large


def cut_note(num_cut: int, most: int) -> str:
    """Return a remark on events that cut_to cut."""
    larger = f"{num_cut:,} events with more than {most:,} pulses, the limit of the training"
    return f"{larger}: predicted from so many, the clean and earliest ones"


def microbatch_of(arrays: UnitArrays, device: torch.device) -> Microbatch:
    """All events of a unit, on the device."""
    offsets_E1 = torch.from_numpy(arrays.offsets).to(device)
    events, particles = (
        {name: torch.from_numpy(column).to(device) for name, column in columns.items()}
        for columns in (arrays.event_columns, arrays.particle_columns)
    )
    sizes = len(arrays.offsets) - 1, int(arrays.offsets[-1])
    return Microbatch(0, 0, 0, offsets_E1, arrays.offsets, events, particles, *sizes)


PARQUET, CSV = ".parquet", ".csv"
METADATA_KEY = "icestream.predicted"
"""Key in the Parquet footer for the model of the predictions, as JSON."""
_NUMBERS = ("azimuth", "zenith", "kappa", "lg_energy", "lg_energy_error")
_COLUMNS = [("event_id", pa.int64()), *((name, pa.float64()) for name in _NUMBERS)]
_HEADER = b"event_id,azimuth,zenith\n"


def table_schema(predictor: TrainedPredictor) -> pa.Schema:
    """Return the columns of predictions; those of the energy if the model predicts it."""
    return pa.schema(_COLUMNS if predictor.has_energy else _COLUMNS[:-2])


def prediction_table(event_id_E: npt.NDArray[np.int64], predictions: Predicted) -> pa.Table:
    """Rows of predictions: angles in radians, azimuth in [0, 2π), zenith in [0, π]; lg(E / GeV) and its error.

    Without a direction (p = 0, or not finite) angles and κ are 0: κ says so in Parquet; a submission needs numbers.
    """
    unit_E3, kappa_E = unit_and_norm(predictions.p_E3)
    unit_E3[kappa_E == 0] = (0.0, 0.0, 1.0)
    columns = event_id_E, *azimuth_zenith_rad(unit_E3), kappa_E, *predictions.lg_energy_E2.T
    return pa.table([pa.array(one, from_pandas=True) for one in columns], schema=pa.schema(_COLUMNS))  # NaN: null


def check_output(out: Path, *, force: bool) -> None:
    """Check that ``out`` can be written, before minutes of work. Raises BadInputError."""
    if out.suffix not in (PARQUET, CSV):
        raise BadInputError(f"{out}: name a file *{PARQUET}, or *{CSV} for Kaggle's submission")
    if out.is_dir():
        raise BadInputError(f"{out} is a folder; name a file with -o")
    if out.exists() and not force:
        raise BadInputError(f"{out} exists: choose another name, or overwrite it with --force")
    if not out.parent.is_dir():
        raise BadInputError(f"{out.parent}: no such folder; make it, or choose another -o")
    require_place(out)


@contextmanager
def prediction_file(out: Path, model: Mapping[str, object], schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """File of predictions, by its suffix, which the function appends rows to; ``model`` is kept in a Parquet footer."""
    with replacing(out, durable=False, mode=AS_UMASK_SAYS, part=part_of_one_writer(out)) as part:
        if out.suffix == PARQUET:
            schema = schema.with_metadata({METADATA_KEY: json.dumps(dict(model))})
            with pq.ParquetWriter(part, schema, compression="zstd") as parquet:
                yield lambda table: parquet.write_table(table.cast(schema))
            return
        with part.open("wb") as file:
            schema = pa.schema(_COLUMNS[:3])
            file.write(_HEADER)  # Arrow would put the names in quotes
            options = pyarrow.csv.WriteOptions(include_header=False)
            with pyarrow.csv.CSVWriter(file, schema, write_options=options) as submission:
                yield lambda table: submission.write_table(table.select(schema.names))


MOST_PULSES = 1 << 22
"""Largest event that is read. Kaggle's largest of 132 million has 178,000 pulses."""
_UNIT_EVENTS = 8192
_SLOT_MIB = 128.0


@dataclass
class PredictionCounts:
    """Numbers of events so far."""

    events: int = 0
    cut: int = 0
    dropped: int = 0
    empty: int = 0
    first_empty: str = ""
    """First event without a predicted direction."""

    def add(self, unit: OrderedUnit, no_direction: npt.NDArray[np.int64], num_cut: int) -> None:
        """Count the events of a unit; ``no_direction``: ids of those without a predicted direction."""
        self.events += len(unit.arrays.offsets) - 1
        self.cut += num_cut
        self.empty += len(no_direction)
        self.dropped += unit.tally.empty
        if len(no_direction) and not self.first_empty:
            self.first_empty = f"event {no_direction[0]} of {unit.file}"

    def remarks(self, most_of_event: int) -> Iterator[str]:
        """Lines about events that were not predicted as all others."""
        if self.cut:
            yield cut_note(self.cut, most_of_event)
        if self.empty:
            yield (
                f"{self.empty:,} events without a predicted direction, such as {self.first_empty}:"
                " azimuth, zenith and kappa 0"
            )
        if self.dropped:
            yield f"{self.dropped:,} rows hold no event (nulls) and were left out"


def run_predict(
    front: Front,
    *,
    checkpoint: Path,
    inputs: tuple[str, ...],
    out: Path,
    device: str,
    threads: int,
    force: bool,
    toml: Path | None,
    assignments: tuple[str, ...],
) -> list[str]:
    """Write predictions, and return lines about them. The options are those of the command. Raises BadInputError."""
    check_output(out, force=force)
    torch.set_num_threads(threads)
    place = device_named(device)
    predictor = load_predictor(checkpoint, place)
    run = predictor.run
    settings = front.file_settings(inputs, toml=toml, assignments=assignments, config_json=run.config_json)
    model = {"model": run.model, "step": run.step, "events_trained": run.events_trained, "config": run.config_digest}
    counts = PredictionCounts()
    started_s = time.perf_counter()
    with prediction_file(out, model, table_schema(predictor)) as write:
        for table in predicted_tables(front, predictor, settings, place, counts, out):
            write(table)
    rate = counts.events / max(time.perf_counter() - started_s, 1e-9)
    source = f"step {run.step:,} of {run.path}"
    summary = f"{out}: {counts.events:,} events, {rate:,.0f} events/s ({source})"
    return [summary, *counts.remarks(settings.stream.outlier_above)]


def predicted_tables(
    front: Front,
    predictor: TrainedPredictor,
    settings: FileSettings,
    device: torch.device,
    counts: PredictionCounts,
    out: Path | None = None,
) -> Iterator[pa.Table]:
    """Predictions of all events in the order of the files, a table a unit; ``counts`` is kept up to date.

    ``settings``: of the files, read as in the training. Raises BadInputError, also if ``out`` is one of the files.
    """
    check_same_detector(predictor.detector.geometry, settings.inputs)
    stream = settings.stream
    settings = replace(settings, stream=prediction_stream(stream))
    with (
        SlowProgress("predicting", 100, to_text="{} %".format) as progress,
        front.each_unit(WITHOUT_TARGET.stored_as(settings.source), settings) as units,
    ):
        for unit in units:
            if out is not None and Path(unit.file).resolve() == out.resolve():
                raise BadInputError(f"{out} is one of the inputs: choose another -o")
            if unit.tally.outliers:
                raise BadInputError(
                    f"{unit.file}: {unit.tally.outliers} events with more than {MOST_PULSES:,} pulses; no detector has "
                    "such events: import the file again, with a limit on the pulses of an event"
                )
            try:
                predictions = predicted(predictor, unit.arrays, stream, device)
            except BadInputError as error:
                raise BadInputError(f"{unit.file}: {error}") from None
            event_id_E = np.array(unit.arrays.event_columns["event_id"][:, 0], np.int64)
            table = prediction_table(event_id_E, predictions).select(table_schema(predictor).names)
            counts.add(unit, event_id_E[table["kappa"].to_numpy() == 0], predictions.num_cut)
            yield table
            progress.reach(int(100 * unit.done), 100)


def prediction_stream(stream: StreamConfig) -> StreamConfig:
    """Stream settings of the run for all events in order: none is an outlier, and memory is bounded."""
    update = {"unit_events": _UNIT_EVENTS, "batch_events": _UNIT_EVENTS * MOST_TRAINERS, "shuffle": False}
    limits = {"max_particles": MOST_PULSES, "max_particles_per_event": 0, "max_squared_particles": 0}
    return stream.model_copy(update=update | limits | {"slot_mib": _SLOT_MIB, "where": "", "transform": ""})


class TrainedDirections(TrainedModel):
    """Trained model of neutrino directions."""

    uses = ("predict",)

    def __init__(self, front: Front, predictor: TrainedPredictor, device: torch.device) -> None:
        super().__init__(front, predictor.run)
        self._predictor = predictor
        self._device = device

    def predict(self, files: Paths) -> pa.Table:
        """Directions of all events of the files, in their order: event_id, azimuth, zenith (radians, to the source) and
        the precision kappa, as `icestream predict` writes them; with the energy: lg_energy and its error, too.

        ``files``: files, folders, globs or URLs. An event without a predicted direction has kappa 0. Raises
        BadInputError.
        """
        settings = self._front.file_settings(
            given_inputs(files, "files"), toml=None, assignments=(), config_json=self.run.config_json
        )
        tables = predicted_tables(self._front, self._predictor, settings, self._device, PredictionCounts())
        with no_progress():
            return pa.concat_tables([table_schema(self._predictor).empty_table(), *tables])


def load(front: Front, run: TrainedRun, task_state: dict[str, Any], device: torch.device) -> TrainedDirections:
    """Trained model of a run; see Workload.functions."""
    return TrainedDirections(front, build_predictor(run, task_state, device), device)
