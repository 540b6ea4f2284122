"""Likelihood of counts in the simulator itself, the limit for every model. Pure.

Shapes: E events.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp
from scipy.stats import nbinom, poisson

from benchmarks.physics.spec import Source
from workloads.muons.metrics.bundles import Float64, Int64
from workloads.muons.simulator.flux import SimulatedPrimaries
from workloads.muons.simulator.multiplicity import expect

_NODES = 96
_LEAST_MEAN = 1e-300


def mean_nll(primary_E4: Float64, counts_E: Int64, source: Source) -> float:
    """Mean of -ln p(N | primary) in nats; given N >= 1 if the source has no empty rows."""
    log_p_E = log_probability(primary_E4, counts_E, source)
    if not source.empties:
        log_p_E = log_p_E - np.log(-np.expm1(log_probability(primary_E4, np.zeros_like(counts_E), source)))
    return float(-log_p_E.mean())


def log_probability(primary_E4: Float64, counts_E: Int64, source: Source) -> Float64:
    """Log probability ln p(N | primary) of independent rows. (E, 4), (E,) -> (E,)."""
    config = source.config
    primaries = SimulatedPrimaries.from_columns(primary_E4, config)
    truth = expect(primaries, config)
    mean_E = np.maximum(truth.mean_E, _LEAST_MEAN)
    if config.fluctuation == "poisson":
        return np.asarray(poisson.logpmf(counts_E, mean_E), np.float64)
    if config.fluctuation == "nb":
        shape_E = truth.shape_E
        return np.asarray(nbinom.logpmf(counts_E, shape_E, shape_E / (shape_E + mean_E)), np.float64)
    # Poisson with a lognormal mean: an integral over one normal variable, by Gauss-Hermite quadrature.
    nodes_Q, weights_Q = np.polynomial.hermite_e.hermegauss(_NODES)
    sigma_E = config.lognormal_sigma / np.sqrt(primaries.mass_E)
    log_mean_QE = np.log(mean_E) + nodes_Q[:, None] * sigma_E - 0.5 * sigma_E**2
    log_p_QE = poisson.logpmf(counts_E, np.exp(log_mean_QE))
    return np.asarray(logsumexp(log_p_QE, axis=0, b=(weights_Q / weights_Q.sum())[:, None]), np.float64)
