"""Light of a neutrino event in ice: how much reaches each sensor, and when.

A track shines along its length in a Cherenkov cone, a cascade from one point, most of it near that cone. The ice is the
same everywhere. Shapes: E events, S sensors, P pulses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workloads.direction.ice import (
    ABSORPTION_M,
    CONE_DELAY_NS_M,
    COS_CHERENKOV,
    LIGHT_SPEED_M_NS,
    POINT_DELAY_NS_M,
    SIN_CHERENKOV,
    TAN_CHERENKOV,
)

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

SMALLEST_SHAPE = 0.02
"""Smallest shape of the Gamma distribution of the delay by scattering."""
JITTER_NS = 3.0
"""Resolution of a sensor's clock."""

# Amounts of light: chosen, not measured.
TRACK_LIGHT_PE = 6.0
"""Photo-electrons in a sensor next to a track of low energy."""
TRACK_NEAR_M = 8.0
TRACK_LOSS_GEV = 5e4
"""Energy at which the light of losses along a track equals its own."""
TRACK_GEV_PER_M, LONGEST_TRACK_M = 0.25, 1500.0
CASCADE_LIGHT_PE_PER_GEV = 0.005
CASCADE_NEAR_M = 3.0
CASCADE_ISOTROPIC = 0.15
"""Light in every direction, relative to that at the Cherenkov angle."""
CASCADE_WIDTH = 3.0
TRACKS_CASCADE = 0.3
"""Light of the cascade at the middle of a track, relative to that of a cascade of the same energy."""
MOST_PE = 400.0
"""Photo-electrons of one sensor, on average: more saturate it."""


@dataclass(frozen=True)
class Truth:
    """Neutrino events before the detector sees them."""

    azimuth_E: Float64
    """Azimuth of the source, rad."""
    zenith_E: Float64
    energy_gev_E: Float64
    is_track_E: Bool
    vertex_E3: Float64
    """Position of the cascade, the middle of a track, m."""
    brightness_E: Float64
    """Factor on all light; 1: as from this energy."""

    def __len__(self) -> int:
        return len(self.energy_gev_E)

    @property
    def travel_E3(self) -> Float64:
        """Unit vectors of the direction of travel: away from the source."""
        sine_E = np.sin(self.zenith_E)
        return -np.stack([np.cos(self.azimuth_E) * sine_E, np.sin(self.azimuth_E) * sine_E, np.cos(self.zenith_E)], 1)

    def take(self, events: Bool | Int64 | slice) -> Truth:
        """Some of the events."""
        return Truth(
            self.azimuth_E[events],
            self.zenith_E[events],
            self.energy_gev_E[events],
            self.is_track_E[events],
            self.vertex_E3[events],
            self.brightness_E[events],
        )


@dataclass(frozen=True)
class Light:
    """Expected photo-electrons in each sensor. float32: ± 1 % for a sensor nearer than 3 m, much less elsewhere."""

    track_TS: Float32
    """Direct light of the tracks alone: (tracks, S)."""
    track_event_T: Int64
    """Event of each row of ``track_TS``."""
    cascade_ES: Float32


def expected_light(truth: Truth, position_S3: Float32) -> Light:
    """Expected light of all events in all sensors."""
    travel_E3, vertex_E3 = truth.travel_E3.astype(np.float32), truth.vertex_E3.astype(np.float32)
    square_S = (position_S3**2).sum(1)
    along_ES = travel_E3 @ position_S3.T
    along_ES -= (travel_E3 * vertex_E3).sum(1)[:, None]
    range2_ES = (-2 * vertex_E3) @ position_S3.T
    range2_ES += square_S
    range2_ES += (vertex_E3**2).sum(1)[:, None]
    np.maximum(range2_ES, 0.01, out=range2_ES)
    tracks_T = np.flatnonzero(truth.is_track_E)
    return Light(
        _track_light(truth.take(truth.is_track_E), along_ES[tracks_T], range2_ES[tracks_T]),
        tracks_T,
        _cascade_light(truth, along_ES, range2_ES),
    )


def track_length_m(truth: Truth) -> Float64:
    """Length of each track. (E,)."""
    return np.minimum(truth.energy_gev_E / TRACK_GEV_PER_M, LONGEST_TRACK_M)


def _track_light(truth: Truth, along_TS: Float32, range2_TS: Float32) -> Float32:
    """Light of tracks: q exp(-d / absorption) / (1 + d / 8 m) where the cone's origin is on the track.

    d = ρ / sin(Cherenkov angle) is the length of the light's path, ρ the distance to the line.
    """
    rho_TS = np.sqrt(np.maximum(range2_TS - along_TS * along_TS, np.float32(0.01)))
    origin_TS = np.abs(along_TS - rho_TS * np.float32(1 / TAN_CHERENKOV))
    amount_T = truth.brightness_E * TRACK_LIGHT_PE * (1 + truth.energy_gev_E / TRACK_LOSS_GEV)
    light_TS = np.exp(rho_TS * np.float32(-1 / (SIN_CHERENKOV * ABSORPTION_M)))
    light_TS /= 1 + rho_TS * np.float32(1 / (SIN_CHERENKOV * TRACK_NEAR_M))
    light_TS *= amount_T.astype(np.float32)[:, None]
    light_TS *= origin_TS < (track_length_m(truth) / 2).astype(np.float32)[:, None]
    return np.minimum(light_TS, np.float32(MOST_PE), out=light_TS)


def _cascade_light(truth: Truth, along_ES: Float32, range2_ES: Float32) -> Float32:
    """Light of cascades: q exp(-R / absorption) / (1 + R / 3 m)^1.5, times the share at that angle to the direction."""
    range_ES = np.sqrt(range2_ES)
    angle_ES = along_ES / np.maximum(range_ES, np.float32(0.1))
    angle_ES -= np.float32(COS_CHERENKOV)
    np.abs(angle_ES, out=angle_ES)
    angle_ES *= np.float32(-CASCADE_WIDTH)
    np.exp(angle_ES, out=angle_ES)
    angle_ES += np.float32(CASCADE_ISOTROPIC)
    near_ES = 1 + range_ES * np.float32(1 / CASCADE_NEAR_M)
    near_ES *= np.sqrt(near_ES)
    range_ES *= np.float32(-1 / ABSORPTION_M)
    light_ES = np.exp(range_ES, out=range_ES)
    light_ES *= angle_ES
    light_ES /= near_ES
    amount_E = truth.brightness_E * CASCADE_LIGHT_PE_PER_GEV * truth.energy_gev_E
    amount_E = np.where(truth.is_track_E, TRACKS_CASCADE, 1.0) * amount_E
    light_ES *= amount_E.astype(np.float32)[:, None]
    return np.minimum(light_ES, np.float32(MOST_PE), out=light_ES)


def direct_track_light(truth: Truth, event_P: Int64, position_P3: Float32) -> tuple[Float64, Float64]:
    """Time after the vertex (ns) and length (m) of the unscattered path from a track to each pulse's sensor. (P,) each.

    t = l / c + ρ / c · (n_group / sin θ - 1 / tan θ), l the distance along the track, θ the Cherenkov angle.
    """
    along_P, range2_P = _seen_from_vertex(truth, event_P, position_P3)
    rho_P = np.sqrt(np.maximum(range2_P - along_P**2, 0.01))
    return along_P / LIGHT_SPEED_M_NS + rho_P * CONE_DELAY_NS_M, rho_P / SIN_CHERENKOV


def direct_cascade_light(truth: Truth, event_P: Int64, position_P3: Float32) -> tuple[Float64, Float64]:
    """Time after the vertex (ns) and length (m) of the straight path from the vertex to each pulse's sensor."""
    _, range2_P = _seen_from_vertex(truth, event_P, position_P3)
    range_P = np.sqrt(np.maximum(range2_P, 0.01))
    return range_P * POINT_DELAY_NS_M, range_P


def _seen_from_vertex(truth: Truth, event_P: Int64, position_P3: Float32) -> tuple[Float64, Float64]:
    """Distance along the direction of travel, and squared distance."""
    from_vertex_P3 = position_P3 - truth.vertex_E3[event_P]
    along_P = (from_vertex_P3 * truth.travel_E3[event_P]).sum(1)
    return along_P, (from_vertex_P3**2).sum(1)
