"""Arrays of one unit: offsets, microbatch bounds and columns, wherever they are in memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class UnitArrays:
    """Views of one unit's arrays, in a slot or in other memory."""

    offsets: npt.NDArray[np.int64]
    """Particle offsets: event e owns particles offsets[e] to offsets[e + 1]. (E + 1,)."""
    microbatch_bounds: npt.NDArray[np.int64]
    """Event bounds: microbatch m holds events bounds[m] to bounds[m + 1]. (M + 1,)."""
    particle_columns: dict[str, Array]
    """Array by column name: (P, fields)."""
    event_columns: dict[str, Array]
    """Array by column name: (E, fields); source columns included."""

    def only(self, names: Collection[str]) -> UnitArrays:
        """The same unit with the columns of these names."""
        return replace(
            self,
            particle_columns={name: column for name, column in self.particle_columns.items() if name in names},
            event_columns={name: column for name, column in self.event_columns.items() if name in names},
        )
