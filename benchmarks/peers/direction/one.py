"""One training, in a process of its own: `python -m benchmarks.peers.direction.one TASK`, a JSON object.

Its CPU time, all of it from the start of the process on, is the budget. The row of the result is written to a file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import icestream
from benchmarks.peers.direction.conversion import KagglePulses
from benchmarks.peers.direction.networks import Peer
from benchmarks.peers.direction.recipes import RECIPES, Recipe, changed
from benchmarks.peers.loaders import version_of
from common.atomic_file import replace_file
from workloads.direction.geometry import GEOMETRY_FILE, read_geometry
from workloads.direction.metrics import PredictedEvents, evaluate, kappa_bins, unit_and_norm
from workloads.direction.models.network import Detector

HELD_OUT = 0.03
"""Share of the training events that ours hold out for their validation: the peers don't train on them either."""
LOWEST_FACTOR = 1e-2
"""Factor of the learning rate at the start and at the end: GraphNeT's examples."""
BOOTSTRAPS = 200
PACKAGES = ("torch", "graphnet", "torch_geometric", "torch_cluster", "torch_scatter")


class Clock:
    """CPU seconds of this process by what they were spent on; "start" is all before the first batch."""

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = {}
        self._last_s = 0.0

    def lap(self, name: str) -> None:
        """Count the time since the last call."""
        now_s = time.process_time()
        self.spent_s[name] = self.spent_s.get(name, 0.0) + now_s - self._last_s
        self._last_s = now_s


def batches(folder: Path, recipe: Recipe, seed: int) -> Iterator[icestream.RaggedBatch]:
    """Batches of training events without an end."""
    where = None if recipe.cascades else "enriched == 0"
    stream = icestream.stream(
        folder,
        batch_events=recipe.batch_events,
        decoders=1,
        device="cpu",
        seed=seed,
        where=where,
        settings={"stream.held_out": HELD_OUT, "stream.slot_mib": 32},
    )
    with stream:
        while True:
            yield from stream


def pulses_of(batch: icestream.RaggedBatch, recipe: Recipe, detector: Detector) -> KagglePulses:
    """Return the pulses of a batch as the peers see them: any detector at IceCube's size, as our models do."""
    stretch = recipe.stretch * detector.scale
    return KagglePulses.of(batch, detector.seen_S3, most=recipe.most_pulses, stretch=stretch)


@dataclass
class Progress:
    """Numbers of a training so far."""

    steps: int = 0
    events: int = 0
    skipped: int = 0
    """Updates that were left out, since the gradient was not finite."""


def rate_factor(done: float, warm_up: float) -> float:
    """Return the factor of the learning rate after a share ``done`` of the budget, as GraphNeT's PiecewiseLinearLR."""
    return float(np.interp(done, [0.0, warm_up, 1.0], [LOWEST_FACTOR, 1.0, LOWEST_FACTOR]))


def train(peer: Peer, recipe: Recipe, task: dict[str, Any], detector: Detector, clock: Clock) -> Progress:
    """Train until the CPU time of the process is spent."""
    optimiser = torch.optim.Adam(peer.parameters(), lr=recipe.learning_rate, eps=recipe.epsilon)
    progress, seconds, last_s = Progress(), float(task["seconds"]), 0.0
    for batch in batches(Path(task["data"]) / "training", recipe, task["seed"]):
        clock.lap("stream" if progress.steps else "start")
        started_s = time.process_time()
        if started_s + last_s / 2 > seconds:  # half of the trainings end a little early, half a little late
            break
        pulses = pulses_of(batch, recipe, detector)
        parts = [peer.data(part) for _, part in pulses.by_size(recipe.parts)]
        clock.lap("conversion")
        for group in optimiser.param_groups:
            group["lr"] = recipe.learning_rate * rate_factor(started_s / seconds, recipe.warm_up)
        optimiser.zero_grad()
        mean_loss = 0.0
        for data in parts:
            loss = peer.loss(peer(data), data) * (len(data.n_pulses) / len(pulses.counts_E))
            loss.backward()
            mean_loss += loss.item()
        if all(bool(one.grad.isfinite().all()) for one in peer.parameters() if one.grad is not None):
            optimiser.step()
        else:
            progress.skipped += 1
        clock.lap("step")
        last_s = time.process_time() - started_s
        progress.steps += 1
        progress.events += batch.num_events
        if progress.steps % 100 == 0:
            print(f"{started_s:6.0f} s, {progress.events:,} events, loss {mean_loss:.3f}", flush=True)
    return progress


@torch.no_grad()
def predicted(peer: Peer, recipe: Recipe, folder: Path, detector: Detector, clock: Clock) -> PredictedEvents:
    """Return the predictions of all held-out events."""
    peer.eval()
    vectors, truths, topologies, energies = [], [], [], []
    settings = {"stream.held_out": 0.0}
    with icestream.stream(
        folder, batch_events=256, decoders=1, device="cpu", shuffle=False, settings=settings
    ) as stream:
        for batch in stream:
            clock.lap("evaluation")
            pulses = pulses_of(batch, recipe, detector)
            p_E3 = torch.zeros(batch.num_events, 3)
            with_pulses = batch.counts.nonzero()[:, 0]
            for events, part in pulses.by_size(recipe.parts):
                data = peer.data(part)
                clock.lap("evaluation")
                prediction_E4 = peer(data)
                clock.lap("forward")
                p_E3[with_pulses[events]] = prediction_E4[:, :3] * prediction_E4[:, 3:]
            vectors.append(p_E3.double().numpy())
            truths.append(batch["source_direction"].double().numpy())
            topologies.append(batch["topology"][:, 0].numpy())
            energies.append(batch["true_energy"][:, 0].double().numpy())
    direction_E3, kappa_E = unit_and_norm(np.concatenate(vectors))
    return PredictedEvents(
        direction_E3,
        kappa_E,
        unit_and_norm(np.concatenate(truths))[0],
        np.concatenate(topologies),
        np.concatenate(energies),
        np.zeros(len(kappa_E), np.int64),  # not asked for by any metric
        np.full((len(kappa_E), 2), np.nan),  # the peers predict no energy
    )


def main() -> None:
    task = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(task["seed"])
    loads = [os.getloadavg()[0]]
    recipe = changed(RECIPES[task["model"]], task["changes"])
    folder = Path(task["data"])
    detector = Detector(read_geometry(folder / "training" / GEOMETRY_FILE))
    peer = Peer(recipe)
    clock = Clock()
    progress = train(peer, recipe, task, detector, clock)
    trainer_cpu_s = time.process_time()
    loads.append(os.getloadavg()[0])
    torch.manual_seed(0)  # of the sample of an event's pulses
    events = predicted(peer, recipe, folder / "held-out", detector, clock)
    report = evaluate(events, bootstraps=BOOTSTRAPS, seed=0)
    finite_E = np.isfinite(events.angle_rad_E)
    *_, ratio_B = kappa_bins(events.angle_rad_E[finite_E], events.kappa_E[finite_E])
    row = {
        **task,
        "recipe": recipe.__dict__,
        "parameters": sum(one.numel() for one in peer.parameters()),
        "trainer_cpu_s": round(trainer_cpu_s, 1),
        "cpu_s": {name: round(spent_s, 2) for name, spent_s in clock.spent_s.items()},
        "steps": progress.steps,
        "skipped_updates": progress.skipped,
        "events_trained": progress.events,
        "events_per_cpu_s": round(progress.events / trainer_cpu_s, 1),
        "step_events_per_s": round(progress.events / clock.spent_s["step"], 1),
        "forward_events_per_s": round(len(events) / clock.spent_s["forward"], 1),
        "held_out_events": len(events),
        "metrics": {name: metric.value for name, metric in report.metrics.items()},
        "errors": {name: metric.error for name, metric in report.metrics.items()},
        "kappa_decile_ratios": ratio_B.round(4).tolist(),
        "versions": {name: version_of(name) for name in PACKAGES},
        "loads": loads,
    }
    replace_file(Path(task["row"]), json.dumps(row, indent=1) + "\n", durable=False)


if __name__ == "__main__":
    main()
