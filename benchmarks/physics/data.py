"""Simulated events in memory: batches for training, and events for the evaluation.

Events of training and evaluation are of different random streams: no shower is in both.
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

from benchmarks.physics.purposes import PhysicsPurpose
from benchmarks.physics.spec import CORSIKA_FILE, Source
from workloads.base.batch import Batch, Microbatch
from workloads.base.random_streams import numpy_stream
from workloads.muons.metrics.bundles import BundleArrays, Sample
from workloads.muons.simulator import muons
from workloads.muons.simulator.config import SimulatorConfig
from workloads.muons.simulator.muons import SimulatedPrimaries, sample_depths, sample_primaries, simulate_showers

Int64 = npt.NDArray[np.int64]

DEPTHS_A_SHOWER = 10
CORSIKA = Path(__file__).resolve().parents[2] / "tests" / "data" / "corsika" / "bundles.parquet"
_BLOCK_EVENTS = 51_200
_TUNING, _QUOTED = 0, 1
"""Sets of primaries for evaluations: for choices of limits and defaults, and for figures that are quoted."""


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


def evaluation_events(source: Source, num_events: int, *, tuning: bool = False) -> Sample:
    """Events for the evaluation, the same for all runs. Of the CORSIKA showers, all; else independent rows.

    Limits and defaults were chosen on other events, with training seeds 0 to 4: those of ``tuning`` and, before that, a
    set that is no longer made.
    """
    if source.preset == CORSIKA_FILE:
        return _sample(corsika_rows())
    if source.rows != "independent" or not source.empties:
        raise ValueError("events of an evaluation are independent rows, the empty ones among them")
    rng = numpy_stream(PhysicsPurpose.EVALUATION_EVENTS, _TUNING if tuning else _QUOTED)
    return _sample(_independent(source.config, num_events, rng))


def tail_primaries(source: Source, num_events: int, *, tuning: bool = False) -> npt.NDArray[np.float32]:
    """Further primaries, of events for what is rare. (E, 4)."""
    rng = numpy_stream(PhysicsPurpose.TAIL_PRIMARIES, _TUNING if tuning else _QUOTED)
    return sample_primaries(num_events, source.config, rng).columns()


def redrawn(primary_E4: npt.ArrayLike, config: SimulatorConfig, rng: np.random.Generator) -> BundleArrays:
    """Simulator's muons for these primaries: events of a perfect model."""
    drawn = muons.simulate(SimulatedPrimaries.from_columns(primary_E4), config, rng)
    return BundleArrays.of(drawn.counts_E, drawn.muons_P3)


def batch_of(sample: Sample) -> Batch:
    """Batch of all events of a sample."""
    bundles = sample.bundles
    muons_P3 = np.stack([bundles.energy_gev_P, bundles.x_m_P, bundles.y_m_P], 1).astype(np.float32)
    return _batch(Rows(sample.primary_E4.astype(np.float32), bundles.counts_E, muons_P3, sample.shower_E))


def corsika_rows() -> Rows:
    """Rows of the CORSIKA showers in tests/data, without their muons below the cut of the presets.

    A likelihood has one cut: weights from events of a preset have no place for muons below theirs.
    """
    table = pq.read_table(CORSIKA)
    primary_E4 = np.array(table["primary"].to_pylist(), np.float32)
    each = [np.array(one, np.float32).reshape(-1, 3) for one in table["muons"].to_pylist()]
    each = [one[one[:, 0] >= SimulatorConfig().energy_cut_gev] for one in each]
    return Rows(
        primary_E4, np.array([len(one) for one in each], np.int64), np.concatenate(each), np.arange(len(primary_E4))
    )


def _block(source: Source, seed: int, block: int) -> Rows:
    """Block of about 51,200 rows; fewer without empty ones."""
    rng = numpy_stream(PhysicsPurpose.TRAINING_EVENTS, seed, block)
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
    depth_m_SD = sample_depths(len(showers), DEPTHS_A_SHOWER, config, rng)
    drawn = simulate_showers(showers, depth_m_SD, config, rng)
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
