"""Failure budget: bad inputs, kept in the ledger and counted against the run's limit."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from common import messages as m
from common.errors import BadInputError
from common.files.bad_file import none_usable
from common.invalid_events import lines_of_rules
from common.redact import shown
from services.config.fetcher import FetcherConfig
from services.fetcher.inventory.inventory import Inventory
from services.fetcher.inventory.ledger import Ledger
from services.fetcher.inventory.shared_bad_files import SharedBadFiles

logger = logging.getLogger(__name__)


class FailureBudget:
    """Failure budget of one run: see the module."""

    def __init__(
        self, ledger: Ledger, inventory: Inventory, config: FetcherConfig, shared: SharedBadFiles | None = None
    ) -> None:
        """``shared``: bad files of all shards, if there are several."""
        self._shared = shared
        self._ledger = ledger
        self._inventory = inventory
        self._config = config
        self.newest = ""
        """Reason of the newest bad input."""
        self._told: set[str] = set()
        """Broken rules that the log has named."""

    def quarantine(self, bad: m.Quarantined) -> None:
        """Keep a bad input. Raises BadInputError once there are too many."""
        logger.error("quarantined: %s", bad.reason)
        self.newest = bad.reason
        self._ledger.quarantine(bad)
        num_bad = self._ledger.num_bad_files()
        if self._shared is not None:
            num_bad = max(num_bad, self._shared.add(bad.file))
        allowed = self._config.bad_files_allowed(self._inventory.num_files)
        if self._config.strict:
            raise BadInputError(f"{bad.reason} (fetcher.strict stops at the first bad input)")
        if num_bad > allowed:
            raise BadInputError(
                f"{num_bad} bad files, fetcher.max_bad_files = {self._config.max_bad_files} allows {allowed}; "
                f"the newest: {bad.reason}"
            )
        if self._inventory.complete and num_bad == self._inventory.num_files and bad.row_group == -1:
            raise none_usable(self._ledger.reasons())

    def set_aside(self, rules: Sequence[m.InvalidEvents]) -> None:
        """Log the first invalid events of each rule: they count against no limit. Raises BadInputError if strict."""
        for one, line in zip(rules, lines_of_rules(rules), strict=True):
            if self._config.strict:
                raise BadInputError(f"{line} (fetcher.strict stops at the first bad input)")
            if one.rule not in self._told and len(self._told) < m.MAX_RULES:
                self._told.add(one.rule)
                logger.warning("invalid, set aside alone: %s; further ones are only counted", line)

    def remember(self, files: Sequence[int]) -> None:
        """Quarantine the files that the checkpoint's journal lists as bad: otherwise the cursor would point into
        another plan."""
        for file in files:
            if file < self._inventory.num_files and self._ledger.whole_file(file) is None:
                name = shown(self._inventory.source(file).url)
                self._ledger.quarantine(m.Quarantined(file, -1, 0, f"{name}: quarantined before the restart"))
