"""Record that a shard appends to, and that others read, in the folder of all shards."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from common.atomic_file import Publishing


@dataclass(frozen=True)
class OwnRecord:
    """Record of one shard."""

    path: Path
    publishing: Publishing = nullcontext
    """Context of each addition: of several nodes, one of an older attempt adds nothing (common/attempt.py)."""

    def append(self, *lines: str) -> None:
        """Add lines, on disk on return: each on a new one whatever a killed process left."""
        with self.publishing(), self.path.open("a") as sink:
            sink.writelines(f"\n{line}\n" for line in lines)
            sink.flush()
            os.fsync(sink.fileno())
