"""A remote file, and what a cache directory holds of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from common.files.local_name import name_of
from common.plan import SourceFile
from services.fetcher.staging.cache import Cache

BODY = bytes(range(256)) * 40
SOURCE = SourceFile("https://host/data/f.parquet", len(BODY))
NAME = name_of(SOURCE)
WAIT_S = 20.0


class Remote:
    """Writes a body, and counts."""

    def __init__(self, body: bytes = BODY) -> None:
        self.body = body
        self.fetches = 0

    def __call__(self, part: Path) -> None:
        self.fetches += 1
        part.write_bytes(self.body)


Make = Callable[[str], Cache]


def files_in(folder: Path) -> list[str]:
    """Paths of all files below, but those that a run always has."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("lock", "run.json")]
    return sorted(str(path.relative_to(folder)) for path in found)
