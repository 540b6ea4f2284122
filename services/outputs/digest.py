"""Sizes and digests of files, recomputed only when the files have changed."""

from __future__ import annotations

import hashlib
from pathlib import Path

from services.outputs.manifest import OutputFile


class Digests:
    """Digests of files, cached by path, size and time of change."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int, int], OutputFile]] = {}

    def of(self, path: Path) -> OutputFile | None:
        """Size and digest of a file; None if it is gone."""
        try:
            with path.open("rb") as file:
                status = path.stat()
                state = (status.st_ino, status.st_size, status.st_mtime_ns)
                known = self._known.get(path)
                if known is not None and known[0] == state:
                    return known[1]
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                found = OutputFile(size_bytes=file.tell(), digest=f"sha256={digest}")
        except FileNotFoundError:
            self._known.pop(path, None)
            return None
        self._known[path] = (state, found)
        return found
