"""One evaluation from a checkpoint and files to an Outcome, and its files on disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from common.errors import BadInputError
from common.files.inputs import expand
from common.files.remotes import Remotes
from common.redact import without_secrets
from common.slow_progress import SlowProgress
from icestream.reading.staging import staging, trained_on
from services.config.root import Config, load_config, store_config
from workloads.base.checkpoint import CHECKPOINT_FOLDER
from workloads.base.report.html import page
from workloads.base.report.thresholds import missed, read_thresholds
from workloads.muons.evaluation.generate import generated_events, pit
from workloads.muons.evaluation.outcome import Outcome, provenance, store
from workloads.muons.evaluation.plots.events import EventPairs
from workloads.muons.evaluation.plots.gallery import Picture, pictures
from workloads.muons.evaluation.plots.training import TrainingCurve, read_courses
from workloads.muons.evaluation.read import evaluation_stream, read_real
from workloads.muons.evaluation.settings import NATURAL_FLUX, EvaluationRequest
from workloads.muons.evaluation.simulated import drawn_again, drawn_sample, natural_weights
from workloads.muons.generation.device import device_named
from workloads.muons.generation.load import Trained, load_trained
from workloads.muons.metrics.evaluate import evaluate
from workloads.muons.metrics.sample import Sample
from workloads.muons.metrics.settings import EvaluationSettings
from workloads.muons.simulator.config import preset


@dataclass(frozen=True)
class Real:
    """Real events, where they come from, and what is to be told of that."""

    sample: Sample
    inputs: tuple[str, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())


def run_evaluation(
    wanted: EvaluationRequest, *, toml: Path | None, assignments: Sequence[str], say: Callable[[str], None]
) -> tuple[Outcome, Path]:
    """The outcome, and the folder that its files are in. ``say`` is told what is being done.

    Raises BadInputError for what the user can mend.
    """
    torch.set_num_threads(wanted.threads)
    thresholds = read_thresholds(wanted.thresholds) if wanted.thresholds else {}
    trained = load_trained(wanted.checkpoint, device_named(wanted.device))
    folder = wanted.output or default_output(trained.path)
    _check_writable(folder)
    say(f"{trained.path}: {trained.config.trainer.model}, step {trained.step:,}")
    real = _real(wanted, trained, toml, assignments)
    for warning in real.warnings:
        say(f"WARNING: {warning}")
    sample = real.sample
    if len(np.unique(sample.shower_E[sample.weights_E > 0])) < 2:
        those = "the events" if sample.weight_E is None else "the events with a weight above 0"
        raise BadInputError(f"{those} are all of one shower: nothing to compare with")
    max_count = trained.max_count
    generated = generated_events(trained.generator, sample.primary_E4, max_count=max_count, seed=wanted.seed)
    pit_E = pit(trained.generator, sample.primary_E4, sample.bundles.counts_E, wanted.seed)
    independent = None
    if wanted.preset:
        independent = drawn_again(sample.primary_E4, sample.shower_E, preset(wanted.preset), seed=wanted.seed)
    settings = EvaluationSettings(
        bootstraps=wanted.bootstraps, max_events=len(sample), c2st_epochs=wanted.c2st_epochs, seed=wanted.seed
    )
    with SlowProgress("comparing", 100, to_text="{} %".format) as progress:
        report = evaluate(
            sample,
            generated.bundles,
            independent=independent,
            pit_E=pit_E,
            settings=settings,
            progress=lambda _, part: progress.reach(int(100 * part), 100),
        )
    notes = [*real.notes, *_notes(sample, generated.num_capped, max_count, pit_E is not None), *report.notes]
    courses = _courses(trained.path)
    if not courses:
        notes.append("no course of the training: the checkpoint lies in no run directory with TensorBoard files")
    events = EventPairs(sample, generated.bundles.finite()[0], wanted.seed)
    outcome = Outcome(
        report=replace(report, notes=tuple(notes)),
        pictures=_drawn(pictures(events, pit_E, courses)),
        provenance=provenance(
            trained,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            inputs=list(real.inputs),
            simulated=wanted.preset or None,
            weights=wanted.weights or None,
            seed=wanted.seed,
            bootstraps=wanted.bootstraps,
            c2st_epochs=wanted.c2st_epochs,
            device=str(trained.generator.device),
        ),
        missed=missed(thresholds, report.metrics),
        warnings=real.warnings,
    )
    store(folder, outcome, page(outcome))
    return outcome, folder


def _drawn(drawing: Iterable[Picture]) -> list[Picture]:
    """The pictures, drawn under a progress line."""
    with SlowProgress("drawing: plots", 12) as progress:
        drawn = []
        for picture in drawing:
            drawn.append(picture)
            progress.advance(1)
    return drawn


def default_output(checkpoint: Path) -> Path:
    """`RUN/evaluation`, or a folder beside a checkpoint that lies elsewhere."""
    run_dir = _run_dir(checkpoint)
    return run_dir / "evaluation" if run_dir else checkpoint.parent / f"{checkpoint.stem}-evaluation"


def _check_writable(folder: Path) -> None:
    """Before minutes are spent: raises BadInputError if the folder can't be made, or nothing be written to it."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise BadInputError(f"{folder}: {there} is no folder; name another one with -o")
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadInputError(f"{folder}: nothing can be written to {there}; name another folder with -o")


def _real(wanted: EvaluationRequest, trained: Trained, toml: Path | None, assignments: Sequence[str]) -> Real:
    if wanted.simulate:
        config = preset(wanted.simulate)
        sample = drawn_sample(config, wanted.events, wanted.seed)
        real = Real(sample, (f"icestream simulate --preset {wanted.simulate}",))
    else:
        real = _read(wanted, trained, _config(trained, wanted.inputs, toml, assignments))
    if wanted.weights == NATURAL_FLUX:
        weight_E = natural_weights(real.sample.primary_E4, preset(wanted.preset))
        real = replace(real, sample=replace(real.sample, weight_E=weight_E))
    return real


def _read(wanted: EvaluationRequest, trained: Trained, config: Config) -> Real:
    column = "" if wanted.weights == NATURAL_FLUX else wanted.weights
    with Remotes(config.remote_access()) as remotes:
        sources = expand(config.input, remotes)
        seen = trained_on(sources, trained.config, remotes)
        with staging(config, remotes, sources) as stage:
            found = read_real(config, sources, stage, events=wanted.events, seed=wanted.seed, weights=column)
    warnings: tuple[str, ...] = ()
    if seen:
        warnings = (
            f"{len(seen)} of the {len(sources)} files are among those that the model was trained on"
            f" (the first: {seen[0]}): the numbers do not show how it does on events that it never saw",
        )
    inputs = tuple(without_secrets(text) for text in config.input)
    return Real(found.sample, inputs, (f"{found.num_files} of {len(sources)} files were read", *found.notes), warnings)


def _config(trained: Trained, inputs: Sequence[str], toml: Path | None, assignments: Sequence[str]) -> Config:
    """The run's settings, those of this command on top: files are read as they were in training."""
    with tempfile.TemporaryDirectory(prefix="icestream-evaluate-") as folder:
        store_config(Path(folder), trained.config)
        config = load_config(Path(folder), toml=toml, assignments=assignments, flags={"input": tuple(inputs)})
    return config.model_copy(update={"stream": evaluation_stream(config)})


def _notes(sample: Sample, num_capped: int, max_count: int, has_pit: bool) -> list[str]:
    notes = []
    if sample.weight_E is not None:
        effective = sample.weight_E.sum() ** 2 / (sample.weight_E**2).sum()
        notes.append(f"weighted events: they count as much as {effective:,.0f} unweighted ones")
    if num_capped:
        notes.append(f"{num_capped:,} generated events had more than {max_count:,} muons and were cut down to that")
    if not has_pit:
        notes.append("the model has no distribution of the number of muons: no reliability plot")
    return notes


def _courses(checkpoint: Path) -> Mapping[str, TrainingCurve]:
    run_dir = _run_dir(checkpoint)
    return read_courses(run_dir) if run_dir else {}


def _run_dir(checkpoint: Path) -> Path | None:
    folder = checkpoint.absolute().parent
    return folder.parent if folder.name == CHECKPOINT_FOLDER else None
