"""GraphNeT's flat tables: a table of pulses, one a row, and one of events, joined by `event_no`.

E events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.errors import BadInputError
from common.unit_arrays import Array
from workloads.direction.importers.graphnet_pulses import EVENT, ForeignEvents, check_has_pulses, possible_positions
from workloads.direction.importers.meta import MOST_EVENTS, as_int64
from workloads.direction.importers.pulses import MOST_PULSES, PlaceInFile
from workloads.direction.importers.tables import (
    Numbers,
    check_columns,
    first_bad,
    open_table,
    record_batches,
    values_of,
)
from workloads.direction.importers.truth import check_has_truth, truth_columns

Int64 = npt.NDArray[np.int64]


class FlatEvents:
    """Table of pulses, and its table of events, which is held in memory."""

    def __init__(self, pulses: Path, truth: Path) -> None:
        """Check the columns of the pulses. Raises BadInputError."""
        self.path, self._truth = pulses, truth
        self.tables = (pulses, truth)
        """Files that the events are made from."""
        with open_table(pulses) as file:
            schema = file.schema_arrow
        self.names = check_has_pulses(schema.names, str(pulses))
        check_columns(schema, {EVENT: "integers", **self.names.kinds}, str(pulses))
        with open_table(truth) as file:
            self.num_events: int = file.metadata.num_rows
        if self.num_events > MOST_EVENTS:
            raise BadInputError(f"{truth}: {self.num_events:,} events; at most {MOST_EVENTS:,} in a file are allowed")

    def positions(self) -> Iterator[npt.NDArray[np.float32]]:
        """Positions of all pulses, (3, P), some at a time. Raises BadInputError."""
        first = 0
        for batch in record_batches(open_table(self.path), self.path, self.names.position):
            columns = _columns(batch, batch.schema.names, str(self.path), first)
            place = PlaceInFile(str(self.path), first, np.array([batch.num_rows]))
            yield possible_positions(self.names, columns, place)
            first += batch.num_rows

    def windows(self) -> Iterator[ForeignEvents]:
        """Events with pulses, in the order of the pulses. Raises BadInputError."""
        events = _EventTable(self._truth)
        wanted = [EVENT, *self.names.kinds]
        held: list[pa.RecordBatch] = []
        first = rows = 0
        for batch in record_batches(open_table(self.path), self.path, wanted):
            changes = np.flatnonzero(np.diff(_columns(batch, [EVENT], str(self.path), rows)[EVENT]))
            held.append(batch)
            if changes.size:
                size = rows + int(changes[-1]) + 1 - first
                table = pa.Table.from_batches(held)
                yield self._window(table.slice(0, size), first, events)
                first += size
                held = table.slice(size).to_batches()
            rows += batch.num_rows
            if rows - first > MOST_PULSES:
                raise BadInputError(
                    f"{self.path}, row {first}: more than {MOST_PULSES:,} pulses of one event; that is the most allowed"
                )
        if held:
            yield self._window(pa.Table.from_batches(held), first, events)

    def _window(self, table: pa.Table, first_row: int, events: _EventTable) -> ForeignEvents:
        columns = _columns(table, table.column_names, str(self.path), first_row)
        ids_P = as_int64(columns.pop(EVENT), f"{self.path}, column {EVENT!r}")
        starts = np.concatenate([[0], np.flatnonzero(np.diff(ids_P)) + 1])
        try:
            found = events.columns_of(ids_P[starts])
        except _BadEvent as error:
            where = f"{self.path}, row {first_row + starts[error.place]}, event {ids_P[starts[error.place]]}"
            raise BadInputError(f"{where}: {error}") from None
        return ForeignEvents(first_row, np.diff(np.append(starts, len(ids_P))), found, columns, row_is_event=False)


class _BadEvent(Exception):
    """Error for an event of the table of pulses: its place, and what is wrong."""

    def __init__(self, place: int, what: str) -> None:
        super().__init__(what)
        self.place = place


class _EventTable:
    """Columns of all events, by id."""

    def __init__(self, path: Path) -> None:
        """Read the table. Raises BadInputError."""
        self._path = path
        file = open_table(path)
        schema = file.schema_arrow
        names = check_has_truth(schema.names, str(path))
        wanted = [names.azimuth, names.zenith, *(name for name in names.optional if name in schema.names)]
        check_columns(schema, {EVENT: "integers", **dict.fromkeys(wanted, "numbers")}, str(path))
        batches = list(record_batches(file, path, [EVENT, *wanted]))
        table = pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in (EVENT, *wanted)]))
        read = _columns(table, table.column_names, str(path), 0)
        ids_E = as_int64(read[EVENT], f"{path}, column {EVENT!r}")
        columns = truth_columns(names, read.get, ids_E, str(path))
        order = np.argsort(ids_E, kind="stable")
        self._ids_E = ids_E[order]
        same = first_bad(np.diff(self._ids_E) == 0)
        if same is not None:
            raise BadInputError(f"{path}: event {self._ids_E[same]} occurs twice; each event may occur once")
        self._columns: dict[str, Array] = {name: values[order] for name, values in columns.items()}
        self._seen_E = np.zeros(len(ids_E), np.bool_)

    def columns_of(self, ids_E: Int64) -> dict[str, Array]:
        """Columns of these events, each of which may be asked for once. Raises _BadEvent."""
        place_E = np.searchsorted(self._ids_E, ids_E)
        known_E = place_E < len(self._ids_E)
        known_E[known_E] = self._ids_E[place_E[known_E]] == ids_E[known_E]
        unknown = first_bad(~known_E)
        if unknown is not None:
            raise _BadEvent(unknown, f"it is not in {self._path}; give the table of the same events")
        again_E = np.ones(len(ids_E), np.bool_)
        again_E[np.unique(ids_E, return_index=True)[1]] = False
        again = first_bad(again_E | self._seen_E[place_E])
        if again is not None:
            raise _BadEvent(again, f"it has pulses in other rows before; sort the table by {EVENT}")
        self._seen_E[place_E] = True
        return {"event_id": ids_E[:, None], **{name: values[place_E] for name, values in self._columns.items()}}


def _columns(data: pa.Table | pa.RecordBatch, names: Sequence[str], path: str, first_row: int) -> dict[str, Numbers]:
    """Numbers by column. Raises BadInputError that names column and row if one is null."""
    return {name: values_of(data.column(name), f"{path}, column {name!r}", first_row) for name in names}
