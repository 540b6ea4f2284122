"""Import of files of another experiment's layout: interface of a workload's importers to `icestream convert`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from common.schema import EventSchema

if TYPE_CHECKING:
    from common.files.rows import RaggedRows


@dataclass(frozen=True)
class ForeignFile:
    """File that becomes one file of the workload's layout."""

    path: Path
    stem: str
    """Name of the new file, without suffix."""
    rows: int
    """Events in it."""


class ForeignFiles(Protocol):
    """Opened files of a foreign layout, which belong together."""

    @property
    def schema(self) -> EventSchema:
        """Columns of the new files, all of them stored: without those that the foreign files can't fill."""

    @property
    def files(self) -> Sequence[ForeignFile]:
        """Files, in the order in which they are read fastest."""

    @property
    def notes(self) -> Sequence[str]:
        """Facts about the files that the user should know, a line each."""

    def version(self, file: ForeignFile) -> str:
        """Short text for the content of all that ``file`` is made from: another if one of these files has changed.

        Raises BadInputError that names a file that can't be read.
        """

    def write_beside(self, out: Path) -> None:
        """Write what the new files need beside them into the folder ``out``. Raises BadInputError."""

    def rows(self, file: ForeignFile, most: int) -> Iterator[RaggedRows]:
        """Events of the file in order, in bounded memory: `file.rows` rows in all.

        Of an event with more than ``most`` particles the best ones are kept, the rest is counted as dropped.
        Raises BadInputError that names file, row and expected value.
        """


class Importer(Protocol):
    """Reader of one foreign layout: an object of a workload's module, named in `Workload.importers`."""

    def recognises(self, place: Path) -> bool:
        """True if the file or folder is of this layout, by content. Reads a listing and a footer at most."""

    def open(self, places: Sequence[Path]) -> ForeignFiles:
        """Files in these places. Raises BadInputError if they aren't of this layout or something is missing."""
