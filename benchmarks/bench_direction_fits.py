"""Speed and quality of the classical fits of neutrino events, on one core.

Question: how many events are fitted a second, and are their directions better than LineFit's?

Command, from the repository's root:

    python -m benchmarks.bench_direction_fits [--events 4000] [--seed 900] [--array icecube]

Table: angle between the fitted and the true direction, degrees: mean, median, 68 % of all events, of tracks and of
cascades; then the same numbers of the distance between the fitted and the true place of a cascade. CPU time of one
thread, without the tables of the density, which a process makes once. Results are in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import numpy.typing as npt
import torch

from workloads.direction.columns import CLASSICAL_FITS
from workloads.direction.fits import VERTEX_ROUNDS, classical_fits, plain_lines
from workloads.direction.geometry import ARRAYS
from workloads.direction.light import ln_density_table
from workloads.direction.metrics import angles_rad
from workloads.direction.simulator import EventsPlan, file_rows

_LINE, _TRACK = CLASSICAL_FITS.index("line_x"), CLASSICAL_FITS.index("track_x")
_VERTEX = CLASSICAL_FITS.index("vertex_x_m")


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed and quality of the classical fits.")
    parser.add_argument("--events", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=900)
    parser.add_argument("--array", choices=list(ARRAYS), default="icecube")
    options = parser.parse_args()
    torch.set_num_threads(1)
    plan = EventsPlan(options.events, 1, options.seed, array=options.array)
    start_s = time.process_time()
    for jitter_ns, _ in VERTEX_ROUNDS:
        ln_density_table(jitter_ns, plan.geometry.medium)
    print(f"tables of the density: {time.process_time() - start_s:.2f} s, once a process")
    rows = list(file_rows(plan, 0))
    found = {"LineFit": [], "robust line": [], "track": []}
    source, is_track, vertex_m = [], [], []
    fits_s = 0.0
    for row in rows:
        events = row.events
        offsets_E1 = np.concatenate([[0], np.cumsum(events.counts_E)])
        columns = (events.sensor_P, events.time_ns_P, events.charge_pe_P, events.auxiliary_P, offsets_E1)
        start_s = time.process_time()
        fits = classical_fits(*columns, plan.geometry)
        fits_s += time.process_time() - start_s
        found["LineFit"].append(classical_fits(*columns, plan.geometry, plain_lines))
        found["robust line"].append(fits[:, _LINE : _LINE + 3])
        found["track"].append(fits[:, _TRACK : _TRACK + 3])
        vertex_m.append(np.linalg.norm(fits[:, _VERTEX : _VERTEX + 3] - events.truth.vertex_E3, axis=1))
        source.append(-events.truth.travel_E3)
        is_track.append(events.truth.is_track_E)
    tracks = np.concatenate(is_track)
    rate = len(tracks) / fits_s
    print(f"{len(tracks):,} events, seed {options.seed}, {options.array}: {rate:,.0f} events/s of CPU time")
    print("angles in degrees, mean / median / 68 %: all | tracks | cascades")
    for name, parts in found.items():
        angle_E = np.degrees(angles_rad(np.concatenate(parts).astype(np.float64), np.concatenate(source)))
        print(f"{name:14s}" + " |".join(_summary(angle_E[some]) for some in (tracks | True, tracks, ~tracks)))
    print("vertex of cascades, m:" + _summary(np.concatenate(vertex_m)[~tracks]))


def _summary(values: npt.NDArray[np.float64]) -> str:
    return f"{values.mean():7.2f}{np.median(values):7.2f}{np.percentile(values, 68):7.2f}"


if __name__ == "__main__":
    main()
