"""Optical properties of ice: speed of light, Cherenkov angle, scattering, absorption (AMANDA, astro-ph/0407044)."""

from __future__ import annotations

from math import sqrt

LIGHT_SPEED_M_NS = 0.299792458
PHASE_INDEX, GROUP_INDEX = 1.3195, 1.35634
"""Refractive indices of ice for the Cherenkov angle, and for the speed of light pulses."""

COS_CHERENKOV = 1 / PHASE_INDEX
SIN_CHERENKOV = sqrt(1 - COS_CHERENKOV**2)
TAN_CHERENKOV = SIN_CHERENKOV / COS_CHERENKOV

CONE_DELAY_NS_M = (GROUP_INDEX / SIN_CHERENKOV - 1 / TAN_CHERENKOV) / LIGHT_SPEED_M_NS
"""Delay of a track's direct light behind the particle, a metre of distance to the track."""
POINT_DELAY_NS_M = GROUP_INDEX / LIGHT_SPEED_M_NS
"""Delay of a point source's direct light, a metre of distance to the source."""

SCATTERING_DELAY_NS, SCATTERING_M, ABSORPTION_M = 557.0, 33.3, 98.0
"""Parameters τ, λ and λ_a of the Pandel function of the delay by scattering."""
SCATTERING_RATE_PER_NS = 1 / SCATTERING_DELAY_NS + LIGHT_SPEED_M_NS / (GROUP_INDEX * ABSORPTION_M)
"""Rate of the Gamma distribution of the delay by scattering; its shape is the light's way / SCATTERING_M."""
