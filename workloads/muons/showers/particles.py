"""Particles of an air shower as parallel arrays, their properties, and their decays. Pure.

Particles are known by their PDG codes; a nucleus of mass number A is NUCLEUS + A. Angles are small (energies above 280
GeV), so that directions are slopes to the shower axis. P particles, D decaying particles, K decays at rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

NUCLEUS = 10_000
MUON, ELECTRON, NEUTRINO_E, NEUTRINO_MU, PION_0 = 13, 11, 12, 14, 111

MASS_GEV = {
    ELECTRON: 0.000511, NEUTRINO_E: 0.0, MUON: 0.105658, NEUTRINO_MU: 0.0,
    211: 0.139570, PION_0: 0.134977, 321: 0.493677, 130: 0.497611, 310: 0.497611, 2212: 0.938272, 2112: 0.939565,
    3122: 1.115683, 3222: 1.18937, 3112: 1.19745, 3322: 1.31486, 3312: 1.32171,
}  # fmt: skip
"""Masses (PDG 2022)."""

DECAY_LENGTH_M = {
    211: 7.8045, 321: 3.711, 130: 15.34, 310: 0.026844,
    3122: 0.0789, 3222: 0.02404, 3112: 0.04434, 3322: 0.0871, 3312: 0.0491,
}  # fmt: skip
"""Lifetimes times the speed of light (PDG 2022)."""

NOT_FOLLOWED = (ELECTRON, NEUTRINO_E, NEUTRINO_MU, PION_0)
"""Daughters that can't make a muon above the threshold; photoproduction of muons is left out."""

SELF_CONJUGATE = (PION_0, 130, 310)

FOLLOWED = np.array(sorted({sign * pid for pid in MASS_GEV if pid not in NOT_FOLLOWED for sign in (-1, 1)}))
"""Codes of all particles of a shower but nuclei."""

Channel = tuple[float, tuple[int, ...]]
DECAYS: dict[int, tuple[Channel, ...]] = {
    211: ((0.99988, (-MUON, NEUTRINO_MU)),),
    321: (
        (0.6356, (-MUON, NEUTRINO_MU)), (0.2067, (211, PION_0)), (0.0558, (211, 211, -211)),
        (0.0176, (211, PION_0, PION_0)), (0.0507, (-ELECTRON, NEUTRINO_E, PION_0)),
        (0.0335, (-MUON, NEUTRINO_MU, PION_0)),
    ),
    130: (
        (0.2028, (ELECTRON, NEUTRINO_E, 211)), (0.2028, (-ELECTRON, NEUTRINO_E, -211)),
        (0.1352, (MUON, NEUTRINO_MU, 211)), (0.1352, (-MUON, NEUTRINO_MU, -211)), (0.1254, (211, -211, PION_0)),
    ),
    310: ((0.692, (211, -211)), (2.3e-4, (MUON, NEUTRINO_MU, 211)), (2.3e-4, (-MUON, NEUTRINO_MU, -211))),
    3122: ((0.641, (2212, -211)), (0.359, (2112, PION_0))),
    3222: ((0.5157, (2212, PION_0)), (0.4831, (2112, 211))),
    3112: ((0.9985, (2112, -211)),),
    3322: ((0.995, (3122, PION_0)),),
    3312: ((0.999, (3122, -211)),),
}  # fmt: skip
"""Branching ratios (PDG 2022) and daughters; the rest makes no muon. In a semileptonic decay the pion comes last."""

_FORM_FACTOR_SLOPE = 0.0282
"""λ+ of f+(t) = f+(0) (1 + λ+ t / m_π²) in K → π l ν (PDG 2022, linear fit)."""


@dataclass
class Particles:
    """Particles on their way to the ground."""

    shower: Int64
    pid: Int64
    energy_gev: Float64
    along_m: Float64
    """Distance to the ground along the shower axis."""
    x_m: Float64
    y_m: Float64
    slope_x: Float64
    slope_y: Float64

    def __len__(self) -> int:
        return len(self.pid)

    def take(self, index: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> Particles:
        """Return a copy of the chosen particles."""
        return Particles(*(getattr(self, field.name)[index] for field in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[Particles]) -> Particles:
        """Return the particles of all parts."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))


def decayed(parents: Particles, rng: np.random.Generator) -> list[Particles]:
    """Return the daughters worth following, at the places of their parents."""
    daughters = []
    for species in np.unique(np.abs(parents.pid)).tolist():
        of_species = parents.take(np.abs(parents.pid) == species)
        channels = DECAYS[species]
        chosen_D = np.searchsorted(np.cumsum([share for share, _ in channels]), rng.random(len(of_species)))
        for number, (_, pids) in enumerate(channels):
            if (of_channel := chosen_D == number).any():
                daughters += _by_channel(of_species.take(of_channel), species, pids, rng)
    return daughters


def _by_channel(parents: Particles, species: int, pids: tuple[int, ...], rng: np.random.Generator) -> list[Particles]:
    parent_gev, masses_gev = MASS_GEV[species], tuple(MASS_GEV[abs(pid)] for pid in pids)
    if len(pids) == 2:
        momentum_3D = _momentum(np.full(len(parents), parent_gev), *masses_gev) * _isotropic(len(parents), rng)
        momenta = [momentum_3D, -momentum_3D]
    else:
        drawn_D = rng.integers(0, _DECAYS_KEPT, len(parents))
        semileptonic = abs(pids[1]) in (NEUTRINO_E, NEUTRINO_MU)
        momenta = [momentum_3K[:, drawn_D] for momentum_3K in _three_bodies(parent_gev, masses_gev, semileptonic)]
    daughters = []
    for pid, mass_gev, momentum_3D in zip(pids, masses_gev, momenta, strict=True):
        if abs(pid) in NOT_FOLLOWED:
            continue
        rest_gev_D = np.sqrt(mass_gev**2 + (momentum_3D**2).sum(0))
        daughter = parents.take(np.arange(len(parents)))
        conjugate = species not in SELF_CONJUGATE and abs(pid) not in SELF_CONJUGATE
        daughter.pid = np.where((parents.pid < 0) & conjugate, -pid, pid)
        daughter.energy_gev *= (rest_gev_D + momentum_3D[2]) / parent_gev
        daughter.slope_x += momentum_3D[0] / daughter.energy_gev
        daughter.slope_y += momentum_3D[1] / daughter.energy_gev
        daughters.append(daughter)
    return daughters


_DECAYS_KEPT = 1 << 15


@cache
def _three_bodies(parent_gev: float, masses_gev: tuple[float, float, float], semileptonic: bool) -> list[Float64]:
    """Return decays into three bodies at rest, drawn once: momenta of the daughters, (3, _DECAYS_KEPT) each."""
    rng, num = np.random.default_rng(3), 8 * _DECAYS_KEPT
    one_gev, other_gev, third_gev = masses_gev
    # Phase space: the mass of the first two, then two decays into two bodies.
    grid_gev = np.linspace(one_gev + other_gev, parent_gev - third_gev, 4001)[1:-1]
    density = _momentum(parent_gev, grid_gev, third_gev) * _momentum(grid_gev, one_gev, other_gev)
    pair_gev = np.interp(rng.random(num), np.cumsum(density) / density.sum(), grid_gev)
    third_3K = _momentum(parent_gev, pair_gev, third_gev) * _isotropic(num, rng)
    inner_3K = _momentum(pair_gev, one_gev, other_gev) * _isotropic(num, rng)
    boost_3K = -third_3K / pair_gev
    gamma_K = np.sqrt(1 + (boost_3K**2).sum(0))
    momenta = []
    for momentum_3K, mass_gev in ((inner_3K, one_gev), (-inner_3K, other_gev)):
        along_K = (momentum_3K * boost_3K).sum(0) / (gamma_K + 1) + np.sqrt(mass_gev**2 + (inner_3K**2).sum(0))
        momenta.append(momentum_3K + boost_3K * along_K)
    momenta.append(third_3K)
    weight_K = _semileptonic_weight(parent_gev, masses_gev, momenta) if semileptonic else np.ones(num)
    kept = rng.choice(num, _DECAYS_KEPT, p=weight_K / weight_K.sum())
    return [momentum_3K[:, kept] for momentum_3K in momenta]


def _semileptonic_weight(parent_gev: float, masses_gev: Sequence[float], momenta: Sequence[Float64]) -> Float64:
    """Return the density of K → l ν π in the Dalitz plot, up to a factor. (K,).

    V - A with a linear f+ and f- = 0 (PDG, review of K_l3 form factors): f- goes with the lepton's mass squared.
    """
    lepton_gev, _, pion_gev = masses_gev
    lepton_K, neutrino_K, pion_K = (
        np.sqrt(mass_gev**2 + (momentum_3K**2).sum(0))
        for mass_gev, momentum_3K in zip(masses_gev, momenta, strict=True)
    )
    below_K = (parent_gev**2 + pion_gev**2 - lepton_gev**2) / (2 * parent_gev) - pion_K
    density_K = parent_gev * (2 * lepton_K * neutrino_K - parent_gev * below_K)
    density_K += lepton_gev**2 * (below_K / 4 - neutrino_K)
    transfer_gev2 = parent_gev**2 + pion_gev**2 - 2 * parent_gev * pion_K
    factor_K = 1 + _FORM_FACTOR_SLOPE * transfer_gev2 / MASS_GEV[211] ** 2
    weight_K: Float64 = np.maximum(density_K, 0.0) * factor_K**2
    return weight_K


def _momentum(mass_gev: Float64 | float, one_gev: Float64 | float, other_gev: Float64 | float) -> Float64:
    """Return the momentum of both daughters of a particle at rest."""
    squared = (mass_gev**2 - (one_gev + other_gev) ** 2) * (mass_gev**2 - (one_gev - other_gev) ** 2)
    momentum: Float64 = np.sqrt(np.maximum(squared, 0.0)) / (2 * mass_gev)
    return momentum


def _isotropic(num: int, rng: np.random.Generator) -> Float64:
    """Return random directions. (3, D)."""
    cos_D, angle_D = rng.uniform(-1, 1, num), rng.uniform(0, 2 * np.pi, num)
    sin_D = np.sqrt(1 - cos_D**2)
    return np.stack([sin_D * np.cos(angle_D), sin_D * np.sin(angle_D), cos_D])
