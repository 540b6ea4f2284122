"""Primaries, a batch at a time: of production files with or without muons, of plain Parquet tables, of the simulator.

E events of a batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.config import StreamConfig
from common.errors import BadInputError
from common.files.by_content import plan_file, rows_of
from common.files.inputs import expand, local_file, local_path
from common.files.local import file_kind
from common.files.parquet.columns import is_list, list_lengths, matrix, null_mask
from common.files.parquet.footer import fields_problem
from common.files.remotes import Remotes
from common.files.rows import BadList, BadNumber, RaggedRows, checked
from common.schema import EventSchema, SourceColumn
from common.text import shown
from workloads.base.interface import FileSettings
from workloads.base.random_streams import numpy_stream
from workloads.muons.columns import MUONS, slant_depth_m, vertical_depth_m
from workloads.muons.purposes import MuonPurpose
from workloads.muons.simulator.config import preset
from workloads.muons.simulator.muons import sample_primaries

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

_BATCH_ROWS = 16_384
_HASH = np.array([0x9E3779B97F4A7C15, 1], np.uint64)
_LARGEST_COUNT = 1 << 62
COUNT_COLUMNS = ("muons", "num_muons")
"""Columns for numbers of muons: the real muons themselves, or a number."""


@dataclass(frozen=True)
class Primaries:
    """Primaries of consecutive rows of a file."""

    ids_E2: UInt64
    primary_E4: Float32
    """energy_gev, zenith_rad, mass_a, depth_m; the depth as in the file."""
    counts_E: Int64 | None = None
    """Numbers of muons, if requested."""

    def __len__(self) -> int:
        return len(self.ids_E2)

    def rows(self, first: int, end: int) -> Primaries:
        """Rows ``first`` to ``end``."""
        counts_E = None if self.counts_E is None else self.counts_E[first:end]
        return Primaries(self.ids_E2[first:end], self.primary_E4[first:end], counts_E)

    def showers(self) -> Int64 | None:
        """Return the number of each row's shower, (E,); None if each row is a shower of its own.

        Rows of one shower have the same ids, energy, zenith and mass. A row that is there again is of another shower.
        """
        if np.diff(np.sort(self.ids_E2 @ _HASH, kind="stable")).all():  # as a rule, and far faster than the rest
            return None
        columns = [*self.ids_E2.T, *self.primary_E4.T]
        order, place = np.lexsort(columns[::-1]), np.arange(len(self))
        *others, depth = (np.append(True, column[order][1:] != column[order][:-1]) for column in columns)
        is_first = np.any(others, axis=0)
        again = place - np.maximum.accumulate(np.where(is_first | depth, place, 0))
        shower_E = np.empty(len(self), np.int64)
        shower_E[order] = np.unique(is_first.cumsum() * len(self) + again, return_inverse=True)[1]
        return shower_E if shower_E.max() + 1 < len(self) else None

    @classmethod
    def joined(cls, parts: list[Primaries]) -> Primaries:
        """All rows of the parts, in order. Either all parts have counts or none."""
        counts = [part.counts_E for part in parts if part.counts_E is not None]
        return cls(
            np.concatenate([part.ids_E2 for part in parts]),
            np.concatenate([part.primary_E4 for part in parts]),
            np.concatenate(counts) if counts else None,
        )


def vertical(primary_E4: Float32, depth_kind: str) -> Float32:
    """Primaries with vertical depths, as models read them."""
    if depth_kind == "vertical":
        return primary_E4
    energy_E, zenith_E, mass_E, slant_E = primary_E4.T.astype(np.float64)
    depth_E = vertical_depth_m(np.cos(zenith_E), slant_E)
    return np.stack([energy_E, zenith_E, mass_E, depth_E], 1).astype(np.float32)


def read_primaries(
    path: Path, name: str, number: int, workload: EventSchema, counts_column: str | None
) -> Iterator[Primaries]:
    """All rows of a local file, in order.

    ``number`` is its position among the files: the first id of its rows if it has no ids. ``counts_column``: column of
    the numbers of muons; empty: the first of COUNT_COLUMNS; None: they are not read. Raises BadInputError that names
    file (as ``name``), row and the expected value.
    """
    with _told_of(name):
        if file_kind(path) != "Parquet":
            if counts_column not in (None, "", "muons"):
                raise BadInputError(f"an HDF5 file has no column {counts_column!r}; its counts are those of its muons")
            yield from _whole_events(path, name, workload)
            return
        table = _Table.of(pq.read_schema(path), workload, counts_column)
        if table.count == "muons":
            yield from _whole_events(path, name, workload)
            return
        first_row = 0
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=table.columns, use_threads=False):
                yield table.read(batch, first_row, number, workload)
                first_row += batch.num_rows


def primaries_of_table(
    rows: pa.Table, name: str, workload: EventSchema, counts_column: str | None
) -> Iterator[Primaries]:
    """Rows of a table in memory, in order; ids without columns of them: (0, row). Raises BadInputError.

    ``name``: of the table, in error messages. ``counts_column``: see read_primaries.
    """
    with _told_of(name):
        table = _Table.of(rows.schema, workload, counts_column)
        first_row = 0
        for batch in rows.select(list(dict.fromkeys(table.columns))).to_batches(_BATCH_ROWS):
            yield table.read(batch, first_row, 0, workload)
            first_row += batch.num_rows


@contextlib.contextmanager
def _told_of(name: str) -> Iterator[None]:
    """Context that puts the name of the file in front of error messages."""
    try:
        yield
    except (BadInputError, BadList) as error:
        raise BadInputError(str(error) if str(error).startswith(name) else f"{name}: {error}") from None
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise BadInputError(f"{name}: can't be read ({error.strerror})") from None
        raise BadInputError(f"{name}: truncated, or damaged: {' '.join(str(error).split())[:300]}") from None


def _whole_events(path: Path, name: str, workload: EventSchema) -> Iterator[Primaries]:
    """Primaries of files with muons, read and checked as in training, without rows that hold no event."""
    _, parts = plan_file(path, workload, StreamConfig(shuffle=False), name=name)
    for piece in rows_of(parts, workload):
        keep = np.ones(len(piece.counts), np.bool_) if piece.is_null is None else ~piece.is_null
        yield Primaries(
            piece.event_columns["primary_id"][keep].astype(np.uint64),
            piece.event_columns["primary"][keep].astype(np.float32),
            piece.counts[keep],
        )


@dataclass(frozen=True)
class _Table:
    """Columns of a Parquet file and their contents."""

    source: SourceColumn
    """Column with the list of a primary's numbers."""
    flat: tuple[str, ...]
    """Columns of each number of a primary, if they are separate ones."""
    ids: tuple[str, ...]
    """Columns of the ids; empty if the file has none."""
    count: str
    """Column of the counts; empty if not requested."""
    columns: list[str]

    @classmethod
    def of(cls, schema: pa.Schema, workload: EventSchema, counts_column: str | None) -> _Table:
        sources = [one for one in workload.source_columns if one.into == "primary"]
        source, fields = sources[0], workload.column("primary").fields
        names = set(schema.names)
        flat = tuple(one.name for one in sources) if source.part_of_list else fields
        is_flat = source.part_of_list or source.name not in names
        if is_flat and not names.issuperset(flat):
            missing = ", ".join(field for field in flat if field not in names)
            raise BadInputError(
                f"no primaries in it: neither the column {source.key!r}, a list of {', '.join(fields)}, nor all of "
                f"these as columns ({missing} missing); it has {', '.join(sorted(names)) or 'no columns'}"
            )
        if not is_flat and not is_list(schema.field(source.name).type):
            raise BadInputError(
                f"column {source.name!r} is {schema.field(source.name).type}; expected lists of numbers"
            )
        ids = tuple(column.name for column in workload.source_columns if column.into == workload.identity)
        ids = ids if names.issuperset(ids) else ()
        candidates = () if counts_column is None else (counts_column,) if counts_column else COUNT_COLUMNS
        count = next((name for name in candidates if name in names), "")
        if candidates and not count:
            raise BadInputError(
                f"no column {' or '.join(map(repr, candidates))} to take the numbers of muons from; name one with "
                f"--counts-column, or use --counts sampled; it has {', '.join(schema.names)}"
            )
        numbers = list(flat) if is_flat else [source.name]
        return cls(source, flat if is_flat else (), ids, count, [*ids, *numbers, *([count] if count else [])])

    def read(self, batch: pa.RecordBatch, first_row: int, number: int, workload: EventSchema) -> Primaries:
        """Checked rows of a record batch."""
        primary_E4 = self._primary(batch, first_row, workload)
        _check(primary_E4, first_row, workload)
        if self.ids:
            ids_E2 = np.stack([_unsigned(batch, name, first_row) for name in self.ids], 1)
        else:
            rows_E = np.arange(first_row, first_row + batch.num_rows, dtype=np.uint64)
            ids_E2 = np.stack([np.full_like(rows_E, number), rows_E], 1)
        return Primaries(ids_E2, primary_E4, self._counts(batch, first_row) if self.count else None)

    def _counts(self, batch: pa.RecordBatch, first_row: int) -> Int64:
        column = batch.column(self.count)
        if is_list(column.type):
            _no_null(column, self.count, first_row)
            return list_lengths(column)
        # No event has so many muons, and not every uint64 fits into int64; max_count bounds them anyway.
        return _unsigned(batch, self.count, first_row).clip(max=_LARGEST_COUNT).astype(np.int64)

    def _primary(self, batch: pa.RecordBatch, first_row: int, workload: EventSchema) -> Float32:
        fields = workload.column("primary").fields
        if self.flat:
            return np.stack([_numbers(batch, name, first_row) for name in self.flat], 1).astype(np.float32)
        lists = batch.column(self.source.name)
        _no_null(lists, self.source.name, first_row)
        stored = workload.stored_fields(self.source)
        try:
            values = matrix(lists, len(stored), [stored.index(field) for field in fields], "<f4")
        except BadNumber as error:
            raise BadInputError(f"row {first_row + error.index}: {fields[error.column]} {error}") from None
        except BadList as error:
            problem = fields_problem(workload, {self.source.name: len(lists[error.index])}) or str(error)
            raise BadInputError(f"column {self.source.name!r}, row {first_row + error.index}: {problem}") from None
        except (pa.ArrowException, ValueError):
            raise BadInputError(f"column {self.source.name!r} is {lists.type}; expected lists of numbers") from None
        return values.astype(np.float32, copy=False)


def _check(primary_E4: Float32, first_row: int, workload: EventSchema) -> None:
    counts_E, no_muons_P3 = np.zeros(len(primary_E4), np.int64), np.empty((0, 3), np.float32)
    rows = checked(RaggedRows(counts_E, {"primary": primary_E4}, {"muons": no_muons_P3}, counts_E[:0], None), workload)
    for broken in rows.invalid[:1]:
        raise BadInputError(f"row {first_row + int(broken.rows[0])}: {broken.found}; expected {broken.expected}")


def _numbers(batch: pa.RecordBatch, name: str, first_row: int) -> npt.NDArray[np.float64]:
    column = batch.column(name)
    _no_null(column, name, first_row)
    try:
        numbers: npt.NDArray[np.float64] = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    except pa.ArrowException:
        raise BadInputError(f"column {name!r} is {column.type}; expected numbers") from None
    return numbers


def _unsigned(batch: pa.RecordBatch, name: str, first_row: int) -> UInt64:
    """Whole numbers from 0 on, from a column of any numeric type."""
    column = batch.column(name)
    _no_null(column, name, first_row)
    if pa.types.is_floating(column.type):
        values_E = column.to_numpy(zero_copy_only=False)
        bad = ~((values_E >= 0) & (values_E < 2.0**63) & (values_E == np.floor(values_E)))
    elif pa.types.is_integer(column.type):
        values_E = column.to_numpy(zero_copy_only=False)
        bad = values_E < 0
    else:
        raise BadInputError(f"column {name!r} is {column.type}; expected whole numbers >= 0")
    if bad.any():
        row = int(np.argmax(bad))
        raise BadInputError(
            f"column {name!r}, row {first_row + row}: {values_E[row]}; expected a whole number from 0 on"
        )
    whole: UInt64 = values_E.astype(np.uint64)
    return whole


def _no_null(column: pa.Array, name: str, first_row: int) -> None:
    null = null_mask(column)
    if null is not None:
        raise BadInputError(f"column {name!r}, row {first_row + int(np.argmax(null))}: the value is null")


def file_primaries(
    settings: FileSettings, remotes: Remotes, counts_column: str | None, out: Path | None = None
) -> tuple[Iterator[Primaries], int]:
    """Rows of all inputs in order, and their number in local files, as far as footers contain it. Raises BadInputError.

    ``counts_column``: see read_primaries. ``out``: file or folder that will be written; no input may lie in it.
    """
    sources = expand(settings.inputs, remotes)
    num_rows = 0
    for path in filter(None, (local_path(source.url) for source in sources)):
        if out is not None and out.resolve() in (path.resolve(), *path.resolve().parents):
            raise BadInputError(f"{path} is what {out} would overwrite: choose another name")
        with _told_of(str(path)):
            num_rows += pq.read_metadata(path).num_rows if file_kind(path) == "Parquet" else 0

    workload = MUONS.stored_as(settings.source)

    def rows() -> Iterator[Primaries]:
        for number, source in enumerate(sources):
            with local_file(source, remotes) as path:
                yield from read_primaries(path, shown(source.url), number, workload, counts_column)

    return rows(), num_rows


def at_depths(primaries: Iterable[Primaries], depths_m: Sequence[float]) -> Iterator[Primaries]:
    """Rows of each primary at each of these depths, in place of its own; without counts."""
    for some in primaries:
        primary_E4 = some.primary_E4.repeat(len(depths_m), 0)
        primary_E4[:, 3] = np.tile(depths_m, len(some))
        yield Primaries(some.ids_E2.repeat(len(depths_m), 0), primary_E4)


_SIMULATED_ROWS = 65_536


def simulated_primaries(preset_name: str, num_events: int, depth_kind: str, seed: int) -> Iterator[Primaries]:
    """Independent primaries of the preset's spectrum, with the ids (0, number).

    Same seed, same primaries: a shorter sequence is the beginning of a longer one.
    """
    for block, first in enumerate(range(0, num_events, _SIMULATED_ROWS)):
        rng = numpy_stream(MuonPurpose.GENERATED_PRIMARIES, seed, block)
        rows = min(_SIMULATED_ROWS, num_events - first)
        minor_E = np.arange(first, first + rows, dtype=np.uint64)
        ids_E2 = np.stack([np.zeros_like(minor_E), minor_E], 1)
        primaries = sample_primaries(_SIMULATED_ROWS, preset(preset_name), rng)
        primary_E4 = primaries.columns()[:rows]
        if depth_kind == "slant":
            primary_E4[:, 3] = slant_depth_m(primaries.cos_zenith_E, primaries.depth_m_E)[:rows]
        yield Primaries(ids_E2, primary_E4)
