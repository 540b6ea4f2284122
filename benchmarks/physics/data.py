"""Simulated events in memory: batches for training, and a sample for the evaluation.

Primaries of training and validation have different seeds: no shower is in both.
Shapes: E events (rows), S showers, P muons.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch

from benchmarks.physics.spec import CORSIKA_FILE, Source
from workloads.base.batch import Batch, Microbatch
from workloads.muons.metrics.bundles import BundleArrays
from workloads.muons.metrics.sample import Sample
from workloads.muons.simulator import muons
from workloads.muons.simulator.config import SimulatorConfig
from workloads.muons.simulator.flux import SimulatedPrimaries, sample_primaries
from workloads.muons.simulator.showers import shower_depths_m, simulate_showers

Int64 = npt.NDArray[np.int64]

DEPTHS_A_SHOWER = 10
CORSIKA = Path(__file__).resolve().parents[2] / "tests" / "data" / "corsika" / "bundles.parquet"
_BLOCK_EVENTS = 51_200
_TRAINING, _VALIDATION, _SECOND = 1, 2, 3
"""First number of the seed of each use."""
_ATTEMPTS_AT_A_TIME = 65_536
_SPARE = 8
"""Rows drawn for each kept one, if rows without muons are left out."""


@dataclass(frozen=True)
class Rows:
    """Rows of events, as in the trainer's batches."""

    primary_E4: npt.NDArray[np.float32]
    counts_E: Int64
    muons_P3: npt.NDArray[np.float32]
    shower_E: Int64

    def __len__(self) -> int:
        return len(self.counts_E)

    def taken(self, index_E: Int64) -> Rows:
        """Rows with these indices, in this order."""
        counts_E = self.counts_E[index_E]
        first_E = (np.cumsum(self.counts_E) - self.counts_E)[index_E]
        from_P = np.repeat(first_E - (np.cumsum(counts_E) - counts_E), counts_E) + np.arange(counts_E.sum())
        return Rows(self.primary_E4[index_E], counts_E, self.muons_P3[from_P], self.shower_E[index_E])

    def bundles(self) -> BundleArrays:
        """Bundles of the rows, for the metrics."""
        return BundleArrays.of(self.counts_E, self.muons_P3)


def batches(source: Source, seed: int, batch_events: int) -> Iterator[Batch]:
    """Endless batches of ``batch_events`` events without repetition; only the CORSIKA showers are repeated."""
    if source.preset == CORSIKA_FILE:
        rows = corsika_rows()
        while True:
            yield _batch(rows)
    left: Rows | None = None
    block = 0
    while True:
        rows = _block(source, seed, block)
        block += 1
        if left is not None:
            rows = _joined(left, rows)
        whole = len(rows) // batch_events
        for index in range(whole):
            yield _batch(rows.taken(np.arange(index * batch_events, (index + 1) * batch_events)))
        left = rows.taken(np.arange(whole * batch_events, len(rows)))


def validation(source: Source, num_events: int) -> tuple[Sample, BundleArrays | None]:
    """Events, and an independent second draw for the same primaries, equivalent to a perfect generator's events.

    The events don't depend on a run's seed. In shower mode, all rows of a shower are drawn again together.
    The second is None for the CORSIKA showers, which can't be drawn again.
    """
    if source.preset == CORSIKA_FILE:
        rows = corsika_rows()
        return _sample(rows), None
    config = source.config
    first, second = (np.random.default_rng([use, 0]) for use in (_VALIDATION, _SECOND))
    if source.rows == "independent":
        drawn = _independent(config, num_events if source.empties else _SPARE * num_events, first)
        if not source.empties:
            drawn = drawn.taken(np.flatnonzero(drawn.counts_E)[:num_events])
            if len(drawn) < num_events:
                raise ValueError(f"of {_SPARE * num_events} rows only {len(drawn)} have muons")
        again = redrawn(drawn, config, second, empties=source.empties)
    else:
        if not source.empties:
            raise ValueError("a second draw of showers without their empty rows is not made")
        showers = sample_primaries(num_events // DEPTHS_A_SHOWER, config, first)
        drawn = _of_showers(showers, config, first)
        again = _of_showers(showers, config, second)
    return _sample(drawn), again.bundles()


def redrawn(rows: Rows, config: SimulatorConfig, rng: np.random.Generator, *, empties: bool) -> Rows:
    """New muons for the same primaries; without ``empties``, drawn until there is at least one."""
    primaries = SimulatedPrimaries.from_columns(rows.primary_E4, config)
    if empties:
        drawn = muons.simulate(primaries, config, rng)
        return Rows(rows.primary_E4, drawn.counts_E, drawn.muons_P3, rows.shower_E)
    missing_E = np.arange(len(rows))
    found: list[tuple[Int64, Int64, npt.NDArray[np.float32]]] = []
    while len(missing_E):
        # Primaries with a probability of 1e-5 for muons do occur: the fewer are missing, the more tries for each.
        tries = max(1, _ATTEMPTS_AT_A_TIME // len(missing_E))
        of_try = np.repeat(missing_E, tries)
        drawn = muons.simulate(
            SimulatedPrimaries(*(column[of_try] for column in vars(primaries).values())), config, rng
        )
        hit = drawn.counts_E.reshape(-1, tries) > 0
        some = hit.any(1)
        first_hit = np.flatnonzero(some) * tries + hit.argmax(1)[some]
        kept = Rows(drawn.primary_E4, drawn.counts_E, drawn.muons_P3, of_try).taken(first_hit)
        found.append((missing_E[some], kept.counts_E, kept.muons_P3))
        missing_E = missing_E[~some]
    all_E, counts_E, muons_P3 = (np.concatenate(parts) for parts in zip(*found, strict=True))
    mixed = Rows(rows.primary_E4[all_E], counts_E, muons_P3, rows.shower_E[all_E])
    return mixed.taken(np.argsort(all_E))


def corsika_rows() -> Rows:
    """Rows of the CORSIKA showers in tests/data."""
    table = pq.read_table(CORSIKA)
    primary_E4 = np.array(table["primary"].to_pylist(), np.float32)
    each = [np.array(one, np.float32).reshape(-1, 3) for one in table["muons"].to_pylist()]
    return Rows(
        primary_E4, np.array([len(one) for one in each], np.int64), np.concatenate(each), np.arange(len(primary_E4))
    )


def _block(source: Source, seed: int, block: int) -> Rows:
    """Block of about 51,200 rows; fewer without empty ones."""
    rng = np.random.default_rng([_TRAINING, seed, block])
    if source.rows == "independent":
        rows = _independent(source.config, _BLOCK_EVENTS, rng)
    else:
        showers = sample_primaries(_BLOCK_EVENTS // DEPTHS_A_SHOWER, source.config, rng)
        rows = _of_showers(showers, source.config, rng)
        if source.rows == "showers shuffled":
            rows = rows.taken(rng.permutation(len(rows)))
    return rows if source.empties else rows.taken(np.flatnonzero(rows.counts_E))


def _independent(config: SimulatorConfig, num_events: int, rng: np.random.Generator) -> Rows:
    drawn = muons.simulate(sample_primaries(num_events, config, rng), config, rng)
    return Rows(drawn.primary_E4, drawn.counts_E, drawn.muons_P3, np.arange(num_events))


def _of_showers(showers: SimulatedPrimaries, config: SimulatorConfig, rng: np.random.Generator) -> Rows:
    drawn = simulate_showers(showers, shower_depths_m(DEPTHS_A_SHOWER, config), config, rng)
    shower_E = np.repeat(np.arange(len(showers)), DEPTHS_A_SHOWER)
    return Rows(drawn.primary_E4, drawn.counts_E, drawn.muons_P3, shower_E)


def _joined(first: Rows, second: Rows) -> Rows:
    return Rows(*(np.concatenate(pair) for pair in zip(vars(first).values(), vars(second).values(), strict=True)))


def _batch(rows: Rows) -> Batch:
    offsets_E1 = np.concatenate([[0], np.cumsum(rows.counts_E)])
    return Batch(
        (
            Microbatch(
                epoch=0,
                unit=0,
                index=0,
                offsets_E1=torch.from_numpy(offsets_E1),
                host_offsets_E1=offsets_E1,
                event_columns={"primary": torch.from_numpy(rows.primary_E4)},
                particle_columns={"muons": torch.from_numpy(rows.muons_P3)},
                num_events=len(rows),
                num_particles=int(offsets_E1[-1]),
            ),
        )
    )


def _sample(rows: Rows) -> Sample:
    return Sample(rows.primary_E4.astype(np.float64), rows.shower_E, rows.bundles())
