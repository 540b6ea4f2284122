"""Audit `audit.jsonl`: one line for every microbatch trained, in order, with a digest of its bytes; without times."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, Self, TextIO

import numpy as np

from common.config import StreamConfig
from common.run_dir import shard_dir
from common.unit_arrays import UnitArrays
from services.trainer.ranks.rank_group import RankGroup, SingleRank
from services.trainer.stream.microbatch_copy import slice_microbatch
from services.trainer.stream.shares import ShardShare, shares_of_rank

AUDIT_FILE = "audit.jsonl"


def audit_file(rank: int) -> str:
    """File name of the audit of a shard's trainer ``rank``: each records what it trains."""
    return AUDIT_FILE if rank == 0 else f"audit-rank{rank}.jsonl"


def audit_path(folder: Path, stream: StreamConfig, shard: int, rank: int) -> Path:
    """Audit of a shard's trainer, in the run directory or the folder that nodes share."""
    return shard_dir(folder, shard if stream.shards > 1 else None) / audit_file(rank)


def audit_line(arrays: UnitArrays, shard: int, epoch: int, unit: int, index: int) -> str:
    """Line of one microbatch, read from its slot."""
    offsets, particles, events = slice_microbatch(arrays, index)
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.ascontiguousarray(offsets - offsets[0]).data)
    for column in (*particles.values(), *events.values()):
        digest.update(np.ascontiguousarray(column).data)
    return json.dumps(
        {
            "shard": shard,
            "epoch": epoch,
            "unit": unit,
            "microbatch": index,
            "events": len(offsets) - 1,
            "particles": len(next(iter(particles.values()))),
            "digest": digest.hexdigest(),
        }
    )


class AuditSizes(NamedTuple):
    """Sizes of all audit files in a checkpoint: in the order of the shards, and in each shard of its trainers.

    Those of trainers that are absent now are kept: they may come back, and continue there.
    """

    sizes_bytes: tuple[int, ...]
    shards: int

    def of(self, share: ShardShare) -> int:
        """Size of one file; 0: it is new."""
        each = len(self.sizes_bytes) // self.shards
        return self.sizes_bytes[share.shard * each + share.rank] if share.rank < each else 0

    def absent(self, ranks: int) -> list[ShardShare]:
        """Files of trainers that a run with ``ranks`` in all doesn't have."""
        each = len(self.sizes_bytes) // self.shards
        now = max(ranks // self.shards, 1)
        return [ShardShare(shard, rank, each) for shard in range(self.shards) for rank in range(now, each)]

    def grown(self, texts: Sequence[str]) -> tuple[int, ...]:
        """Sizes of all files, from the texts of all ranks in which each wrote those of its files."""
        now = [int(size) for text in texts for size in text.split()]
        each, former = len(now) // self.shards, len(self.sizes_bytes) // self.shards
        sizes: list[int] = []
        for shard in range(self.shards):
            sizes += now[shard * each : (shard + 1) * each]
            sizes += self.sizes_bytes[shard * former : (shard + 1) * former][each:]
        return tuple(sizes)


class AuditFiles(Protocol):
    """Audit of one rank: of a run on one machine (Audit), or on several nodes (shared_audit.py)."""

    def write(self, lines: Sequence[tuple[int, str]]) -> None:
        """Append the lines of a trained batch, each with its shard."""

    def commit(self) -> tuple[int, ...]:
        """Bring everything to disk, before the checkpoint that relies on it; the sizes of all files in bytes."""

    def cut(self, sizes_bytes: Sequence[int]) -> None:
        """Cut the files to these sizes, from which training continues."""

    def close(self) -> None:
        """Close the files."""


class Audit:
    """Audit files of a rank: one in a run without shards, else one in the folder of each shard that it reads. A resumed
    run continues them at the checkpoint: later lines are cut off."""

    def __init__(
        self,
        run_dir: Path,
        sizes_bytes: Sequence[int],
        shares: Sequence[ShardShare],
        ranks: RankGroup | None = None,
        stream: StreamConfig = StreamConfig(),  # noqa: B008  frozen
    ) -> None:
        """Raises OSError. ``sizes_bytes``: see AuditSizes."""
        self._ranks = ranks or SingleRank()
        self._known = AuditSizes(tuple(sizes_bytes), stream.shards)
        self._files: dict[ShardShare, TextIO] = {}
        for share in shares:
            descriptor = _cut(audit_path(run_dir, stream, share.shard, share.rank), self._known.of(share))
            os.lseek(descriptor, 0, os.SEEK_END)
            self._files[share] = os.fdopen(descriptor, "w")

    @classmethod
    def open(
        cls,
        run_dir: Path,
        sizes_bytes: Sequence[int],
        ranks: RankGroup,
        stream: StreamConfig = StreamConfig(),  # noqa: B008  frozen
    ) -> Self:
        """Audit of a rank in a run directory. The first rank also cuts the files of ranks that no longer exist."""
        if ranks.is_first:
            known = AuditSizes(tuple(sizes_bytes), stream.shards)
            for share in known.absent(ranks.size):
                path = audit_path(run_dir, stream, share.shard, share.rank)
                if path.exists():  # else it is on another machine, or gone
                    os.close(_cut(path, known.of(share)))
        return cls(run_dir, sizes_bytes, shares_of_rank(stream, ranks.rank, ranks.size), ranks, stream)

    def write(self, lines: Sequence[tuple[int, str]]) -> None:
        """Append the lines of a trained batch, each with its shard."""
        of_shard = {share.shard: file for share, file in self._files.items()}
        for shard, line in lines:
            of_shard[shard].write(line + "\n")

    def commit(self) -> tuple[int, ...]:
        """Flush everything to disk, before the checkpoint that relies on it; the size of every file in bytes."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return self._known.grown(self._ranks.gather(" ".join(str(file.tell()) for file in self._files.values())))

    def cut(self, sizes_bytes: Sequence[int]) -> None:
        """Cut the files to these sizes, from which training continues."""
        known = self._known._replace(sizes_bytes=tuple(sizes_bytes))
        for share, file in self._files.items():
            file.flush()
            file.truncate(known.of(share))
            file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def _cut(path: Path, size_bytes: int) -> int:
    """Descriptor of a file that is ``size_bytes`` long at most."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.truncate(descriptor, min(size_bytes, os.fstat(descriptor).st_size))
    return descriptor
