"""Inventory of a run, which grows range by range: listed one range ahead of the training, then frozen."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import re
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from common import messages as m
from common.errors import BadInputError, IcestreamError, TransientError
from common.files.inputs import NothingFound, expand
from common.files.remotes import Remotes
from common.messages import Source
from common.plan import Blocks, SourceFile, complete_digest, inventory_digest
from common.text import shown, without_tokens
from services.config.settings import InputRange
from services.fetcher.ledger import CommittedPlace, FrozenRange, Ledger

logger = logging.getLogger(__name__)


class Inventory:
    """Ranges in sequence, beginning with those frozen before. ``blocks`` grows with it."""

    def __init__(self, ledger: Ledger, ranges: Sequence[InputRange], blocks: Blocks) -> None:
        self.ranges = ranges
        self.staged_bytes: array[int] = array("q")
        """Disk space of each file once it is staged: 0 for a local one."""
        self.blocks = blocks
        self._ledger = ledger
        self._digests = [""]
        for frozen in ledger.use(ranges):
            self._append(frozen)

    @property
    def num_files(self) -> int:
        """Number of files in the known ranges."""
        return len(self.staged_bytes)

    @property
    def num_known(self) -> int:
        """Number of frozen ranges."""
        return len(self._digests) - 1

    @property
    def complete(self) -> bool:
        """True once all ranges are frozen."""
        return self.num_known == len(self.ranges)

    @property
    def next_range(self) -> InputRange:
        """First range that is not frozen."""
        return self.ranges[self.num_known]

    def freeze(self, files: Sequence[SourceFile], note: str = "") -> None:
        """Fix the files of the next range. ``note``: reason that it has none."""
        self._append(self._ledger.freeze(self.next_range, files, note))

    def source(self, file: int) -> SourceFile:
        """Return the file by its number."""
        return self._ledger.source(file)

    def source_of(self, block: int) -> Source:
        """Return the source of the data of a known block and all before it."""
        if self.blocks.epoch_of(block):
            return Source(self.num_known, complete_digest(self._digests[-1]))
        ranges = self.blocks.range_of(block) + 1
        return Source(ranges, self._digests[ranges])

    def knows(self, source: Source) -> bool:
        """Return True if enough ranges are known to decide whether data came from this inventory."""
        return source.ranges <= self.num_known or self.complete

    def has(self, source: Source) -> bool:
        """Return True if data of that source belong to this inventory."""
        if source.ranges > self.num_known:
            return False
        is_all = source.ranges == len(self.ranges)
        digest = self._digests[source.ranges]
        return source.digest == digest or (is_all and source.digest == complete_digest(digest))

    def place_before(self, block: int) -> CommittedPlace:
        """Return the epoch and number of ranges completed once all blocks before ``block`` are."""
        if self.blocks.is_known(block):
            return CommittedPlace(self.blocks.epoch_of(block), self.blocks.range_of(block))
        epochs = self.blocks.epoch_of(block) if self.blocks.per_epoch else 0
        return CommittedPlace(max(epochs - 1, 0), self.num_known)

    def _append(self, frozen: FrozenRange) -> None:
        self._digests.append(inventory_digest(self._digests[-1], frozen.digest))
        self.staged_bytes.extend(self._ledger.staged_bytes(frozen))
        self.blocks.append(frozen.num_files)


_MOST_HELD = 16


class PendingTrainers:
    """Trainers with messages held back, from Attach on, until the inventory shows that their checkpoint fits or not."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._held: dict[str, list[m.Message]] = {}

    @property
    def ranges_wanted(self) -> int:
        """Number of ranges to be known before the waiting trainers can be answered."""
        attaches = (messages[0] for messages in self._held.values())
        return max((attach.source.ranges for attach in attaches if isinstance(attach, m.Attach)), default=0)

    def pass_on(self, peer: str, message: m.Message) -> list[m.Message]:
        """Return the messages for the dispatcher after ``message`` from ``peer``."""
        if isinstance(message, m.Attach):
            if self._inventory.knows(message.source) and self._inventory.has(message.source):
                self._held.pop(peer, None)
                return [message]
            self._held[peer] = [message]
            return []
        if peer in self._held:
            if len(self._held[peer]) < _MOST_HELD:  # a trainer sends no more than Want
                self._held[peer].append(message)
            return []
        return [message]

    def settle(self) -> tuple[list[tuple[str, m.Message]], list[str]]:
        """Return the messages to pass on, in order, and trainers to refuse; after more ranges became known."""
        passed: list[tuple[str, m.Message]] = []
        refused: list[str] = []
        for peer, messages in list(self._held.items()):
            attach = messages[0]
            assert isinstance(attach, m.Attach)
            if not self._inventory.knows(attach.source):
                continue
            del self._held[peer]
            if self._inventory.has(attach.source):
                passed += [(peer, message) for message in messages]
            else:
                refused.append(peer)
        return passed, refused

    def forget(self, peer: str) -> None:
        """Remove a trainer that is gone."""
        self._held.pop(peer, None)


_RETRY_MIN_S = 5.0
_RETRY_MAX_S = 300.0
"""First and longest pause before a range is listed again: most hiccups are short, and a server that is away for a night
isn't asked more often than a person would."""
_NAMES_KEY = "processed_files"
_NAMES_SHOWN = 5

Expand = Callable[[InputRange], list[SourceFile]]


# -------------------------------------------------------------- files of a range


@dataclass(frozen=True)
class ListedRange:
    """Files of a range."""

    files: list[SourceFile]
    """Files without those of the list."""
    left_out: int = 0
    unknown: tuple[str, ...] = ()
    """Names on the list that are no file of this range. With ranges: only those in a folder of the range's name."""

    def line(self, done: Path) -> str:
        """Return the numbers of files left out, and of names that match no file, as one line."""
        text = f"{self.left_out:,} files left out, which {shown(str(done))} names"
        if not self.unknown:
            return text
        names = ", ".join(shown(name, 200) for name in self.unknown[:_NAMES_SHOWN])
        more = ", …" if len(self.unknown) > _NAMES_SHOWN else ""
        return f"{text}; {len(self.unknown):,} of its names match no file: {names}{more}"


def list_range(inputs: InputRange, remotes: Remotes) -> list[SourceFile]:
    """Return the files of a range; what its list of done files leaves out is logged. Raises as listed()."""
    listing = listed(inputs, remotes)
    if inputs.done is not None:
        log = logger.warning if listing.unknown else logger.info
        log("%s%s", f"range {inputs.name}: " if inputs.name else "", listing.line(inputs.done))
    return listing.files


def listed(inputs: InputRange, remotes: Remotes) -> ListedRange:
    """Return the files of a range without those that its list names.

    Raises BadInputError for a bad list, and if it leaves nothing of inputs without ranges; else as expand().
    """
    names = read_done(inputs.done) if inputs.done is not None else frozenset()
    files = expand(inputs.inputs, remotes)
    if not names:
        return ListedRange(files)
    listing = without_done(files, names, inputs.name)
    if not listing.files and not inputs.name:
        raise BadInputError(
            f"all {len(files)} files of the inputs are in {shown(str(inputs.done))}: nothing is left to train on"
        )
    return listing


def without_done(files: Sequence[SourceFile], names: frozenset[str], range_name: str = "") -> ListedRange:
    """Return the files whose names are not on the list."""
    by_name = {_normal(file.url): file for file in files}
    kept = [file for name, file in by_name.items() if name not in names]
    unknown = (name for name in names - by_name.keys() if not range_name or f"/{range_name}/" in name)
    return ListedRange(kept, len(by_name) - len(kept), tuple(sorted(unknown)))


def read_done(path: Path) -> frozenset[str]:
    """Return the names of files that an earlier training has processed; relative ones are below the list's folder.

    The list is JSON with the names under `processed_files`: `training_checkpoint.json` of the training before
    icestream. Raises BadInputError.
    """
    expected = f'expected {{"{_NAMES_KEY}": [names]}}'
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise BadInputError(f"--done {shown(str(path))}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise BadInputError(f"--done {shown(str(path))}: not JSON; {expected}") from None
    names = content.get(_NAMES_KEY) if isinstance(content, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInputError(f"--done {shown(str(path))}: {expected}")
    folder = path.absolute().parent
    return frozenset(_normal(name if "://" in name else str(folder / name)) for name in names)


def _normal(name: str) -> str:
    """Return a name in the form in which two names of one file are equal: URLs without tokens and double slashes."""
    scheme, separator, path = name.partition("://")
    if not separator:
        return os.path.normpath(name)
    return f"{scheme}://{re.sub('/{2,}', '/', without_tokens(path))}"


# -------------------------------------------------------------- listing, ahead of the training


class RangeListing:
    """Listing of ranges in a thread: call turn() often, at the latest when ``wake_fd`` is readable.

    A range that can't be listed is tried again with growing pauses, for ever, except the first one: errors in the
    inputs are reported at the start of a run, while a run of weeks waits.
    """

    def __init__(
        self,
        inventory: Inventory,
        ledger: Ledger,
        expand: Expand,
        is_there: Callable[[InputRange], bool] = lambda inputs: True,
    ) -> None:
        """``expand`` is called in the thread, with a range for which ``is_there`` returns True."""
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.problem = ""
        """Reason that the next range is not listed yet; empty without a problem."""
        self._inventory = inventory
        self._ledger = ledger
        self._expand = expand
        self._is_there = is_there
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="list")
        self._future: Future[list[SourceFile]] | None = None
        self._tries = 0
        self._next_try_s = 0.0

    @property
    def listing(self) -> str:
        """Name of the range being listed; empty if none is."""
        return self._inventory.next_range.name or "the inputs" if self._future is not None else ""

    def turn(self, now_s: float, current_block: int, blocks_ahead: int, ranges_wanted: int) -> None:
        """Continue the listing. Raises BadInputError for an error that only the user can fix."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        if self._future is not None and self._future.done():
            future, self._future = self._future, None
            try:
                files = future.result()
            except NothingFound as error:
                name = self._inventory.next_range.name
                if not name:
                    raise
                logger.warning("range %s is skipped: %s", name, error)
                self._freeze([], shown(str(error), 1000))
            except (TransientError, BadInputError) as error:
                self._failed(error, now_s)
            else:
                if name := self._inventory.next_range.name:
                    size_gib = sum(file.size_bytes for file in files) / 2**30
                    logger.info("range %s: %d files, %.2f GiB", name, len(files), size_gib)
                self._freeze(files)
        inventory = self._inventory
        if inventory.complete:
            if not inventory.num_files:
                raise BadInputError("no range holds a file: check --ranges and -i, and `icestream ranges`")
        elif (
            self._future is None
            and now_s >= self._next_try_s
            and self._wants_more(current_block, blocks_ahead, ranges_wanted)
            and self._is_there(inventory.next_range)
        ):
            self._future = self._thread.submit(self._expand, inventory.next_range)
            self._future.add_done_callback(lambda future: os.eventfd_write(self.wake_fd, 1))

    def close(self) -> None:
        """Wait for the thread; a listing has timeouts of its own."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        os.close(self.wake_fd)

    def _wants_more(self, current_block: int, blocks_ahead: int, ranges_wanted: int) -> bool:
        blocks = self._inventory.blocks
        if self._inventory.num_known < ranges_wanted or not blocks.is_known(current_block + blocks_ahead):
            return True
        # One range beyond the one in training, regardless of its size.
        return blocks.last_block(blocks.range_of(current_block)) >= blocks.per_epoch

    def _freeze(self, files: Sequence[SourceFile], note: str = "") -> None:
        self._inventory.freeze(files, note)
        self._tries, self._next_try_s, self.problem = 0, 0.0, ""

    def _failed(self, error: IcestreamError, now_s: float) -> None:
        inputs = self._inventory.next_range
        if not self._inventory.num_known:
            raise BadInputError(str(error)) from None
        # The last quarter is random: the tries of many runs are spread over it.
        pause_s = min(_RETRY_MIN_S * 2.0 ** min(self._tries, 60), _RETRY_MAX_S) * random.uniform(0.75, 1.0)
        self._tries += 1
        reason = shown(str(error))
        self._ledger.note_failure(inputs, self._tries, reason[:1000])
        self._next_try_s = now_s + pause_s
        self.problem = f"range {inputs.name} can't be listed: {reason}"
        logger.warning("%s; try %d, trying again in %.0f s", self.problem, self._tries, pause_s)
