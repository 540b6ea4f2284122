"""Audit `audit.jsonl`: one line for every microbatch trained, in order, with a digest of its bytes; without times."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from common.unit_arrays import UnitArrays
from services.trainer.ranks.rank_group import RankGroup, SingleRank
from services.trainer.stream.microbatch_copy import slice_microbatch

AUDIT_FILE = "audit.jsonl"


def audit_file(rank: int) -> str:
    """File name of a rank's audit: each rank records its own lanes."""
    return AUDIT_FILE if rank == 0 else f"audit-rank{rank}.jsonl"


def audit_line(arrays: UnitArrays, lane: int, epoch: int, unit: int, index: int) -> str:
    """Line of one microbatch, read from its slot."""
    offsets, particles, events = slice_microbatch(arrays, index)
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.ascontiguousarray(offsets - offsets[0]).data)
    for column in (*particles.values(), *events.values()):
        digest.update(np.ascontiguousarray(column).data)
    return json.dumps(
        {
            "lane": lane,
            "epoch": epoch,
            "unit": unit,
            "microbatch": index,
            "events": len(offsets) - 1,
            "particles": len(next(iter(particles.values()))),
            "digest": digest.hexdigest(),
        }
    )


class Audit:
    """Audit file of a run. A resumed run continues it at the checkpoint: later lines are cut off."""

    def __init__(
        self, path: Path, size_bytes: int, ranks: RankGroup | None = None, *, of_absent: Sequence[int] = ()
    ) -> None:
        """Raises OSError; ``size_bytes`` is the file's size according to the checkpoint.

        ``of_absent``: sizes of the files of absent ranks. These may come back, and continue there.
        """
        self._ranks = ranks or SingleRank()
        self._of_absent = tuple(of_absent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.truncate(descriptor, min(size_bytes, os.fstat(descriptor).st_size))
        os.lseek(descriptor, 0, os.SEEK_END)
        self._file = os.fdopen(descriptor, "w")

    @classmethod
    def open(cls, run_dir: Path, sizes_bytes: Sequence[int], ranks: RankGroup) -> Self:
        """Audit of a rank in a run directory. The first rank also cuts the files of ranks that no longer exist."""
        if ranks.is_first:
            for rank in range(ranks.size, len(sizes_bytes)):
                cls(run_dir / audit_file(rank), sizes_bytes[rank]).close()
        size_bytes = sizes_bytes[ranks.rank] if ranks.rank < len(sizes_bytes) else 0
        return cls(run_dir / audit_file(ranks.rank), size_bytes, ranks, of_absent=sizes_bytes[ranks.size :])

    def write(self, lines: Sequence[str]) -> None:
        """Append the lines of a trained batch."""
        self._file.writelines(line + "\n" for line in lines)

    def commit(self) -> tuple[int, ...]:
        """Flush everything to disk, before the checkpoint that relies on it; the size of every file in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return (*(int(size) for size in self._ranks.gather(str(self._file.tell()))), *self._of_absent)

    def cut(self, sizes_bytes: Sequence[int]) -> None:
        """Cut the files to these sizes, from which training continues."""
        self._file.flush()
        self._file.truncate(sizes_bytes[self._ranks.rank])
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
