"""Generated bundles in memory, for Python.

E events, P muons; the muons of an event are contiguous, events in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from common.awkward_events import awkward_events
from common.files.gather import offsets_of
from common.files.layout import schema_of, to_table
from workloads.muons.columns import MUONS
from workloads.muons.generation.primaries import Float32, Int64, Primaries, UInt64
from workloads.muons.generation.stream import GeneratedEvents, pieces
from workloads.muons.generation.write import ragged_rows

if TYPE_CHECKING:
    import awkward

_TABLE_MUONS = 1 << 26
"""Muons of a piece of a table: Arrow's lists hold less than 2^31 numbers."""


@dataclass(frozen=True, eq=False)
class MuonBundles:
    """Muon bundles, one for each primary, in the order of the primaries."""

    events: GeneratedEvents

    @classmethod
    def joined(cls, parts: list[GeneratedEvents]) -> MuonBundles:
        """Bundles of all parts, in order."""
        if not parts:
            none = Primaries(np.empty((0, 2), np.uint64), np.empty((0, 4), np.float32))
            return cls(GeneratedEvents(none, np.empty(0, np.int64), np.empty((0, 3), np.float32), 0))
        return cls(
            GeneratedEvents(
                Primaries.joined([part.primaries for part in parts]),
                np.concatenate([part.counts_E for part in parts]),
                np.concatenate([part.muons_P3 for part in parts]),
                sum(part.num_capped for part in parts),
            )
        )

    @cached_property
    def offsets(self) -> Int64:
        """Event e has the muons offsets[e] to offsets[e + 1]. (E + 1,)."""
        return offsets_of(self.events.counts_E)

    @property
    def muons(self) -> Float32:
        """Muons of all events: energy_gev, x_m, y_m. (P, 3)."""
        return self.events.muons_P3

    @property
    def primary(self) -> Float32:
        """Primaries: energy_gev, zenith_rad, mass_a, depth_m; the depth as it was given. (E, 4)."""
        return self.events.primaries.primary_E4

    @property
    def primary_id(self) -> UInt64:
        """Ids of the table or files; without them file and row. (E, 2)."""
        return self.events.primaries.ids_E2

    @property
    def num_capped(self) -> int:
        """Events with fewer muons than the model drew, because of max_count."""
        return self.events.num_capped

    def __len__(self) -> int:
        return len(self.events.counts_E)

    def __repr__(self) -> str:
        return f"<MuonBundles: {len(self):,} events, {len(self.muons):,} muons>"

    def table(self) -> pa.Table:
        """Table in the production schema, as `icestream generate` writes it."""
        rows = [ragged_rows(self.events, first, end) for first, end in pieces(self.events.counts_E, _TABLE_MUONS)]
        return pa.concat_tables([schema_of(MUONS).empty_table(), *(to_table([one], MUONS) for one in rows)])

    def awkward(self) -> awkward.Array:
        """Awkward Array with the records `primary`, `primary_id` and lists of records `muons`. Needs `awkward`."""
        return awkward_events(
            MUONS, self.offsets, {"primary": self.primary, "primary_id": self.primary_id}, {"muons": self.muons}
        )
