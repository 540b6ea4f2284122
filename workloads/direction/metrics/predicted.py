"""Predicted directions of events beside the true ones. Pure.

E events.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from workloads.direction.columns import CASCADE, TRACK
from workloads.direction.metrics.angles import Bool, Float64, angles_rad

KINDS = {"": None, "track_": TRACK, "cascade_": CASCADE}
"""Topology of the events, by the prefix of the names of their metrics; None: all events."""


def unit_and_norm(vector_E3: npt.NDArray[np.floating]) -> tuple[Float64, Float64]:
    """Unit vectors and norms. Without a direction (norm 0 or not finite): NaN and 0. (E, 3) -> (E, 3), (E,)."""
    wide_E3 = vector_E3.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        norm_E = np.linalg.norm(wide_E3, axis=1)
    has_direction_E = np.isfinite(norm_E) & (norm_E > 0)
    unit_E3 = np.full(wide_E3.shape, np.nan)
    unit_E3[has_direction_E] = wide_E3[has_direction_E] / norm_E[has_direction_E, None]
    return unit_E3, np.where(has_direction_E, norm_E, 0.0)


@dataclass(frozen=True)
class PredictedEvents:
    """Events with a predicted direction, and what is known of each."""

    direction_E3: Float64
    """Predicted, unit vectors."""
    kappa_E: Float64
    """Predicted concentration, ≥ 0."""
    true_E3: Float64
    """True, unit vectors."""
    topology_E: npt.NDArray[np.int8]
    """TRACK, CASCADE or UNKNOWN."""
    energy_gev_E: Float64
    """0: unknown."""
    clean_sensors_E: npt.NDArray[np.int64]
    """Sensors with a pulse that is not auxiliary."""
    baselines: dict[str, Float64] = field(default_factory=dict)
    """Directions that other methods find, by their names in the report: unit vectors (E, 3); NaN: none."""

    def __len__(self) -> int:
        return len(self.kappa_E)

    def take(self, chosen: npt.NDArray[np.integer] | Bool) -> PredictedEvents:
        """Events by their indices, which may repeat, or by a mask."""
        columns = {one.name: getattr(self, one.name)[chosen] for one in fields(self) if one.name != "baselines"}
        return replace(self, **columns, baselines={name: one[chosen] for name, one in self.baselines.items()})

    @cached_property
    def angle_rad_E(self) -> Float64:
        """Angle between the predicted and the true direction."""
        return angles_rad(self.direction_E3, self.true_E3)

    def of_kind(self, topology: int | None) -> Bool:
        """Mask of the events of a topology; None: all."""
        return np.ones(len(self), np.bool_) if topology is None else self.topology_E == topology

    def angles_deg(self) -> dict[str, Float64]:
        """Angles of the model (name "") and of each baseline from the true direction, (E,); NaN where there is none."""
        of_baselines = {name: np.degrees(angles_rad(one, self.true_E3)) for name, one in self.baselines.items()}
        return {"": np.degrees(self.angle_rad_E), **of_baselines}
