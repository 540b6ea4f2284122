"""Ids of events in Parquet files without columns of ids: from the lists that hold them, or made.

Made ids are a digest of the file's size and footer, and the number of the row: the same for every copy of the file,
wherever it lies. R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from common.errors import BadInputError
from common.files.parquet.footer import DamagedFooter, footer_digest
from common.files.parquet.lists import BadList, matrix, null_mask
from common.messages import Part
from common.schema import EventSchema, SourceColumn
from common.unit_arrays import Array

_ID_BITS = 63
"""Bits of a made id: it fits signed and unsigned columns."""

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MissingIds:
    """Source columns that a file lacks, although its schema has no problem."""

    sources: tuple[SourceColumn, ...]
    workload: EventSchema
    digest: int
    """First id of made ones."""

    @classmethod
    def of(cls, schema: pa.Schema, workload: EventSchema, path: Path) -> MissingIds | None:
        """Ids that the local file has no columns for; None: it has all. Raises OSError, BadInputError."""
        missing = tuple(source for source in workload.source_columns if source.path[0] not in schema.names)
        if not missing:
            return None
        try:
            return cls(missing, workload, int(footer_digest(path), 16) % 2**_ID_BITS)
        except DamagedFooter as error:
            raise BadInputError(f"damaged: {error}") from None

    def added_to(self, batch: pa.RecordBatch, rows: Int64) -> pa.RecordBatch:
        """Record batch with a column for each id. ``rows``: numbers of its rows in the file."""
        for source in self.sources:
            held = self.workload.place_in_list(source)
            ids = self._made(source, rows) if held is None else self._held(batch, source, *held)
            batch = batch.append_column(source.path[0], pa.array(ids))
        return batch

    def _made(self, source: SourceColumn, rows: Int64) -> npt.NDArray[np.integer]:
        """Digest and row as a pair; for ids of one number their sum. (R,)."""
        column = self.workload.column(source.into)
        if len(column.fields) == 1:
            ids = (rows + self.digest % 2 ** (_ID_BITS - 1)).astype(np.int64)
        else:
            ids = rows if source.field == len(column.fields) - 1 else np.full_like(rows, self.digest)
        made: npt.NDArray[np.integer] = ids.astype(column.dtype)
        return made

    def _held(self, batch: pa.RecordBatch, source: SourceColumn, holder: SourceColumn, place: int) -> Array:
        """Numbers at ``place`` of the lists; 0 where a list is null, or wrong, which to_rows() reports. (R,).

        Floats, as stored, if one of them is no whole number: to_rows() reports this, too.
        """
        lists = batch.column(holder.path[0])
        null = null_mask(lists)
        usable = np.ones(len(lists), np.bool_) if null is None else ~null
        ids = np.zeros(len(lists), self.workload.column(source.into).dtype)
        while usable.any():  # once for good lists, and once more for each way in which some are wrong
            chosen = lists if usable.all() else lists.filter(pa.array(usable))
            try:
                stored = matrix(chosen, len(holder.stored), [place], "<f8")[:, 0]
            except BadList as error:
                usable[np.flatnonzero(usable)[error.bad]] = False
                continue
            with np.errstate(invalid="ignore"):  # a number that is no id is changed by the cast, and so detected
                found = stored.astype(ids.dtype)
            if not np.array_equal(found.astype(np.float64), stored):
                ids, found = ids.astype(np.float64), stored
            ids[usable] = found
            break
        return ids


def rows_in_file(parts: Sequence[Part], first: int, end: int) -> Int64:
    """Numbers in the file of rows ``first`` to ``end`` of the parts together. (end - first,)."""
    numbers = [np.arange(part.file_row + part.first_row, part.file_row + part.first_row + part.rows) for part in parts]
    return np.concatenate(numbers)[first:end]
