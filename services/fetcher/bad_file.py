"""The error of a file that can't be used."""

from __future__ import annotations

from common.errors import BadInputError


class BadFileError(BadInputError):
    """A file that can't be used, and how many events it holds, as far as that can be told."""

    def __init__(self, reason: str, rows: int = 0) -> None:
        super().__init__(reason)
        self.rows = rows
