"""Evaluation of a checkpoint with files: an Outcome, and its files on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.errors import BadInputError
from common.output_place import require_place
from common.redact import without_secrets
from common.slow_progress import SlowProgress
from workloads.base.device import device_named, torch_threads
from workloads.base.evaluation.files import evaluation_stream, reading_warnings
from workloads.base.evaluation.options import EvaluationOptions
from workloads.base.front import Front
from workloads.base.report.evaluation_report import EvaluationReport
from workloads.base.report.html import page
from workloads.base.report.outcome import MetricReport, Outcome, store
from workloads.base.report.provenance import default_output, provenance
from workloads.base.report.thresholds import missed, read_thresholds
from workloads.direction.columns import DIRECTION
from workloads.direction.evaluation.events import predicted_events
from workloads.direction.evaluation.plots.gallery import pictures
from workloads.direction.evaluation.toy_floor import ToyFloor, read_toy_floor
from workloads.direction.evaluation.words import WORDS
from workloads.direction.geometry import ARRAYS, Geometry
from workloads.direction.metrics.definitions import DEFINITIONS
from workloads.direction.metrics.evaluate import evaluate
from workloads.direction.metrics.predicted import PredictedEvents
from workloads.direction.models.detector import check_same_detector
from workloads.direction.models.load import load_predictor
from workloads.direction.prediction.predict import Load
from workloads.direction.prediction.vectors import DirectionPredictor, PulseLimits, predicted_vectors

_PACKAGES = ("icestream", "torch", "numpy", "scipy", "pyarrow", "matplotlib")
"""Packages on which the numbers depend."""


@dataclass(frozen=True, kw_only=True)
class DirectionOptions(EvaluationOptions):
    """Validated options of an evaluation. Raises BadInputError."""

    simulated: bool = False
    """The files were written by the simulator: its floors are those of the report."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.inputs:
            raise BadInputError("name the files of events with -i")


@dataclass(frozen=True)
class _Sample:
    events: PredictedEvents
    inputs: tuple[str, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def report(front: Front, say: Callable[[str], None], **options: Any) -> EvaluationReport:
    """Report of an evaluation with these options; see Workload.functions."""
    wanted = DirectionOptions.given(**options)
    with torch_threads(wanted.threads):
        outcome, _ = run_evaluation(front, wanted, load_predictor, say)
    return EvaluationReport(outcome, WORDS)


def run_evaluation(
    front: Front, wanted: DirectionOptions, load: Load, say: Callable[[str], None]
) -> tuple[Outcome, Path]:
    """Outcome of the evaluation, and the folder of its files, if it has any. ``say`` takes a line about each step.

    ``load``: see workloads.direction.models.load. Raises BadInputError for errors that the user can correct.
    """
    thresholds = read_thresholds(wanted.thresholds, DEFINITIONS) if wanted.thresholds else {}
    floor = read_toy_floor() if wanted.simulated else None
    device = device_named(wanted.device)
    predictor = load(wanted.checkpoint, device)
    if floor and not np.array_equal(ARRAYS[floor.array]().position_S3, predictor.position_S3.cpu().numpy()):
        raise BadInputError(
            f"--simulated: the smallest possible errors are known for the array {floor.array!r} alone, and the model"
            " was trained with another detector: leave the option out"
        )
    folder = wanted.output or default_output(predictor.run.path)
    if wanted.write:
        require_place(folder, "name another one with -o")
    say(f"{predictor.run.path}: {predictor.run.model}, step {predictor.run.step:,}")
    sample = _predicted(front, wanted, predictor, device)
    for warning in sample.warnings:
        say(f"WARNING: {warning}")
    report = _report(sample, wanted, floor)
    outcome = Outcome(
        report=report,
        pictures=list(pictures(sample.events, wanted.seed)),
        provenance=provenance(
            predictor.run,
            _PACKAGES,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            inputs=list(sample.inputs),
            simulated=wanted.simulated,
            seed=wanted.seed,
            bootstraps=wanted.bootstraps,
            device=str(device),
        ),
        missed=missed(thresholds, report.metrics),
        warnings=sample.warnings,
    )
    if wanted.write:
        store(folder, outcome, page(outcome, WORDS))
    return outcome, folder


def _predicted(front: Front, wanted: DirectionOptions, predictor: DirectionPredictor, device: torch.device) -> _Sample:
    """Events of files, read with the settings of the training unless the command overrides them."""
    settings = front.file_settings(
        wanted.inputs, toml=wanted.toml, assignments=wanted.assignments, config_json=predictor.run.config_json
    )
    check_same_detector(predictor.position_S3, settings.inputs)
    limits = PulseLimits.of(settings.stream)
    settings = replace(settings, stream=evaluation_stream(settings.stream))
    with front.read_events(
        DIRECTION.stored_as(settings.source),
        settings,
        events=wanted.events,
        seed=wanted.seed,
        trained_inputs=predictor.run.inputs,
        held_out=predictor.run.held_out,
    ) as found:
        vectors = predicted_vectors(predictor, found.arrays, limits, device)
        num_read, num_empty = len(vectors.p_E3), sum(tally.empty for tally in found.tallies)
        if found.arrays.event_columns["enriched"].all():
            raise BadInputError(f"all {num_read:,} events were added to enrich a training: name files of natural ones")
        geometry = Geometry(predictor.position_S3.cpu().numpy())
        events = predicted_events(found.arrays, vectors.p_E3, geometry)
    notes = [f"{found.num_files} of {found.num_sources} files were read"]
    if found.which == "held out":
        notes.append(
            f"of the files of the training: only the {predictor.run.held_out:.1%} of the events held out of it"
        )
    if added := num_read - len(events):
        notes.append(f"{added:,} events were added to enrich a training (`enriched`) and are left out")
    if vectors.num_cut:
        notes.append(
            f"{vectors.num_cut:,} events have more than {limits.most_of_event:,} pulses, the limit of the training:"
            " predicted from so many, the clean and earliest ones"
        )
    if num_empty:
        notes.append(f"{num_empty:,} rows hold no event and were left out")
    inputs = tuple(without_secrets(text) for text in settings.inputs)
    return _Sample(events, inputs, tuple(notes), reading_warnings(found))


def _report(sample: _Sample, wanted: DirectionOptions, floor: ToyFloor | None) -> MetricReport:
    with SlowProgress("comparing", 100, to_text="{} %".format) as progress:
        report = evaluate(
            sample.events,
            bootstraps=wanted.bootstraps,
            seed=wanted.seed,
            floors=floor.figures if floor else None,
            progress=lambda part: progress.reach(int(100 * part), 100),
        )
    notes = [*sample.notes, *report.notes, *_notes(sample.events), *([floor.note] if floor else [])]
    return replace(report, notes=tuple(notes))


def _notes(events: PredictedEvents) -> list[str]:
    notes = []
    if not (events.energy_gev_E > 0).any():
        notes.append("the energies are not known: no picture by energy")
    if not np.isin((0, 1), events.topology_E).all():
        notes.append("tracks and cascades are not both known: no picture of how κ separates them")
    return notes
