"""Real events from the simulator, drawn new or again for given primaries, so that their distribution is known.

E events, S showers, D depths.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from common.errors import BadInputError
from common.slow_progress import SlowProgress
from workloads.base.random_streams import numpy_stream
from workloads.muons.metrics.bundles import BundleArrays, Float64
from workloads.muons.metrics.sample import Sample
from workloads.muons.purposes import MuonPurpose
from workloads.muons.simulator.config import GROUP_MASS, SimulatorConfig
from workloads.muons.simulator.flux import SimulatedPrimaries, h3a_flux, sample_primaries
from workloads.muons.simulator.muons import simulate
from workloads.muons.simulator.showers import simulate_showers

_EVENTS_AT_A_TIME = 10_000
_ROWS_AT_A_TIME = 20_000
_CENTIMETRES = 2
"""Decimals of a depth: equal depths of a grid agree in spite of rounding in a file."""


def drawn_sample(config: SimulatorConfig, events: int, seed: int) -> Sample:
    """Independent events from the simulator."""
    rng = numpy_stream(MuonPurpose.SIMULATED_EVENTS, seed)
    config = replace(config, depth_kind="vertical")
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
    """Independent bundles for the same primaries; events of one shower again belong to one shower.

    ``primary_E4``: energy_gev, zenith_rad, mass_a, depth_m (vertical). Order of events as given.
    ``draw``: number of the redraw; each is independent of the others.
    """
    rng = numpy_stream(MuonPurpose.SIMULATED_AGAIN, seed, draw)
    config = replace(config, depth_kind="vertical")
    # Files of several productions may share ids: events with different primaries are different showers.
    keys_E4 = np.column_stack([shower_E.astype(np.float64), primary_E4[:, :3]])
    _, first_S, shower_of_E, size_S = np.unique(
        keys_E4, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    shower_of_E = shower_of_E.reshape(-1)
    alone_E = size_S[shower_of_E] == 1
    pieces: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    alone = np.flatnonzero(alone_E)
    for first in range(0, len(alone), _EVENTS_AT_A_TIME):
        events = alone[first : first + _EVENTS_AT_A_TIME]
        drawn = simulate(SimulatedPrimaries.from_columns(primary_E4[events], config), config, rng)
        pieces.append((events, drawn.counts_E, drawn.muons_P3))
    for events in _shower_groups(shower_of_E, size_S, primary_E4[:, 3]):
        pieces.append((events, *_showers(primary_E4, events, shower_of_E[events], first_S, config, rng)))
    return _in_order(pieces, len(primary_E4))


def _shower_groups(shower_of_E: np.ndarray, size_S: np.ndarray, depth_m_E: Float64) -> list[np.ndarray]:
    """Events of showers with several rows, in groups of showers that bound the number of rows at all depths."""
    of_several = np.flatnonzero(size_S > 1)
    if not len(of_several):
        return []
    num_depths = len(np.unique(np.round(depth_m_E[size_S[shower_of_E] > 1], _CENTIMETRES)))
    at_a_time = max(_ROWS_AT_A_TIME // num_depths, 1)
    order = np.argsort(shower_of_E, kind="stable")
    starts = np.concatenate([[0], np.cumsum(size_S)])
    return [
        np.concatenate([order[starts[shower] : starts[shower + 1]] for shower in of_several[first : first + at_a_time]])
        for first in range(0, len(of_several), at_a_time)
    ]


def _showers(
    primary_E4: Float64,
    events: np.ndarray,
    shower_of: np.ndarray,
    first_S: np.ndarray,
    config: SimulatorConfig,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Counts and muons of these rows, each shower drawn once for all of its depths."""
    depths_m, depth_of = np.unique(np.round(primary_E4[events, 3], _CENTIMETRES), return_inverse=True)
    showers, place_of = np.unique(shower_of, return_inverse=True)
    primaries = SimulatedPrimaries.from_columns(primary_E4[first_S[showers]], config)
    drawn = simulate_showers(primaries, depths_m, config, rng)
    rows = place_of.reshape(-1) * len(depths_m) + depth_of.reshape(-1)
    return drawn.counts_E[rows], _rows(drawn.counts_E, drawn.muons_P3, rows)


def _in_order(pieces: list[tuple[np.ndarray, np.ndarray, np.ndarray]], num_events: int) -> BundleArrays:
    events = np.concatenate([piece[0] for piece in pieces])
    counts = np.concatenate([piece[1] for piece in pieces])
    muons_P3 = np.concatenate([piece[2] for piece in pieces])
    rows = np.empty(num_events, np.int64)
    rows[events] = np.arange(num_events)
    return BundleArrays.of(counts[rows], _rows(counts, muons_P3, rows))


def _rows(counts_E: np.ndarray, muons_P3: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Muons of ``rows``, in that order."""
    starts = np.cumsum(counts_E) - counts_E
    counts = counts_E[rows]
    before = np.cumsum(counts) - counts
    found: np.ndarray = muons_P3[np.arange(counts.sum()) + np.repeat(starts[rows] - before, counts)]
    return found


def natural_weights(primary_E4: Float64, config: SimulatorConfig) -> Float64:
    """Weights from this spectrum to the natural flux (H3a), with mean 1. (E, 4) -> (E,).

    Flux at the primary's energy and mass, divided by the density from which the primary was drawn.
    """
    if config.spectrum == "h3a":
        return np.ones(len(primary_E4))
    weight_E = np.zeros(len(primary_E4))
    for group, mass in enumerate(GROUP_MASS):
        of_group_E = np.isclose(primary_E4[:, 2], mass)
        share = config.mass_fractions[group]
        if of_group_E.any() and share > 0:
            energy_gev = primary_E4[of_group_E, 0]
            weight_E[of_group_E] = h3a_flux(energy_gev, group) / (share * energy_gev**-config.gamma)
    if not weight_E.sum() > 0:
        raise BadInputError("no event has the mass of one of the simulator's nuclei: they have no natural flux")
    weight_E /= weight_E.mean()
    return weight_E
