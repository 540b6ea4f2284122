"""Record that a shard keeps in the folder of all shards, where others may read it."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from common.atomic_file import Publishing, part_of_one_writer, replacing


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

    def replace(self, *lines: str) -> None:
        """Replace all lines, on disk on return."""
        part = part_of_one_writer(self.path)
        with replacing(self.path, durable=True, part=part, publishing=self.publishing) as new:
            new.write_text("".join(f"{line}\n" for line in lines))
