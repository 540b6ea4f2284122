"""Evaluation of predicted directions with files; the frame is workloads.base.report.evaluation.

E events, P pulses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from common.errors import BadInputError
from common.schema import UnitArrays
from common.slow_progress import SlowProgress
from workloads.base.device import device_named
from workloads.base.interface import Front
from workloads.base.report import evaluation as frame
from workloads.base.report.evaluation import Evaluation, Measured, Say
from workloads.base.report.metric import Floor
from workloads.base.report.page import EvaluationOptions, MetricReport, ReportWords
from workloads.direction.columns import CLASSICAL_FITS, DIRECTION
from workloads.direction.fits import classical_fits, plain_lines
from workloads.direction.geometry import ARRAYS, Geometry
from workloads.direction.grouping import Bool
from workloads.direction.light import EventPulses
from workloads.direction.metrics import (
    CALIBRATED,
    DEFINITIONS,
    POSTERIOR,
    PredictedEvents,
    evaluate,
    unit_and_norm,
)
from workloads.direction.models.network import check_same_detector
from workloads.direction.models.task import TrainedPredictor, load_predictor
from workloads.direction.plots import pictures
from workloads.direction.prediction import Predicted, cut_note, predicted

_TRACK = CLASSICAL_FITS.index("track_x")
_EVENTS_AT_A_TIME = 1000


def predicted_events(arrays: UnitArrays, predictions: Iterable[Predicted], geometry: Geometry) -> list[PredictedEvents]:
    """Return events of the natural mixture, with the predictions of each model.

    Events that were added to enrich a training are left out.
    """
    natural_E = ~np.asarray(arrays.event_columns["enriched"][:, 0], np.bool_)
    arrays = only(arrays, natural_E)
    columns = arrays.event_columns
    with_direction = partial(
        PredictedEvents,
        true_E3=unit_and_norm(np.asarray(columns["source_direction"], np.float64))[0],
        topology_E=np.array(columns["topology"][:, 0], np.int8),
        energy_gev_E=np.array(columns["true_energy"][:, 0], np.float64),
        clean_sensors_E=clean_sensors(arrays),
        baselines={
            "line": unit_and_norm(_fitted(arrays, geometry, plain_lines))[0],
            "pandel": unit_and_norm(_all_fits(arrays, geometry)[:, _TRACK : _TRACK + 3])[0],
        },
    )
    return [with_direction(*unit_and_norm(p_E3[natural_E]), lg_energy_E2=lg[natural_E]) for p_E3, lg, _ in predictions]


def clean_sensors(arrays: UnitArrays) -> npt.NDArray[np.int64]:
    """Return the number of sensors of each event with a pulse that is not auxiliary. (E,)."""
    num_events = len(arrays.offsets) - 1
    event_P = np.repeat(np.arange(num_events), np.diff(arrays.offsets))
    # Pulses are grouped by sensor: a number for each (event, sensor), in order.
    group_P = np.cumsum(arrays.particle_columns["opens_sensor"][:, 0])
    clean_P = ~np.asarray(arrays.particle_columns["auxiliary"][:, 0], np.bool_)
    _, first = np.unique(group_P[clean_P], return_index=True)
    return np.bincount(event_P[clean_P][first], minlength=num_events)


def only(arrays: UnitArrays, chosen_E: Bool) -> UnitArrays:
    """Return the chosen events, copied; themselves if these are all."""
    if chosen_E.all():
        return arrays
    counts_E = np.diff(arrays.offsets)
    chosen_P = np.repeat(chosen_E, counts_E)
    return UnitArrays(
        np.concatenate([[0], np.cumsum(counts_E[chosen_E])]),
        np.array([0, int(chosen_E.sum())]),
        {name: column[chosen_P] for name, column in arrays.particle_columns.items()},
        {name: column[chosen_E] for name, column in arrays.event_columns.items()},
    )


def _all_fits(arrays: UnitArrays, geometry: Geometry) -> npt.NDArray[np.float32]:
    """Return classical fits: those of the files, and new ones of events that have none there."""
    fits_EF = np.array(arrays.event_columns["classical_fits"], np.float32)
    missing = np.flatnonzero(~fits_EF.any(1))
    with SlowProgress("classical fits, which `icestream seeds` adds to files: events", len(missing)) as progress:
        for first in range(0, len(missing), _EVENTS_AT_A_TIME):
            events = missing[first : first + _EVENTS_AT_A_TIME]
            chosen_E = np.zeros(len(fits_EF), np.bool_)
            chosen_E[events] = True
            fits_EF[events] = _fitted(only(arrays, chosen_E), geometry)
            progress.advance(len(events))
    return fits_EF


def _fitted(
    arrays: UnitArrays, geometry: Geometry, fit: Callable[[EventPulses], torch.Tensor] | None = None
) -> npt.NDArray[np.float32]:
    """Return the results of a fit of all events, by default those of all classical fits."""
    columns = arrays.particle_columns
    time_P, charge_P = (np.ascontiguousarray(values) for values in np.asarray(columns["pulses"]).T)
    sensor_P = np.asarray(columns["sensor"][:, 0], np.int16)
    auxiliary_P = np.asarray(columns["auxiliary"][:, 0], np.bool_)
    return classical_fits(sensor_P, time_P, charge_P, auxiliary_P, arrays.offsets, geometry, fit)


# ---- Measured floors.


@dataclass(frozen=True)
class ToyFloor:
    """Figures of the best possible prediction of the simulator's events, with its standard settings."""

    figures: Mapping[str, Floor]
    """Floors by the names of metrics."""
    events: int
    date: str
    array: str
    """Sensors of the detector: a key of workloads.direction.geometry.ARRAYS."""

    @property
    def note(self) -> str:
        """Source of the figures."""
        return (
            f"floors of angles: posteriors by the simulator's own likelihood of {self.events:,} other events, measured"
            f" {self.date} by benchmarks/bench_direction_floor.py; the mean of all is known to"
            f" ± {self.figures['angle_mean_deg'].error:.2f}°"
        )


def read_toy_floor() -> ToyFloor:
    """Return the floor from the file beside this module, which the benchmark writes."""
    stored = json.loads(Path(__file__).with_name("toy_floor.json").read_text(encoding="utf-8"))
    figures = {
        name: Floor(float(one["value"]), float(one["error"]))
        for name, one in stored["figures"].items()
        if name in DEFINITIONS
    }
    return ToyFloor(figures, int(stored["events"]), str(stored["date"]), str(stored["array"]))


# ---- The report.

_ABOVE = ("below the smallest possible", "above the smallest possible")
HEADLINE = {
    "angle_mean_deg": ("mean angles", *_ABOVE),
    "angle_median_deg": ("median angles", *_ABOVE),
    "angle_68_deg": ("angles of 68 %", *_ABOVE),
    "track_angle_mean_deg": ("mean angles of tracks", *_ABOVE),
    "cascade_angle_mean_deg": ("mean angles of cascades", *_ABOVE),
    "kappa_pull_mean": ("squared errors by κ", "too small", "too large"),
}
"""See ReportWords.headline."""

WORDS = ReportWords(
    subject="Directions that {checkpoint} ({model}, step {step}) predicts beside the true ones",
    headline=HEADLINE,
    sizes_line="{events:,} events, {tracks:,} tracks, {cascades:,} cascades",
    about_numbers="Angles are those between the predicted and the true direction; 90° is chance. The length κ of the"
    " predicted vector is its precision: 2κ(1 - cos θ) has a mean of 2 if it is right and large, and its floor if it is"
    " right. The <em>floor</em> is what the best possible model would reach: {floor}. Errors are standard deviations"
    " over bootstraps of events, those of floors the errors of their measurement.",
    floors={
        CALIBRATED: "known here for calibration only, from angles drawn with the predicted κ",
        POSTERIOR: "for calibration from angles drawn with the predicted κ; for angles the posterior by the simulator's"
        " own likelihood, with the topology and the ice known (see the notes)",
    },
    about_plots="Bands and bars are named in the captions. Of two models, events are shown to which both give a"
    " direction.",
    decisive="angle_mean_deg",
)


@dataclass(frozen=True, kw_only=True)
class DirectionOptions(EvaluationOptions):
    """Validated options of an evaluation. Raises BadInputError."""

    simulated: bool = False
    """The files were written by the simulator: its floors are those of the report."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.inputs:
            raise BadInputError("name the files of events with -i")


def _measure(front: Front, wanted: DirectionOptions, models: Sequence[TrainedPredictor], say: Say) -> Measured:
    floor = read_toy_floor() if wanted.simulated else None
    _check_detectors(floor, models)
    predicted, origin = _predicted(front, wanted, models, say)
    reports = [_compared(wanted, *of_model, floor) for of_model in predicted]
    events, notes = predicted[0][0], [*origin.notes]
    if not (events.energy_gev_E > 0).any():
        notes.append("the energies are not known: nothing by energy, nor of its prediction")
    if not np.isin((0, 1), events.topology_E).all():
        notes.append("tracks and cascades are not both known: no picture of how κ separates them")
    if floor:
        notes.append(floor.note)
    return Measured(
        reports=reports,
        pictures=pictures(dict(zip(frame.run_names(models), (one for one, _ in predicted), strict=True)), wanted.seed),
        origin=replace(origin, notes=tuple(notes)),
        about={"simulated": wanted.simulated},
    )


EVALUATION = Evaluation(DirectionOptions, WORDS, DEFINITIONS, load_predictor, _measure)


def _compared(
    wanted: DirectionOptions, events: PredictedEvents, notes: Sequence[str], floor: ToyFloor | None
) -> MetricReport:
    with SlowProgress("comparing", 100, to_text="{} %".format) as progress:
        report = evaluate(
            events,
            bootstraps=wanted.bootstraps,
            seed=wanted.seed,
            floors=floor.figures if floor else None,
            progress=lambda part: progress.reach(int(100 * part), 100),
        )
    return replace(report, notes=(*notes, *report.notes))


def _check_detectors(floor: ToyFloor | None, models: Sequence[TrainedPredictor]) -> None:
    """Raise BadInputError for models of different detectors, or of one whose smallest possible errors are not known."""
    own, *others = models
    geometry = own.detector.geometry
    for other in others:
        theirs = other.detector.geometry
        if not geometry.is_like(theirs):
            raise BadInputError(
                f"--beside: {other.run.path}: its {len(theirs)} sensors are not those of the {len(geometry)} of"
                f" {own.run.path}, by number, place and medium: name a model of the same detector"
            )
    if floor and not geometry.is_like(ARRAYS[floor.array]()):
        raise BadInputError(
            f"--simulated: the smallest possible errors are known for the array {floor.array!r} alone, and the"
            " model was trained with another detector: leave the option out"
        )


def _predicted(
    front: Front, wanted: DirectionOptions, models: Sequence[TrainedPredictor], say: Say
) -> tuple[list[tuple[PredictedEvents, list[str]]], frame.Origin]:
    """Return the same events of files with each model's directions, and notes on these.

    Files are read with the settings of the first model's training, and pulses of an event cut to the limit of each
    model's own, unless the command overrides them.
    """
    runs = [model.run for model in models]
    settings = frame.file_settings(front, wanted, runs[0])
    geometry = models[0].detector.geometry
    check_same_detector(geometry, settings.inputs)
    with frame.read_events(front, settings, wanted, DIRECTION, runs) as files:
        num_read, num_empty = len(files.arrays.offsets) - 1, sum(tally.empty for tally in files.tallies)
        if files.arrays.event_columns["enriched"].all():
            raise BadInputError(f"all {num_read:,} events were added to enrich a training: name files of natural ones")
        predictions, of_models = [], []
        for model in models:
            stream = frame.file_settings(front, wanted, model.run).stream
            predictions.append(predicted(model, files.arrays, stream, device_named(wanted.device)))
            num_cut = predictions[-1].num_cut
            of_models.append([cut_note(num_cut, stream.outlier_above)] if num_cut else [])
        events = predicted_events(files.arrays, predictions, geometry)
    notes = []
    if files.which == "held_out":
        share = min(run.held_out for run in runs)
        notes.append(f"of the files of the training: only the {share:.1%} of the events held out of it")
    if added := num_read - len(events[0]):
        notes.append(f"{added:,} events were added to enrich a training (`enriched`) and are left out")
    if num_empty:
        notes.append(f"{num_empty:,} rows hold no event and were left out")
    return list(zip(events, of_models, strict=True)), frame.origin_of(settings, files, notes, say)
