"""Presets of the simulators, and constants of the toy, with units and sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from common.errors import BadInputError

Spectrum = Literal["powerlaw", "h3a"]

GROUP_MASS = (1.0, 4.0, 14.0, 27.0, 56.0)
"""Mass number A of each group of cosmic-ray nuclei: H, He, CNO, MgAlSi, Fe. The order of every per-group array."""

GROUP_CHARGE = (1.0, 2.0, 7.0, 13.0, 26.0)
"""Charge number Z of each group: a population's cutoff energy is its rigidity times Z."""

MASS_FRACTIONS = (0.2, 0.2, 0.2, 0.2, 0.2)
"""Share of events of each group for the spectrum ``powerlaw``: equal, as in 5-component CORSIKA runs."""

ELBERT_SCALE_GEV, ELBERT_SLOPE, ELBERT_POWER = 14.5, 0.757, 5.25
"""Mean multiplicity mu = A · scale / (E_min cos θ*) · x^-slope · (1 - x)^power, x = A E_min / E_0. Elbert (1979), as in
Gaisser, "Cosmic Rays and Particle Physics". Valid for E_min >~ 300 GeV, x << 1."""

NB_SHAPE, NB_MASS_POWER, NB_ENERGY_POWER = 5.6, 0.25, 0.22
"""Shape k = 5.6 A^0.25 (E_0 / PeV)^0.22 of the negative binomial, that of real showers (docs/explanation/physics.md) to
15 %. Negative binomials for deep muons: Forti et al., PRD 42 (1990) 3668."""

LOSS_A_GEV_PER_MWE, LOSS_B_PER_MWE = 0.259, 0.363e-3
"""Ionisation loss a and radiative loss b in dE/dX = -(a + bE). Ice, Chirkin & Rhode, hep-ph/0407075."""

PT_MEAN_GEV = 0.45
"""Mean transverse momentum, GeV; dN/dpT ~ pT exp(-2 pT/<pT>). Chosen; 0.9 gives MUPAGE's width (hep-ph/0507228)."""

INTERACTION_LENGTH_GCM2, SHARED_PART, SHARED_POWER = 90.0, 0.72, -0.15
"""Mean depth of the first interaction, g/cm² along the track: exponential, shared by an event's muons. They have a part
0.72 (E_0 / PeV)^-0.15 of its deviation from the mean, at most all, so that lg r of two muons correlates as in real
showers, by 0.045 (E_0 / PeV)^-0.3 (1950 m, 30°)."""

PRODUCTION_DEPTH_GCM2 = 60.0
"""Mean further depth to the decay of a muon's parent, g/cm²: Gamma(2), one draw a muon."""

SURFACE_DEPTH_GCM2, SCALE_HEIGHT_M = 690.0, 6400.0
"""Vertical thickness of the atmosphere above the South Pole's surface, g/cm², and its scale height: exponential."""


@dataclass(frozen=True)
class SimulatorConfig:
    """Settings that differ between the presets, or that benchmarks/physics changes."""

    spectrum: Spectrum = "powerlaw"
    """``powerlaw``: E^-gamma with MASS_FRACTIONS; ``h3a``: Gaisser 2012, arXiv:1111.6675."""

    gamma: float = 2.0
    """Spectral index of ``powerlaw``."""

    energy_min_gev: float = 1e5
    """Lowest primary energy, GeV per nucleus."""

    energy_max_gev: float = 1e8
    """Highest primary energy, GeV per nucleus."""

    zenith_max_deg: float = 80.0
    """Largest zenith angle: the toy's formulas end at 80°."""

    depth_range_m: tuple[float, float] = (1000.0, 2800.0)
    """Shallowest and deepest row below the ice surface, vertical metres (the converter of the production data)."""

    interactions: str = ""
    """Model of hadronic interactions for real showers; empty: the toy."""

    library: int = 1
    """Seed of the library of these interactions."""

    field: bool = False
    """True for real showers in the Earth's magnetic field."""

    depth_steps: int = 100
    """Number of equally spaced depths from which a row's is drawn (the converter of the production data)."""

    energy_cut_gev: float = 1.0
    """Energy at depth below which a muon is not recorded, GeV."""


PRESETS: Mapping[str, SimulatorConfig] = {
    # Real showers: E^-1.5, zenith angles up to 70°, IceCube's depths; within reach of the library of interactions.
    "sibyll": SimulatorConfig("powerlaw", 1.5, 3e4, 1e8, 70.0, (1450.0, 2450.0), "sibyll23d"),
    # Similar to a 5-component CORSIKA run: most rows empty, few have thousands of muons.
    "corsika": SimulatorConfig(energy_min_gev=1e4, energy_max_gev=1e10),
    # For benchmarks and demos: some muons in most rows, a moderate tail.
    "bench": SimulatorConfig(energy_min_gev=1e5, energy_max_gev=1e8),
    # For outlier handling: single rows of ten thousand muons.
    "heavy": SimulatorConfig(gamma=1.5, energy_min_gev=1e4, energy_max_gev=1e9),
    # Equal numbers in every decade of energy: for conditional tests.
    "flat": SimulatorConfig(gamma=1.0, energy_min_gev=1e4, energy_max_gev=1e7),
    # The natural flux above 10 TeV.
    "h3a": SimulatorConfig(spectrum="h3a", energy_min_gev=1e4, energy_max_gev=1e11),
}
"""Named settings; mean N and P(N=0) of each are in docs/explanation/physics.md."""

NATURAL_FLUX = "h3a"
"""Preset with the natural flux, to which simulated events can be weighted."""


def preset(name: str, **changes: Any) -> SimulatorConfig:
    """Preset named ``name``, with fields replaced. Raises BadInputError for an unknown name."""
    if name not in PRESETS:
        raise BadInputError(f"unknown preset {name!r}: use one of {', '.join(PRESETS)}")
    return replace(PRESETS[name], **changes)
