"""Evaluation of a trained model: the project's own metrics, and those that need a simulator.

Shapes: E events, P muons.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import torch

from benchmarks.physics import truth
from benchmarks.physics.data import validation
from benchmarks.physics.models import make_model
from benchmarks.physics.spec import BINS, CORSIKA_FILE, HISTOGRAMS, Run, Source
from workloads.muons.generation.generator import MuonGenerator
from workloads.muons.metrics.bundles import BundleArrays, Float64
from workloads.muons.metrics.evaluate import evaluate
from workloads.muons.metrics.sample import Sample
from workloads.muons.metrics.settings import EvaluationSettings
from workloads.muons.models.count_head import MixtureCountHead, count_nll

EVENTS_AT_A_TIME = 4096
MAX_COUNT = 20_000
"""Most muons of a generated event; larger ones are truncated. Far from its training data a model may diverge."""
CORSIKA_COPIES = 5
"""Copies generated of each of the few CORSIKA showers: only the fluctuations of the real ones remain."""


def judge(run: Run, trained: dict[str, Any], progress: Callable[[str, float], None]) -> dict[str, Any]:
    """Metrics of a run and its cost, as JSON."""
    source = run.judged_by or run.source
    progress("simulating", 0.0)
    real, second = validation(source, run.events)
    if source.preset == CORSIKA_FILE:
        real = _copies(real, CORSIKA_COPIES)
        # Without a second draw, halves of the showers would be compared, and most muons are in one shower. So each is
        # compared with itself, and there is no floor.
        second = real.bundles
    model = make_model(run)
    model.load_state_dict(trained["state"])
    sampler = model.sampler()
    progress("generating", 0.0)
    generated, pit_E, generate_cpu_s = generate(sampler, real, run.seed)
    settings = EvaluationSettings(c2st=run.c2st, max_events=run.events)
    begun_s = time.process_time()
    report = evaluate(real, generated, independent=second, pit_E=pit_E, settings=settings, progress=progress)
    evaluate_cpu_s = time.process_time() - begun_s
    metrics = {name: asdict(metric) for name, metric in report.metrics.items()}
    if source.preset == CORSIKA_FILE:
        metrics = {name: {**metric, "floor": None} for name, metric in metrics.items()}
    return {
        "run": asdict(run),
        "metrics": metrics,
        "extra": {
            "num_parameters": trained["num_parameters"],
            "train_cpu_s": trained["train_cpu_s"],
            "simulate_cpu_s": trained["simulate_cpu_s"],
            "generate_cpu_s": generate_cpu_s,
            "evaluate_cpu_s": evaluate_cpu_s,
            "events_per_s": len(real) / generate_cpu_s,
            **_nll(sampler, real, source),
        },
        "notes": list(report.notes),
        "histograms": {"real": _histograms(real.bundles), "generated": _histograms(generated)},
    }


def generate(sampler: MuonGenerator, real: Sample, seed: int) -> tuple[BundleArrays, Float64 | None, float]:
    """Events, one for each primary; PIT of the real counts, if the model has a distribution; CPU seconds."""
    random = torch.Generator().manual_seed(seed)
    uniform = np.random.default_rng(seed)
    counts, muons, pits = [], [], []
    cpu_s = 0.0
    real_counts_E = torch.from_numpy(real.bundles.counts_E)
    for primary_E4, counts_E in zip(
        torch.from_numpy(real.primary_E4).float().split(EVENTS_AT_A_TIME),
        real_counts_E.split(EVENTS_AT_A_TIME),
        strict=True,
    ):
        started_s = time.process_time()
        drawn_E = sampler.draw_counts(primary_E4, random).clamp_max(MAX_COUNT)
        muons_P3 = sampler.draw_muons(primary_E4, drawn_E, random)
        cpu_s += time.process_time() - started_s
        counts.append(drawn_E.numpy())
        muons.append(muons_P3.numpy())
        cdf = sampler.count_cdf(primary_E4, counts_E)
        if cdf is not None:
            below_E, up_to_E = (one.numpy() for one in cdf)
            pits.append(below_E + uniform.random(len(below_E)) * (up_to_E - below_E))
    return BundleArrays.of(np.concatenate(counts), np.concatenate(muons)), np.concatenate(pits) if pits else None, cpu_s


def _nll(sampler: MuonGenerator, real: Sample, source: Source) -> dict[str, float]:
    """Mean -ln p(N | primary) of model and simulator, in nats; empty if one of them has no distribution."""
    head = getattr(sampler, "count_head", None)
    if not isinstance(head, MixtureCountHead) or source.preset == CORSIKA_FILE or source.rows != "independent":
        return {}
    conditions_EC = sampler.standardise.conditions(torch.from_numpy(real.primary_E4).float())  # type: ignore[attr-defined]
    counts_E = torch.from_numpy(real.bundles.counts_E)
    with torch.no_grad():
        # Not head.loss(): that may be of p(N | N >= 1).
        nll = float(count_nll(head(conditions_EC), counts_E)) / len(real)
    best = truth.mean_nll(real.primary_E4, real.bundles.counts_E, source)
    return {"nll": nll, "nll_of_truth": best, "nll_excess": nll - best}


def _copies(sample: Sample, times: int) -> Sample:
    """Sample with each event ``times`` times. Copies of a shower count as one shower."""
    columns = [getattr(sample.bundles, field.name) for field in fields(BundleArrays)]
    copied = BundleArrays(*(np.tile(column, times) for column in columns))
    return Sample(np.tile(sample.primary_E4, (times, 1)), np.tile(sample.shower_E, times), copied)


def _histograms(bundles: BundleArrays) -> dict[str, list[float]]:
    """Fractions in fixed bins, with values beyond the range in the outermost bins; mean lg r in bins of lg E."""
    finite, _ = bundles.finite()
    features = finite.features
    found = {}
    for name, (low, high) in HISTOGRAMS.items():
        counts, _ = np.histogram(np.clip(features[name], low, high), BINS, (low, high))
        found[name] = (counts / max(len(features[name]), 1)).tolist()
    energy_P, radius_P = features["log10_energy"], features["log10_radius"]
    low, high = HISTOGRAMS["log10_energy"]
    bin_P = np.clip((energy_P - low) / (high - low) * BINS, 0, BINS - 1).astype(np.int64)
    muons = np.bincount(bin_P, minlength=BINS)
    found["radius_of_energy"] = (np.bincount(bin_P, radius_P, BINS) / np.maximum(muons, 1)).tolist()
    found["muons_of_energy"] = muons.tolist()
    return found
