"""Constants of the simulator, with units and sources, and its presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from common.errors import BadInputError
from workloads.muons.geometry import EARTH_RADIUS_M

Spectrum = Literal["powerlaw", "h3a"]
Fluctuation = Literal["nb", "poisson", "lognormal"]
Lateral = Literal["pt", "mupage"]
Elbert = Literal["classic", "generalized"]
DepthKind = Literal["vertical", "slant"]

GROUP_MASS = (1.0, 4.0, 14.0, 27.0, 56.0)
"""Mass number A of each group of cosmic-ray nuclei: H, He, CNO, MgAlSi, Fe. The order of every per-group array."""

GROUP_CHARGE = (1.0, 2.0, 7.0, 13.0, 26.0)
"""Charge number Z of each group: a population's cutoff energy is its rigidity times Z."""


@dataclass(frozen=True)
class ElbertFit:
    """Mean multiplicity mu = A · scale / (E_min cos θ*) · x^-slope · (1 - x^edge)^power.

    x = A E_min / E_0."""

    scale_gev: float
    """Scale of the number of muons, GeV."""

    slope: float
    """Exponent of 1/x: the growth with primary energy."""

    edge: float
    """Exponent of x inside the bracket, which ends the spectrum at the energy of one nucleon."""

    power: float
    """Exponent of the bracket."""


ELBERT_FITS: Mapping[Elbert, ElbertFit] = {
    # Elbert (1979), as in Gaisser, "Cosmic Rays and Particle Physics". Valid for E_min >~ 300 GeV, x << 1.
    "classic": ElbertFit(scale_gev=14.5, slope=0.757, edge=1.0, power=5.25),
    # arXiv:1405.0525: a · A / (E_n cos θ*) · x^-1.62586 ..., E_n = E_0 / A = E_min / x, hence slope - 1 here.
    "generalized": ElbertFit(scale_gev=49.419, slope=0.62586, edge=0.580386, power=4.93827),
}


@dataclass(frozen=True)
class SimulatorConfig:
    """Settings of the simulator. Raises BadInputError for a value outside the range of the formulas."""

    spectrum: Spectrum = "powerlaw"
    """``powerlaw``: E^-gamma with the given mass fractions; ``h3a``: Gaisser 2012, arXiv:1111.6675."""

    gamma: float = 2.0
    """Spectral index of ``powerlaw``."""

    mass_fractions: tuple[float, float, float, float, float] = (0.2, 0.2, 0.2, 0.2, 0.2)
    """Share of events of H, He, CNO, MgAlSi, Fe for ``powerlaw``: equal, as in 5-component CORSIKA runs."""

    energy_min_gev: float = 1e5
    """Lowest primary energy, GeV per nucleus."""

    energy_max_gev: float = 1e8
    """Highest primary energy, GeV per nucleus."""

    theta_max_deg: float = 80.0
    """Largest zenith angle, degrees. The formulas end at 80°."""

    depth_kind: DepthKind = "vertical"
    """Meaning of the column ``depth_m``: metres below the surface, or metres of ice along the track."""

    depth_min_m: float = 1000.0
    """Shallowest depth below the ice surface, vertical metres (the converter of the production data)."""

    depth_max_m: float = 2800.0
    """Deepest depth, vertical metres (same source)."""

    depth_steps: int = 100
    """Number of equally spaced depths from which an event's is drawn (same source); 0: any depth in between."""

    elbert: Elbert = "classic"
    """Fit of the mean multiplicity: a key of ELBERT_FITS."""

    fluctuation: Fluctuation = "nb"
    """Spread of N around its mean: negative binomial, Poisson, or lognormal-Poisson.

    The last is a test of multiplicity models that wrongly assume a negative binomial.
    """

    nb_shape_per_nucleon: float = 6.0
    """Shape k of one nucleon's cascade; A nucleons have k·A. Tuned: 41 % shower-to-shower spread for a
    proton, 5.5 % for iron. Negative binomials for deep muons: Forti et al., PRD 42 (1990) 3668."""

    lognormal_sigma: float = 0.5
    """Spread of ln(mean) of a proton for ``lognormal``; a nucleus has sigma / sqrt(A). Chosen."""

    loss_a_gev_per_mwe: float = 0.259
    """Ionisation loss a in dE/dX = -(a + bE), GeV per m.w.e. Ice, Chirkin & Rhode, hep-ph/0407075."""

    loss_b_per_mwe: float = 0.363e-3
    """Radiative loss b, per m.w.e. (same fit)."""

    energy_cut_gev: float = 1.0
    """Energy at depth below which a muon is not recorded, GeV."""

    earth_radius_m: float = EARTH_RADIUS_M
    """Radius of the ice surface from the Earth's centre, m (MuonGun, Muonitron)."""

    firn_m: float = 200.0
    """Thickness of the light upper layer, m (MuonGun)."""

    firn_density: float = 0.832
    """Density of that layer relative to water (MuonGun)."""

    ice_density: float = 0.917
    """Density of the ice below relative to water (MuonGun)."""

    lateral: Lateral = "pt"
    """Distance to the axis: ``pt`` from transverse momentum and production height, or ``mupage``, its fit."""

    pt_mean_gev: float = 0.45
    """Mean transverse momentum, GeV; dN/dpT ~ pT exp(-2 pT/<pT>). Chosen; 0.9 gives MUPAGE's width."""

    interaction_length_gcm2: float = 90.0
    """Mean depth of the first interaction, g/cm² along the track: exponential, shared by an event's muons."""

    production_depth_gcm2: float = 60.0
    """Mean further depth to the decay of a muon's parent, g/cm²: Gamma(2), one draw a muon."""

    surface_depth_gcm2: float = 690.0
    """Vertical thickness of the atmosphere above the South Pole's surface, g/cm²."""

    scale_height_m: float = 6400.0
    """Scale height of the exponential atmosphere, m."""

    def __post_init__(self) -> None:
        for name, choices in (
            ("spectrum", get_args(Spectrum)),
            ("fluctuation", get_args(Fluctuation)),
            ("lateral", get_args(Lateral)),
            ("elbert", get_args(Elbert)),
            ("depth_kind", get_args(DepthKind)),
        ):
            if getattr(self, name) not in choices:
                raise BadInputError(f"{name} = {getattr(self, name)!r}: use one of {', '.join(choices)}")
        for name in _POSITIVE:
            if not 0.0 < getattr(self, name) < float("inf"):
                raise BadInputError(f"{name} = {getattr(self, name)}: must be a positive number")
        # Below 1 TeV hardly any muon reaches 1 km; above 1e12 GeV there are no cosmic rays and no tables.
        if not 1e3 <= self.energy_min_gev < self.energy_max_gev <= 1e12:
            raise BadInputError(
                f"energy_min_gev = {self.energy_min_gev:g}, energy_max_gev = {self.energy_max_gev:g}: "
                "need 1e3 <= energy_min_gev < energy_max_gev <= 1e12"
            )
        if not 0.0 < self.theta_max_deg <= 80.0:
            raise BadInputError(f"theta_max_deg = {self.theta_max_deg:g}: the formulas hold for 0 < theta <= 80°")
        if not 100.0 <= self.depth_min_m <= self.depth_max_m <= 5000.0:
            raise BadInputError(
                f"depth_min_m = {self.depth_min_m:g}, depth_max_m = {self.depth_max_m:g}: "
                "need 100 <= depth_min_m <= depth_max_m <= 5000"
            )
        if self.depth_steps < 0:
            raise BadInputError(f"depth_steps = {self.depth_steps}: must be 0 (any depth) or the number of depths")
        if len(self.mass_fractions) != len(GROUP_MASS) or min(self.mass_fractions) < 0.0:
            raise BadInputError(f"mass_fractions = {self.mass_fractions}: need five shares >= 0")
        if abs(sum(self.mass_fractions) - 1.0) > 1e-9:
            raise BadInputError(f"mass_fractions add up to {sum(self.mass_fractions):g}: they must add up to 1")
        if self.firn_m >= self.depth_min_m:
            raise BadInputError(f"firn_m = {self.firn_m:g}: must lie above depth_min_m = {self.depth_min_m:g}")

    @property
    def elbert_fit(self) -> ElbertFit:
        """Constants of the chosen multiplicity fit."""
        return ELBERT_FITS[self.elbert]


_POSITIVE = (
    "gamma",
    "nb_shape_per_nucleon",
    "lognormal_sigma",
    "loss_a_gev_per_mwe",
    "loss_b_per_mwe",
    "energy_cut_gev",
    "earth_radius_m",
    "firn_m",
    "firn_density",
    "ice_density",
    "pt_mean_gev",
    "interaction_length_gcm2",
    "production_depth_gcm2",
    "surface_depth_gcm2",
    "scale_height_m",
)

PRESETS: Mapping[str, SimulatorConfig] = {
    # Similar to a 5-component CORSIKA run: most rows empty, a few thousand muons at most.
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
"""Named settings; mean N and P(N=0) of each are in docs/explanation/simulator.md."""


def preset(name: str, **changes: Any) -> SimulatorConfig:
    """Preset named ``name``, with fields replaced. Raises BadInputError for an unknown name."""
    if name not in PRESETS:
        raise BadInputError(f"unknown preset {name!r}: use one of {', '.join(PRESETS)}")
    return replace(PRESETS[name], **changes)
