"""Ragged events as an Awkward Array: a record an event, a list of records for its particles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from common.extras import missing_extra
from common.schema import EventSchema

if TYPE_CHECKING:
    import awkward

    from common.unit_arrays import Array


def awkward_events(
    schema: EventSchema, offsets: Array, event_columns: Mapping[str, Array], particle_columns: Mapping[str, Array]
) -> awkward.Array:
    """Array of E records, with one field for each column: of (E, F) a record of its F fields, of (P, F) a list of such
    records. Raises BadInputError without the package `awkward`."""
    try:
        import awkward as ak
    except ImportError:
        raise missing_extra("An Awkward Array", "awkward") from None

    def records(name: str, values: Array) -> Any:
        fields = schema.column(name).fields
        columns = [ak.contents.NumpyArray(values[:, index].copy()) for index in range(len(fields))]
        return ak.contents.RecordArray(columns, list(fields), length=len(values))

    contents = {name: records(name, values) for name, values in event_columns.items()}
    starts = ak.index.Index64(offsets)
    contents |= {
        name: ak.contents.ListOffsetArray(starts, records(name, values)) for name, values in particle_columns.items()
    }
    return ak.Array(ak.contents.RecordArray(list(contents.values()), list(contents), length=len(offsets) - 1))
