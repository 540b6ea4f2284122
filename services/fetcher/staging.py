"""Staging: which files are brought to local disk and when, and the threads that bring and inspect them."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import os
import queue
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from common import errors
from common.config import StreamConfig
from common.files.inputs import NOT_UTF8, local_path
from common.files.local import BadFileError
from common.files.remotes import WrongSizeError, fetch
from common.paths import check_regular
from common.plan import Blocks, Footer, SlotCapacity, SourceFile, StagedFile
from common.schema import EventSchema
from common.text import shown
from services.fetcher.cache import Cache

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NotStaged:
    """Outcome: the file could not be staged this time; try again later."""

    file: int
    reason: str


@dataclass(frozen=True)
class Stage:
    """Staging function with its settings. Called in the fetcher's worker threads."""

    cache: Cache
    workload: EventSchema
    stream: StreamConfig
    capacity: SlotCapacity
    fetch: Callable[[SourceFile, Path], None] = fetch
    """Function that writes a remote file at a path: see `services.fetcher.cache.Fetch`."""
    inspect: Callable[[Path], Footer] | None = None
    """Reader of a footer in another process: see `services.fetcher.inspection`. None: in this one."""
    own_faults: errors.OwnFaults = field(default_factory=errors.OwnFaults)

    def __call__(self, file: int, source: SourceFile, footer: Footer | None) -> StagedFile | NotStaged:
        """Staged file, with ``footer`` if it is known from before; a bad file is returned with the reason.

        NotStaged stands for a temporary failure, which does not concern the file.
        """
        path = self.path(source)
        is_local = local_path(source.url) is not None
        try:
            self._bring(source, path)
            footer = footer or self._inspect(path)
        except errors.IcestreamError as error:
            if self._may_pass(error, path, is_local):
                return NotStaged(file, _reason(source, error))
            if footer:  # The plan was made with this footer: the file's units stay, the decoder quarantines their rows.
                return StagedFile(file, "", footer, shown(source.url))
            rows = error.rows if isinstance(error, BadFileError) else 0
            return StagedFile(file, str(path), None, reason=_reason(source, error), bad_rows=rows)
        if is_local:
            self.own_faults.worked(path)
        return StagedFile(file, str(path), footer, "" if is_local else shown(source.url))

    def path(self, source: SourceFile) -> Path:
        """Return the path of the file on local disk, present or future."""
        return local_path(source.url) or self.cache.path(source)

    def _inspect(self, path: Path) -> Footer:
        if self.inspect is not None:
            return self.inspect(path)
        from common.files.by_content import read_footer

        return read_footer(path, self.workload, self.stream, self.capacity)

    def _bring(self, source: SourceFile, path: Path) -> None:
        if source.checksum == NOT_UTF8:
            raise BadFileError("its name, shown here with \\u…, is not UTF-8: rename it")
        if local_path(source.url) is None:
            try:
                self.cache.get(source, partial(self.fetch, source))
            except (OSError, MemoryError) as error:
                raise errors.MachineError(f"the cache: {errors.one_line(error)}", errors.machine_errno(error)) from None
            return
        try:
            status = path.stat()
            check_regular(status)
        except (OSError, MemoryError, ValueError) as error:  # ValueError: a path with a zero byte
            errors.raise_if_machine(error, path)
            raise BadFileError(errors.one_line(error)) from None
        except errors.BadInputError as error:
            raise BadFileError(str(error)) from None
        if status.st_size != source.size_bytes:
            raise BadFileError(f"it has {status.st_size} bytes, the frozen inventory says {source.size_bytes}")

    def _may_pass(self, error: errors.IcestreamError, path: Path, is_local: bool) -> bool:
        if isinstance(error, errors.MachineError):
            return not is_local or not self.own_faults.is_own(path, error.number)
        return isinstance(error, errors.TransientError) and not isinstance(error, WrongSizeError)


def _reason(source: SourceFile, error: errors.IcestreamError) -> str:
    """Return the reason that a file is bad, for logs, summaries and checkpoints."""
    text = str(error)
    return shown(text if text.startswith(f"{source.url}: ") else f"{source.url}: {text}")


# -------------------------------------------------------------- worker threads


AGAIN_S = 10.0
"""Longest pause before a file is tried again; the first ones are shorter, since most hiccups are."""
_FIRST_AGAIN_S = 1.0

Job = tuple[int, SourceFile, Footer | None]


class StagePool:
    """Pool of staging threads. Only the staging runs in them; ``wake_fd`` is readable when collect() has results."""

    def __init__(self, stage: Stage, workers: int, *, again_s: float = AGAIN_S) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stage = stage
        self._again_s = again_s
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="stage")
        self._done: queue.SimpleQueue[tuple[Job, Future[StagedFile | NotStaged]]] = queue.SimpleQueue()
        self._again: list[tuple[float, Job]] = []
        self._tries: Counter[int] = Counter()  # by file that waits for another try, or has it
        self.problem = ""
        """Reason that files are not staged yet; empty if none waits for another try, or has it."""

    def submit(self, file: int, source: SourceFile, footer: Footer | None) -> None:
        """Stage a file; ``footer`` if it is known from before."""
        job = (file, source, footer)
        future = self._threads.submit(self._stage, *job)
        future.add_done_callback(lambda future: self._tell(job, future))

    def collect(self) -> list[StagedFile]:
        """Return the files staged, or found bad, since the last call. Raises unexpected errors of a worker: ENOSPC,
        say."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)  # before the queue is emptied: a later result wakes again
        now_s = time.monotonic()
        for due in [due for due in self._again if due[0] <= now_s]:
            self._again.remove(due)
            self.submit(*due[1])
        staged: list[StagedFile] = []
        while not self._done.empty():
            job, future = self._done.get()
            match future.result():
                case NotStaged(number, reason):
                    pause_s = min(self._again_s, _FIRST_AGAIN_S * 2 ** min(self._tries[number], 10))
                    self._tries[number] += 1
                    logger.warning("%s; trying again in %g s", reason, pause_s)
                    self._again.append((now_s + pause_s * random.uniform(0.75, 1.0), job))
                    self.problem = reason
                case StagedFile() as file:
                    self._tries.pop(file.file, None)
                    staged.append(file)
        if not self._tries:
            self.problem = ""
        return staged

    def close(self) -> None:
        """Wait for the files in transfer, and drop the others."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        os.close(self.wake_fd)

    def _tell(self, job: Job, future: Future[StagedFile | NotStaged]) -> None:
        """Hand over the outcome; runs in a worker thread."""
        if not future.cancelled():
            self._done.put((job, future))
            os.eventfd_write(self.wake_fd, 1)


# -------------------------------------------------------------- which files, and when


HORIZON_FILES = 200_000
"""Horizon in files, which bounds memory and time. Each file is indexed about twice an epoch."""


class NextUse:
    """Index of the blocks ahead, rebuilt once half of it lies behind."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._uses: dict[int, int] = {}  # file -> its first block that is indexed
        self._begin = self._end = 0  # the indexed blocks

    def block(self, file: int, after: int) -> int | None:
        """Return the first block from ``after`` on that needs the file; None if it is unknown, or too far ahead."""
        if not self._begin <= after < (self._begin + self._end) / 2:
            self._index(after)
        use = self._uses.get(file)
        return use if use is not None and use >= after else None

    def _index(self, begin: int) -> None:
        self._uses.clear()
        self._begin = self._end = begin
        num_files = 0
        last = begin + 2 * self._blocks.per_epoch  # by then each file was needed
        while num_files < HORIZON_FILES and self._end < last and self._blocks.is_known(self._end):
            files = self._blocks.files(self._end)
            for file in files:
                self._uses.setdefault(file, self._end)
            num_files += len(files)
            self._end += 1


@dataclass(frozen=True)
class Begun:
    """Steps that complete more blocks, in this order."""

    give_up: list[int]
    """Files to delete, kept for a later block: their room is needed now."""
    stage: list[int]
    """Files to stage, including kept ones: the cache has them, or finds them damaged."""


class StageAhead:
    """Staging of blocks in order, ``blocks_ahead`` beyond the one being delivered, within ``budget_bytes`` of disk.

    A file behind the cursor that a later epoch needs is kept while there is room: nothing relies on it, and its room
    goes to the next block that needs it.
    ``sizes_bytes``: size of each file in the budget (0: used in place).
    """

    def __init__(
        self,
        blocks: Blocks,
        sizes_bytes: Sequence[int],
        *,
        budget_bytes: int,
        blocks_ahead: int,
        budget: str = "fetcher.disk_budget_gib",
    ) -> None:
        """``budget``: the setting, for the error."""
        self.blocks = blocks
        self.next_to_plan = 0
        """First block that take_block() has not returned."""
        self.out_of_budget = False
        """True if the next block was not begun because the files of earlier blocks fill the budget."""
        self.missing_bytes = 0
        """Bytes by which the budget is too small for that block beside the earlier ones."""
        self._sizes_bytes = sizes_bytes
        self._budget_bytes = budget_bytes
        self._budget = budget
        self._blocks_ahead = blocks_ahead
        self._next_to_begin = 0
        self._needed_by: dict[int, set[int]] = {}  # file -> blocks begun and not evicted
        self._staged: dict[int, StagedFile] = {}
        self._staging: set[int] = set()
        self._kept: dict[int, int] = {}  # file that no begun block needs -> its number in the heap
        self._first_to_go: list[tuple[float, int, int]] = []  # a heap: -next use, -number, file
        self._numbers = itertools.count()
        self._next_use = NextUse(blocks)
        self.bytes_held = 0
        """Disk space of files: staged, in transfer, and kept for later."""
        self.bytes_kept = 0
        """Disk space of files kept for later, which a new block may use."""

    @property
    def waits_for_eviction(self) -> bool:
        """True if nothing is in transfer, and nothing can be begun before an eviction."""
        return self.out_of_budget and not self._staging and self.next_to_plan == self._next_to_begin

    @property
    def is_full(self) -> bool:
        """True if blocks are left, nothing is in transfer, and the last begin() found none that may be begun."""
        return not self._staging and self.blocks.is_known(self._next_to_begin)

    def part_ahead(self, current_block: int) -> float:
        """Blocks returned beyond ``current_block``, as a part of those allowed."""
        return min(1.0, max(0, self.next_to_plan - 1 - current_block) / self._blocks_ahead)

    @property
    def ended(self) -> bool:
        """True once every block was returned."""
        return self.blocks.end is not None and self.next_to_plan >= self.blocks.end

    def restart(self, block: int, in_cache: Iterable[int] = ()) -> list[int]:
        """Continue from ``block`` instead. ``in_cache``: files on disk; returns those that are not kept, to be deleted.

        Files in transfer remain so; all other staged files count as not staged.
        """
        self.next_to_plan = self._next_to_begin = block
        self._needed_by.clear()
        self._staged.clear()
        self._kept.clear()
        self._first_to_go.clear()
        self.bytes_kept = 0
        self.bytes_held = sum(self._sizes_bytes[file] for file in self._staging)
        found = {file: self._next_use.block(file, block) for file in in_cache if file not in self._staging}
        freed = []
        for file, use in sorted(found.items(), key=lambda item: math.inf if item[1] is None else item[1]):
            size_bytes = self._sizes_bytes[file]
            if use is None or self.bytes_held + size_bytes > self._budget_bytes:
                freed.append(file)
            else:
                self.bytes_held += size_bytes
                self._keep(file)
        return freed

    def begin(self, current_block: int) -> Begun:
        """Return the files to delete and to stage now, with the trainer at ``current_block``.

        Raises BadInputError if a block alone exceeds the budget.
        """
        begun = Begun([], [])
        self.out_of_budget = False
        while self.blocks.is_known(self._next_to_begin) and self._next_to_begin <= current_block + self._blocks_ahead:
            files = self.blocks.files(self._next_to_begin)
            new_bytes = sum(self._sizes_bytes[file] for file in files if not self._is_held(file))
            room_bytes = self.bytes_kept - sum(self._sizes_bytes[file] for file in files if file in self._kept)
            if self.bytes_held - room_bytes + new_bytes > self._budget_bytes:
                if not self._needed_by and not self._staging:
                    raise errors.BadInputError(
                        f"{self._budget} holds no block of "
                        f"stream.block_files = {len(files)} files ({new_bytes / 2**30:.3g} GiB); raise it, or lower "
                        "stream.block_files"
                    )
                self.out_of_budget = True
                self.missing_bytes = self.bytes_held - room_bytes + new_bytes - self._budget_bytes
                break
            for file in files:
                if not self._is_held(file):
                    self.bytes_held += self._sizes_bytes[file]
                self._needed_by.setdefault(file, set()).add(self._next_to_begin)
                self._take_from_kept(file)
                if file not in self._staged and file not in self._staging:
                    self._staging.add(file)
                    begun.stage.append(file)
            while self.bytes_held > self._budget_bytes:
                begun.give_up.append(self._give_one_up())
            self._next_to_begin += 1
        return begun

    def add(self, staged: StagedFile) -> bool:
        """Add a staged (or quarantined) file. False if it is not needed any more: delete it."""
        was_on_its_way = staged.file in self._staging
        self._staging.discard(staged.file)
        if staged.file not in self._needed_by:
            if was_on_its_way:
                self.bytes_held -= self._sizes_bytes[staged.file]
            return False
        self._staged[staged.file] = staged
        return True

    def take_block(self) -> tuple[int, list[StagedFile]] | None:
        """Return the next block in order, once all its files are staged."""
        if self.next_to_plan >= self._next_to_begin:
            return None
        files = self.blocks.files(self.next_to_plan)
        if any(file not in self._staged for file in files):
            return None
        self.next_to_plan += 1
        return self.next_to_plan - 1, [self._staged[file] for file in files]

    def evict(self, before_block: int) -> list[int]:
        """Release the blocks before this one. Returns files to delete; those that are needed again are kept."""
        freed = []
        for file, blocks in list(self._needed_by.items()):
            done = {block for block in blocks if block < before_block}
            blocks -= done
            if blocks:
                continue
            del self._needed_by[file]
            staged = self._staged.pop(file, None)
            if file in self._staging:
                continue
            # It takes disk space, is sound, and another epoch follows.
            is_sound = staged is not None and self._sizes_bytes[file] and staged.footer is not None and staged.path
            if is_sound and (not self.blocks.epochs or self.blocks.epoch_of(max(done)) + 1 < self.blocks.epochs):
                self._keep(file)
                continue
            self.bytes_held -= self._sizes_bytes[file]
            freed.append(file)
        return freed

    # -------------------------------------------------------------- files kept for later

    def _is_held(self, file: int) -> bool:
        return file in self._needed_by or file in self._staging or file in self._kept

    def _keep(self, file: int) -> None:
        """Keep a file, which counts in ``bytes_held`` already."""
        use = self._next_use.block(file, self._next_to_begin)
        number = next(self._numbers)
        self._kept[file] = number
        self.bytes_kept += self._sizes_bytes[file]
        # The file needed last is deleted first. If that is unknown, the newest: in a cycle it comes again last.
        heapq.heappush(self._first_to_go, (-math.inf if use is None else -use, -number, file))
        if len(self._first_to_go) > 2 * len(self._kept) + 1000:  # most entries are of files taken in the meantime
            self._first_to_go = [entry for entry in self._first_to_go if self._is_current(entry)]
            heapq.heapify(self._first_to_go)

    def _take_from_kept(self, file: int) -> None:
        if self._kept.pop(file, None) is not None:
            self.bytes_kept -= self._sizes_bytes[file]

    def _give_one_up(self) -> int:
        while not self._is_current(entry := heapq.heappop(self._first_to_go)):
            pass
        file = entry[2]
        self._take_from_kept(file)
        self.bytes_held -= self._sizes_bytes[file]
        return file

    def _is_current(self, entry: tuple[float, int, int]) -> bool:
        return self._kept.get(entry[2]) == -entry[1]
