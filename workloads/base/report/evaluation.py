"""Frame of an evaluation: from options to an outcome and its files; and the frame of its pictures.

A workload supplies models, metrics and pictures.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import click
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from common.config import MOST_TRAINERS
from common.errors import BadInputError
from common.paths import require_place
from common.run_words import counted
from common.schema import EventSchema
from common.slow_progress import SlowProgress
from common.text import without_secrets
from workloads.base.checkpoint import TrainedRun, versions
from workloads.base.device import device_named, torch_threads
from workloads.base.interface import FileEvents, FileSettings, Front
from workloads.base.report import page
from workloads.base.report.metric import Definition, missed, read_thresholds

# Okabe and Ito's colours: distinguishable with any kind of colour vision, and in grey by their line styles.
BLACK = "#000000"
ORANGE = "#D55E00"
MODELS = ((ORANGE, "--"), ("#0072B2", ":"))
"""Colour and line style of each run; a dark page inverts the lightness of all colours, and keeps their hue."""
SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
STYLE: dict[Any, Any] = {
    "font.size": 12.0,
    "axes.labelsize": 13.0,
    "axes.titlesize": 12.0,
    "legend.frameon": False,
    "legend.fontsize": 11.0,
    "xtick.direction": "in",
    "ytick.direction": "in",
    "xtick.top": True,
    "ytick.right": True,
    "axes.formatter.use_mathtext": True,
    "mathtext.default": "regular",
}
DPI = 110

Shown = TypeVar("Shown")
Draw = Callable[[Shown], Figure | None]
_GAP_INCHES = 0.12


class Gallery(Generic[Shown]):
    """The pictures of a workload's reports, in the order in which their functions are defined."""

    def __init__(self) -> None:
        self._drawings: list[tuple[str, str, str, Draw[Shown]]] = []

    def picture(self, name: str, title: str, caption: str) -> Callable[[Draw[Shown]], Draw[Shown]]:
        """Add a function that draws a picture, or returns None where there is nothing to draw."""

        def add(draw: Draw[Shown]) -> Draw[Shown]:
            self._drawings.append((name, title, caption, draw))
            return draw

        return add

    def draw(self, shown: Shown) -> list[page.Picture]:
        """Draw all pictures, with progress."""
        pictures = []
        with rc_context(STYLE), SlowProgress("drawing: plots", len(self._drawings)) as progress:
            for name, title, caption, draw in self._drawings:
                if (figure := draw(shown)) is not None:
                    png = io.BytesIO()
                    FigureCanvasAgg(figure).print_png(png)
                    pictures.append(page.Picture(name, title, caption, png.getvalue()))
                progress.advance(1)
        return pictures


@dataclass(frozen=True)
class Box:
    """A rectangle of a figure, in inches. Positions are fixed: matplotlib's layout takes longer than the drawing."""

    left: float
    bottom: float
    width: float
    height: float

    def inside(self) -> Box:
        """Return the box without the margins for labels."""
        return Box(self.left + 0.85, self.bottom + 0.6, self.width - 1.0, self.height - 0.95)

    def cut(self, upper_part: float) -> tuple[Box, Box]:
        """Return two boxes, one above the other, with a gap."""
        upper = upper_part * (self.height - _GAP_INCHES)
        lower = self.height - _GAP_INCHES - upper
        return (
            Box(self.left, self.bottom + lower + _GAP_INCHES, self.width, upper),
            Box(self.left, self.bottom, self.width, lower),
        )

    def axes(self, figure: Figure, **options: Any) -> Axes:
        """Add axes to the figure that fill the box."""
        across, up = figure.get_size_inches()
        place = (self.left / across, self.bottom / up, self.width / across, self.height / up)
        return figure.add_axes(place, **options)


def grid(columns: int, rows: int, *, width: float, height: float) -> tuple[Figure, Iterator[Box]]:
    """Return a figure, and the boxes of its cells, row by row; width and height of a cell in inches."""
    figure = Figure(figsize=(width * columns, height * rows), dpi=DPI)
    boxes = (
        Box(width * column, height * (rows - 1 - row), width, height)
        for row in range(rows)
        for column in range(columns)
    )
    return figure, boxes


_PACKAGES = ("icestream", "torch", "numpy", "scipy", "pyarrow", "matplotlib")
"""Packages on which the numbers depend."""

MOST_PARTICLES = 100_000_000
"""Largest number of particles in one event. Address space for as many is reserved only if a footer announces them."""
_SLOT_MIB = 2048.0
_UNIT_EVENTS = 65_536

Say = Callable[[str], None]
"""Takes a line about each step."""


class _Trained(Protocol):
    @property
    def run(self) -> TrainedRun: ...


Options = TypeVar("Options", bound=page.EvaluationOptions)
Model = TypeVar("Model", bound=_Trained)


@dataclass(frozen=True)
class Origin:
    """The origin of the events of an evaluation, and remarks on them."""

    inputs: tuple[str, ...]
    """Names of their files, without secrets."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Reasons not to believe the numbers."""


@dataclass(frozen=True)
class Measured:
    """Results of a workload on its models."""

    reports: Sequence[page.MetricReport]
    """Of each model, in their order."""
    pictures: Sequence[page.Picture]
    origin: Origin
    about: Mapping[str, Any]
    """Options of the workload's own, for the provenance."""


@dataclass(frozen=True)
class Evaluation(Generic[Options, Model]):
    """The part of an evaluation that is a workload's own."""

    options: type[Options]
    words: page.ReportWords
    definitions: Mapping[str, Definition]
    load: Callable[[Path, torch.device], Model]
    """Loads the model of a checkpoint or run directory."""
    measure: Callable[[Front, Options, Sequence[Model], Say], Measured]
    """Compares the model that is evaluated, and the one beside it if there is one, with the truth."""

    def run(self, front: Front, wanted: Options, say: Say) -> tuple[page.Outcome, Path]:
        """Return the outcome, and the folder of its files, which exists if ``wanted.write``.

        Raises BadInputError for errors that the user can correct, all of them before anything slow where possible.
        """
        thresholds = read_thresholds(wanted.thresholds, self.definitions) if wanted.thresholds else {}
        with torch_threads(wanted.threads):
            models = self._models(wanted)
            run = models[0].run
            folder = wanted.output or page.default_output(run.path)
            if wanted.write:
                require_place(folder, "name another one with -o")
            for model in models:
                say(f"{model.run.path}: {model.run.model}, step {model.run.step:,}")
            measured = self.measure(front, wanted, models, say)
        report, *others = measured.reports
        notes = [*measured.origin.notes, *report.notes]
        for other in others:
            notes += [f"{run_names(models)[1]}: {note}" for note in other.notes if note not in notes]
        outcome = page.Outcome(
            report=replace(report, notes=tuple(notes)),
            pictures=measured.pictures,
            provenance=provenance(
                run,
                date=datetime.now(UTC).isoformat(timespec="seconds"),
                inputs=list(measured.origin.inputs),
                **measured.about,
                seed=wanted.seed,
                bootstraps=wanted.bootstraps,
                device=str(device_named(wanted.device)),
            ),
            missed=missed(thresholds, report.metrics),
            warnings=measured.origin.warnings,
            beside=page.Beside(provenance(models[1].run), others[0].metrics) if others else None,
        )
        if wanted.write:
            page.store(folder, outcome, page.page(outcome, self.words))
        return outcome, folder

    def _models(self, wanted: Options) -> list[Model]:
        """Return the model that is evaluated, then the one beside it. Raises BadInputError."""
        device = device_named(wanted.device)
        own = self.load(wanted.checkpoint, device)
        if not wanted.beside:
            return [own]
        try:
            other = self.load(wanted.beside, device)
        except BadInputError as error:
            raise BadInputError(f"--beside: {error}") from None
        if other.run.path.resolve() == own.run.path.resolve():
            raise BadInputError(f"--beside: {other.run.path} is the checkpoint that is evaluated: name another one")
        return [own, other]

    def report(self, front: Front, say: Say, **options: Any) -> page.EvaluationReport:
        """Return the report of an evaluation with these options; see Workload.functions."""
        return page.EvaluationReport(self.run(front, self.options.given(**options), say)[0], self.words)

    def command(self, front: Front, inputs: tuple[str, ...], token_file: Path | None, options: dict[str, Any]) -> None:
        """Evaluate with the options of a command, and print the report; see tell."""
        wanted = self.options(**page.typed_options(inputs, token_file, options))
        outcome, folder = self.run(front, wanted, say=lambda text: click.echo(text, err=True))
        page.tell(outcome, folder, self.words)


def provenance(run: TrainedRun, **more: object) -> dict[str, Any]:
    """Return the provenance of an evaluation: the checkpoint, ``more``, and the versions of programs."""
    return {
        "checkpoint": str(run.path),
        "model": run.model,
        "step": run.step,
        "events_trained": run.events_trained,
        "config_digest": run.config_digest,
        **more,
        "versions": versions(_PACKAGES),
    }


def run_names(models: Sequence[_Trained], alone: str = "model") -> list[str]:
    """Return the names of one model (``alone``) or two in plots and notes; see names."""
    return [*page.names(*(provenance(model.run) for model in models))] if len(models) == 2 else [alone]


def file_settings(front: Front, wanted: page.EvaluationOptions, run: TrainedRun) -> FileSettings:
    """Return the settings of the run's training, unless the command overrides them, for reading its files."""
    return front.file_settings(
        wanted.inputs, toml=wanted.toml, assignments=wanted.assignments, config_json=run.config_json
    )


def with_outliers(settings: FileSettings) -> FileSettings:
    """Return settings that keep outliers, unlike training: an event of 100,000 particles is part of the data."""
    stream = settings.stream.model_copy(
        update={"shuffle": True, "unit_events": _UNIT_EVENTS, "batch_events": _UNIT_EVENTS * MOST_TRAINERS}
        | {"slot_mib": _SLOT_MIB, "max_particles": MOST_PARTICLES, "max_particles_per_event": 0}
        | {"max_squared_particles": 0, "where": "", "transform": ""}  # floors are those of all events, as they are
    )
    return replace(settings, stream=stream)


def read_events(
    front: Front,
    settings: FileSettings,
    wanted: page.EvaluationOptions,
    schema: EventSchema,
    runs: Sequence[TrainedRun],
) -> AbstractContextManager[FileEvents]:
    """Return a sample of up to ``wanted.events`` events (0: all) of files, the same for the same seed.

    None of the runs should have been trained on them. Raises BadInputError that names the file.
    """
    settings = with_outliers(settings)
    return front.read_events(
        schema.stored_as(settings.source),
        settings,
        events=wanted.events,
        seed=wanted.seed,
        trained_inputs=[text for run in runs for text in run.inputs],
        held_out=min(run.held_out for run in runs),  # a larger share includes all events of a smaller one
    )


def origin_of(settings: FileSettings, events: FileEvents, notes: Sequence[str], say: Say) -> Origin:
    """Return the origin of these events, and say their warnings at once."""
    inputs = tuple(without_secrets(text) for text in settings.inputs)
    warnings = tuple(reading_warnings(events))
    for warning in warnings:
        say(f"WARNING: {warning}")
    left = f"stream.where = {settings.stream.where!r} is not applied: these are all events of the files"
    filtered = [left] if settings.stream.where else []
    read = f"{events.num_files} of {events.num_sources} files were read"
    return Origin(inputs, (read, *filtered, *notes), warnings)


def reading_warnings(events: FileEvents) -> Iterator[str]:
    """Yield warnings about files that the model was trained on, and about what can't be used."""
    if events.trained_on:
        yield (
            f"{len(events.trained_on)} of the {events.num_sources} files are among those that the model was trained on"
            f" (the first: {events.trained_on[0]}): the numbers do not show how it does on events that it never saw"
        )
    if events.left_out:
        yield (
            f"{counted(len(events.left_out), 'bad input')} (files, row groups, events) left out, as in a run; the"
            f" first: {events.left_out[0]}"
        )
