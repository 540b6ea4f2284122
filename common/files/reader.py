"""Interface of all readers of source files: parts in, ragged rows out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from common.files.rows import RaggedRows
from common.messages import Part

Beat = Callable[[], None]


class Reader(Protocol):
    """Reader of files of one kind; keeps the newest ones open, since a block's files are read by many units."""

    def read(self, parts: Sequence[Part], beat: Beat, *, large_above: int) -> list[RaggedRows]:
        """Rows of the parts, in order, in one or more pieces; calls ``beat`` once in a while.

        Events with more than ``large_above`` particles are also given as stored in the file.
        Raises MachineError for faults of the machine, and BadRowsError for faults of the file, which must not depend on
        the machine, or the stream would.
        """

    def close(self) -> None:
        """Close all files."""
