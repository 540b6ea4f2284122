"""Audit `audit.jsonl`: one line for every microbatch trained, in order, with a digest of its bytes; without times."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from common.attempt import RunAttempt
from common.config import StreamConfig
from common.run_dir import shard_dir
from common.unit_arrays import UnitArrays
from services.trainer.ranks.rank_group import RankGroup, SingleRank
from services.trainer.stream.microbatch_copy import slice_microbatch
from services.trainer.stream.shares import ShardShare, shares_of_rank

AUDIT_FILE = "audit.jsonl"

_PAGE_BYTES = 1 << 14
"""Lines of this size go to the disk together."""


def audit_file(rank: int) -> str:
    """File name of the audit of a shard's trainer ``rank``: each records what it trains."""
    return AUDIT_FILE if rank == 0 else f"audit-rank{rank}.jsonl"


def audit_line(arrays: UnitArrays, shard: int, epoch: int, unit: int, index: int) -> str:
    """Line of one microbatch, read from its slot."""
    offsets, particles, events = slice_microbatch(arrays, index)
    digest = hashlib.blake2b(offsets - offsets[0], digest_size=16)
    for column in (*particles.values(), *events.values()):
        digest.update(column.data)  # contiguous, as every slice of rows is
    num_events, num_particles = len(offsets) - 1, len(next(iter(particles.values())))
    return (  # of every microbatch: a general encoder takes a third of the time of a line
        f'{{"shard": {shard}, "epoch": {epoch}, "unit": {unit}, "microbatch": {index}, "events": {num_events},'
        f' "particles": {num_particles}, "digest": "{digest.hexdigest()}"}}'
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


class Audit:
    """Audit of a rank: a file in the folder of each shard that it reads. A resumed run continues them at the
    checkpoint: later lines are cut off.

    In a run on several nodes the files are in the folder that these share. A trainer may be on another node at the next
    start: so nothing is written there but complete parts, by the newest attempt, just before the checkpoint that relies
    on them.
    """

    def __init__(
        self,
        folder: Path,
        sizes_bytes: Sequence[int],
        ranks: RankGroup | None = None,
        stream: StreamConfig = StreamConfig(),  # noqa: B008  frozen
        attempt: RunAttempt | None = None,
    ) -> None:
        """``sizes_bytes``: see AuditSizes. ``folder``: the run directory, or with ``attempt`` that of all nodes.

        Raises OSError, and OutdatedAttemptError.
        """
        self._ranks = ranks or SingleRank()
        self._folder = folder
        self._known = AuditSizes(tuple(sizes_bytes), stream.shards)
        self._stream = stream
        self._attempt = attempt
        shares = shares_of_rank(stream, self._ranks.rank, self._ranks.size)
        self._sizes = {share: self._known.of(share) for share in shares}
        self._lines: dict[ShardShare, list[str]] = {share: [] for share in shares}
        self._pending_bytes = 0
        # The first rank cuts the files of ranks that no longer exist, too; they may be on another machine, or gone.
        absent = self._known.absent(self._ranks.size) if self._ranks.is_first else []
        for share in absent:
            if self._path(share).exists():
                self._sizes[share], self._lines[share] = self._known.of(share), []
        self._publish()
        for share in absent:
            self._sizes.pop(share, None)
            self._lines.pop(share, None)

    def write(self, lines: Sequence[tuple[int, str]]) -> None:
        """Append the lines of a trained batch, each with its shard."""
        of_shard = {share.shard: kept for share, kept in self._lines.items()}
        for shard, line in lines:
            of_shard[shard].append(line + "\n")
            self._pending_bytes += len(line)
        if self._attempt is None and self._pending_bytes >= _PAGE_BYTES:
            self._publish(sync=False)

    def commit(self) -> tuple[int, ...]:
        """Bring everything to disk, before the checkpoint that relies on it; the size of every file in bytes."""
        self._publish()
        return self._known.grown(self._ranks.gather(" ".join(map(str, self._sizes.values()))))

    def cut(self, sizes_bytes: Sequence[int]) -> None:
        """Cut the files to these sizes, from which training continues."""
        known = self._known._replace(sizes_bytes=tuple(sizes_bytes))
        self._sizes = {share: known.of(share) for share in self._sizes}
        self._lines = {share: [] for share in self._lines}
        self._publish()

    def _path(self, share: ShardShare) -> Path:
        return shard_dir(self._folder, share.shard if self._stream.shards > 1 else None) / audit_file(share.rank)

    def _publish(self, *, sync: bool = True) -> None:
        """Cut the files to their sizes, and append their lines."""
        with self._attempt.publishing() if self._attempt is not None else nullcontext():
            for share, lines in self._lines.items():
                self._sizes[share] = _append(self._path(share), self._sizes[share], "".join(lines).encode(), sync=sync)
                lines.clear()
        self._pending_bytes = 0


def _append(path: Path, size_bytes: int, data: bytes, *, sync: bool = True) -> int:
    """Size of the file, cut to ``size_bytes`` at most, with ``data`` behind."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        file.truncate(min(size_bytes, file.seek(0, os.SEEK_END)))
        file.seek(0, os.SEEK_END)
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
        return file.tell()


def audit_of(
    run_dir: Path, sizes_bytes: Sequence[int], ranks: RankGroup, stream: StreamConfig, attempt: RunAttempt | None
) -> Audit:
    """Audit of a rank: in the run directory, or, of several nodes, in the folder that they share."""
    return Audit(run_dir if attempt is None else attempt.shared, sizes_bytes, ranks, stream, attempt)
