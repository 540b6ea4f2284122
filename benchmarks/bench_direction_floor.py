"""Smallest possible error of the direction of simulated events: python -m benchmarks.bench_direction_floor --help

The posterior of each event's parameters, by the simulator's own likelihood (topology and ice known), sampled by
differential-evolution MCMC (ter Braak & Vrugt 2008, doi:10.1007/s11222-008-9104-9) from chains that start near the
truth. Its spherical median is the estimate with the smallest expected angle. The angle that the posterior itself
expects must agree with the real one: else the chains did not mix.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.direction_likelihood import (
    LG_ENERGY,
    NUM_PARAMETERS,
    TRAVEL,
    VERTEX,
    VERTEX_NS,
    EventLikelihood,
    Float64,
)
from workloads.direction.geometry import LIGHT_SPEED_M_NS
from workloads.direction.metrics import angles_rad, resolution
from workloads.direction.simulator import NATURAL, VERTEX_M, EventsPlan, file_rows

_START = np.array([5, 5, 5, 0.02, 0.02, 0.02, 0.05, 15.0])
_JITTER = np.array([0.05, 0.05, 0.05, 3e-4, 3e-4, 3e-4, 0.002, 0.1])
_TURNS, _SLIDES, _WHOLE_STEPS = 0.08, 0.05, 0.1
"""Parts of the moves that turn the direction, slide the vertex along the track with its time, and are not scaled."""
_SLIDE_M, _TURN = 60.0, 0.3
_DISCARDED = 1 / 3
_EVENTS_OF_FILE = 20
_LG_MIN, _LG_MAX = np.log10([NATURAL.energy_min_gev, NATURAL.energy_max_gev])
_FIGURES = ("angle_mean_deg", "angle_median_deg", "angle_68_deg")


@dataclass(frozen=True)
class Posterior:
    """Result of one event."""

    is_track: bool
    angle_deg: float
    """Between the estimate and the truth."""
    expected_deg: float
    """The same, averaged over the posterior."""
    accepted: float


def posterior(likelihood: EventLikelihood, walkers: int, generations: int, random: np.random.Generator) -> Posterior:
    """Spherical median of the posterior of one event."""
    spread = _START * (0.2 + random.random((walkers, 1)))
    points = likelihood.truth + spread * random.normal(size=(walkers, NUM_PARAMETERS))
    points[0] = likelihood.truth
    points[:, VERTEX] = np.clip(points[:, VERTEX], -VERTEX_M, VERTEX_M)
    points[:, LG_ENERGY] = np.clip(points[:, LG_ENERGY], _LG_MIN, _LG_MAX)
    _normalise(points)
    ln = likelihood(points)
    taken, accepted = [], 0
    for generation in range(generations):
        for half in (0, 1):  # each half moves by differences of the other: detailed balance
            mine, others = slice(half, None, 2), slice(1 - half, None, 2)
            moved = proposals(points[mine], points[others], random)
            ln_moved = np.where(_allowed(moved), likelihood(moved), -np.inf)
            better = np.log(random.random(len(moved))) < ln_moved - ln[mine]
            points[mine][better], ln[mine][better] = moved[better], ln_moved[better]
            accepted += int(better.sum())
        if generation >= generations * _DISCARDED:
            taken.append(-points[:, TRAVEL])
    sources = np.concatenate(taken)
    estimate = spherical_median(sources)
    true = -likelihood.truth[None, TRAVEL]
    return Posterior(
        likelihood.is_track,
        float(np.degrees(angles_rad(estimate[None], true))[0]),
        float(np.degrees(angles_rad(sources, estimate[None])).mean()),
        accepted / (generations * walkers),
    )


def proposals(mine: Float64, others: Float64, random: np.random.Generator) -> Float64:
    """Moved points: by a difference of two others, or of the direction alone, or along the track."""
    num = len(mine)
    first = random.integers(0, len(others), num)
    second = (first + 1 + random.integers(0, len(others) - 1, num)) % len(others)
    scale = 2.38 / np.sqrt(2 * (NUM_PARAMETERS - 1)) * random.uniform(0.3, 1.2, (num, 1))
    scale = np.where(random.random((num, 1)) < _WHOLE_STEPS, 1.0, scale)
    moved = mine + scale * (others[first] - others[second]) + _JITTER * random.normal(size=mine.shape)
    kind = random.random(num)
    turned, slid = kind < _TURNS, (kind >= _TURNS) & (kind < _TURNS + _SLIDES)
    moved[turned | slid] = mine[turned | slid]
    anywhere = random.normal(size=(num, 3))
    near = mine[:, TRAVEL] + _TURN * random.normal(size=(num, 3))
    moved[turned, TRAVEL] = np.where(random.random((num, 1)) < 0.5, anywhere, near)[turned]
    step = _SLIDE_M * random.normal(size=(num, 1))
    moved[slid, VERTEX] += (step * mine[:, TRAVEL])[slid]
    moved[slid, VERTEX_NS] += step[slid, 0] / LIGHT_SPEED_M_NS
    _normalise(moved)
    return moved


def spherical_median(unit_N3: Float64, steps: int = 20) -> Float64:
    """Direction with the smallest mean angle from all others, by Weiszfeld's steps. (N, 3) -> (3,)."""
    found: Float64 = unit_N3.mean(0)
    for _ in range(steps):
        found = found / np.linalg.norm(found)
        weight_N = 1 / np.maximum(angles_rad(unit_N3, found[None]), 1e-4)
        found = (unit_N3 * weight_N[:, None]).sum(0)
    return found / np.linalg.norm(found)


def _normalise(points: Float64) -> None:
    points[:, TRAVEL] /= np.linalg.norm(points[:, TRAVEL], axis=1, keepdims=True)


def _allowed(points: Float64) -> np.ndarray:
    inside = (np.abs(points[:, VERTEX]) <= VERTEX_M).all(1)
    return inside & (points[:, LG_ENERGY] >= _LG_MIN) & (points[:, LG_ENERGY] <= _LG_MAX)


def posteriors(plan: EventsPlan, walkers: int, generations: int, file_index: int) -> list[Posterior]:
    """Results of the events of one file of a plan."""
    random = np.random.default_rng([plan.seed, 7, file_index])
    return [
        posterior(EventLikelihood(rows.events, index, plan.geometry), walkers, generations, random)
        for rows in file_rows(plan, file_index)
        for index in range(len(rows))
    ]


def figures(found: list[Posterior], bootstraps: int = 200) -> dict[str, dict[str, float]]:
    """Value, error, and what the posteriors themselves expect, by the name of the metric."""
    told: dict[str, dict[str, float]] = {}
    random = np.random.default_rng(0)
    for prefix, kind in (("", None), ("track_", True), ("cascade_", False)):
        chosen = [one for one in found if kind is None or one.is_track == kind]
        angle = np.array([one.angle_deg for one in chosen])
        if not len(angle):
            continue
        again = [resolution(angle[random.integers(0, len(angle), len(angle))]) for _ in range(bootstraps)]
        for name in _FIGURES:
            told[prefix + name] = {
                "value": round(resolution(angle)[name], 4),
                "error": round(float(np.std([one[name] for one in again])), 4),
                "events": len(angle),
            }
        told[f"{prefix}angle_mean_deg"]["expected"] = round(float(np.mean([one.expected_deg for one in chosen])), 4)
    return told


def main() -> None:
    """Measure, print, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=400)
    parser.add_argument("--walkers", type=int, default=32)
    parser.add_argument("--generations", type=int, default=400)
    parser.add_argument("--seed", type=int, default=9001)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--array", default="icecube")
    parser.add_argument("--out", type=Path, help="JSON; `icestream evaluate --simulated` reads "
                        "workloads/direction/toy_floor.json")  # fmt: skip
    wanted = parser.parse_args()
    plan = EventsPlan(wanted.events, -(-wanted.events // _EVENTS_OF_FILE), wanted.seed, array=wanted.array)
    work = partial(posteriors, plan, wanted.walkers, wanted.generations)
    found: list[Posterior] = []
    with ProcessPoolExecutor(wanted.processes) as pool:
        for of_file in pool.map(work, range(plan.num_files)):
            found += of_file
            mean = np.mean([(one.angle_deg, one.expected_deg, one.accepted) for one in found], 0)
            told = "mean {:.2f}°, expected {:.2f}°, accepted {:.2f}".format(*mean)
            print(f"{len(found)} events, {told}", flush=True)
            if wanted.out:  # what is done so far: `--events` as many gives the same
                wanted.out.write_text(result(found, wanted))
    print(result(found, wanted))


def result(found: list[Posterior], wanted: argparse.Namespace) -> str:
    """Figures and how they came about, as JSON."""
    told = {
        "date": datetime.now(UTC).date().isoformat(),
        "events": len(found),
        **{name: getattr(wanted, name) for name in ("array", "seed", "walkers", "generations")},
        "figures": figures(found),
    }
    return json.dumps(told, indent=2) + "\n"


if __name__ == "__main__":
    main()
