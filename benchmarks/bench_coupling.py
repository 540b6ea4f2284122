"""Coupling of the likelihood model's muons: where independence given z fails, and where it doesn't.

Question: what does `trainer.likelihood.network.coupling` find on events whose muons share a fixed energy, so that one
is low where another is high, which no z can say; and what does it cost on events of the `bench` preset, whose muons are
independent given their primary?

    python -m benchmarks.bench_coupling [--seeds 10,11,12] [--steps 2000] [--data budget,bench] [--jobs 2]

`budget`: events of `bench` with the energies of two and more muons rescaled, so that Σ (E - 1 GeV) is
N × 370 GeV × (E/A in PeV)^0.2, but for 5 %. 256 events a step; judged by 20,000 events of a seed of their own, with the
real numbers of muons: the count head is not the question. About 45 CPU seconds a run, 12 runs.

Table, medians over seeds with the smallest and largest: `nats/event` (held-out bound of -ln p(muons | N), events with
muons), `nats/muon`, `W1` of lg ΣE, `Var` (generated / real variance of lg of ΣE over its budget, two and more muons;
the real one of `budget` is the 5 %), `correlation` (of lg E of the two muons of pairs, each over its budget; the real
one beside it), `AUC` of the set classifier (one training), CPU seconds of the training (step alone), events generated
a CPU second. Every run is a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice, product
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from scipy.stats import wasserstein_distance
from torch import Tensor

from benchmarks.physics.data import batches
from benchmarks.physics.spec import Source
from workloads.base.batch import Batch, Microbatch
from workloads.base.context import StepContext
from workloads.muons.metrics.bundles import BundleArrays, EvaluationSettings, Sample
from workloads.muons.metrics.two_sample import set_test
from workloads.muons.models.config import LikelihoodConfig
from workloads.muons.models.likelihood import LikelihoodTask

BATCH_EVENTS, JUDGED_EVENTS, JUDGED_SEED = 256, 20_000, 1_000
CUT_GEV, BUDGET_GEV, BUDGET_POWER, BUDGET_SPREAD = 1.0, 370.0, 0.2, 0.05
COLUMNS = ("nats/event", "nats/muon", "W1", "Var", "correlation", "AUC", "train s", "events/s")


def budget_E(primary_E4: Tensor) -> Tensor:
    """Budget per muon in GeV."""
    pev_per_nucleon_E = primary_E4[:, 0].double() / primary_E4[:, 2] / 1e6
    return BUDGET_GEV * pev_per_nucleon_E**BUDGET_POWER


def sum_above_cut_E(counts_E: Tensor, energy_P: Tensor) -> Tensor:
    """Sum of E - cut over the muons of each event, GeV."""
    event_P = torch.repeat_interleave(torch.arange(len(counts_E)), counts_E)
    return torch.zeros(len(counts_E), dtype=torch.float64).index_add(0, event_P, energy_P.double() - CUT_GEV)


def with_budget(batch: Batch, seed: int) -> Batch:
    """The same events with energies that share a budget."""
    (events,) = batch.microbatches
    random = torch.Generator().manual_seed(seed)
    counts_E, muons_P3 = events.offsets_E1.diff(), events.particle_columns["muons"]
    spread_E = (BUDGET_SPREAD * torch.randn(len(counts_E), generator=random, dtype=torch.float64)).exp()
    wanted_E = counts_E * budget_E(events.event_columns["primary"]) * spread_E
    factor_E = torch.where(counts_E > 1, wanted_E / sum_above_cut_E(counts_E, muons_P3[:, 0]), 1.0)
    factor_P = torch.repeat_interleave(factor_E, counts_E)
    energy_P = CUT_GEV + (muons_P3[:, 0].double() - CUT_GEV) * factor_P
    changed_P3 = torch.cat([energy_P.float().unsqueeze(1), muons_P3[:, 1:]], 1)
    return Batch((replace(events, particle_columns={"muons": changed_P3}),))


def events_of(data: str, seed: int, batch_events: int, num: int) -> list[Batch]:
    """First ``num`` batches."""
    drawn = islice(batches(Source(), seed, batch_events), num)
    if data == "bench":
        return list(drawn)
    return [with_budget(batch, 1_000_000 * seed + index) for index, batch in enumerate(drawn)]


def shared(primary_E4: Tensor, counts_E: Tensor, energy_P: Tensor) -> dict[str, float]:
    """Variance of lg ΣE over its budget, and correlation of the lg E of two."""
    several_E = counts_E > 1
    ratio_E = sum_above_cut_E(counts_E, energy_P) / (counts_E * budget_E(primary_E4))
    lg_P = (
        (energy_P.double() - CUT_GEV).clamp_min(1e-3) / torch.repeat_interleave(budget_E(primary_E4), counts_E)
    ).log10()
    pairs = (counts_E.cumsum(0) - counts_E)[counts_E == 2]
    both = torch.stack([torch.cat([lg_P[pairs], lg_P[pairs + 1]]), torch.cat([lg_P[pairs + 1], lg_P[pairs]])])
    return {"variance": float(ratio_E[several_E].log10().var()), "correlation": float(torch.corrcoef(both)[0, 1])}


def sample_of(events: Microbatch, muons_P3: Tensor) -> Sample:
    """Events of the judged batch with these muons."""
    counts = events.offsets_E1.diff().numpy()
    primary = events.event_columns["primary"].numpy().astype(np.float64)
    return Sample(primary, np.arange(len(counts)), BundleArrays.of(counts, muons_P3.numpy()))


def run(data: str, coupling: bool, seed: int, steps: int) -> dict[str, Any]:
    """Result of one training."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = LikelihoodConfig.model_validate({"network": {"coupling": coupling}, "schedule_steps": steps})
    task = LikelihoodTask(config, StepContext(torch.device("cpu"), seed=seed))
    training_s = 0.0
    for batch in events_of(data, seed, BATCH_EVENTS, steps):
        started_s = time.process_time()
        task.step(batch)
        training_s += time.process_time() - started_s

    (judged,) = events_of(data, JUDGED_SEED, JUDGED_EVENTS, 1)
    (events,) = judged.microbatches
    found = task.held_out(judged)
    nats = float(found["nll"] - found["m_loss"]) * events.num_events
    primary_E4, counts_E = events.event_columns["primary"], events.offsets_E1.diff()
    started_s = time.process_time()
    muons_P3 = task.sampler().draw_muons(primary_E4, counts_E, torch.Generator().manual_seed(seed))
    generating_s = time.process_time() - started_s

    real_P3 = events.particle_columns["muons"]
    real, generated = (shared(primary_E4, counts_E, one[:, 0]) for one in (real_P3, muons_P3))
    samples = sample_of(events, real_P3), sample_of(events, muons_P3)
    lg_sums = (one.bundles.features["log10_bundle_energy"].values for one in samples)
    test = set_test(*samples, EvaluationSettings(), lambda done: None, trainings=1)
    ones = np.ones((1, events.num_events))
    return {
        "data": data,
        "coupling": coupling,
        "seed": seed,
        "steps": steps,
        "nats/event": nats / int((counts_E > 0).sum()),
        "nats/muon": nats / events.num_particles,
        "W1": float(wasserstein_distance(*lg_sums)),
        "Var": generated["variance"] / real["variance"],
        "correlation": generated["correlation"],
        "real correlation": real["correlation"],
        "AUC": float(test(ones, ones)[0]),
        "train s": training_s,
        "events/s": events.num_events / generating_s,
        "parameters": task.num_parameters,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Medians over seeds, with the range, as Markdown."""
    lines = ["| data | coupling | " + " | ".join(COLUMNS) + " |", "| --- " * (len(COLUMNS) + 2) + "|"]
    for data, coupling in dict.fromkeys((row["data"], row["coupling"]) for row in rows):
        same = [row for row in rows if (row["data"], row["coupling"]) == (data, coupling)]
        cells = [data, "yes" if coupling else "no"]
        for column in COLUMNS:
            values = [row[column] for row in same]
            middle, low, high = (f"{value:.4g}" for value in (statistics.median(values), min(values), max(values)))
            cells.append(
                f"{middle} ({low} to {high})"
                if column != "correlation"
                else f"{middle} ({low} to {high}); real {same[0]['real correlation']:.3g}"
            )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Lines of JSON as runs end, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="10,11,12")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--data", default="budget,bench")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    rows = []
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        runs = [
            pool.submit(run, data, coupling, seed, arguments.steps)
            for seed, data, coupling in product(seeds, arguments.data.split(","), (False, True))
        ]
        for one in runs:
            rows.append(one.result())
            print(json.dumps(rows[-1]), flush=True)
    rows.sort(key=lambda row: (row["data"], row["coupling"], row["seed"]))
    print("\n" + table(rows))


if __name__ == "__main__":
    main()
