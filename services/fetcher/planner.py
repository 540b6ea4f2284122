"""Planner, from files to units: staging of the next blocks, planning of complete ones, eviction; the failure budget."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from common import messages as m
from common.errors import BadInputError
from common.files.inputs import local_path
from common.files.local import none_usable
from common.files.remotes import name_of
from common.invalid_events import lines_of_rules
from common.plan import Blocks, SlotCapacity, SourceFile, StagedFile, plan_block, plan_hash
from common.summary import epochs_line, planned_line
from common.text import shown
from services.config.root import Config
from services.config.settings import FetcherConfig
from services.fetcher.cache import Cache
from services.fetcher.inspection import Inspection
from services.fetcher.inventory import Inventory
from services.fetcher.ledger import Ledger
from services.fetcher.shared_folder import BegunBlocks, SharedFolder, add_bad_file
from services.fetcher.staging import Stage, StageAhead, StagePool

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class FailureBudget:
    """Bad inputs of one run, kept in the ledger and counted against its limit."""

    _ledger: Ledger
    _inventory: Inventory
    _config: FetcherConfig
    _shared: SharedFolder = field(default_factory=SharedFolder)
    """Folder with the bad files of all shards, if there are several."""
    newest: str = ""
    """Reason of the newest bad input."""
    _named_rules: set[str] = field(default_factory=set)
    """Broken rules that the log has named."""

    def quarantine(self, bad: m.Quarantined) -> None:
        """Keep a bad input. Raises BadInputError once there are too many."""
        logger.error("quarantined: %s", bad.reason)
        self.newest = bad.reason
        self._ledger.quarantine(bad)
        num_bad = self._ledger.num_bad_files()
        if self._shared.folder is not None:
            num_bad = max(num_bad, add_bad_file(self._shared, bad.file))
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
        for broken, line in zip(rules, lines_of_rules(rules), strict=True):
            if self._config.strict:
                raise BadInputError(f"{line} (fetcher.strict stops at the first bad input)")
            if broken.rule not in self._named_rules and len(self._named_rules) < m.MAX_RULES:
                self._named_rules.add(broken.rule)
                logger.warning("invalid, set aside alone: %s; further ones are only counted", line)

    def remember(self, files: Sequence[int]) -> None:
        """Quarantine the files that the checkpoint's journal lists as bad: otherwise the cursor would point into
        another plan."""
        for file in files:
            if file < self._inventory.num_files and self._ledger.whole_file(file) is None:
                name = shown(self._inventory.source(file).url)
                self._ledger.quarantine(m.Quarantined(file, -1, 0, f"{name}: quarantined before the restart"))


_LOOK_AHEAD_BLOCKS = 10_000
"""Number of blocks searched for files that a former fetcher left on disk."""


@dataclass(eq=False)
class Planner:
    """Next block and unit of the plan, and the run's files on disk. ``fetch`` copies a remote file."""

    run_dir: Path
    config: Config
    capacity: SlotCapacity
    blocks: Blocks
    _: KW_ONLY
    inventory: Inventory
    ledger: Ledger
    budget: FailureBudget
    fetch: Callable[[SourceFile, Path], None]
    shared: SharedFolder
    """Place of the records of what a shard has planned and begun."""

    def __post_init__(self) -> None:
        config, schema = self.config, self.config.stored_workload()
        self.shared.append_planned(epochs_line(config.epochs))
        settings = plan_hash(schema, config.stream, config.seed)
        self._begun = BegunBlocks(self.shared, settings) if self.shared.folder is not None else None
        self._cache = Cache(config.fetcher.cache_dir or self.run_dir / "cache", self.run_dir)
        self._inspection = Inspection(config.workload, config.source, config.stream)
        self._stage = Stage(self._cache, schema, config.stream, self.capacity, self.fetch, self._inspection)
        self.pool = StagePool(self._stage, config.fetcher.transfers)
        self.ahead = StageAhead(
            self.blocks,
            self.inventory.staged_bytes,
            budget_bytes=int(config.fetcher.disk_budget_gib * 2**30),
            budget=config.fetcher.disk_budget,
            blocks_ahead=config.fetcher.blocks_ahead,
        )
        self._next_k = 0
        self._done_before = 0
        self.files_planned = 0
        self.events_planned = 0

    def restart(self, cursor: m.Cursor) -> None:
        """Continue from the cursor's block; keep the files of a former fetcher or plan that are needed next."""
        self._next_k = cursor.block_first_unit
        self._done_before = cursor.block
        if self._begun is not None:
            self._recall(self._begun, cursor.block)
        present = self._cache.names()
        kept: dict[int, SourceFile] = {}
        for later in range(cursor.block, cursor.block + _LOOK_AHEAD_BLOCKS):
            if len(kept) == len(present) or not self.blocks.is_known(later):
                break
            for file in self.blocks.files(later):
                source = self.inventory.source(file)
                if local_path(source.url) is None and name_of(source) in present:
                    kept[file] = source
        for file in self.ahead.restart(cursor.block, kept):
            del kept[file]
        self._cache.drop_all_but(kept.values())

    def stage_more(self, current_block: int) -> None:
        """Begin to stage the files allowed while ``current_block`` is delivered."""
        begun = self.ahead.begin(current_block)
        self._delete(begun.give_up)
        for file in begun.stage:
            bad = self.ledger.whole_file(file)
            if bad is not None:  # a bad file stays bad for the whole run, or a resumed run would have another plan
                path = str(self._stage.path(self.inventory.source(file)))
                self.ahead.add(StagedFile(file, path, None, reason=bad.reason, bad_rows=bad.rows))
                continue
            self._submit(file)

    def collect(self) -> Iterator[int]:
        """Return the files whose staging has ended, successfully or not. Raises BadInputError once too many are bad."""
        for staged in self.pool.collect():
            if staged.footer is None:
                self.budget.quarantine(m.Quarantined(staged.file, -1, staged.bad_rows, staged.reason[:2000]))
            elif self.ledger.footer(staged.file) is None:
                self.ledger.keep_footer(staged.file, staged.footer)
            if not self.ahead.add(staged):
                self._delete([staged.file])
            yield staged.file

    def plan_next_block(self) -> Sequence[m.Unit] | None:
        """Units of the next block, perhaps none; None if it is not complete yet."""
        taken = self.ahead.take_block()
        if taken is None:
            return None
        block, staged = taken
        units = plan_block(
            block,
            self._next_k,
            self.blocks.epoch_of(block),
            staged,
            capacity=self.capacity,
            stream=self.config.stream,
            seed=self.config.seed,
            source=self.inventory.source_of(block),
        )
        if self._begun is not None:
            self._begun.add(block, [(self.inventory.source(file.file), file) for file in staged])
        self._next_k += len(units)
        self.files_planned += len(staged)
        self.events_planned += sum(unit.rows for unit in units)
        bad_rows = sum(bad.rows for unit in units for bad in unit.quarantined)
        events = sum(unit.rows for unit in units) + bad_rows
        self.shared.append_planned(planned_line(block, len(staged), events))
        return units

    def restage(self, files: Sequence[int]) -> None:
        """Fetch files again that are gone from the disk."""
        for file in files:
            logger.warning("%s is gone from the disk; fetching it again", shown(self.inventory.source(file).url))
            self._submit(file)

    def evict(self, before_block: int) -> None:
        """Delete the files that only blocks before this one need, and note the place for `icestream ranges`."""
        self._delete(self.ahead.evict(before_block))
        # A block that is committed twice may count as needed the second time.
        self._done_before = max(self._done_before, before_block)
        self.ledger.note_place(self.inventory.place_before(self._done_before))
        if self._begun is not None:
            self._begun.forget(before_block - 1)  # a cursor keeps the block of the unit before it

    def evict_planned(self) -> None:
        """Delete the files of all planned blocks: the run is over."""
        self._delete(self.ahead.evict(self.ahead.next_to_plan))

    def close(self) -> None:
        """End the threads and processes that stage."""
        self._inspection.close()  # the pool waits for it
        self.pool.close()
        self._cache.close()

    def _recall(self, begun: BegunBlocks, from_block: int) -> None:
        """Enter into a ledger that has lost them, or is of an older start on this machine, the files of begun blocks as
        these were planned."""
        for block in begun.blocks:
            if block < from_block or not self.blocks.is_known(block):
                continue
            as_planned = begun.files(block)
            for file in self.blocks.files(block):
                source = self.inventory.source(file)
                known = as_planned.get((source.url, source.size_bytes))
                if known is None:
                    continue
                is_read, is_bad = self.ledger.footer(file) is not None, self.ledger.whole_file(file) is not None
                if known.footer is None:
                    if not is_read and not is_bad:  # else the checkpoint says whether its block was planned without
                        self.ledger.quarantine(m.Quarantined(file, -1, known.bad_rows, known.reason))
                    continue
                if is_bad:
                    self.ledger.release(file)
                if not is_read:
                    self.ledger.keep_footer(file, known.footer)

    def _submit(self, file: int) -> None:
        self.pool.submit(file, self.inventory.source(file), self.ledger.footer(file))

    def _delete(self, files: Sequence[int]) -> None:
        for file in files:
            source = self.inventory.source(file)
            if local_path(source.url) is None:
                self._cache.drop(source)
