"""Audit `audit.jsonl`: one line for every microbatch trained, in order, with a digest of its bytes; without times."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self, TextIO

import numpy as np

from common.config import StreamConfig
from common.run_dir import shard_dir
from common.unit_arrays import UnitArrays
from services.trainer.ranks.rank_group import RankGroup, SingleRank
from services.trainer.stream.lane import ShardShare, shares_of_rank
from services.trainer.stream.microbatch_copy import slice_microbatch

AUDIT_FILE = "audit.jsonl"


def audit_file(rank: int) -> str:
    """File name of a rank's audit: each rank records its own lanes. In a shard, those of its ranks are counted."""
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


class AuditFiles(Protocol):
    """Audit of one rank: of a run on one machine (Audit), or on several nodes (lane_audit.py)."""

    def write(self, lines: Sequence[str]) -> None:
        """Append the lines of a trained batch."""

    def commit(self) -> tuple[int, ...]:
        """Bring everything to disk, before the checkpoint that relies on it; the sizes of all files in bytes."""

    def cut(self, sizes_bytes: Sequence[int]) -> None:
        """Cut the files to these sizes, from which training continues."""

    def close(self) -> None:
        """Close the files."""


class Audit:
    """Audit files of a rank: one in a run without shards, else one in the folder of each shard that it reads. A resumed
    run continues them at the checkpoint: later lines are cut off.

    Sizes of all files are in the order of the shards, and in each shard of its ranks.
    """

    def __init__(
        self,
        run_dir: Path,
        sizes_bytes: Sequence[int],
        shares: Sequence[ShardShare],
        ranks: RankGroup | None = None,
        stream: StreamConfig = StreamConfig(),  # noqa: B008  frozen
    ) -> None:
        """Raises OSError; ``sizes_bytes`` of all files are those in the checkpoint.

        It also has those of ranks that are absent now. These may come back, and continue there.
        """
        self._ranks = ranks or SingleRank()
        self._known = tuple(sizes_bytes)
        self._stream = stream
        self._files: dict[ShardShare, TextIO] = {}
        for share in shares:
            descriptor = _cut(_path(run_dir, stream, share.shard, share.rank), self._known_size(share, sizes_bytes))
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
            each, now = len(sizes_bytes) // stream.shards, max(ranks.size // stream.shards, 1)
            for shard in range(stream.shards):
                for rank in range(now, each):
                    path = _path(run_dir, stream, shard, rank)
                    if path.exists():  # else it is on another machine, or gone
                        os.close(_cut(path, sizes_bytes[shard * each + rank]))
        if stream.shards == 1:
            shares = [ShardShare(0, ranks.rank, ranks.size)]
        else:
            shares = shares_of_rank(stream, ranks.rank, ranks.size)
        return cls(run_dir, sizes_bytes, shares, ranks, stream)

    def write(self, lines: Sequence[str]) -> None:
        """Append the lines of a trained batch."""
        if len(self._files) == 1:
            (file,) = self._files.values()
            file.writelines(line + "\n" for line in lines)
            return
        of_shard = {share.shard: file for share, file in self._files.items()}
        for line in lines:
            of_shard[json.loads(line)["lane"] // self._stream.shard_lanes].write(line + "\n")

    def commit(self) -> tuple[int, ...]:
        """Flush everything to disk, before the checkpoint that relies on it; the size of every file in bytes."""
        texts = self._ranks.gather(self._sizes())
        now = [int(size) for text in texts for size in text.split()]
        each, former = len(now) // self._stream.shards, len(self._known) // self._stream.shards
        sizes: list[int] = []
        for shard in range(self._stream.shards):
            sizes += now[shard * each : (shard + 1) * each]
            sizes += self._known[shard * former : (shard + 1) * former][each:]
        return tuple(sizes)

    def cut(self, sizes_bytes: Sequence[int]) -> None:
        """Cut the files to these sizes, from which training continues."""
        for share, file in self._files.items():
            file.flush()
            file.truncate(self._known_size(share, sizes_bytes))
            file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _sizes(self) -> str:
        """Sizes of this rank's files, which are on disk on return."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return " ".join(str(file.tell()) for file in self._files.values())

    def _known_size(self, share: ShardShare, sizes_bytes: Sequence[int]) -> int:
        each = len(sizes_bytes) // self._stream.shards
        return sizes_bytes[share.shard * each + share.rank] if share.rank < each else 0


def _path(run_dir: Path, stream: StreamConfig, shard: int, rank: int) -> Path:
    return shard_dir(run_dir, shard if stream.shards > 1 else None) / audit_file(rank)


def _cut(path: Path, size_bytes: int) -> int:
    """Descriptor of a file that is ``size_bytes`` long at most."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.truncate(descriptor, min(size_bytes, os.fstat(descriptor).st_size))
    return descriptor
