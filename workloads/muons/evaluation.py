"""Evaluation of a generator with files or simulated events; the frame is workloads.base.report.evaluation.

Events are real ones of files or of the simulator, drawn again, and generated ones. E events, S showers, D depths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from common.errors import BadInputError
from common.files.local import file_kind
from common.options import given_inputs
from common.schema import UnitArrays
from common.slow_progress import SlowProgress
from common.text import without_secrets
from common.unit_arrays import Array
from workloads.base.checkpoint import TrainedRun
from workloads.base.interface import FileEvents, FileSettings, Front
from workloads.base.random_streams import numpy_stream
from workloads.base.report import evaluation as frame
from workloads.base.report.evaluation import MOST_PARTICLES, Evaluation, Measured, Say
from workloads.base.report.metric import Floor
from workloads.base.report.page import EvaluationOptions, MetricReport, ReportWords
from workloads.muons.columns import MUONS
from workloads.muons.evaluation_plots import GALLERY, EventPairs, Generated
from workloads.muons.generation import CountRule, MuonBundles, Trained, generate_events, load_trained
from workloads.muons.metrics.bundles import BundleArrays, EvaluationSettings, Float64, Int64, Sample
from workloads.muons.metrics.evaluate import DEFINITIONS, REDRAWS, evaluate
from workloads.muons.models.config import MAX_COUNT
from workloads.muons.models.likelihood_densities import MuonSampler
from workloads.muons.primaries import Primaries
from workloads.muons.purposes import MuonPurpose
from workloads.muons.showers.interactions import FORMAT, ragged
from workloads.muons.simulator.config import GROUP_MASS, MASS_FRACTIONS, NATURAL_FLUX, SimulatorConfig, preset
from workloads.muons.simulator.muons import SimulatedPrimaries, h3a_flux, sample_primaries, simulate, simulate_showers
from workloads.muons.simulator.write import read_provenance


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest(EvaluationOptions):
    """Validated options of an evaluation. Raises BadInputError."""

    simulated: str | None = None
    """Preset with which the files were simulated: real events can be drawn again."""
    simulate: str | None = None
    """Preset from which to draw the events, without files."""
    redraws: tuple[str, ...] = ()
    """Files with further muons for the same primaries as those of ``inputs``."""
    weights: str | None = None
    """Parquet column, or NATURAL_FLUX."""
    c2st_epochs: int = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "redraws", given_inputs(self.redraws, "redraws"))
        if bool(self.inputs) == bool(self.simulate):
            raise BadInputError(
                "name the events to compare with: files with -i, or --simulate PRESET to draw them"
                if not self.inputs
                else "either files with -i, or --simulate PRESET, not both (--simulated says what files hold)"
            )
        if self.simulate and self.simulated:
            raise BadInputError("--simulated is about files; --simulate alone draws the events again")
        if self.redraws and self.preset:
            raise BadInputError("either --redraws, or the simulator draws the events again, not both")
        if self.simulate and not self.events:
            raise BadInputError("--events 0 takes all events of files; with --simulate say how many")
        if self.weights == NATURAL_FLUX and not self.preset:
            raise BadInputError(
                f"--weights {NATURAL_FLUX} needs the spectrum that the events were made with: --simulated PRESET;"
                " for other files name a column with the weights"
            )
        if self.simulate and self.weights not in (None, NATURAL_FLUX):
            raise BadInputError(f"--weights {self.weights}: simulated events have no columns; {NATURAL_FLUX} is known")

    @property
    def preset(self) -> str:
        """Preset of the simulator for the real events; empty if they are not simulated."""
        return self.simulate or self.simulated or ""


_LOW = ("too low", "too high")
_BUNDLES = ("bundles", "too narrow", "too wide")
HEADLINE = {
    "count_tv": ("numbers of muons", "off", "off"),
    "count_mean_ratio": ("muons", "too few", "too many"),
    "log10_energy_w1": ("energies", *_LOW),
    "log10_radius_w1": _BUNDLES,
    "radius_m_w1": _BUNDLES,
    "log10_bundle_energy_w1": ("bundles' energies", *_LOW),
    "log10_leading_energy_w1": ("leading muons' energies", *_LOW),
    "energy_above_10_tev_ratio": ("muons above 10 TeV", "too few", "too many"),
    "conditional_log10_energy_w1": ("energies at one primary", *_LOW),
    "c2st_auc": ("events", "", "told from real ones by a classifier"),
}
"""See ReportWords.headline."""

WORDS = ReportWords(
    subject="Muon bundles of {checkpoint} ({model}, step {step}) beside real ones for the same primaries",
    headline=HEADLINE,
    sizes_line="{events:,} events, {muons_real:,} real and {muons_generated:,} generated muons",
    about_numbers="Each number says how far generated events are from real ones. Two finite samples of the same"
    " physics differ, too: that is the <em>floor</em>, {floor}. Errors are"
    " standard deviations: of values over bootstraps of whole showers, of floors those of a perfect generator's value.",
    floors={
        "same primaries": "found here with {redraws} further draws for the same primaries",
        "disjoint showers": "found here between real events of disjoint showers",
    },
    about_plots="Real and generated events have the same primaries. Bands: one standard deviation over bootstraps of"
    " showers. In the ratios what both sides share, their primaries, cancels.",
)


def sample_of(arrays: UnitArrays, weight_E: Float64 | None) -> Sample:
    """Return the sample of the events in a unit's arrays. Events with the same ids belong to one shower."""
    ids_E2 = arrays.event_columns["primary_id"]
    shower_E = np.unique(ids_E2, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    bundles = BundleArrays.of(np.diff(arrays.offsets), arrays.particle_columns["muons"].astype(np.float64))
    return Sample(arrays.event_columns["primary"].astype(np.float64), shower_E, bundles, weight_E)


def read_weights(paths: Mapping[int, Path], file_E: Array, row_E: Array, column: str) -> Float64:
    """Return the weights of the events, from ``column`` of their rows in the files. Raises BadInputError."""
    weight_E = np.empty(len(file_E))
    for index in np.unique(file_E).tolist():
        of_file_E = file_E == index
        weight_E[of_file_E] = _weights_of(paths[index], column)[row_E[of_file_E]]
    if not weight_E.sum() > 0:
        raise BadInputError(f"weights in {column!r}: all of them are 0")
    return weight_E


def _weights_of(path: Path, column: str) -> Float64:
    if file_kind(path) != "Parquet":
        raise BadInputError(f"{path}: weights are read from Parquet files only; convert it with `icestream convert`")
    schema = pq.read_schema(path)
    if column not in schema.names:
        raise BadInputError(f"{path}: no column {column!r} for the weights; it has {', '.join(schema.names)}")
    kind = schema.field(column).type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise BadInputError(f"{path}: the column {column!r} has type {kind}; weights are numbers")
    stored = pq.read_table(path, columns=[column])[column]
    weights: Float64 = stored.cast(pa.float64()).to_numpy()  # a null becomes a NaN
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise BadInputError(f"{path}: the column {column!r} holds a weight that is negative, null or not finite")
    return weights


def reading_notes(files: FileEvents) -> Iterator[str]:
    """Yield remarks on the events for a reader of the report."""
    dropped = sum(tally.particles_dropped for tally in files.tallies)
    outliers = sum(tally.outliers for tally in files.tallies)
    empty = sum(tally.empty for tally in files.tallies)
    if files.which == "held_out":
        yield "the model was trained on these files: only events that its run held out of training are used"
    if dropped:
        yield f"{dropped:,} fillers (muons with E ≤ 0) were dropped from the real events"
    if outliers:
        yield f"{outliers:,} events with more than {MOST_PARTICLES:,} muons were left out"
    if empty:
        yield f"{empty:,} rows hold no event and were left out"


Redraw = Callable[[], BundleArrays]
"""Makes other muons for the primaries of the real events."""


def redraws_of_files(front: Front, settings: FileSettings, wanted: EvaluationRequest, real: UnitArrays) -> list[Redraw]:
    """Return redraws from files, as many as each real event has there: two at least. Raises BadInputError.

    Row k of an event's primary and ids is its redraw k; of several such events, each takes its turn.
    """
    keys = _keys(real)
    events: dict[bytes, list[int]] = {}
    for event, key in enumerate(keys):
        events.setdefault(key, []).append(event)
    turns = {key: cycle(of_key) for key, of_key in events.items()}
    muons_of_E: list[list[Array]] = [[] for _ in keys]
    settings = frame.with_outliers(replace(settings, inputs=wanted.redraws))
    with front.each_unit(MUONS.stored_as(settings.source), settings) as units:
        for unit in units:
            offsets, muons_P3 = unit.arrays.offsets, unit.arrays.particle_columns["muons"]
            for row, key in enumerate(_keys(unit.arrays)):
                if key in turns:
                    muons_of_E[next(turns[key])].append(muons_P3[offsets[row] : offsets[row + 1]].copy())
    fewest = min(range(len(keys)), key=lambda event: len(muons_of_E[event]))
    if (num := len(muons_of_E[fewest])) < 2:
        ids, primary = (real.event_columns[name][fewest].tolist() for name in ("primary_id", "primary"))
        energy_gev, zenith_rad, mass_a, depth_m = primary
        raise BadInputError(
            f"--redraws: {num} of its rows {'has' if num == 1 else 'have'} the ids {ids[0]}, {ids[1]} and the primary"
            f" (E {energy_gev:g} GeV, zenith {zenith_rad:g}, A {mass_a:g}, depth {depth_m:g} m) of an event of -i; each"
            " event needs 2 or more. Name files in which all of these primaries were drawn at least twice more"
        )
    most = int(np.argmax(np.diff(real.offsets)))
    real_P3 = real.particle_columns["muons"][real.offsets[most] : real.offsets[most + 1]]
    if len(real_P3) and any(np.array_equal(of_row, real_P3) for of_row in muons_of_E[most]):
        raise BadInputError("--redraws: among its files are those of -i, whose muons are the real ones")

    def redraw(draw: int) -> BundleArrays:
        drawn = [of_event[draw] for of_event in muons_of_E]
        return BundleArrays.of(np.array([len(muons) for muons in drawn]), np.concatenate(drawn))

    return [partial(redraw, draw) for draw in range(num)]


def _keys(arrays: UnitArrays) -> list[bytes]:
    """Return ids and primary of each event, as bytes."""
    ids_E2, primary_E4 = arrays.event_columns["primary_id"], arrays.event_columns["primary"].astype(np.float32)
    together = np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in (ids_E2, primary_E4)], axis=1)
    return [row.tobytes() for row in together]


_EVENTS_AT_A_TIME = 10_000
_ROWS_AT_A_TIME = 20_000


def drawn_sample(config: SimulatorConfig, events: int, seed: int) -> Sample:
    """Return independent events from the simulator."""
    rng = numpy_stream(MuonPurpose.SIMULATED_EVENTS, seed)
    pieces = []
    with SlowProgress("simulating: events", events) as progress:
        for first in range(0, events, _EVENTS_AT_A_TIME):
            pieces.append(simulate(sample_primaries(min(_EVENTS_AT_A_TIME, events - first), config, rng), config, rng))
            progress.advance(len(pieces[-1]))
    primary_E4 = np.concatenate([piece.primary_E4 for piece in pieces]).astype(np.float64)
    counts_E = np.concatenate([piece.counts_E for piece in pieces])
    bundles = BundleArrays.of(counts_E, np.concatenate([piece.muons_P3 for piece in pieces]))
    return Sample(primary_E4, np.arange(events), bundles)


def drawn_again(
    primary_E4: Float64, shower_E: np.ndarray, config: SimulatorConfig, *, seed: int, draw: int = 0
) -> BundleArrays:
    """Return independent bundles for the same primaries; events of one shower again belong to one shower.

    ``primary_E4``: energy_gev, zenith_rad, mass_a, depth_m (vertical). Order of events as given.
    ``draw``: number of the redraw; each is independent of the others.
    """
    rng = numpy_stream(MuonPurpose.SIMULATED_AGAIN, seed, draw)
    # Files of several productions may share ids: events with different primaries are different showers.
    keys_E4 = np.column_stack([shower_E.astype(np.float64), primary_E4[:, :3]])
    _, first_S, shower_of_E, size_S = np.unique(
        keys_E4, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    # Rows by shower, then by depth; showers of as many rows together.
    order_E = np.lexsort((primary_E4[:, 3], shower_of_E.reshape(-1)))
    start_S = np.cumsum(size_S) - size_S
    showers, pieces = np.argsort(size_S, kind="stable"), []
    while len(showers):
        some = showers[: max(_ROWS_AT_A_TIME // int(size_S[showers[-1]]), 1)]
        showers = showers[len(some) :]
        depth_m_SD = np.full((len(some), int(size_S[some].max())), np.inf)
        of_row, event_of_row = ragged(start_S[some], size_S[some])
        events = order_E[event_of_row]
        depth_m_SD[of_row, event_of_row - start_S[some][of_row]] = primary_E4[events, 3]
        primaries = SimulatedPrimaries.from_columns(primary_E4[first_S[some]])
        drawn = simulate_showers(primaries, depth_m_SD, config, rng)
        pieces.append((events, drawn.counts_E, drawn.muons_P3))
    return _in_order(*(np.concatenate(parts) for parts in zip(*pieces, strict=True)))


def _in_order(place_E: Int64, counts_E: Int64, muons_P3: np.ndarray) -> BundleArrays:
    """Return bundles in order of their places, from 0 on."""
    rows, starts_E = np.argsort(place_E), np.cumsum(counts_E) - counts_E
    return BundleArrays.of(counts_E[rows], muons_P3[ragged(starts_E[rows], counts_E[rows])[1]])


def with_interactions_of(paths: Iterable[Path], config: SimulatorConfig) -> SimulatorConfig:
    """Return the configuration of real showers with the library and the field by which the files were simulated.

    Raises BadInputError for files that don't say so, or of several libraries.
    """
    keys = ("interactions", "library", "field", "library_format")
    footers = (read_provenance(path) if file_kind(path) == "Parquet" else {} for path in paths)
    found = {tuple(footer.get(key) for key in keys) for footer in footers}
    (*settings, library_format), *others = found
    if others or library_format != FORMAT:
        raise BadInputError("the files are not of `icestream simulate` with one library of interactions: use --redraws")
    return replace(config, **dict[str, Any](zip(keys, settings, strict=False)))


def natural_weights(primary_E4: Float64, config: SimulatorConfig) -> Float64:
    """Return weights from this spectrum to the natural flux (H3a), with mean 1. (E, 4) -> (E,).

    Flux at the primary's energy and mass, divided by the density from which the primary was drawn.
    """
    if config.spectrum == "h3a":
        return np.ones(len(primary_E4))
    weight_E = np.zeros(len(primary_E4))
    for group, mass in enumerate(GROUP_MASS):
        of_group_E = np.isclose(primary_E4[:, 2], mass)
        share = MASS_FRACTIONS[group]
        if of_group_E.any() and share > 0:
            energy_gev = primary_E4[of_group_E, 0]
            weight_E[of_group_E] = h3a_flux(energy_gev, group) / (share * energy_gev**-config.gamma)
    if not weight_E.sum() > 0:
        raise BadInputError("no event has the mass of one of the simulator's nuclei: they have no natural flux")
    weight_E /= weight_E.mean()
    return weight_E


_PIT_EVENTS_AT_A_TIME = 16_384


def generated_events(generator: MuonSampler, real: Sample, seed: int) -> tuple[BundleArrays, int]:
    """Return events, one for each primary of ``real``, and how many were cut down to MAX_COUNT muons."""
    _, first_S, shower_E = np.unique(real.shower_E, return_index=True, return_inverse=True)
    order_E = np.argsort(first_S[shower_E], kind="stable")  # rows of a shower together
    ids_E2 = real.shower_E[order_E, None].repeat(2, 1).astype(np.uint64)
    primaries = Primaries(ids_E2, real.primary_E4[order_E].astype(np.float32))
    pieces = []
    with SlowProgress("generating: events", len(real)) as progress:
        rule = CountRule("sampled", max_count=MAX_COUNT)
        for piece in generate_events([primaries], generator, rule, "vertical", seed):
            pieces.append(piece)
            progress.advance(len(piece))
    bundles = MuonBundles.joined(pieces)
    return _in_order(order_E, bundles.counts_E, bundles.muons), bundles.num_capped


def pit(generator: MuonSampler, primary_E4: Float64, counts_E: Int64, seed: int) -> Float64:
    """Return P(N < n) + u·P(N = n) for each real count n, u uniform: flat from 0 to 1 if the model is right."""
    parts = []
    for first in range(0, len(counts_E), _PIT_EVENTS_AT_A_TIME):
        some = slice(first, first + _PIT_EVENTS_AT_A_TIME)
        primary_C4 = torch.from_numpy(primary_E4[some].astype(np.float32)).to(generator.device)
        cdf = generator.count_cdf(primary_C4, torch.from_numpy(counts_E[some]).to(generator.device))
        parts.append(torch.stack(cdf).cpu().numpy().astype(np.float64))
    below_E, up_to_E = np.concatenate(parts, axis=1)
    uniform_E = numpy_stream(MuonPurpose.COUNT_PIT, seed).random(len(below_E))
    between_E: Float64 = below_E + uniform_E * (up_to_E - below_E)
    return np.clip(between_E, 0.0, 1.0)


def not_begun(run: TrainedRun) -> Iterator[str]:
    """Yield a note on a WGAN of which only the likelihood model has been trained."""
    if run.step <= (steps := run.section.get("likelihood_steps", 0)):
        yield f"step {run.step:,} of the {steps:,} that train the likelihood model: generator and critic follow"


def _measure(front: Front, wanted: EvaluationRequest, models: Sequence[Trained], say: Say) -> Measured:
    real, origin, redraws = real_events(front, wanted, models, say)
    if len(np.unique(real.shower_E[real.weights_E > 0])) < 2:
        those = "the events" if real.weight_E is None else "the events with a weight above 0"
        raise BadInputError(f"{those} are all of one shower: nothing to compare with")
    if real.weight_E is not None:
        effective = real.weight_E.sum() ** 2 / (real.weight_E**2).sum()
        note = f"weighted events: they count as much as {effective:,.0f} unweighted ones"
        origin = replace(origin, notes=(*origin.notes, note))
    reports: list[MetricReport] = []
    drawn: dict[str, Generated] = {}
    for name, model in zip(frame.run_names(models, "generated"), models, strict=True):
        report, drawn[name] = _compared(wanted, model, real, redraws, reports[0].floors if reports else None)
        reports.append(replace(report, notes=(*not_begun(model.run), *report.notes)))
    return Measured(
        reports=reports,
        pictures=GALLERY.draw(EventPairs(real, drawn, wanted.seed)),
        origin=origin,
        about={
            "simulated": wanted.preset or None,
            "redraw_files": [without_secrets(text) for text in wanted.redraws] or None,
            "weights": wanted.weights or None,
            "c2st_epochs": wanted.c2st_epochs,
        },
    )


EVALUATION = Evaluation(EvaluationRequest, WORDS, DEFINITIONS, load_trained, _measure)


def real_events(
    front: Front, wanted: EvaluationRequest, models: Sequence[Trained], say: Say
) -> tuple[Sample, frame.Origin, list[Redraw]]:
    """Return events of files or of the simulator, their origin, and what draws them again.

    Files are read with the settings of the first model's training, unless the command overrides them.
    """
    redraws: list[Redraw] = []
    simulator = preset(wanted.preset) if wanted.preset else None
    if wanted.simulate:
        sample = drawn_sample(preset(wanted.simulate), wanted.events, wanted.seed)
        origin = frame.Origin((f"icestream simulate --preset {wanted.simulate}",))
    else:
        runs = [model.run for model in models]
        settings = frame.file_settings(front, wanted, runs[0])
        with frame.read_events(front, settings, wanted, MUONS, runs) as files:
            weight_E = None
            if wanted.weights and wanted.weights != NATURAL_FLUX:
                file_E, row_E = (files.arrays.event_columns[name][:, 0] for name in ("source_file", "source_row"))
                weight_E = read_weights(files.paths, file_E, row_E, wanted.weights)
            sample = sample_of(files.arrays, weight_E)
            origin = frame.origin_of(settings, files, tuple(reading_notes(files)), say)
            if wanted.redraws:
                redraws = redraws_of_files(front, settings, wanted, files.arrays)
            if simulator and simulator.interactions:
                simulator = with_interactions_of(files.paths.values(), simulator)
    if simulator and wanted.weights == NATURAL_FLUX:
        sample = replace(sample, weight_E=natural_weights(sample.primary_E4, simulator))
    if simulator:
        again = partial(drawn_again, sample.primary_E4, sample.shower_E, simulator, seed=wanted.seed)
        redraws = [partial(again, draw=draw) for draw in range(REDRAWS)]
    return sample, origin, redraws


def _compared(
    wanted: EvaluationRequest,
    trained: Trained,
    real: Sample,
    redraws: Sequence[Redraw],
    floors: Mapping[str, Floor] | None = None,
) -> tuple[MetricReport, Generated]:
    """Return the report on a model, and what is drawn of it.

    ``floors``: those of the report on another model.
    """
    generator = trained.generator
    generated, num_capped = generated_events(generator, real, wanted.seed)
    pit_E = pit(generator, real.primary_E4, real.bundles.counts_E, wanted.seed)
    settings = EvaluationSettings(wanted.bootstraps, wanted.c2st_epochs, wanted.seed)
    with SlowProgress(f"comparing {trained.run.model}", 100, to_text="{} %".format) as progress:
        report = evaluate(
            real,
            generated,
            independent=redraws,
            floors=floors,
            pit_E=pit_E,
            settings=settings,
            progress=lambda part: progress.reach(int(100 * part), 100),
        )
    if num_capped:
        note = f"{num_capped:,} generated events had more than {MAX_COUNT:,} muons and were cut down to that"
        report = replace(report, notes=(note, *report.notes))
    return report, Generated(generated.finite()[0], pit_E)
