"""Audit `audit.jsonl`: one line for every microbatch trained, in order, with a digest of its bytes; without times."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.config import StreamConfig
from common.locks import RunAttempt, publishing_of
from common.paths import shard_dir
from common.schema import UnitArrays
from services.trainer.agreement import shares_of_rank
from services.trainer.copier import slice_microbatch
from services.trainer.ranks import Ranks

AUDIT_FILE = "audit.jsonl"
_FILE = re.compile(r"(shards/\d{3,}/)?audit(-rank\d+)?\.jsonl")
"""Path of an audit in the folder of a run: no other file is cut, whatever a checkpoint names."""

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
        sizes_bytes: Mapping[str, int],
        ranks: Ranks | None = None,
        stream: StreamConfig = StreamConfig(),  # noqa: B008  frozen
        attempt: RunAttempt | None = None,
    ) -> None:
        """``sizes_bytes``: size of each file at the checkpoint, by its path in ``folder``. Those of trainers that are
        absent now are kept: they may come back, and continue there. ``folder``: the run directory, or with ``attempt``
        that of all nodes.

        Raises OSError, and OutdatedAttemptError.
        """
        self._ranks = ranks or Ranks.alone()
        self._folder = folder
        self._publishing = publishing_of(attempt)
        self._in_pages = attempt is None
        self._known = dict(sizes_bytes)
        files = []
        for rank in range(self._ranks.size):
            shares = shares_of_rank(stream, rank, self._ranks.size)
            folders = {one.shard: shard_dir(Path(), one.shard if stream.shards > 1 else None) for one in shares}
            files.append({one.shard: (folders[one.shard] / audit_file(one.rank)).as_posix() for one in shares})
        self._file_of_shard = files[self._ranks.rank]
        self._lines: dict[str, list[str]] = {name: [] for name in self._file_of_shard.values()}
        self._sizes = {name: self._known.get(name, 0) for name in self._lines}
        self._pending_bytes = 0
        self._publish()
        if self._ranks.is_first:
            # It cuts the files of ranks that no longer exist, too; they may be on another machine, or gone.
            absent = self._known.keys() - {name for of_rank in files for name in of_rank.values()}
            with self._publishing():
                for name in absent:
                    if _FILE.fullmatch(name) and (folder / name).exists():
                        _append(folder / name, self._known[name], b"")

    def write(self, lines: Sequence[tuple[int, str]]) -> None:
        """Append the lines of a trained batch, each with its shard."""
        for shard, line in lines:
            self._lines[self._file_of_shard[shard]].append(line + "\n")
            self._pending_bytes += len(line)
        if self._in_pages and self._pending_bytes >= _PAGE_BYTES:
            self._publish(sync=False)

    def commit(self) -> dict[str, int]:
        """Bring everything to disk, before the checkpoint that relies on it; return the sizes of the files of all
        ranks."""
        self._publish()
        for text in self._ranks.gather(json.dumps(self._sizes)):
            self._known |= json.loads(text)
        return dict(self._known)

    def cut(self, sizes_bytes: Mapping[str, int]) -> None:
        """Cut the files to these sizes, from which training continues."""
        self._known = dict(sizes_bytes)
        self._sizes = {name: self._known.get(name, 0) for name in self._sizes}
        self._lines = {name: [] for name in self._lines}
        self._publish()

    def _publish(self, *, sync: bool = True) -> None:
        """Cut the files to their sizes, and append their lines."""
        with self._publishing():
            for name, lines in self._lines.items():
                data = "".join(lines).encode()
                self._sizes[name] = _append(self._folder / name, self._sizes[name], data, sync=sync)
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
