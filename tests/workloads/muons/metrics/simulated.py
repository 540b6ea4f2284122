"""Simulated bundles for tests: real, real again for the same primaries, and spoilt in one way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from workloads.muons.metrics.bundles import BundleArrays, Float64, Int64, Sample
from workloads.muons.simulator.config import SimulatorConfig, preset
from workloads.muons.simulator.muons import SimulatedPrimaries, expect, sample_primaries, simulate

CONFIG = preset("bench")


def real_sample(num_events: int, seed: int = 1, config: SimulatorConfig = CONFIG) -> Sample:
    """Every event is a shower of its own."""
    rng = np.random.default_rng(seed)
    primaries = sample_primaries(num_events, config, rng)
    # 1,000 to 1,600 m: shallow, so that there are many muons in few events.
    rows = simulate(replace(primaries, depth_m_E=1_000 + (primaries.depth_m_E - 1_000) / 3), config, rng)
    return Sample(
        rows.primary_E4.astype(np.float64), np.arange(num_events), BundleArrays.of(rows.counts_E, rows.muons_P3)
    )


def drawn_again(real: Sample, seed: int, config: SimulatorConfig = CONFIG) -> BundleArrays:
    """What a perfect generator gives for the same primaries."""
    primaries = SimulatedPrimaries.from_columns(real.primary_E4)
    rows = simulate(primaries, config, np.random.default_rng(seed))
    return BundleArrays.of(rows.counts_E, rows.muons_P3)


def mean_counts(real: Sample, config: SimulatorConfig = CONFIG) -> Float64:
    """The true mean number of muons of each primary."""
    return expect(SimulatedPrimaries.from_columns(real.primary_E4), config).mean_E


def muons_swapped_between_events(bundles: BundleArrays, seed: int) -> BundleArrays:
    """Every muon is there, somewhere."""
    order = np.random.default_rng(seed).permutation(len(bundles.energy_gev_P))
    return _with_muons(bundles, bundles.counts_E, order)


def energies_swapped_between_muons(bundles: BundleArrays, seed: int) -> BundleArrays:
    """Inside each event: what an event has is right, and E and r are independent in it."""
    order = np.lexsort((np.random.default_rng(seed).random(len(bundles.event_P)), bundles.event_P))
    return replace(bundles, energy_gev_P=bundles.energy_gev_P[order])


def with_counts(bundles: BundleArrays, counts_E: Int64) -> BundleArrays:
    """As many muons as each event shall have: its own, the same ones again where there are too few.

    An event without muons of its own has those of the next event that has.
    """
    filled_E = bundles.filled_F[np.searchsorted(bundles.filled_F, np.arange(len(counts_E))) % len(bundles.filled_F)]
    event_P = np.repeat(np.arange(len(counts_E)), counts_E)
    place_P = np.arange(len(event_P)) - (np.cumsum(counts_E) - counts_E)[event_P]
    giver_P = filled_E[event_P]
    first_E = np.cumsum(bundles.counts_E) - bundles.counts_E
    return _with_muons(bundles, counts_E, first_E[giver_P] + place_P % bundles.counts_E[giver_P])


def repeated(bundles: BundleArrays, events: Int64) -> BundleArrays:
    """These events, in this order, as often as each is named."""
    counts_E = bundles.counts_E[events]
    first_E = (np.cumsum(bundles.counts_E) - bundles.counts_E)[events]
    begin_E = np.cumsum(counts_E) - counts_E
    return _with_muons(bundles, counts_E, np.repeat(first_E - begin_E, counts_E) + np.arange(counts_E.sum()))


def _with_muons(bundles: BundleArrays, counts_E: Int64, muons_P: Int64) -> BundleArrays:
    columns = (bundles.energy_gev_P, bundles.x_m_P, bundles.y_m_P)
    return BundleArrays(counts_E, *(column_P[muons_P] for column_P in columns))
