"""Stochastic energy loss and multiple scattering of muons in ice.

Cross sections and symbols are those of Groom, Mokhov, Striganov, Atomic Data and Nuclear Data Tables 78 (2001) 183,
the source of the Particle Data Group's tables; v is the fraction of its energy that a muon loses. Losses with v above
V_CUT are drawn; the sum of the others is drawn from a Gaussian. Lengths are metres of water equivalent (mwe,
100 g/cm²), energies GeV. Shapes: P muons, V values of v, N energies of the tables.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

Float64 = npt.NDArray[np.float64]

MUON_GEV, ELECTRON_GEV = 0.1056583755, 0.51099895e-3
FINE_STRUCTURE, ELECTRON_RADIUS_CM = 1.0 / 137.035999, 2.8179403e-13
NUCLEI = ((1.0, 1.008, 2.0), (8.0, 15.999, 1.0))
"""Charge, mass number, and number in a molecule of water."""
MOLECULES_PER_CM2 = 100.0 * 6.02214076e23 / 18.015
"""In one mwe."""
BETHE_GEV_PER_MWE = 0.0307075 * 0.55509
"""K Z/A of Bethe's formula, of water."""
EXCITATION_GEV = 79.7e-9
STERNHEIMER = (3.5017, 0.09116, 2.8004, 3.4773)
"""Density effect of water: C, a, x₁, k (Sternheimer, Berger, Seltzer 1984)."""
RADIATION_LENGTH_MWE = 0.3608
SCATTERING_GEV = 0.0136 * (1.0 + 0.038 * np.log(10.0))
"""Divided by the energy: rms projected angle after one radiation length (14.8 MeV).

Variances add up over steps only if they are in proportion to length, so the logarithm of Highland's formula (Lynch
and Dahl 1991) must not be taken step by step. It is taken at 10 radiation lengths: in thicker matter the sum is wider
than any single angle, which the size of the nuclei bounds, and its variance grows evenly (Rossi, Greisen: 15.0 MeV).
"""

V_CUT, ENERGY_CUT_GEV = 0.01, 1.0
"""Lost fraction from which a loss is drawn, and energy at which a muon stops."""

_ROOT_E = np.sqrt(np.e)
_LN_V = np.concatenate([np.linspace(np.log(1e-6), np.log(V_CUT), 241)[:-1], np.linspace(np.log(V_CUT), 0.0, 401)])
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


def max_transfer_gev(energy_gev_N: Float64) -> Float64:
    """Return the highest energy of a knock-on electron."""
    gamma, ratio = energy_gev_N / MUON_GEV, ELECTRON_GEV / MUON_GEV
    return 2.0 * ELECTRON_GEV * (gamma**2 - 1.0) / (1.0 + 2.0 * gamma * ratio + ratio**2)


def ionisation_gev_per_mwe(energy_gev_N: Float64) -> Float64:
    """Return the mean loss to electrons (Bethe), with the photons that these electrons emit (Groom, eq. 6)."""
    gamma2, transfer = (energy_gev_N / MUON_GEV) ** 2, max_transfer_gev(energy_gev_N)
    beta2 = 1.0 - 1.0 / gamma2
    x, (c, a, x1, k) = 0.5 * np.log10(gamma2 - 1.0), STERNHEIMER
    density = 2.0 * np.log(10.0) * x - c + a * np.maximum(x1 - x, 0.0) ** k
    bethe = 0.5 * np.log(2.0 * ELECTRON_GEV * (gamma2 - 1.0) * transfer / EXCITATION_GEV**2) - beta2 - density / 2.0
    log = np.log(2.0 * transfer / ELECTRON_GEV)
    photons = FINE_STRUCTURE / (4.0 * np.pi) * (0.5 * np.log(4.0 * gamma2) - log / 3.0) * log**2
    loss: Float64 = BETHE_GEV_PER_MWE * ((bethe + transfer**2 / (8.0 * energy_gev_N**2)) / beta2 + photons)
    return loss


def knock_on_per_mwe(energy_gev: float, v_max: float, v_V: Float64) -> Float64:
    """Return the rate of knock-on electrons per unit of v."""
    beta2 = 1.0 - (MUON_GEV / energy_gev) ** 2
    rate = BETHE_GEV_PER_MWE / (2.0 * beta2 * energy_gev * v_V**2) * (1.0 - beta2 * v_V / v_max + v_V**2 / 2.0)
    return np.where(v_V < v_max, rate, 0.0)


def bremsstrahlung_cm2(z: float, mass: float, energy_gev: float, v_V: Float64) -> Float64:
    """Return dσ/dv of photons in the field of a nucleus and of its electrons (Kelner, Kokoulin, Petrukhin 1995)."""
    third, size = z ** (-1.0 / 3.0), (1.54 * mass**0.27) ** (1.0 - 1.0 / z)
    b, b_electrons = (202.4 * third, 446.0) if z == 1.0 else (182.7 * third, 1429.0 * third**2)
    v_max = 1.0 - 0.75 * _ROOT_E * MUON_GEV / energy_gev / third
    inside_V, v_V = v_V < v_max, np.minimum(v_V, v_max)
    delta = MUON_GEV**2 * v_V / (2.0 * energy_gev * (1.0 - v_V))
    nucleus = np.log(b * MUON_GEV / (ELECTRON_GEV + _ROOT_E * b * delta))
    nucleus -= np.log(size / (1.0 + delta * (size * _ROOT_E - 2.0) / MUON_GEV))
    electrons = np.log(MUON_GEV / delta / (MUON_GEV * delta / ELECTRON_GEV**2 + _ROOT_E))
    electrons -= np.log1p(ELECTRON_GEV / (delta * b_electrons * _ROOT_E))
    # A free electron takes up no more recoil than this.
    recoil = energy_gev - np.sqrt(energy_gev**2 - MUON_GEV**2) + ELECTRON_GEV
    electrons[v_V > ELECTRON_GEV * (energy_gev - MUON_GEV) / (energy_gev * recoil)] = 0.0
    scale = FINE_STRUCTURE * (2.0 * ELECTRON_GEV / MUON_GEV * ELECTRON_RADIUS_CM) ** 2
    phi = z**2 * np.maximum(nucleus, 0.0) + z * np.maximum(electrons, 0.0)
    return np.where(inside_V, scale * (4.0 / 3.0 * (1.0 - v_V) / v_V + v_V) * phi, 0.0)


def pair_production_cm2(z: float, mass: float, energy_gev: float, v_V: Float64) -> Float64:
    """Return dσ/dv of electron pairs (Kokoulin, Petrukhin 1971; in the field of electrons: Kelner 1998)."""
    third, ratio, gamma = z ** (1.0 / 3.0), MUON_GEV / ELECTRON_GEV, energy_gev / MUON_GEV
    v_min, v_max = 4.0 * ELECTRON_GEV / energy_gev, 1.0 - 0.75 * _ROOT_E / gamma * third
    # The largest asymmetry ρ of the pair, below 0 near the ends of v.
    v = np.clip(v_V, v_min, v_max)[:, None]
    top = (1.0 - 6.0 / (gamma**2 * (1.0 - v))) * np.sqrt(1.0 - v_min / v)
    inside_V = (v_V > v_min) & (v_V < v_max) & (top[:, 0] > 0.0)
    v, ln_low = v[inside_V], np.log1p(-top[inside_V])
    # The integrand has its peak at ρ = 1: points are even in ln(1 - ρ).
    low = np.exp(ln_low * (0.5 - 0.5 * _NODES))
    r2, weights = (1.0 - low) ** 2, -0.5 * ln_low * low * _WEIGHTS
    xi, beta = (ratio * v / 2.0) ** 2 * (1.0 - r2) / (1.0 - v), v**2 / (2.0 * (1.0 - v))
    y_e = 5.0 - r2 + 4.0 * beta * (1.0 + r2)
    y_e /= (2.0 + 6.0 * beta) * np.log(3.0 + 1.0 / xi) - r2 - 2.0 * beta * (2.0 - r2)
    y_m = 4.0 + r2 + 3.0 * beta * (1.0 + r2)
    y_m /= (1.0 + r2) * (1.5 + 2.0 * beta) * np.log(3.0 + xi) + 1.0 - 1.5 * r2
    b_e = ((2.0 + r2) * (1.0 + beta) + xi * (3.0 + r2)) * np.log1p(1.0 / xi)
    b_e += (1.0 - r2 - beta) / (1.0 + xi) - (3.0 + r2)
    b_m = ((1.0 + r2) * (1.0 + 1.5 * beta) - (1.0 + 2.0 * beta) * (1.0 - r2) / xi) * np.log1p(xi)
    b_m += xi * (1.0 - r2 - beta) / (1.0 + xi) + (1.0 + 2.0 * beta) * (1.0 - r2)
    y_e, y_m, star = (1.0 + xi) * (1.0 + y_e), (1.0 + xi) * (1.0 + y_m), 183.0 / third
    screen = 2.0 * ELECTRON_GEV * _ROOT_E * star / (energy_gev * v * (1.0 - r2))
    l_e = np.log(star * np.sqrt(y_e / (1.0 + (1.5 / ratio * third) ** 2 * y_e)) / (1.0 + screen * y_e))
    l_m = np.log(2.0 / 3.0 * ratio * star / third / (1.0 + screen * y_m))
    integral = ((np.maximum(b_e * l_e, 0.0) + np.maximum(b_m * l_m, 0.0) / ratio**2) * weights).sum(1)
    g1, g2 = (4.4e-5, 4.8e-5) if z == 1.0 else (1.95e-5, 5.3e-5)
    zeta = max(0.0, 0.073 * np.log(gamma / (1.0 + g1 * third**2 * gamma)) - 0.26)
    zeta /= max(0.058 * np.log(gamma / (1.0 + g2 * third * gamma)) - 0.14, 1e-9)
    scale = 4.0 / (3.0 * np.pi) * z * (z + zeta) * (FINE_STRUCTURE * ELECTRON_RADIUS_CM) ** 2
    result_V = np.zeros(len(v_V))
    result_V[inside_V] = scale * (1.0 / v[:, 0] - 1.0) * integral
    return result_V


def photonuclear_cm2(z: float, mass: float, energy_gev: float, v_V: Float64) -> Float64:
    """Return dσ/dv of inelastic scattering off a nucleus (Bezrukov, Bugaev 1981)."""
    m, m1, m2 = MUON_GEV**2, 0.54, 1.8
    t, kappa = m * v_V**2 / (1.0 - v_V), 1.0 - 2.0 / v_V + 2.0 / v_V**2
    photon = 114.3 + 1.647 * np.log(0.0213 * energy_gev * v_V) ** 2
    x = 0.00282 * mass ** (1.0 / 3.0) * photon
    shadow = 1.0 if z == 1.0 else 3.0 / x**3 * (x**2 / 2.0 - 1.0 + np.exp(-x) * (1.0 + x))
    rho = shadow * (kappa * (np.log1p(m1 / t) - m1 / (m1 + t)) - 2.0 * m / t + m / (2.0 * t) * m1 / (m1 + t))
    others = kappa * np.log1p(m2 / t) - 2.0 * m / t + m * m2 / (2.0 * t**2) * np.log1p(t / m2)
    rate = FINE_STRUCTURE / (2.0 * np.pi) * mass * photon * 1e-30 * v_V * (0.75 * rho + 0.25 * others)
    return np.where((v_V > 0.2 / energy_gev) & (v_V < 1.0 - MUON_GEV / energy_gev), rate, 0.0)


RADIATIVE = {"bremsstrahlung": bremsstrahlung_cm2, "pairs": pair_production_cm2, "photonuclear": photonuclear_cm2}


class MuonsInIce:
    """Tables of the losses, and muons on their way: ``mean_loss_gev_per_mwe`` of each kind at ``energies_gev``."""

    def __init__(self) -> None:
        from scipy.integrate import cumulative_trapezoid  # the image that makes toy data has no scipy
        from scipy.interpolate import CubicSpline

        self.energies_gev = np.logspace(0.0, 9.0, 91)
        self.mean_loss_gev_per_mwe = {"ionisation": ionisation_gev_per_mwe(self.energies_gev)}
        self.mean_loss_gev_per_mwe |= {kind: np.zeros(len(self.energies_gev)) for kind in RADIATIVE}
        v_V, dv_V = np.exp(0.5 * (_LN_V[1:] + _LN_V[:-1])), np.diff(np.exp(_LN_V))
        drawn_V, ln_v_drawn = v_V > V_CUT, _LN_V[np.searchsorted(_LN_V, np.log(V_CUT)) :]
        # Quantiles of ln v are closer together towards v = 1, where losses are rare and large.
        levels, rates, drawn_gev, quantiles, spreads = 1.0 - np.linspace(1.0, 0.0, 257) ** 2, [], [], [], []
        v_max_N = max_transfer_gev(self.energies_gev) / self.energies_gev
        for row, energy in enumerate(self.energies_gev):
            rate_V = knock_on_per_mwe(energy, v_max_N[row], v_V) * dv_V
            for kind, cm2 in RADIATIVE.items():
                part_V = MOLECULES_PER_CM2 * dv_V * sum(number * cm2(z, a, energy, v_V) for z, a, number in NUCLEI)
                self.mean_loss_gev_per_mwe[kind][row] = (part_V * v_V).sum() * energy
                rate_V += part_V
            sums = np.cumsum(np.append(0.0, rate_V[drawn_V]))
            rates.append(sums[-1])
            drawn_gev.append((rate_V * v_V)[drawn_V].sum() * energy)
            spreads.append((rate_V * v_V**2)[~drawn_V].sum())
            quantiles.append(np.interp(levels * sums[-1], sums, ln_v_drawn))
        self._ln_v, self._of_row = np.array(quantiles), _rows(np.array(spreads))
        self._rows_per_ln_energy = 10.0 / np.log(10.0)
        # By the continuous loss alone, down to ENERGY_CUT_GEV: the range in mwe, and how many losses are drawn.
        ln_energy = np.log(self.energies_gev)
        self._ln_energy, self._per_ln_energy = np.linspace(0.0, ln_energy[-1], 1801), 1800 / ln_energy[-1]
        continuous = sum(self.mean_loss_gev_per_mwe.values()) - np.array(drawn_gev)
        per_loss = np.exp(self._ln_energy - CubicSpline(ln_energy, np.log(continuous))(self._ln_energy))
        rate = np.exp(CubicSpline(ln_energy, np.log(rates))(self._ln_energy))
        self._range = cumulative_trapezoid(per_loss, self._ln_energy, initial=0.0)
        number = cumulative_trapezoid(per_loss * rate, self._ln_energy, initial=0.0)
        self._per_number = 8000 / number[-1]
        ln_energy_at = np.interp(np.linspace(0.0, number[-1], 8001), number, self._ln_energy)
        self._of_energy = _rows(self._range, number)
        self._of_number = _rows(ln_energy_at, np.interp(ln_energy_at, self._ln_energy, self._range))

    def propagate(
        self, energy_gev_P: Float64, track_4P: Float64, slant_mwe_P: Float64, metres_per_mwe_P: Float64, rng: Generator
    ) -> Float64:
        """Return the energies in GeV after ``slant_mwe``, 0 for a muon that stopped, and move the others' tracks.

        ``track_4P`` is x and y in metres and their slopes, across an axis that the muons fly along. Between two drawn
        losses the table of the range gives the energy, however far that is. Angles and displacements of the scattering
        are sums of Gaussians: their variances are added up, and one angle and one displacement are drawn at the end.
        """
        ln_energy_P, left_P = np.log(np.maximum(energy_gev_P, ENERGY_CUT_GEV)), slant_mwe_P.copy()
        moments_3P = np.zeros((3, len(left_P)))
        active = np.flatnonzero((ln_energy_P > 0.0) & (left_P > 0.0))
        while len(active):
            before, left = ln_energy_P[active], left_P[active]
            range_before, number = _interpolate(self._of_energy, before * self._per_ln_energy)
            number = np.maximum(number - rng.standard_exponential(len(active)), 0.0)
            after, range_after = _interpolate(self._of_number, number * self._per_number)
            step = np.maximum(range_before - range_after, 0.0)
            ends = np.flatnonzero(step >= left)
            after[ends] = np.interp(range_before[ends] - left[ends], self._range, self._ln_energy)
            step[ends] = left[ends]
            left -= step
            after = np.where(after > 0.0, after + self._draw_spread(before, after, step, rng), 0.0)
            moments_3P[:, active] += _scattering(before, after, step, left)
            loses = np.flatnonzero((left > 0.0) & (after > 0.0))
            after[loses] += self._draw_loss(after[loses], rng)
            ln_energy_P[active], left_P[active] = after, left
            active = active[(left > 0.0) & (after > 0.0)]
        energy_P = np.where(ln_energy_P > 0.0, np.exp(ln_energy_P), 0.0)
        alive = np.flatnonzero(energy_P)
        variance, covariance, square = moments_3P[:, alive]
        angle, metres = np.sqrt(variance), metres_per_mwe_P[alive]
        along = metres * covariance / np.maximum(angle, 1e-30)
        across = np.sqrt(np.maximum(metres**2 * square - along**2, 0.0))
        for axis, normals in enumerate(rng.standard_normal((2, 2, len(alive)))):
            slope = track_4P[axis + 2, alive]
            track_4P[axis, alive] += slope * slant_mwe_P[alive] * metres + along * normals[0] + across * normals[1]
            track_4P[axis + 2, alive] = slope + angle * normals[0]
        return energy_P

    def _draw_spread(self, ln_before_P: Float64, ln_after_P: Float64, step_mwe_P: Float64, rng: Generator) -> Float64:
        """Return by how much fluctuations of the losses that are not drawn change the logarithm of the energy."""
        middle = 0.5 * (ln_before_P + ln_after_P)
        (variance_per_mwe,) = _interpolate(self._of_row, middle * self._rows_per_ln_energy)
        spread = np.sqrt(variance_per_mwe * step_mwe_P) * np.exp(middle - ln_after_P)
        change: Float64 = np.log1p(np.maximum(spread * rng.standard_normal(len(spread)), -0.9))
        return change

    def _draw_loss(self, ln_energy_P: Float64, rng: Generator) -> Float64:
        """Return ln(1 - v) of losses that are drawn at these energies."""
        uniform_2P = rng.random((2, len(ln_energy_P)))
        # One of the two next rows of the table is drawn, in place of an interpolation between them.
        rows = (ln_energy_P * self._rows_per_ln_energy + uniform_2P[0]).astype(np.int64)
        place = (self._ln_v.shape[1] - 1) * (1.0 - np.sqrt(1.0 - uniform_2P[1]))
        cells = place.astype(np.int64)
        low, high = self._ln_v[rows, cells], self._ln_v[rows, cells + 1]
        change: Float64 = np.log1p(-np.exp(low + (high - low) * (place - cells)))
        return change


def _rows(*columns_N: Float64) -> Float64:
    """Return rows for _interpolate: values at a point, then what they rise by to the next point."""
    values = np.stack(columns_N, axis=1)
    return np.concatenate([values[:-1], np.diff(values, axis=0)], axis=1)


def _interpolate(rows: Float64, place_P: Float64) -> Float64:
    """Return the columns' values at places along the points, which are counted from 0. -> (columns, P)."""
    cells_P = np.minimum(place_P.astype(np.int64), len(rows) - 1)
    low, rise = np.hsplit(rows.take(cells_P, axis=0), 2)
    return np.ascontiguousarray((low + rise * (place_P - cells_P)[:, None]).T)


def _scattering(ln_before_P: Float64, ln_after_P: Float64, step_mwe_P: Float64, left_mwe_P: Float64) -> Float64:
    """Return what a step adds to three moments at the end of the way, if the energy falls evenly. -> (3, P).

    They are the variance of the projected angle, its covariance with the displacement (mwe), and the variance of the
    displacement (mwe²): integrals of 1, D and D² with weight (SCATTERING_GEV / E)² / X₀, where D is the way to the end.
    """
    lost = np.maximum(-np.expm1(ln_after_P - ln_before_P), 1e-3)
    kept = 1.0 - lost
    log = np.log(kept)
    lever = step_mwe_P * kept * (-log - lost) / lost**2
    square = step_mwe_P**2 * kept * (lost * (1.0 + kept) + 2.0 * kept * log) / lost**3
    angle2 = SCATTERING_GEV**2 / RADIATION_LENGTH_MWE * step_mwe_P * np.exp(-ln_before_P - ln_after_P)
    square += left_mwe_P * (left_mwe_P + 2.0 * lever)
    return np.stack([angle2, angle2 * (left_mwe_P + lever), angle2 * square])
