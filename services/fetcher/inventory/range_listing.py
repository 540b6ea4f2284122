"""Listing of ranges, one ahead of the training: order, time and failures."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from common.errors import BadInputError, IcestreamError, TransientError
from common.files.inputs import NothingFound
from common.plan import SourceFile
from common.redact import shown
from services.config.fetcher import FetcherConfig
from services.fetcher.inventory.inventory import Inventory
from services.fetcher.inventory.ledger import Ledger
from services.fetcher.inventory.lister import Lister
from services.fetcher.inventory.ranges import Backoff, InputRange

logger = logging.getLogger(__name__)


class RangeListing:
    """Listing of ranges: call turn() often. A range that can't be listed is tried again with growing pauses, except
    the first one: errors in the inputs are reported at the start of a run, while a run of weeks waits.
    """

    def __init__(
        self,
        inventory: Inventory,
        ledger: Ledger,
        lister: Lister,
        config: FetcherConfig,
        may_list: Callable[[InputRange], bool] = lambda one: True,
    ) -> None:
        """``may_list``: false for a range whose list another shard has still to publish."""
        self.problem = ""
        """Reason that the next range is not listed yet; empty without a problem."""
        self._inventory = inventory
        self._ledger = ledger
        self._lister = lister
        self._config = config
        self._may_list = may_list
        self._backoff = Backoff(config.retry_min_s, config.retry_max_s)
        self._next_try_s = 0.0

    @property
    def listing(self) -> str:
        """Name of the range being listed; empty if none is."""
        return self._inventory.next_range.name or "the inputs" if self._lister.busy else ""

    def turn(self, now_s: float, current_block: int, blocks_ahead: int, ranges_wanted: int) -> None:
        """Continue the listing. Raises BadInputError for an error that only the user can fix."""
        outcome = self._lister.collect()
        match outcome:
            case NothingFound():
                self._skip(outcome)
            case TransientError() | BadInputError():
                self._failed(outcome, now_s)
            case list():
                self._freeze(outcome)
        inventory = self._inventory
        if inventory.complete:
            if not inventory.num_files:
                raise BadInputError("no range holds a file: check --ranges and -i, and `icestream ranges`")
        elif (
            not self._lister.busy
            and now_s >= self._next_try_s
            and self._wants_more(current_block, blocks_ahead, ranges_wanted)
            and self._may_list(inventory.next_range)
        ):
            self._lister.begin(inventory.next_range)

    def _wants_more(self, current_block: int, blocks_ahead: int, ranges_wanted: int) -> bool:
        blocks = self._inventory.blocks
        if self._inventory.num_known < ranges_wanted or not blocks.is_known(current_block + blocks_ahead):
            return True
        # One range beyond the one in training, regardless of its size.
        return blocks.last_block(blocks.range_of(current_block)) >= blocks.per_epoch

    def _freeze(self, files: list[SourceFile]) -> None:
        if self._inventory.next_range.name:
            size_gib = sum(file.size_bytes for file in files) / 2**30
            logger.info("range %s: %d files, %.2f GiB", self._inventory.next_range.name, len(files), size_gib)
        self._inventory.freeze(files)
        self._worked()

    def _skip(self, error: NothingFound) -> None:
        """Skip a range that is missing or empty."""
        if not self._inventory.next_range.name or self._config.missing_ranges == "stop":
            raise error
        logger.warning("range %s is skipped: %s", self._inventory.next_range.name, error)
        self._inventory.freeze([], shown(str(error), 1000))
        self._worked()

    def _worked(self) -> None:
        self._backoff.worked()
        self._next_try_s = 0.0
        self.problem = ""

    def _failed(self, error: IcestreamError, now_s: float) -> None:
        one = self._inventory.next_range
        if not self._inventory.num_known:
            raise BadInputError(str(error)) from None
        pause_s = self._backoff.failed(random.random())
        tries = self._backoff.tries
        reason = shown(str(error))
        self._ledger.note_failure(one, tries, reason[:1000])
        if 0 < self._config.max_retries < tries:
            raise BadInputError(
                f"range {one.name} could not be listed {tries} times (fetcher.max_retries = "
                f"{self._config.max_retries}): {reason}; the same command resumes from here"
            )
        self._next_try_s = now_s + pause_s
        self.problem = f"range {one.name} can't be listed: {reason}"
        logger.warning("%s; try %d, trying again in %.0f s", self.problem, tries, pause_s)
