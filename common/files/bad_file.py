"""Error for a file that can't be used."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common.errors import BadInputError


class BadFileError(BadInputError):
    """Error for a file that can't be used, with its number of events as far as known."""

    def __init__(self, reason: str, rows: int = 0) -> None:
        super().__init__(reason)
        self.rows = rows


def check_largest(counts: npt.NDArray[np.integer], most: int, where: str) -> None:
    """Raise BadFileError for an event that is too large even for an outlier: see SlotCapacity.largest_event."""
    if counts.max(initial=0) > most:
        row = int(np.argmax(counts > most))
        raise BadFileError(
            f"{where}: the event in row {row} of these has {counts[row]} particles; at most {most} are read, which "
            "follows from stream.slot_mib"
        )
