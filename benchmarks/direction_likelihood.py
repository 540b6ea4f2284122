"""Likelihood of a simulated neutrino event, by the simulator's own light: Poisson numbers of photo-electrons in every
sensor, times of arrival by Pandel's delays and the clock's jitter, noise. The topology and the ice are known.

Shapes: W points of the parameters, S sensors, P pulses.
"""

from __future__ import annotations

from functools import lru_cache
from math import asinh, log, sinh

import numpy as np
import numpy.typing as npt
from scipy import stats

from workloads.direction.geometry import Geometry, Medium
from workloads.direction.light import JITTER_NS, NOISE_PER_NS
from workloads.direction.metrics import unit_and_norm
from workloads.direction.simulator import (
    NOISE_FROM_NS,
    NOISE_TO_NS,
    SMALLEST_SHAPE,
    SimulatedEvents,
    Truth,
    direct_cascade_light,
    direct_track_light,
    expected_light,
)

Float64 = npt.NDArray[np.float64]

VERTEX, TRAVEL, LG_ENERGY, VERTEX_NS = slice(0, 3), slice(3, 6), 6, 7
"""Parameters of a point: vertex (m), direction of travel (unit vector), lg of the energy in GeV, time at the vertex."""
NUM_PARAMETERS = 8
_NEAR_M, _FAR_EVERY = 180.0, 3
"""Sensors this near to a clean pulse are all looked at; of the others every third, for three."""
_SHAPES, _TIMES, _FINE = 120, 700, 700
_LARGEST_SHAPE, _EARLIEST_NS, _LATEST_NS = 60.0, -40.0, 9000.0
_STRETCH_NS = 10.0
_LEAST_LN = -69.0


class EventLikelihood:
    """ln of the likelihood of one event, of points of its parameters."""

    def __init__(self, events: SimulatedEvents, index: int, geometry: Geometry) -> None:
        position_S3, self._medium = geometry.position_S3, geometry.medium
        event = events.take(np.array([index]))
        self.is_track = bool(event.truth.is_track_E[0])
        self.truth = np.concatenate(
            [
                event.truth.vertex_E3[0],
                event.truth.travel_E3[0],
                [np.log10(event.truth.energy_gev_E[0]), event.vertex_ns_E[0]],
            ]
        )
        sensor_P = event.sensor_P.astype(np.int64)
        clean_C3 = position_S3[np.unique(sensor_P[~event.auxiliary_P])]
        near_S = np.full(len(position_S3), np.inf)
        for clean_3 in clean_C3:
            np.minimum(near_S, np.linalg.norm(position_S3 - clean_3, axis=1), out=near_S)
        near = near_S < _NEAR_M
        near[sensor_P] = True
        chosen = np.flatnonzero(near | (np.arange(len(near)) % _FAR_EVERY == 0))
        # A sensor that is far stands for all of its kind, however many of these happen to be hit.
        far = int((~near).sum())
        self._weight_S = np.where(near[chosen], 1.0, far / max(int((~near[chosen]).sum()), 1)).astype(np.float32)
        self._chosen = Geometry(position_S3[chosen], geometry.medium)
        self._place_P = np.searchsorted(chosen, sensor_P)
        self._time_P = event.time_ns_P.astype(np.float64)
        self._position_P3 = position_S3[sensor_P]

    def __call__(self, points_W8: Float64) -> Float64:
        """ln likelihood, up to a constant. (W, 8) -> (W,)."""
        truth, num = self._as_truth(points_W8), len(points_W8)
        track_WS, _, cascade_WS = expected_light(truth, self._chosen)
        total_WS = cascade_WS + track_WS if self.is_track else cascade_WS
        expected_W = total_WS @ self._weight_S
        point_P = np.repeat(np.arange(num), len(self._time_P))
        position_P3 = np.tile(self._position_P3, (num, 1))
        since_WP = self._time_P - points_W8[:, VERTEX_NS, None]
        noise_WP = NOISE_PER_NS * ((since_WP > NOISE_FROM_NS) & (since_WP < NOISE_TO_NS))
        density_WP = noise_WP + 1e-12
        parts = [(cascade_WS, direct_cascade_light)]
        parts += [(track_WS, direct_track_light)] if self.is_track else []
        for amount_WS, direct in parts:
            direct_ns_P, path_m_P = direct(truth, point_P, position_P3, self._medium)
            shape = since_WP.shape
            ln_WP = ln_delay_density(path_m_P.reshape(shape), since_WP - direct_ns_P.reshape(shape), self._medium)
            density_WP = density_WP + amount_WS[:, self._place_P] * np.exp(ln_WP)
        ln_W: Float64 = np.log(density_WP).sum(1) - expected_W
        return ln_W

    def _as_truth(self, points_W8: Float64) -> Truth:
        source_W3 = -unit_and_norm(points_W8[:, TRAVEL])[0]
        return Truth(
            azimuth_E=np.arctan2(source_W3[:, 1], source_W3[:, 0]),
            zenith_E=np.arccos(np.clip(source_W3[:, 2], -1, 1)),
            energy_gev_E=10 ** points_W8[:, LG_ENERGY],
            is_track_E=np.full(len(points_W8), self.is_track),
            vertex_E3=points_W8[:, VERTEX],
        )


def ln_delay_density(path_m: Float64, delay_ns: Float64, medium: Medium) -> Float64:
    """ln p(delay | path) in 1/ns: a gamma distribution by scattering, and the normal one of the clock. Interpolated."""
    table, ln_shapes, stretched = _table(medium)
    shape = np.clip(path_m / medium.scattering_m, SMALLEST_SHAPE, _LARGEST_SHAPE)
    row = np.clip((np.log(shape) - ln_shapes[0]) / (ln_shapes[1] - ln_shapes[0]), 0, _SHAPES - 1.001)
    column = (np.arcsinh(delay_ns / _STRETCH_NS) - stretched[0]) / (stretched[1] - stretched[0])
    outside = (column < 0) | (column > _TIMES - 1.001)
    column = np.clip(column, 0, _TIMES - 1.001)
    i, j = row.astype(np.int64), column.astype(np.int64)
    of_row, of_column, flat = row - i, column - j, i * _TIMES + j
    upper = table[flat] * (1 - of_column) + table[flat + 1] * of_column
    lower = table[flat + _TIMES] * (1 - of_column) + table[flat + _TIMES + 1] * of_column
    found: Float64 = np.where(outside, _LEAST_LN, upper * (1 - of_row) + lower * of_row)
    return found


@lru_cache(maxsize=1)
def _table(medium: Medium) -> tuple[Float64, Float64, Float64]:
    """ln densities, (shapes × times) flat, with ln of the shapes and the stretched times of their rows and columns."""
    ln_shapes = np.linspace(log(SMALLEST_SHAPE), log(_LARGEST_SHAPE), _SHAPES)
    stretched = np.linspace(asinh(_EARLIEST_NS / _STRETCH_NS), asinh(_LATEST_NS / _STRETCH_NS), _TIMES)
    times, scale_ns = _STRETCH_NS * np.sinh(stretched), 1 / medium.scattering_rate_per_ns
    # The gamma distribution is cut into small pieces, each of which the clock smears; late, it is as smooth as it is.
    pieces = np.concatenate([[0.0], np.geomspace(1e-4, 30 * JITTER_NS, _FINE)])
    middle = (pieces[1:] + pieces[:-1]) / 2
    early = times < 20 * JITTER_NS
    smeared = stats.norm.pdf(times[early, None], middle, JITTER_NS)
    table = np.empty((_SHAPES, _TIMES))
    for index, shape in enumerate(np.exp(ln_shapes)):
        table[index, early] = smeared @ np.diff(stats.gamma.cdf(pieces, shape, scale=scale_ns))
        table[index, ~early] = stats.gamma.pdf(times[~early], shape, scale=scale_ns)
    assert sinh(stretched[0]) < 0
    return np.log(np.maximum(table, np.exp(_LEAST_LN))).ravel(), ln_shapes, stretched
