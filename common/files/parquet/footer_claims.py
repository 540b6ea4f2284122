"""Bounds on what a Parquet footer claims, checked before Arrow sees the file.

Columns that the workload doesn't read are not checked: they cost nothing. The bounds are far above those of real
files, and any file within them can be planned and decoded in the memory of common/bounds.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from common.files.parquet.footer import ColumnChunk, DamagedFooter, ParquetFooter
from common.schema import EventSchema

MOST_ROW_GROUPS = 1 << 16
MOST_ROWS = 1 << 25
"""Maximum rows of a row group whose particles must be counted: 16 bytes of memory each."""
_MOST_WIDTHS = 8
"""Tolerated factor on the numbers of an event's list: below it, a list that is too long is a bad row, no bad file."""


def check_claims(footer: ParquetFooter, workload: EventSchema, names: Mapping[str, str]) -> list[Sequence[ColumnChunk]]:
    """Columns read from each row group. Raises DamagedFooter; the columns must exist.

    ``names``: see read_names().
    """
    if len(footer.row_groups) > MOST_ROW_GROUPS:
        raise DamagedFooter(
            f"{len(footer.row_groups)} row groups; at most {MOST_ROW_GROUPS} are read: write larger ones"
        )
    selected = _selected(footer.leaves, names.values())
    columns: list[Sequence[ColumnChunk]] = []
    for index, group in enumerate(footer.row_groups):
        if group.rows > MOST_ROWS:
            raise DamagedFooter(
                f"row group {index} has {group.rows} rows; at most {MOST_ROWS} are read: write smaller ones"
            )
        columns.append([group.columns[i] for i in selected])
        for source in workload.source_columns:
            if workload.per(source) == "event" and source.is_list:
                column = group.column(names[source.name])
                width = len(workload.stored_fields(source))
                if column.num_values > group.rows * width * _MOST_WIDTHS:
                    raise DamagedFooter(
                        f"row group {index}, column {source.name!r}: {column.num_values} numbers in {group.rows} rows; "
                        f"expected {width} each"
                    )
    return columns


def _selected(leaves: Sequence[tuple[str, ...]], names: Collection[str]) -> list[int]:
    """Indices of the leaves that Arrow reads by those names: each with that name, or a path that begins with it."""
    texts = [".".join(leaf) for leaf in leaves]
    return [i for i, text in enumerate(texts) if any(text == name or text.startswith(f"{name}.") for name in names)]
