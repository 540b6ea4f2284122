"""Audits of a run on several nodes: a file for each lane in the folder that the nodes share.

A lane is read by another rank, on another node, when the number of either changes. So its file is no rank's own, and
nothing is written to it but complete parts, just before the checkpoint that relies on them, by the newest attempt.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.attempt import RunAttempt
from common.config import StreamConfig
from common.run_dir import shard_dir
from services.trainer.ranks.rank_group import RankGroup
from services.trainer.stream.audit import Audit, AuditFiles
from services.trainer.stream.lane import lanes_of_share, shares_of_rank


def lane_files(shared: Path, stream: StreamConfig, rank: int, ranks: int) -> dict[int, Path]:
    """Audit file of each lane of the run that one of ``ranks`` trainers reads: in the folder of its shard."""
    files = {}
    for share in shares_of_rank(stream, rank, ranks):
        folder = shard_dir(shared, share.shard if stream.shards > 1 else None)
        for lane in lanes_of_share(stream, share):
            number = share.shard * stream.shard_lanes + lane.number
            files[number] = folder / f"audit-lane{number:03d}.jsonl"
    return files


class LaneAudit:
    """Audits of the lanes of one rank, with the methods of Audit."""

    def __init__(
        self, paths: Mapping[int, Path], sizes_bytes: Sequence[int], ranks: RankGroup, attempt: RunAttempt
    ) -> None:
        """``paths``: files of this rank's lanes, which are cut to their sizes in the checkpoint.

        ``sizes_bytes``: of all lanes, or empty for a new run. Raises OSError, and OutdatedAttemptError.
        """
        self._paths = dict(paths)
        self._sizes = {lane: sizes_bytes[lane] if lane < len(sizes_bytes) else 0 for lane in paths}
        self._lines: dict[int, list[str]] = {lane: [] for lane in paths}
        self._ranks = ranks
        self._attempt = attempt
        self._publish(tuple(paths))

    def write(self, lines: Sequence[str]) -> None:
        """Append the lines of a trained batch, in memory."""
        for line in lines:
            self._lines[json.loads(line)["lane"]].append(line + "\n")

    def commit(self) -> tuple[int, ...]:
        """Write everything to disk, before the checkpoint that relies on it; the size of every lane's file in bytes."""
        self._publish([lane for lane, lines in self._lines.items() if lines])
        sizes: dict[int, int] = {}
        for text in self._ranks.gather(json.dumps(self._sizes)):
            sizes |= {int(lane): size for lane, size in json.loads(text).items()}
        return tuple(size for _, size in sorted(sizes.items()))

    def cut(self, sizes_bytes: Sequence[int]) -> None:
        """Cut the files to these sizes, from which training continues."""
        self._sizes = {lane: sizes_bytes[lane] for lane in self._paths}
        self._lines = {lane: [] for lane in self._paths}
        self._publish(tuple(self._paths))

    def close(self) -> None:
        """Drop the lines behind the last checkpoint."""

    def _publish(self, lanes: Sequence[int]) -> None:
        """Cut the files of these lanes to their sizes, and append their lines."""
        if not lanes:
            return
        with self._attempt.publishing():
            for lane in lanes:
                lines, self._lines[lane] = self._lines[lane], []
                self._sizes[lane] = _append(self._paths[lane], self._sizes[lane], "".join(lines).encode())


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
    return LaneAudit(lane_files(attempt.shared, stream, ranks.rank, ranks.size), sizes_bytes, ranks, attempt)
