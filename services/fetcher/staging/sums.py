"""Size and digest of a file, stored when it is fetched and compared before it is used again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from common.atomic_file import replace_file


@dataclass(frozen=True)
class Sum:
    """Size and digest of a file's bytes."""

    size_bytes: int
    sha256: str  # the fastest that hashlib has: 1.8 GB/s, blake2b 0.9

    @classmethod
    def of(cls, path: Path) -> Sum:
        """Sum of a file, which is read in full."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return cls(file.tell(), digest.hexdigest())

    @classmethod
    def noted(cls, path: Path) -> Sum | None:
        """Sum stored at ``path``; None if there is none, or it is damaged."""
        try:
            values = json.loads(path.read_bytes())
            return cls(int(values["size_bytes"]), str(values["sha256"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def note(self, path: Path, new: Path) -> None:
        """Store the sum at ``path``, whole or not at all: first as ``new``."""
        replace_file(path, json.dumps(asdict(self)), durable=False, part=new)
