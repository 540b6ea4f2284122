"""Content of a staged file, from its footer: row groups, rows, and a tight bound of their particles."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from common.config import StreamConfig
from common.errors import BadInputError
from common.files.bad_file import BadFileError, check_largest
from common.files.file_kind import file_kind
from common.files.parquet.arrow_file import ArrowFile
from common.files.parquet.columns import inside, read_names, schema_problem
from common.files.parquet.footer import DamagedFooter, NoFooter, parse_footer
from common.files.parquet.footer_claims import check_claims
from common.files.parquet.other_columns import columns_hint
from common.files.parquet.other_layout import layout_problem, with_made_ids
from common.files.parquet.pages import check_pages
from common.input_errors import LIBRARY_ERRORS, MachineError, one_line, raise_if_machine
from common.own_memory import asked_for_too_much, too_much
from common.plan import Footer, RowGroup, SlotCapacity, Span, cut_spans
from common.schema import EventSchema, SourceColumn

_SCAN_ROWS = 8_192
_SCAN_PARTICLES = 1 << 17
_FEW_ROWS = 16
_BUFFER_BYTES = 1 << 20


def read_footer(path: Path, workload: EventSchema, stream: StreamConfig, capacity: SlotCapacity) -> Footer:
    """Row groups of the file. Raises BadFileError that names the file's fault, MachineError."""
    for _ in range(2):  # a momentary shortage of memory is no fault of the file
        try:
            return _read(path, workload, stream, capacity)
        except MachineError as error:
            if error.number != errno.ENOMEM or not asked_for_too_much():
                raise
    raise BadFileError(f"it needs {too_much()} to inspect")


def _read(path: Path, workload: EventSchema, stream: StreamConfig, capacity: SlotCapacity) -> Footer:
    try:
        kind = file_kind(path)
    except BadInputError as error:
        raise BadFileError(str(error)) from None
    except (OSError, MemoryError) as error:
        raise_if_machine(error, path)
        raise BadFileError(f"unreadable: {one_line(error)}") from None
    if kind == "HDF5":
        from common.files.hdf5.footer import read_hdf5_footer  # h5py: most runs never need it

        return read_hdf5_footer(path, workload, stream, capacity)
    return _read_parquet(path, workload, stream, capacity)


def _read_parquet(path: Path, workload: EventSchema, stream: StreamConfig, capacity: SlotCapacity) -> Footer:
    try:
        footer = parse_footer(path)
        # A buffer: else Arrow reads a column of a row group at once.
        with ArrowFile(path, buffer_size=_BUFFER_BYTES) as file:
            known = with_made_ids(workload)
            problem = schema_problem(file.schema_arrow, known)
            if problem:
                raise BadFileError(problem + columns_hint(file.schema_arrow, workload), footer.rows)
            try:
                names = read_names(file.schema_arrow, [".".join(leaf) for leaf in footer.leaves], known)
            except BadInputError as error:
                raise BadFileError(str(error), footer.rows) from None
            with path.open("rb") as raw:
                for columns in check_claims(footer, workload, names):
                    for column in columns:
                        check_pages(raw.fileno(), column)
            particles = [source for source in workload.source_columns if workload.per(source) == "particle"]
            problem = layout_problem(file, footer, workload, names)
            if problem:
                raise BadFileError(problem, footer.rows)
            groups = []
            for index, group in enumerate(footer.row_groups):
                # A leaf of a nested column counts one value for every number, and one for every empty or null list.
                bound = max(
                    group.column(names[source.name]).num_values // workload.numbers_a_value(source)
                    for source in particles
                )
                spans: tuple[Span, ...] = ()
                if not capacity.fits(group.rows, bound):
                    if bound > group.rows * capacity.largest_event:
                        raise DamagedFooter(
                            f"row group {index} has {bound} particles in {group.rows} events; at most "
                            f"{capacity.largest_event} each are read, which follows from stream.slot_mib"
                        )
                    counts = _count(file, index, RowGroup(group.rows, bound), particles, names)
                    check_largest(counts, capacity.largest_event, f"row group {index}")
                    spans = cut_spans(counts, capacity, stream)
                groups.append(RowGroup(group.rows, bound, spans))
    except NoFooter as error:
        raise BadFileError(f"truncated, or not Parquet: {error}") from None
    except DamagedFooter as error:
        raise BadFileError(f"damaged: {error}") from None
    except (pa.ArrowException, *LIBRARY_ERRORS) as error:
        raise_if_machine(error, path)
        is_content = isinstance(error, pa.ArrowInvalid | UnicodeDecodeError)
        raise BadFileError(
            f"{'truncated, or not Parquet' if is_content else 'unreadable'}: {one_line(error)}"
        ) from None
    return Footer(tuple(groups))


def _count(
    file: ArrowFile, index: int, group: RowGroup, sources: Sequence[SourceColumn], names: Mapping[str, str]
) -> npt.NDArray[np.integer]:
    """Particles of each row, counted a batch at a time: the footer has only their sum over the row group."""
    rows = max(min(_SCAN_PARTICLES * group.rows // max(group.particles, 1), _SCAN_ROWS), 1)
    try:
        return _counts(file, index, group.rows, sources, names, rows)
    except MemoryError:
        if rows <= _FEW_ROWS:
            raise
    return _counts(file, index, group.rows, sources, names, _FEW_ROWS)  # the row group's events are very unequal


def _counts(
    file: ArrowFile,
    index: int,
    rows: int,
    sources: Sequence[SourceColumn],
    names: Mapping[str, str],
    batch_rows: int,
) -> npt.NDArray[np.integer]:
    """Particles of each row; if columns disagree, the maximum: the reader reports it and needs the memory to do so."""
    of_columns = []
    for source in sources:
        batches = file.iter_batches(batch_rows, [index], [names[source.name]], use_threads=False)
        counts = [_lengths(batch.column(0), source) for batch in batches]
        if sum(map(len, counts)) != rows:
            raise DamagedFooter(f"row group {index} has {sum(map(len, counts))} rows; its metadata say {rows}")
        of_columns.append(np.concatenate(counts))
    most: npt.NDArray[np.integer] = np.maximum.reduce(of_columns)
    return most


def _lengths(column: pa.Array, source: SourceColumn) -> npt.NDArray[np.integer]:
    lists, _ = inside(column, source.path[1:])
    lengths: npt.NDArray[np.integer] = pa.compute.list_value_length(lists).fill_null(0).to_numpy()
    return lengths
