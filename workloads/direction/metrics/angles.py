"""Angles between directions, and directions as azimuth and zenith. Pure.

E events.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]


def angles_rad(a_E3: Float64, b_E3: Float64) -> Float64:
    """Angles between unit vectors, (E, 3), (E, 3) -> (E,), exact to 1e-15 at 0 and at π alike.

    2 atan2(|a - b|, |a + b|): W. Kahan, "How futile are mindless assessments of roundoff", section 12. The arccosine of
    the scalar product resolves nothing below 1e-8, and is NaN where rounding exceeds 1.
    """
    difference_E, sum_E = np.linalg.norm(a_E3 - b_E3, axis=1), np.linalg.norm(a_E3 + b_E3, axis=1)
    angle_E: Float64 = 2 * np.arctan2(difference_E, sum_E)
    return angle_E


def azimuth_zenith_rad(unit_E3: Float64) -> tuple[Float64, Float64]:
    """Azimuth in [0, 2π) and zenith in [0, π] of unit vectors. (E, 3) -> (E,), (E,)."""
    x_E, y_E, z_E = unit_E3.T
    azimuth_E = np.arctan2(y_E, x_E) % (2 * np.pi)
    azimuth_E[azimuth_E >= 2 * np.pi] = 0.0  # the remainder of -1e-17
    return azimuth_E, np.arctan2(np.hypot(x_E, y_E), z_E)
