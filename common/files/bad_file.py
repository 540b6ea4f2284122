"""Error for a file that can't be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from common.errors import BadInputError


class BadFileError(BadInputError):
    """Error for a file that can't be used, with its number of events as far as known."""

    def __init__(self, reason: str, rows: int = 0) -> None:
        super().__init__(reason)
        self.rows = rows


def none_usable(reasons: Sequence[str]) -> BadInputError:
    """Error for inputs without a usable file: the reason that most of them share. ``reasons``: `name: text` of each."""
    texts = [reason.partition(": ")[2] for reason in reasons]
    text, num_same = Counter(texts).most_common(1)[0]
    many = f" ({num_same} of the {len(reasons)} files for this reason)" if len(reasons) > 1 else ""
    return BadInputError(f"no file is usable: {reasons[texts.index(text)]}{many}")


def check_largest(counts: npt.NDArray[np.integer], most: int, where: str) -> None:
    """Raise BadFileError for an event that is too large even for an outlier: see SlotCapacity.largest_event."""
    if counts.max(initial=0) > most:
        row = int(np.argmax(counts > most))
        raise BadFileError(
            f"{where}: the event in row {row} of these has {counts[row]} particles; at most {most} are read, which "
            "follows from stream.slot_mib"
        )
