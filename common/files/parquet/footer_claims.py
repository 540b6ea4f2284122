"""Bounds on what a Parquet footer claims, checked before Arrow sees the file.

Columns that the workload doesn't read are not looked at: they cost nothing. The bounds are far above what files have,
and such that what is within them can be planned and decoded in the memory of common/bounds.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.files.parquet.footer import ColumnChunk, DamagedFooter, ParquetFooter
from common.schema import Workload

MOST_ROW_GROUPS = 1 << 16
MOST_ROWS = 1 << 25
"""Rows of a row group whose particles must be counted: 16 bytes of memory each."""
_MOST_WIDTHS = 8
"""So many times the numbers that an event's list should have: what is too long is a bad row, not a bad file."""


def check_claims(footer: ParquetFooter, workload: Workload) -> list[Sequence[ColumnChunk]]:
    """The columns of each row group that are read. Raises DamagedFooter; the columns must be there."""
    if len(footer.row_groups) > MOST_ROW_GROUPS:
        raise DamagedFooter(
            f"{len(footer.row_groups)} row groups; at most {MOST_ROW_GROUPS} are read: write larger ones"
        )
    columns: list[Sequence[ColumnChunk]] = []
    for index, group in enumerate(footer.row_groups):
        if group.rows > MOST_ROWS:
            raise DamagedFooter(
                f"row group {index} has {group.rows} rows; at most {MOST_ROWS} are read: write smaller ones"
            )
        columns.append([group.column(source.name) for source in workload.source_columns])
        for source, column in zip(workload.source_columns, columns[-1], strict=True):
            most = group.rows * len(workload.stored_fields(source)) * _MOST_WIDTHS if source.nesting == 1 else 0
            if source.nesting == 1 and column.num_values > most:
                raise DamagedFooter(
                    f"row group {index}, column {source.name!r}: {column.num_values} numbers in {group.rows} rows; "
                    f"expected {len(workload.stored_fields(source))} each"
                )
    return columns
