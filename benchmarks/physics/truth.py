"""Distributions of the simulator itself, the limit for every model: counts, and numbers of muons above an energy. Pure.

Shapes: E events.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.stats import nbinom

from benchmarks.physics.spec import Source
from workloads.muons.metrics.bundles import Float64, Int64, Sample
from workloads.muons.simulator.muons import SimulatedPrimaries, expect

_LEAST_MEAN = 1e-300


def mean_nll(sample: Sample, source: Source) -> float:
    """Mean of -ln p(N | primary) in nats."""
    return float(-log_probability(sample.primary_E4, sample.bundles.counts_E, source).mean())


def expected_muons(primary_E4: npt.ArrayLike, source: Source, above_gev: float = 0.0) -> float:
    """Expected number of muons of all these primaries, or of those above an energy at depth: without chance."""
    config = source.config
    # Elbert's formula counts muons above a threshold: a higher cut gives those above it, of the same showers.
    config = replace(config, energy_cut_gev=max(above_gev, config.energy_cut_gev))
    return float(expect(SimulatedPrimaries.from_columns(primary_E4), config).mean_E.sum())


def log_probability(primary_E4: Float64, counts_E: Int64, source: Source) -> Float64:
    """Log probability ln p(N | primary) of independent rows. (E, 4), (E,) -> (E,)."""
    truth = expect(SimulatedPrimaries.from_columns(primary_E4), source.config)
    mean_E = np.maximum(truth.mean_E, _LEAST_MEAN)
    return np.asarray(nbinom.logpmf(counts_E, truth.shape_E, truth.shape_E / (truth.shape_E + mean_E)), np.float64)
