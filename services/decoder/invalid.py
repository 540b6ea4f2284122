"""Invalid events of a unit: each is set aside alone, unless a part has so many that its columns are wrong.

R rows of the unit's parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from common.files.gather import offsets_of
from common.files.rows import BadRowsError, BrokenRule, RaggedRows
from common.invalid_events import BrokenRules, sum_of_rules
from common.messages import InvalidEvents, Part
from common.messages.values import MAX_EXAMPLE_BYTES, shortened
from common.redact import shown

_NAME_SHOWN = 300
"""Characters of a file's name, from its end: the row has to be in the example, too."""

Int64 = npt.NDArray[np.int64]


def invalid_rows(pieces: Sequence[RaggedRows]) -> npt.NDArray[np.bool_]:
    """True for the invalid ones among the rows of all pieces. (R,)."""
    is_invalid = np.zeros(sum(len(piece.counts) for piece in pieces), np.bool_)
    for one in _of_unit(pieces):
        is_invalid[one.rows] = True
    return is_invalid


def require_few(parts: Sequence[Part], pieces: Sequence[RaggedRows], most_share: float) -> None:
    """Raise BadRowsError for the first part of whose events more than ``most_share``, rounded up, are invalid."""
    if not any(piece.invalid for piece in pieces):
        return
    bounds = offsets_of(np.array([part.rows for part in parts], np.int64))
    numbers = np.diff(offsets_of(invalid_rows(pieces))[bounds])
    for part, number in zip(parts, numbers.tolist(), strict=True):
        if number > math.ceil(round(most_share * part.rows, 6)):
            # Of several parts the caller reads each again, so that the rule and its example are those of this part.
            most = max(_of_unit(pieces), key=lambda one: len(one.rows))
            raise BadRowsError(
                f"{part.name}: row group {part.row_group}: {number:,} of its {part.rows:,} events are invalid, and "
                f"source.max_invalid_share = {most_share:g} allows fewer: its columns are probably not what their "
                f"names say (see source.columns and source.fields). Most often: {most.rule}; e.g. "
                f"{_example(most, parts, bounds)}"
            )


def broken_rules(parts: Sequence[Part], pieces: Sequence[RaggedRows]) -> BrokenRules:
    """Invalid events by the rule that they break, each rule with examples."""
    if not any(piece.invalid for piece in pieces):
        return ()
    bounds = offsets_of(np.array([part.rows for part in parts], np.int64))
    return sum_of_rules(
        InvalidEvents(_short(one.rule), len(one.rows), (_short(shown(_example(one, parts, bounds))),))
        for one in _of_unit(pieces)
    )


def reasons(piece: RaggedRows) -> list[str]:
    """Rule that each invalid row of a piece breaks, in the order of the rows."""
    by_row = {row: one.rule for one in piece.invalid for row in one.rows.tolist()}
    return [by_row[row] for row in sorted(by_row)]


def _short(text: str) -> str:
    return shortened(text, MAX_EXAMPLE_BYTES)


def _of_unit(pieces: Sequence[RaggedRows]) -> list[BrokenRule]:
    """Broken rules of all pieces, with rows counted over all of them."""
    found: list[BrokenRule] = []
    first = 0
    for piece in pieces:
        found += [one.at(np.arange(first, first + len(piece.counts))) for one in piece.invalid]
        first += len(piece.counts)
    return found


def _example(one: BrokenRule, parts: Sequence[Part], bounds: Int64) -> str:
    """Place and value of the first event of ``one``. ``bounds``: first row of each part, and the end of the last."""
    row = int(one.rows[0])
    at = int(np.searchsorted(bounds, row, side="right")) - 1
    part = parts[at]
    in_file = part.file_row + part.first_row + row - int(bounds[at])
    name = part.name if len(part.name) <= _NAME_SHOWN else f"…{part.name[-_NAME_SHOWN:]}"
    return f"{name}: row group {part.row_group}, row {in_file} of the file: {one.found}"
