"""Muons of simulated showers beside MCEq and daemonflux at the ground, and beside PROPOSAL in ice.

Question: are the flux of muons at the ground, and what ice leaves of them, those of the field's own programs? The aims
are 5 % of the flux from 1 to 10 TeV, and 2 % of the muons that arrive.

Command, from the repository's root:

    python -m benchmarks.bench_showers [--showers 40000]

Table: ratios to the references with statistical errors, and the time of a muon in ice on one core.

Reading: MCEq has the same primaries (H3a) and nearly the same interactions (SIBYLL 2.3c), so its ratio is a test of the
cascade. daemonflux is fitted to measured fluxes: its ratio is the error of the interactions and primaries themselves.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import numpy.typing as npt

from workloads.muons.showers.cascade import muons_at_ground
from workloads.muons.showers.ice import MuonsInIce
from workloads.muons.showers.interactions import MODELS, LibraryName, library_of
from workloads.muons.simulator.config import GROUP_MASS, SimulatorConfig, preset
from workloads.muons.simulator.muons import SimulatedPrimaries, h3a_flux, simulate

Float64 = npt.NDArray[np.float64]

BANDS_GEV = (1e3, 2e3, 5e3, 1e4, 3e4)
MCEQ_PER_CM2_S_SR = {0.0: (3.666e-8, 6.869e-9, 5.816e-10, 1.034e-10), 60.0: (6.293e-8, 1.237e-8, 1.087e-9, 1.962e-10)}
"""Flux of both charges in BANDS_GEV at sea level, by zenith angle: MCEq, SIBYLL 2.3c, H3a, US standard atmosphere.

Integrals of power laws between the ten energies a decade of a table that MUTE tests itself with (Woodley et al. 2021,
`Surface_Fluxes_USStd_None_SIBYLL-2.3c_HG.txt`); 60°: between its 56.8° and 61.6°, in the logarithm and 1/cos.
"""
DAEMONFLUX_PER_CM2_S_SR = (4.403e-8, 8.184e-9, 6.804e-10, 1.202e-10)
DAEMONFLUX_ERROR = (0.037, 0.042, 0.048, 0.053)
"""Vertical, calibrated (Yañez, Fedynitch 2023; splines and calibration 202303_1), and its relative error."""
DAEMONFLUX_CHARGE_RATIO = (1.415, 1.446, 1.474, 1.488)

PROPOSAL = ((700.0, 0.4209, 36.29), (850.0, 0.7106, 98.79), (1200.0, 0.8723, 269.88), (3000.0, 0.9641, 1188.8))
"""After 2,000 mwe of ice: energy in GeV before, share of muons that arrive, and their mean energy in GeV.

PROPOSAL 6.1.8 (Koehne et al. 2013), 40,000 muons, v_cut 0.01 with continuous randomisation, bremsstrahlung and pairs of
Kelner, Kokoulin, Petrukhin, photonuclear interactions of Bezrukov, Bugaev times 0.888 (the difference between its
formula and the one here).
"""


def flux_table(energy_gev_P: Float64, per_cm2_s_sr_P: Float64, is_positive_P: npt.NDArray[np.bool_], zenith_deg: float):
    """Yield, by band, the ratio to MCEq and its error, the ratio to daemonflux (vertical), and the charge ratio."""
    total = np.histogram(energy_gev_P, BANDS_GEV, weights=per_cm2_s_sr_P)[0]
    error = np.sqrt(np.histogram(energy_gev_P, BANDS_GEV, weights=per_cm2_s_sr_P**2)[0])
    positive = np.histogram(energy_gev_P, BANDS_GEV, weights=per_cm2_s_sr_P * is_positive_P)[0]
    for band, mceq in enumerate(MCEQ_PER_CM2_S_SR[zenith_deg]):
        fitted = total[band] / DAEMONFLUX_PER_CM2_S_SR[band] if zenith_deg == 0.0 else np.nan
        charges = positive[band] / (total[band] - positive[band])
        yield BANDS_GEV[band], total[band] / mceq, error[band] / mceq, fitted, charges


def ground_flux(zenith_deg: float, showers: int, rng: np.random.Generator) -> tuple[Float64, Float64, Float64]:
    """Return energies of muons at the ground, their weights for the flux of H3a, and PDG codes of sign."""
    library, least_gev, most_gev = library_of(LibraryName()), BANDS_GEV[0] * 0.99, 1e7
    energies, weights, codes = [], [], []
    for group, mass in enumerate(GROUP_MASS):
        num = showers // (group + 1)  # most muons are of protons
        low_gev = 1.2 * least_gev * mass
        energy_gev = low_gev / (1 - rng.random(num) * (1 - low_gev / most_gev))  # E^-2, by which the errors are least
        weight = h3a_flux(energy_gev, group) * energy_gev**2 * (1 / low_gev - 1 / most_gev) / num * 1e-4
        mass_S, cos_S = np.full(num, int(mass)), np.full(num, np.cos(np.deg2rad(zenith_deg)))
        muons = muons_at_ground(energy_gev, mass_S, cos_S, np.full(num, least_gev), library, rng)
        energies.append(muons.energy_gev)
        weights.append(weight[muons.shower])
        codes.append(muons.pid)
    return np.concatenate(energies), np.concatenate(weights), np.concatenate(codes)


FIXED = ((1, 1e5), (1, 1e6), (1, 1e7), (14, 1e6), (14, 1e7), (56, 1e6), (56, 1e7))


def fixed_primaries(config: SimulatorConfig, showers: int, rng: np.random.Generator):
    """Yield mass, energy, and of bundles at 1,950 m under 30°: mean N, its error, Fano factor, skewness, mean lg r."""
    for mass, energy_gev in FIXED:
        num = max(int(showers * (1e5 / energy_gev) ** 0.5), 400)
        same = (np.full(num, value) for value in (energy_gev, float(mass), np.cos(np.deg2rad(30.0)), 1950.0))
        drawn = simulate(SimulatedPrimaries(*same), config, rng)
        counts, (_, x_m, y_m) = drawn.counts_E, drawn.muons_P3.T
        mean, spread = counts.mean(), counts.std()
        skewness = np.mean(((counts - mean) / spread) ** 3)
        yield (
            mass,
            energy_gev,
            mean,
            spread / np.sqrt(num),
            spread**2 / mean,
            skewness,
            np.log10(np.hypot(x_m, y_m) + 0.1).mean(),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Muons of simulated showers beside the field's own programs.")
    parser.add_argument("--muons", type=int, default=100_000)
    parser.add_argument(
        "--showers", type=int, default=40_000, help="for the flux, by mass and zenith angle; of a model"
    )
    parser.add_argument("--interactions", nargs="*", default=list(MODELS), help="models of the last table")
    arguments = parser.parse_args()
    found: dict[str, object] = {"benchmark": "showers", "arrive_beside_proposal": in_ice(arguments.muons)}
    rng = np.random.default_rng(2)
    for zenith_deg in MCEQ_PER_CM2_S_SR:
        energy_gev, weight, pid = ground_flux(zenith_deg, arguments.showers, rng)
        print(f"\nFlux at the ground, {zenith_deg:.0f}°: from GeV, / MCEq, / daemonflux, positive / negative")
        rows = list(flux_table(energy_gev, weight, pid < 0, zenith_deg))
        for from_gev, mceq, error, fitted, charges in rows:
            print(f"{from_gev:>8.0f}{mceq:>9.3f} ± {error:.3f}{fitted:>9.3f}{charges:>9.2f}")
        found[f"flux_{zenith_deg:.0f}"] = rows
    for model in arguments.interactions:
        config = preset("sibyll", interactions=model)
        print(f"\n{model}: mass, lg E, mean N, Fano factor, skewness, mean lg r (1,950 m, 30°)")
        rows = list(fixed_primaries(config, arguments.showers, rng))
        for mass, energy_gev, mean, error, fano, skewness, radius in rows:
            print(
                f"{mass:>4}{np.log10(energy_gev):>5.1f}{mean:>10.3f} ± {error:.3f}"
                f"{fano:>8.2f}{skewness:>8.2f}{radius:>8.4f}"
            )
        found[model] = rows
    print(json.dumps(found, default=float))


def in_ice(num: int) -> dict[float, float]:
    """Print the table of muons in ice, and return the number that arrives beside PROPOSAL's, by energy."""
    ice, generator = MuonsInIce(), np.random.default_rng(1)
    print(f"{'before, GeV':>12}{'arrive/PROPOSAL':>20}{'energy/PROPOSAL':>20}{'us a muon':>12}")
    arrive = {}
    for before_gev, share, mean_gev in PROPOSAL:
        started_s = time.process_time()
        arguments = (np.zeros((4, num)), np.full(num, 2000.0), np.full(num, 1.0 / 0.917), generator)
        energy_P = ice.propagate(np.full(num, before_gev), *arguments)
        us = 1e6 * (time.process_time() - started_s) / num
        alive_P = energy_P[energy_P > 0.0]
        arrive[before_gev] = len(alive_P) / num / share
        errors = np.sqrt((1.0 - share) / share / num), alive_P.std() / mean_gev / np.sqrt(len(alive_P))
        print(
            f"{before_gev:>12.0f}{arrive[before_gev]:>12.4f} ± {errors[0]:.4f}"
            f"{alive_P.mean() / mean_gev:>12.4f} ± {errors[1]:.4f}{us:>12.2f}"
        )
    return arrive


if __name__ == "__main__":
    main()
