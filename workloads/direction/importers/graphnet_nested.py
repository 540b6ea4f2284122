"""Prometheus' files, and GraphNeT's of one table: a row an event, a struct of its truth and one of lists of its pulses.

E events.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import BadInputError
from workloads.direction.importers.graphnet_pulses import (
    EVENT,
    ForeignEvents,
    check_has_pulses,
    possible_positions,
    pulse_names,
)
from workloads.direction.importers.meta import as_int64
from workloads.direction.importers.pulses import MOST_PULSES, PlaceInFile
from workloads.direction.importers.tables import (
    ROWS_AT_A_TIME,
    Numbers,
    check_columns,
    first_bad,
    open_table,
    record_batches,
    values_of,
)
from workloads.direction.importers.truth import check_has_truth, truth_columns, truth_names

_MOST_EVENTS_AT_A_TIME = 1 << 14


class NestedEvents:
    """Table with a row an event."""

    def __init__(self, path: Path) -> None:
        """Find the two structs. Raises BadInputError."""
        self.path = path
        self.tables = (path,)
        """Files that the events are made from."""
        with open_table(path) as file:
            schema, metadata = file.schema_arrow, file.metadata
        self._truth, self._pulses = nested_structs(schema, str(path))
        truth, pulses = schema.field(self._truth).type, schema.field(self._pulses).type
        self._truth_names = check_has_truth(_names(truth), str(path))
        self._truth_columns = [
            name
            for name in (self._truth_names.azimuth, self._truth_names.zenith, *self._truth_names.optional)
            if name in _names(truth)
        ]
        self._has_ids = EVENT in _names(truth)
        kinds = dict.fromkeys(self._truth_columns, "numbers") | ({EVENT: "integers"} if self._has_ids else {})
        check_columns(truth, kinds, f"{path}, column {self._truth!r}")
        values = pa.schema([pa.field(field.name, field.type.value_type) for field in pulses if _is_list(field.type)])
        self.names = check_has_pulses(values.names, f"{path}, column {self._pulses!r}")
        check_columns(values, self.names.kinds, f"{path}, column {self._pulses!r}")
        self.num_events: int = metadata.num_rows
        self._rows_at_a_time = _rows_at_a_time(metadata, f"{self._pulses}.{self.names.time}.")

    def positions(self) -> Iterator[npt.NDArray[np.float32]]:
        """Positions of all pulses, (3, P), some at a time. Raises BadInputError."""
        for first, batch in self._batches([f"{self._pulses}.{name}" for name in self.names.position]):
            counts_E, columns = self._lists(batch, self.names.position, first)
            place = PlaceInFile(str(self.path), first, counts_E, row_is_event=True)
            yield possible_positions(self.names, columns, place)

    def windows(self) -> Iterator[ForeignEvents]:
        """Events, in order. Raises BadInputError."""
        truth = [*self._truth_columns, EVENT] if self._has_ids else self._truth_columns
        wanted = [f"{self._truth}.{name}" for name in truth]
        wanted += [f"{self._pulses}.{name}" for name in self.names.kinds]
        seen = np.empty(0, np.int64)
        for first, batch in self._batches(wanted):
            where = f"{self.path}, column {self._truth!r}"
            fields = {name: values_of(batch[self._truth].field(name), f"{where}, {name!r}", first) for name in truth}
            ids_E = (
                as_int64(fields[EVENT], f"{where}, {EVENT!r}")
                if self._has_ids
                else event_ids(self.path, first, batch.num_rows)
            )
            ids, times = np.unique(np.concatenate([seen, ids_E]), return_counts=True)
            if len(ids) < len(seen) + len(ids_E):
                raise BadInputError(f"{self.path}: event {ids[times > 1][0]} occurs twice; each event may occur once")
            seen = ids
            columns = truth_columns(self._truth_names, fields.get, ids_E, str(self.path))
            counts_E, pulses = self._lists(batch, tuple(self.names.kinds), first)
            yield ForeignEvents(first, counts_E, {"event_id": ids_E[:, None], **columns}, pulses, row_is_event=True)

    def _batches(self, columns: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """First row, and rows of structs without nulls."""
        first = 0
        for batch in record_batches(open_table(self.path), self.path, columns, rows=self._rows_at_a_time):
            for name in batch.schema.names:
                row = first_bad(~batch[name].is_valid().to_numpy(zero_copy_only=False))
                if row is not None:
                    raise BadInputError(f"{self.path}, row {first + row}: {name!r} is null; expected a value an event")
            yield first, batch
            first += batch.num_rows

    def _lists(
        self, batch: pa.RecordBatch, names: tuple[str, ...], first: int
    ) -> tuple[npt.NDArray[np.int64], dict[str, Numbers]]:
        """Number of pulses of each event, and the numbers of all."""
        counts_E: npt.NDArray[np.int64] | None = None
        found: dict[str, Numbers] = {}
        for name in names:
            where = f"{self.path}, column {self._pulses!r}, {name!r}"
            lists = batch[self._pulses].field(name)
            own_E = values_of(lists.value_lengths(), where, first).astype(np.int64)
            counts_E = own_E if counts_E is None else counts_E
            row = first_bad(own_E != counts_E)
            if row is not None:
                raise BadInputError(
                    f"{where}, row {first + row}: {own_E[row]} values, but {names[0]!r} has {counts_E[row]}; expected "
                    "one a pulse in each"
                )
            row = first_bad(own_E > MOST_PULSES)
            if row is not None:
                raise BadInputError(f"{where}, row {first + row}: {own_E[row]:,} pulses; at most {MOST_PULSES:,}")
            found[name] = values_of(lists.flatten(), where)
        assert counts_E is not None
        return counts_E, found


def _rows_at_a_time(metadata: pq.FileMetaData, path: str) -> int:
    """Events that have ROWS_AT_A_TIME pulses in the mean, by the numbers in the columns whose name begins so."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    values: int = sum(column.num_values for column in columns if column.path_in_schema.startswith(path))
    return max(1, min(_MOST_EVENTS_AT_A_TIME, ROWS_AT_A_TIME * int(metadata.num_rows) // max(values, 1)))


def nested_structs(schema: pa.Schema, where: str) -> tuple[str, str]:
    """Names of the struct of truth and of the one of pulses. Raises BadInputError unless there is one of each."""
    structs = {field.name: field.type for field in schema if pa.types.is_struct(field.type)}
    truths = [name for name, kind in structs.items() if truth_names(_names(kind)) is not None]
    pulses = [name for name, kind in structs.items() if pulse_names([f.name for f in kind if _is_list(f.type)])]
    if len(truths) != 1 or len(pulses) != 1:
        raise BadInputError(
            f"{where}: structs with a direction: {', '.join(truths) or 'none'}; with lists of pulses: "
            f"{', '.join(pulses) or 'none'}; expected one of each, as mc_truth and photons"
        )
    return truths[0], pulses[0]


def event_ids(path: Path, first_row: int, rows: int) -> npt.NDArray[np.int64]:
    """Ids of events whose table has none: from the file's name and the row, the same at every import."""
    return (zlib.crc32(path.name.encode()) << 31) + np.arange(first_row, first_row + rows)


def _names(kind: pa.StructType) -> list[str]:
    return [field.name for field in kind]


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
