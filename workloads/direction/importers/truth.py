"""True direction, energy and kind of GraphNeT's events, by the names that its tables give them. Pure.

E events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.errors import BadInputError
from common.unit_arrays import Array
from workloads.direction.columns import CASCADE, TRACK, UNKNOWN
from workloads.direction.importers.meta import checked_angle
from workloads.direction.importers.tables import Numbers, first_bad


@dataclass(frozen=True)
class TruthNames:
    """Names of the columns of one simulation's truth."""

    azimuth: str
    zenith: str
    energy: str
    particle: str
    """Code of the Particle Data Group."""
    interaction: str
    """1: charged current, 2: neutral current."""
    of_travel: bool
    """True if the angles are those of the neutrino's momentum; else they point to its source."""

    @property
    def optional(self) -> tuple[str, ...]:
        """Columns that a table may lack."""
        return (self.energy, self.particle, self.interaction)


TRUTHS = (
    # I3TruthExtractor: IceCube's angles point to the source.
    TruthNames("azimuth", "zenith", "energy", "pid", "interaction_type", of_travel=False),
    # Prometheus until 2022, GraphNeT's examples: LeptonInjector's zenith and azimuth point to the source.
    TruthNames(
        *("injection_azimuth", "injection_zenith", "injection_energy", "injection_type", "injection_interaction_type"),
        of_travel=False,
    ),
    # Prometheus since, PrometheusTruthExtractor: the angles of a vector "along particle momentum" (its particle.py).
    TruthNames(
        *("initial_state_azimuth", "initial_state_zenith", "initial_state_energy", "initial_state_type", "interaction"),
        of_travel=True,
    ),
)
"""Truth that is read, the first that a table has."""

_NEUTRINOS = (12, 14, 16)


def truth_names(columns: Collection[str]) -> TruthNames | None:
    """Names of the truth that a table with these columns has, or None."""
    return next((one for one in TRUTHS if {one.azimuth, one.zenith} <= set(columns)), None)


def truth_columns(
    names: TruthNames, read: Callable[[str], Numbers | None], event_id_E: npt.NDArray[np.int64], where: str
) -> dict[str, Array]:
    """Columns of the workload. ``read`` gives the numbers of a column, (E,), or None. Raises BadInputError."""
    angles = []
    for name, least in ((names.azimuth, -np.pi if names.of_travel else 0.0), (names.zenith, 0.0)):
        values = read(name)
        assert values is not None
        angles.append(checked_angle(values, name, event_id_E, where, least=least))
    azimuth_E, zenith_E = angles
    if names.of_travel:
        azimuth_E, zenith_E = azimuth_E + np.pi, np.pi - zenith_E
    energy, particle, interaction = (read(name) for name in names.optional)
    return {
        "arrival": np.stack([azimuth_E % (2 * np.pi), zenith_E], 1).astype(np.float32),
        "true_energy": _energy(energy, event_id_E, where)[:, None],
        "topology": topology(particle, interaction, len(event_id_E))[:, None],
    }


def _energy(energy_E: Numbers | None, event_id_E: npt.NDArray[np.int64], where: str) -> npt.NDArray[np.float32]:
    """Energy in GeV; 0 if it is not known, which tables write as a negative number or NaN. Raises BadInputError."""
    if energy_E is None:
        return np.zeros(len(event_id_E), np.float32)
    bad = first_bad(np.isfinite(energy_E) & (energy_E.astype(np.float64) > np.finfo(np.float32).max))
    if bad is not None:
        raise BadInputError(f"{where}, event {event_id_E[bad]}: its energy is {energy_E[bad]} GeV; expected less")
    return np.where(np.isfinite(energy_E) & (energy_E > 0), energy_E, 0.0).astype(np.float32)


def topology(particle_E: Numbers | None, interaction_E: Numbers | None, events: int) -> npt.NDArray[np.int8]:
    """TRACK for charged currents of flavour 14, and for its lepton 13; CASCADE for those of 12, and neutral currents.

    Charged currents of flavour 16 make either; they, and what isn't known, are UNKNOWN.
    """
    found = np.full(events, UNKNOWN, np.int8)
    if particle_E is None:
        return found
    code_E = np.abs(particle_E)
    found[code_E == 13] = TRACK
    if interaction_E is not None:
        charged_E, neutral_E = interaction_E == 1, interaction_E == 2
        found[(code_E == 14) & charged_E] = TRACK
        found[((code_E == 12) & charged_E) | (np.isin(code_E, _NEUTRINOS) & neutral_E)] = CASCADE
    return found


def check_has_truth(columns: Collection[str], where: str) -> TruthNames:
    """Names of the table's truth. Raises BadInputError if it has none."""
    names = truth_names(columns)
    if names is None:
        known = ", or ".join(f"{one.azimuth} and {one.zenith}" for one in TRUTHS)
        raise BadInputError(f"{where}: it has no direction of the events; expected columns {known}")
    return names
