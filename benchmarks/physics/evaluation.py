"""Evaluation of a trained model: the project's own metrics, and those that need a simulator.

Shapes: E events, P muons.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.physics import truth
from benchmarks.physics.data import evaluation_events, redrawn, tail_primaries
from benchmarks.physics.models import Model, make_model
from benchmarks.physics.muon_truth import muon_nats
from benchmarks.physics.purposes import PhysicsPurpose
from benchmarks.physics.spec import BINS, CORSIKA_FILE, HISTOGRAMS, Run, Source
from benchmarks.physics.tails import Tails
from workloads.base.random_streams import numpy_stream, stream_seed
from workloads.muons.metrics.bundles import BundleArrays, EvaluationSettings, Sample
from workloads.muons.metrics.distances import ConditionBins, CountMetrics, binned_distance
from workloads.muons.metrics.panel import distances
from workloads.muons.metrics.two_sample import attention_test, set_test
from workloads.muons.models.count_head import count_nll
from workloads.muons.models.likelihood_densities import MuonSampler

Draw = Callable[[npt.ArrayLike, int], tuple[BundleArrays, float]]
"""Primaries (E, 4) and the number of the draw -> events, and CPU seconds."""
Values = dict[str, list[float]]
"""Values of each metric, one for each generation."""
Progress = Callable[[str, float], None]

EVENTS_AT_A_TIME = 4096
MAX_COUNT = 20_000
"""Most muons of a generated event; larger ones are truncated. Far from its training data a model may diverge."""
CORSIKA_COPIES = 5
"""Copies generated of each of the few CORSIKA showers: only the fluctuations of the real ones remain."""
_TAIL_BLOCK, _REAL_TAILS = 100_000, 2
"""Events at a time, and draws of the simulator with which one generation is compared."""
_FIRST_TAIL = 1000
"""Number of the first draw of the tails: no other one has it."""
_NATS_EVENTS = 30_000


def judge(run: Run, trained: Mapping[str, Any] | None, progress: Progress) -> dict[str, Any]:
    """Metrics of a run and its cost, as JSON. ``trained``: None for the simulator."""
    source = run.judged_by or run.source
    progress("simulating", 0.0)
    real = evaluation_events(source, run.events, tuning=run.tuning)
    if source.preset == CORSIKA_FILE:
        real = _copies(real, CORSIKA_COPIES)
    values: Values = {}
    if trained is None:
        draw = _redraws(source)
    else:
        model = make_model(run)
        model.load_state_dict(trained["state"])
        draw = _generations(model.sampler(), run.seed, muons=run.model != "count head")
        costs = {name: float(trained[name]) for name in ("num_parameters", "train_cpu_s", "simulate_cpu_s")}
        _add(values, costs | _nats(model, real, source))
    begun_s = time.process_time()
    first, histograms, cpu_s = _compare(run, source, real, draw, values, progress)
    if trained is not None:
        values["events_per_s"] = [run.generations * len(real) / cpu_s]
    if run.tail_events:
        _add_tails(run, source, draw, values, progress)
    if run.c2st_events and trained is not None:
        _add(values, _classifiers(run, real, first, progress))
    values["evaluate_cpu_s"] = [time.process_time() - begun_s]
    return {"run": asdict(run), "values": values, "histograms": histograms}


def _add(values: Values, more: Mapping[str, float]) -> None:
    for name, value in more.items():
        values.setdefault(name, []).append(value)


def _compare(
    run: Run, source: Source, real: Sample, draw: Draw, values: Values, progress: Progress
) -> tuple[BundleArrays, dict[str, list[float]], float]:
    """Add the metrics of each generation. Returns events of the first; mean histograms and CPU seconds of all."""
    bins = None if source.preset == CORSIKA_FILE else ConditionBins(real.primary_E4)
    first, all_s = None, 0.0
    histograms: list[dict[str, npt.NDArray[np.float64]]] = []
    expected = real.bundles.counts_E.sum() if bins is None else truth.expected_muons(real.primary_E4, source)
    for number in range(run.generations):
        progress("comparing", number / run.generations)
        generated, cpu_s = draw(real.primary_E4, number)
        all_s += cpu_s
        first = first or generated
        ones_1E = np.ones((1, len(real)))
        counts = CountMetrics(real.bundles.counts_E, generated.counts_E)(ones_1E, ones_1E)
        found = {name: float(value[0]) for name, value in counts.items()}
        found["count_mean_ratio"] = float(generated.counts_E.sum() / expected)
        if run.model != "count head":
            found |= distances(real.bundles, generated)
            if bins is not None and (given := _given_primary(real, generated, bins)) is not None:
                found["conditional_log10_energy_w1"] = given
        _add(values, found)
        histograms.append(_histograms(generated))
    assert first is not None
    mean = {name: np.mean([one[name] for one in histograms], 0).tolist() for name in histograms[0]}
    return first, mean, all_s


def _given_primary(real: Sample, generated: BundleArrays, bins: ConditionBins) -> float | None:
    """Mean W1 of lg E over bins of primary energy and mass; None if no bin has enough muons."""
    bin_E = bins.of(real.primary_E4)["conditional"]
    distance = binned_distance(real, real.with_bundles(generated), "log10_energy", bin_E, bin_E)
    ones_1E = np.ones((1, len(real)))
    return None if distance is None else float(distance(ones_1E, ones_1E)[0])


def _add_tails(run: Run, source: Source, draw: Draw, values: Values, progress: Progress) -> None:
    """Add the metrics of what is rare: once for a model; for the simulator as often as it is drawn again."""
    primary_E4 = tail_primaries(source, run.tail_events, tuning=run.tuning)
    blocks = list(enumerate(np.array_split(primary_E4, max(len(primary_E4) // _TAIL_BLOCK, 1)), _FIRST_TAIL))
    tails, real = Tails(source, primary_E4), _redraws(source)
    for repeat in range(_REAL_TAILS):
        for number, block_E4 in blocks:
            tails.add_real(real(block_E4, number + repeat * len(blocks))[0])
    repeats = run.generations if run.model == "simulator" else 1
    for repeat in range(repeats):
        progress("tails", repeat / repeats)
        sums = tails.new_sums()
        for number, block_E4 in blocks:
            sums.add(draw(block_E4, number + (_REAL_TAILS + repeat) * len(blocks))[0])
        _add(values, tails.ratios(sums))


def _classifiers(run: Run, real: Sample, generated: BundleArrays, progress: Progress) -> dict[str, float]:
    """AUCs of classifiers that see every muon, and their standard deviations for events that are alike."""
    chosen_E = np.arange(len(real)) < run.c2st_events
    a, b = (one.only(chosen_E) for one in (real, real.with_bundles(generated)))
    settings, ones_1E = EvaluationSettings(), np.ones((1, len(a)))

    def tell(done: float) -> None:
        progress("classifiers", done)

    # One training: a table has the median over several models, each with a classifier of its own.
    tests = {"c2st_auc": set_test(a, b, settings, tell, trainings=1)}
    if run.attention:
        tests["c2st_attention_auc"] = attention_test(a, b, settings, tell)
    found = {name: float(test(ones_1E, ones_1E)[0]) for name, test in tests.items()}
    return found | {f"{name}_chance": test.chance(a, b) for name, test in tests.items()}


def _redraws(source: Source) -> Draw:
    """Events of the simulator, drawn again."""

    def draw(primary_E4: npt.ArrayLike, number: int) -> tuple[BundleArrays, float]:
        started_s = time.process_time()
        events = redrawn(primary_E4, source.config, numpy_stream(PhysicsPurpose.REDRAW, number))
        return events, time.process_time() - started_s

    return draw


def _generations(sampler: MuonSampler, seed: int, *, muons: bool) -> Draw:
    """Events of a model; without ``muons``, all of these are alike."""

    def draw(primary_E4: npt.ArrayLike, number: int) -> tuple[BundleArrays, float]:
        random = torch.Generator().manual_seed(stream_seed(PhysicsPurpose.GENERATION, seed, number))
        counts, drawn = [], []
        started_s = time.process_time()
        for part_E4 in torch.from_numpy(np.asarray(primary_E4, np.float32)).split(EVENTS_AT_A_TIME):  # type: ignore[no-untyped-call]
            counts_E = sampler.draw_counts(part_E4, random).clamp_max(MAX_COUNT)
            counts.append(counts_E.numpy())
            some_P3 = sampler.draw_muons(part_E4, counts_E, random) if muons else torch.ones(int(counts_E.sum()), 3)
            drawn.append(some_P3.numpy())
        cpu_s = time.process_time() - started_s
        # A model must not generate infinities: if one does, they are left out, as in `icestream evaluate`.
        return BundleArrays.of(np.concatenate(counts), np.concatenate(drawn)).finite()[0], cpu_s

    return draw


def _nats(model: Model, real: Sample, source: Source) -> dict[str, float]:
    """Mean -ln p of the real counts, and of the muons, above that of the simulator; empty where it has none."""
    if source.preset == CORSIKA_FILE:
        return {}
    real = real.only(np.arange(len(real)) < _NATS_EVENTS)
    found = {"count_nats_excess": _count_nats(model.sampler(), real) - truth.mean_nll(real, source)}
    nats = model.muon_nats(real)
    if nats is not None:
        best = muon_nats(real.primary_E4, real.bundles, source).mean()
        found["muon_nats_excess"] = float((nats - best) / real.bundles.counts_E.mean())
    return found


@torch.no_grad()
def _count_nats(sampler: MuonSampler, real: Sample) -> float:
    """Mean -ln p(N | primary). Not the head's own loss, which may be of p(N | N >= 1)."""
    conditions_EC = sampler.standardise.conditions(torch.from_numpy(real.primary_E4).float())
    return float(count_nll(sampler.count_head(conditions_EC), torch.from_numpy(real.bundles.counts_E))) / len(real)


def _copies(sample: Sample, times: int) -> Sample:
    """Sample with each event ``times`` times. Copies of a shower count as one shower."""
    columns = [getattr(sample.bundles, field.name) for field in fields(BundleArrays)]
    copied = BundleArrays(*(np.tile(column, times) for column in columns))
    return Sample(np.tile(sample.primary_E4, (times, 1)), np.tile(sample.shower_E, times), copied)


def _histograms(bundles: BundleArrays) -> dict[str, npt.NDArray[np.float64]]:
    """Fractions in fixed bins, with values beyond the range in the outermost bins; mean lg r in bins of lg E."""
    features = {name: feature.values for name, feature in bundles.features.items()}
    found = {}
    for name, (low, high) in HISTOGRAMS.items():
        counts, _ = np.histogram(np.clip(features[name], low, high), BINS, (low, high))
        found[name] = counts / max(len(features[name]), 1)
    energy_P, radius_P = features["log10_energy"], features["log10_radius"]
    low, high = HISTOGRAMS["log10_energy"]
    bin_P = np.clip((energy_P - low) / (high - low) * BINS, 0, BINS - 1).astype(np.int64)
    muons = np.bincount(bin_P, minlength=BINS)
    found["radius_of_energy"] = np.bincount(bin_P, radius_P, BINS) / np.maximum(muons, 1)
    found["muons_of_energy"] = muons.astype(np.float64)
    return found
