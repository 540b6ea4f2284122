"""Evaluation of a checkpoint with files or simulated events: an Outcome, and its files on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.errors import BadInputError
from common.output_place import require_place
from common.redact import without_secrets
from common.slow_progress import SlowProgress
from workloads.base.checkpoint import run_dir_of
from workloads.base.device import device_named, torch_threads
from workloads.base.front import Front
from workloads.base.report.beside import Beside, names
from workloads.base.report.evaluation_report import EvaluationReport
from workloads.base.report.html import page
from workloads.base.report.metric import Floor
from workloads.base.report.outcome import MetricReport, Outcome, Picture, store
from workloads.base.report.provenance import default_output, provenance
from workloads.base.report.thresholds import missed, read_thresholds
from workloads.base.trained_run import TrainedRun
from workloads.muons.evaluation.generate import generated_events, pit
from workloads.muons.evaluation.plots.events import EventPairs
from workloads.muons.evaluation.plots.gallery import pictures
from workloads.muons.evaluation.plots.training import TrainingCurve, read_courses
from workloads.muons.evaluation.read import read_real
from workloads.muons.evaluation.settings import NATURAL_FLUX, EvaluationRequest
from workloads.muons.evaluation.simulated import drawn_again, drawn_sample, natural_weights
from workloads.muons.evaluation.words import WORDS
from workloads.muons.generation.load import Trained, load_trained
from workloads.muons.metrics.bundles import BundleArrays, Float64
from workloads.muons.metrics.definitions import DEFINITIONS
from workloads.muons.metrics.evaluate import evaluate
from workloads.muons.metrics.sample import Sample
from workloads.muons.metrics.settings import REDRAWS, EvaluationSettings
from workloads.muons.simulator.config import preset

_PACKAGES = ("icestream", "torch", "numpy", "scipy", "pyarrow", "matplotlib")
"""Packages on which the numbers depend."""


@dataclass(frozen=True)
class Real:
    """Real events and their source."""

    sample: Sample
    inputs: tuple[str, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class _Compared:
    """Generated events of one model, compared with the real ones."""

    report: MetricReport
    generated: BundleArrays
    pit_E: Float64


def report(front: Front, say: Callable[[str], None], **options: Any) -> EvaluationReport:
    """Report of an evaluation with these options; see Workload.functions."""
    wanted = EvaluationRequest.given(**options)
    with torch_threads(wanted.threads):
        outcome, _ = run_evaluation(front, wanted, say)
    return EvaluationReport(outcome, WORDS)


def run_evaluation(front: Front, wanted: EvaluationRequest, say: Callable[[str], None]) -> tuple[Outcome, Path]:
    """Outcome of the evaluation, and the folder of its files, if it has any. ``say`` takes a line about each step.

    Raises BadInputError for errors that the user can correct.
    """
    thresholds = read_thresholds(wanted.thresholds, DEFINITIONS) if wanted.thresholds else {}
    device = device_named(wanted.device)
    trained = load_trained(wanted.checkpoint, device)
    other = _other(wanted.beside, trained, device) if wanted.beside else None
    folder = wanted.output or default_output(trained.run.path)
    if wanted.write:
        require_place(folder, "name another one with -o")
    for one in (trained, other):
        if one:
            say(f"{one.run.path}: {one.run.model}, step {one.run.step:,}")
    real = _real(front, wanted, [one.run for one in (trained, other) if one])
    for warning in real.warnings:
        say(f"WARNING: {warning}")
    sample = real.sample
    if len(np.unique(sample.shower_E[sample.weights_E > 0])) < 2:
        those = "the events" if sample.weight_E is None else "the events with a weight above 0"
        raise BadInputError(f"{those} are all of one shower: nothing to compare with")
    redraws = _redraws(wanted, sample)
    found = _compared(wanted, trained, sample, redraws)
    about = _provenance(wanted, trained, real.inputs)
    notes = [*real.notes, *_notes(sample), *found.report.notes]
    beside = None
    if other:
        also = _compared(wanted, other, sample, redraws, found.report.floors)
        beside = Beside(provenance(other.run, _PACKAGES), also.report.metrics)
        name = names(about, beside)[1]
        notes += [f"{name}: {note}" for note in also.report.notes if note not in notes]
    courses = _courses(trained.run.path)
    if not courses:
        notes.append(f"no course of the training: {_why_no_course(trained.run.path)}")
    outcome = Outcome(
        report=replace(found.report, notes=tuple(notes)),
        pictures=_drawn(EventPairs(sample, found.generated.finite()[0], wanted.seed), found.pit_E, courses),
        provenance=about,
        missed=missed(thresholds, found.report.metrics),
        warnings=real.warnings,
        beside=beside,
    )
    if wanted.write:
        store(folder, outcome, page(outcome, WORDS))
    return outcome, folder


def _other(place: Path, trained: Trained, device: torch.device) -> Trained:
    """Trained model that is shown beside ``trained``. Raises BadInputError."""
    try:
        other = load_trained(place, device)
    except BadInputError as error:
        raise BadInputError(f"--beside: {error}") from None
    if other.run.path.resolve() == trained.run.path.resolve():
        raise BadInputError(f"--beside: {other.run.path} is the checkpoint that is evaluated: name another one")
    return other


def _redraws(wanted: EvaluationRequest, sample: Sample) -> Sequence[Callable[[], BundleArrays]]:
    """Redraws of the real events, for the floors; none if they can't be simulated."""
    if not wanted.preset:
        return ()
    redraw = partial(drawn_again, sample.primary_E4, sample.shower_E, preset(wanted.preset), seed=wanted.seed)
    return [partial(redraw, draw=draw) for draw in range(REDRAWS)]


def _compared(
    wanted: EvaluationRequest,
    trained: Trained,
    sample: Sample,
    redraws: Sequence[Callable[[], BundleArrays]],
    floors: Mapping[str, Floor] | None = None,
) -> _Compared:
    """Comparison of a model with the real events; ``floors``: those of the report on another model."""
    generator, max_count = trained.generator, trained.max_count
    generated = generated_events(generator, sample.primary_E4, max_count=max_count, seed=wanted.seed)
    pit_E = pit(generator, sample.primary_E4, sample.bundles.counts_E, wanted.seed)
    settings = EvaluationSettings(
        bootstraps=wanted.bootstraps, max_events=len(sample), c2st_epochs=wanted.c2st_epochs, seed=wanted.seed
    )
    with SlowProgress(f"comparing {trained.run.model}", 100, to_text="{} %".format) as progress:
        report = evaluate(
            sample,
            generated.bundles,
            independent=redraws,
            floors=floors,
            pit_E=pit_E,
            settings=settings,
            progress=lambda _, part: progress.reach(int(100 * part), 100),
        )
    notes = []
    if generated.num_capped:
        notes.append(
            f"{generated.num_capped:,} generated events had more than {max_count:,} muons and were cut down to that"
        )
    return _Compared(replace(report, notes=(*notes, *report.notes)), generated.bundles, pit_E)


def _drawn(events: EventPairs, pit_E: Float64, courses: Mapping[str, TrainingCurve]) -> list[Picture]:
    with SlowProgress("drawing: plots", 12) as progress:
        drawn = []
        for picture in pictures(events, pit_E, courses):
            drawn.append(picture)
            progress.advance(1)
    return drawn


def _provenance(wanted: EvaluationRequest, trained: Trained, inputs: Sequence[str]) -> dict[str, Any]:
    return provenance(
        trained.run,
        _PACKAGES,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        inputs=list(inputs),
        simulated=wanted.preset or None,
        weights=wanted.weights or None,
        seed=wanted.seed,
        bootstraps=wanted.bootstraps,
        c2st_epochs=wanted.c2st_epochs,
        device=str(trained.generator.device),
    )


def _real(front: Front, wanted: EvaluationRequest, runs: Sequence[TrainedRun]) -> Real:
    """Real events, of which none of the ``runs`` should have been trained on."""
    if wanted.simulate:
        config = preset(wanted.simulate)
        sample = drawn_sample(config, wanted.events, wanted.seed)
        real = Real(sample, (f"icestream simulate --preset {wanted.simulate}",))
    else:
        real = _read(front, wanted, runs)
    if wanted.weights == NATURAL_FLUX:
        weight_E = natural_weights(real.sample.primary_E4, preset(wanted.preset))
        real = replace(real, sample=replace(real.sample, weight_E=weight_E))
    return real


def _read(front: Front, wanted: EvaluationRequest, runs: Sequence[TrainedRun]) -> Real:
    """Events of files, read with the settings of the first run's training unless the command overrides them."""
    settings = front.file_settings(
        wanted.inputs, toml=wanted.toml, assignments=wanted.assignments, config_json=runs[0].config_json
    )
    found = read_real(
        front,
        settings,
        events=wanted.events,
        seed=wanted.seed,
        trained_inputs=[text for run in runs for text in run.inputs],
        held_out=min(run.held_out for run in runs),  # a larger share includes all events of a smaller one
        weights="" if wanted.weights == NATURAL_FLUX else wanted.weights or "",
    )
    inputs = tuple(without_secrets(text) for text in settings.inputs)
    notes = (f"{found.num_files} of {found.num_sources} files were read", *found.notes)
    return Real(found.sample, inputs, notes, found.warnings)


def _notes(sample: Sample) -> list[str]:
    if sample.weight_E is None:
        return []
    effective = sample.weight_E.sum() ** 2 / (sample.weight_E**2).sum()
    return [f"weighted events: they count as much as {effective:,.0f} unweighted ones"]


def _why_no_course(checkpoint: Path) -> str:
    run_dir = run_dir_of(checkpoint)
    if run_dir is None:
        return "the checkpoint is in no run directory"
    if not (run_dir / "tensorboard").is_dir():
        return f"{run_dir} has no TensorBoard files"
    return "its run has not reached trainer.validation.every steps"


def _courses(checkpoint: Path) -> Mapping[str, TrainingCurve]:
    run_dir = run_dir_of(checkpoint)
    return read_courses(run_dir) if run_dir else {}
