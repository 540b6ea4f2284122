"""Geometry of a track on a round Earth: depth below the surface, and path length to it.

Source: Muonitron (IceCube's MuonGun), including the Earth's radius.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

EARTH_RADIUS_M = 6_374_134.0

Float64 = npt.NDArray[np.float64]


def slant_depth_m(cos_zenith: Float64, depth_m: Float64, earth_radius_m: float = EARTH_RADIUS_M) -> Float64:
    """Path length in metres from the surface to ``depth_m`` vertical metres, element by element.

    The zenith angle is the one at the detector.
    """
    below_m = earth_radius_m - depth_m
    along_m = cos_zenith * below_m
    # An order of operations that keeps digits: 2rd - d² is small against r², and the root is close to `along_m`.
    extra_m2 = 2.0 * earth_radius_m * depth_m - depth_m**2
    return extra_m2 / (np.sqrt(extra_m2 + along_m**2) + along_m)


def vertical_depth_m(cos_zenith: Float64, slant_m: Float64, earth_radius_m: float = EARTH_RADIUS_M) -> Float64:
    """Vertical depth in metres of a point ``slant_m`` along the track: the inverse of slant_depth_m."""
    across_m2 = slant_m**2 * (1.0 - cos_zenith**2)
    # r - sqrt(r² - across²), written without the difference of two large numbers.
    sagitta_m = across_m2 / (earth_radius_m + np.sqrt(earth_radius_m**2 - across_m2))
    return slant_m * cos_zenith + sagitta_m
