"""Features that a physicist asks of a loader besides batches: a filter, a mixture, a transform, a column of her own.

Each as an Arrow table, a batch or a row needs it: a loader takes the form that its documentation recommends.
E events, P muons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

FEATURES = ("filter", "mix", "transform", "column")
WHERE = "primary.energy_gev > 2e5 and muons.count >= 5"
LEAST_ENERGY_GEV, LEAST_MUONS = 2e5, 5
WEIGHTS = {"proton": 0.7, "iron": 0.3}
"""Sets of the same number of events, which are mixed 7:3."""
COLUMN = "weight"
IDS_OF_IRON = 1_000_000
"""Least `primary_major_id` of the second set."""


def is_kept(table: pa.Table) -> pa.ChunkedArray:
    """Mask of the filter for the rows of an Arrow table."""
    energy_gev = pc.list_element(table["primary"], 0)
    enough = pc.greater_equal(pc.list_value_length(table["muons"]), LEAST_MUONS)
    return pc.and_(pc.greater(energy_gev, LEAST_ENERGY_GEV), enough)


def where() -> pc.Expression:
    """The filter as an expression of columns, for readers of Parquet."""
    energy_gev = pc.list_element(pc.field("primary"), 0)
    return (energy_gev > LEAST_ENERGY_GEV) & (pc.list_value_length(pc.field("muons")) >= LEAST_MUONS)


def filtered(table: pa.Table) -> pa.Table:
    return table.filter(is_kept(table))


def is_kept_row(row: dict) -> bool:
    return bool(row["primary"][0] > LEAST_ENERGY_GEV and len(row["muons"]) >= LEAST_MUONS)


def log_energies(muons: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The transform: log10 of the energies in place of them. (P, 3) -> (P, 3)."""
    muons = muons.copy()
    muons[:, 0] = np.log10(muons[:, 0])
    return muons


def transform(events: Mapping[str, Any], particles: Mapping[str, Any], offsets: object, random: object) -> None:
    """The transform as icestream's decoders call it: in place."""
    particles["muons"][:, 0] = np.log10(particles["muons"][:, 0])


def log_energies_of_table(table: pa.Table) -> pa.Table:
    """The transform on an Arrow table, without a loop over events."""
    muons = table["muons"].combine_chunks()
    offsets = muons.offsets.to_numpy()
    values = log_energies(muons.flatten().flatten().to_numpy().reshape(-1, 3))
    threes = pa.array(np.arange(0, values.size + 1, 3, dtype=np.int32))
    lists = pa.ListArray.from_arrays(
        pa.array(offsets - offsets[0]), pa.ListArray.from_arrays(threes, pa.array(values.ravel()))
    )
    place = table.schema.get_field_index("muons")
    return table.set_column(place, table.schema.field(place), lists.cast(table.schema.field(place).type))


def share_of_first(ids: torch.Tensor) -> int:
    """Events of the first set. (E, 2) -> number."""
    return int((ids[:, 0] < IDS_OF_IRON).sum())


def check(batch: Any, features: Sequence[str]) -> None:
    """Raise AssertionError if a batch does not have what was asked for."""
    counts = batch.offsets.diff()
    if "filter" in features:
        assert bool((counts >= LEAST_MUONS).all() and (batch.primary[:, 0] > LEAST_ENERGY_GEV).all()), "filter"
    if "column" in features:
        assert torch.equal(batch.weight, weight_of(batch.ids[:, 1])), "column"
    if len(batch.muons):
        assert ("transform" in features) == bool(batch.muons[:, 0].max() < 10), "transform"


def weight_of(minor_ids: torch.Tensor) -> torch.Tensor:
    """The user's own column, as a function of the id. (E,) int64 -> (E,) float32."""
    return (minor_ids % 1000).to(torch.float32) / 8
