"""Audits of a run on several nodes, in the folder that the nodes share.

A trainer may be on another node at the next start. So nothing is written to its file but complete parts, just before
the checkpoint that relies on them, by the newest attempt.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from common.attempt import RunAttempt
from common.config import StreamConfig
from services.trainer.ranks.rank_group import RankGroup
from services.trainer.stream.audit import Audit, AuditFiles, AuditSizes, audit_path
from services.trainer.stream.shares import ShardShare, shares_of_rank


class SharedAudit:
    """Audits of one rank, with the methods of Audit."""

    def __init__(self, sizes_bytes: Sequence[int], ranks: RankGroup, stream: StreamConfig, attempt: RunAttempt) -> None:
        """The files of this rank are cut to their sizes in the checkpoint. Raises OSError, and OutdatedAttemptError."""
        self._known = AuditSizes(tuple(sizes_bytes), stream.shards)
        self._ranks = ranks
        self._attempt = attempt
        self._stream = stream
        shares = shares_of_rank(stream, ranks.rank, ranks.size)
        self._sizes = {share: self._known.of(share) for share in shares}
        self._lines: dict[ShardShare, list[str]] = {share: [] for share in shares}
        self._publish(shares)

    def write(self, lines: Sequence[tuple[int, str]]) -> None:
        """Append the lines of a trained batch, each with its shard, in memory."""
        of_shard = {share.shard: kept for share, kept in self._lines.items()}
        for shard, line in lines:
            of_shard[shard].append(line + "\n")

    def commit(self) -> tuple[int, ...]:
        """Write everything to disk, before the checkpoint that relies on it; the size of every file in bytes."""
        self._publish([share for share, lines in self._lines.items() if lines])
        return self._known.grown(self._ranks.gather(" ".join(map(str, self._sizes.values()))))

    def cut(self, sizes_bytes: Sequence[int]) -> None:
        """Cut the files to these sizes, from which training continues."""
        known = AuditSizes(tuple(sizes_bytes), self._stream.shards)
        self._sizes = {share: known.of(share) for share in self._sizes}
        self._lines = {share: [] for share in self._lines}
        self._publish(list(self._sizes))

    def close(self) -> None:
        """Drop the lines behind the last checkpoint."""

    def _publish(self, shares: Sequence[ShardShare]) -> None:
        """Cut the files of these shares to their sizes, and append their lines."""
        if not shares:
            return
        with self._attempt.publishing():
            for share in shares:
                lines, self._lines[share] = self._lines[share], []
                path = audit_path(self._attempt.shared, self._stream, share.shard, share.rank)
                self._sizes[share] = _append(path, self._sizes[share], "".join(lines).encode())


def _append(path: Path, size_bytes: int, data: bytes) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        file.truncate(min(size_bytes, file.seek(0, os.SEEK_END)))
        file.seek(0, os.SEEK_END)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def open_audit(
    run_dir: Path, stream: StreamConfig, sizes_bytes: Sequence[int], ranks: RankGroup, attempt: RunAttempt | None
) -> AuditFiles:
    """Audit of a rank: in the run directory, or, of several nodes, in the folder that they share."""
    if attempt is None:
        return Audit.open(run_dir, sizes_bytes, ranks, stream)
    return SharedAudit(sizes_bytes, ranks, stream, attempt)
