"""What readers say of invalid events, in a form that can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from common.files.rows import RaggedRows


def invalid_of(pieces: Sequence[RaggedRows]) -> tuple[dict[str, list[int]], str]:
    """Rows, counted over all pieces, of each rule that is broken, and the events as stored in the files."""
    found: dict[str, list[int]] = {}
    first = 0
    for piece in pieces:
        for one in piece.invalid:
            found.setdefault(one.rule, []).extend((one.rows + first).tolist())
        first += len(piece.counts)
    return found, str([row for piece in pieces if piece.invalid_events for row in piece.invalid_events.to_pylist()])


def content_of(table: pa.Table | None) -> Any:
    """Types and values as text: NaN is equal to NaN."""
    return None if table is None else (str(table.schema.remove_metadata()), str(table.to_pylist()))
