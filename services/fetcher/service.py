"""Fetcher process: sockets, worker threads and the clock around the plan, the staging and the dispatcher."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from common import messages as m
from common.errors import BadInputError
from common.files.remotes import Remotes
from common.locks import RunLock, Wait, attempt_of, patience, publishing_of
from common.paths import shard_dir
from common.plan import Blocks, SlotCapacity, plan_hash
from common.process import StopFlag
from common.status import INVALID_FOLDER, OUTLIER_FOLDER, FetcherStatus, read_status, write_status
from common.text import shown
from common.transport import Arena, Lost, Received, ServerTransport
from services.config.root import Config
from services.config.settings import make_ranges
from services.fetcher import dispatcher as dispatching
from services.fetcher.dispatcher_state import State
from services.fetcher.inventory import Inventory, PendingTrainers, RangeListing, list_range
from services.fetcher.ledger import LEDGER_FILE, Ledger
from services.fetcher.monitor import Exporter, Monitor
from services.fetcher.planner import FailureBudget, Planner
from services.fetcher.shared_folder import PublishedInventory, SharedEpochs, SharedFolder

logger = logging.getLogger(__name__)

_PAUSE_S = 1.0
"""Pause between two requests."""
_PAUSE_AT_WORK_S = 10.0
"""Pause while the trainer has data: each checkpoint costs it time."""
_USELESS_ANSWERS = 3
"""Commits in a row at the same place from which a checkpoint is no help."""


class CommitRequests:
    """State of one open request at a time, which all trainers answer with a commit. ``budget``: the setting, for the
    error."""

    def __init__(self, budget: str) -> None:
        self._budget = budget
        self._asked = False
        self._answers: dict[str, m.Cursor] = {}
        self._last_answer: frozenset[m.Cursor] = frozenset()
        self._is_awaited = False
        self._useless = 0
        self._next_s = 0.0

    def due(self, now_s: float, trainers: Sequence[str], *, at_work: bool, missing_bytes: int = 0) -> Sequence[str]:
        """Trainers to ask for a checkpoint now, while used but uncommitted files fill the disk.

        ``at_work``: some have units in hand. ``missing_bytes``: for the next block beside those on the disk.
        Raises BadInputError if the newest checkpoints did not help.
        """
        if self._useless >= _USELESS_ANSWERS:
            raise BadInputError(
                f"{self._budget} is too small: a batch needs more blocks than it holds; raise it by"
                f" {math.ceil(missing_bytes / 2**30 * 1000) / 1000:g} GiB or more, or lower"
                " stream.block_files or stream.batch_events"
            )
        if self._asked or now_s < self._next_s:
            return ()
        self._next_s = now_s + (_PAUSE_AT_WORK_S if at_work else _PAUSE_S)
        self._answers.clear()
        self._is_awaited = False
        self._asked = bool(trainers)
        return trainers

    def committed(self, peer: str, committed: m.Committed, trainers: Collection[str], *, units_ahead: int) -> None:
        """Record a commit. It counts once all ``trainers`` have committed.

        One answer may come from a checkpoint that was due anyway, or from a time with data still to be trained:
        several in a row at the same place show that nothing moves, if a trainer waits for this fetcher and no other.
        """
        if not self._asked:
            return
        self._answers[peer] = committed.cursor
        self._is_awaited |= committed.waits
        if not self._answers.keys() >= set(trainers):
            return
        answer = frozenset(self._answers.values())
        moved = answer != self._last_answer or units_ahead > 0 or not self._is_awaited
        self._useless = 0 if moved else self._useless + 1
        self._last_answer, self._asked = answer, False

    def wanted(self) -> None:
        """Record that a trainer wants more units: it made progress."""
        self._useless = 0

    def attached(self) -> None:
        """Record a new trainer: it has received no request."""
        self._asked, self._useless = False, 0


_POLL_S = 0.2
_STATUS_S = 0.5
_LOCK_S = 2.0
"""Time for the lock of a killed fetcher to become free: a file server notices its end later."""
_LET_GO_S = 60.0
"""Time for a trainer to notice that a fetcher is gone: a step, an evaluation."""
_LINGER_S = 5.0


def _until_former_peers_let_go(run_dir: Path) -> Wait:
    """Return a wait for memory held by the peers of a dead fetcher: they keep its arena until they notice its end."""
    if read_status(run_dir, "fetcher", FetcherStatus) is None:
        return lambda: False  # the first of this run
    wait, is_reported = patience(_LET_GO_S), False

    def wait_and_report() -> bool:
        nonlocal is_reported
        if not is_reported:
            is_reported = True
            problem = f"too little memory for the arena; waiting up to {_LET_GO_S:g} s for that of the former fetcher"
            logger.warning(problem)
            write_status(run_dir, "fetcher", FetcherStatus(pid=os.getpid(), problem=problem))
        return wait()

    return wait_and_report


def _remove_unfinished_outliers(run_dir: Path, shard: int | None) -> None:
    """Delete the unfinished files of killed decoders. Raises OutdatedAttemptError: those of a newer attempt stay."""
    attempt = attempt_of(os.environ)
    folder = run_dir if attempt is None else shard_dir(attempt.shared, shard)
    with publishing_of(attempt)():
        for aside in (OUTLIER_FOLDER, INVALID_FOLDER):
            for part in (folder / aside).rglob("*.part"):
                part.unlink(missing_ok=True)


class FetcherService:
    """Fetcher of one run, or of one shard of it: see the module. Use run()."""

    def __init__(self, of_run: Path, config: Config, shared: SharedFolder = SharedFolder()) -> None:  # noqa: B008
        """``of_run``: directory of the run, of which this may be the fetcher of one shard."""
        self._run_dir = run_dir = shard_dir(of_run, config.stream.shard)
        self._config = config
        started_s = time.monotonic()
        ranges = make_ranges(config.input, config.fetcher.ranges, config.fetcher.done)
        # Before anything else of the run is opened: SQLite's ledger must not be open on two hosts.
        self._lock = RunLock(run_dir, "fetcher", "fetcher", patience(_LOCK_S))
        wait_for_memory = _until_former_peers_let_go(run_dir)
        write_status(run_dir, "fetcher", FetcherStatus(pid=os.getpid()))
        workload, stream = config.stored_workload(), config.stream
        capacity = SlotCapacity(workload, stream)
        self._hash = plan_hash(workload, stream, config.seed)
        blocks = Blocks.of_ranges(len(ranges), stream, config.seed, config.epochs)
        with contextlib.ExitStack() as undo:
            undo.callback(self._lock.close)  # a damaged ledger is set aside, and the service created again
            self._ledger = Ledger(run_dir / LEDGER_FILE, self._hash)
            self._inventory = Inventory(self._ledger, ranges, blocks)
            undo.pop_all()
        port, host = config.fetcher.metrics_port, config.fetcher.metrics_host
        self._exporter = Exporter(of_run, port, host) if port else None
        self._budget = FailureBudget(self._ledger, self._inventory, config.fetcher, shared)
        self._epochs = SharedEpochs(shared) if shared.folder is not None else None
        self._claims = PendingTrainers(self._inventory)
        self._remotes = Remotes(config.remote_access(), self._note_listed)
        _remove_unfinished_outliers(run_dir, stream.shard)
        # First of the parts that grow with the slots: it may fail.
        self._arena = Arena.create(stream.slots, stream.slot_bytes, wait_for_memory)
        self._dispatcher = dispatching.Dispatcher(slots=stream.slots, plan_hash=self._hash)
        self._transport = ServerTransport(run_dir, config.transport, self._arena, self._hash)
        # After the sockets: a second fetcher of this run gets an error on the run, not on the cache in use.
        self._planner = Planner(
            run_dir,
            config,
            capacity,
            blocks,
            inventory=self._inventory,
            ledger=self._ledger,
            budget=self._budget,
            fetch=self._remotes.fetch,
            shared=shared,
        )
        self._transport.watch(self._planner.pool.wake_fd)
        expand = partial(list_range, remotes=self._remotes)
        if shared.folder is None:
            self._listing = RangeListing(self._inventory, self._ledger, expand)
        else:
            published = PublishedInventory(shared, expand)
            self._listing = RangeListing(self._inventory, self._ledger, published.expand, published.is_there)
        self._transport.watch(self._listing.wake_fd)
        self._ended = False
        self._requests = CommitRequests(config.fetcher.disk_budget)
        self._monitor = Monitor(
            config=config,
            started_s=started_s,
            dispatcher=self._dispatcher,
            inventory=self._inventory,
            ledger=self._ledger,
            listing=self._listing,
            planner=self._planner,
            remotes=self._remotes,
            arena_bytes=self._arena.size_bytes,
        )

    def run(self, stop: StopFlag) -> None:
        """Serve until the trainer has finished, or ``stop`` is set. Raises BadInputError for a user's mistake."""
        logger.info(
            "plan %.12s, arena of %d slots × %.1f MiB = %.1f MiB",
            self._hash,
            self._arena.slots,
            self._arena.slot_bytes / 2**20,
            self._arena.size_bytes / 2**20,
        )
        status_s = 0.0
        while not self._ended and not stop:
            for event in self._transport.poll(_POLL_S):
                match event:
                    case Received(peer, received):
                        for message in self._claims.pass_on(peer, received):
                            self._hear(peer, message)
                    case Lost(peer):
                        self._claims.forget(peer)
                        self._act(self._dispatcher.lose(peer))
            self._list_more()
            for file in self._planner.collect():
                self._act(self._dispatcher.restaged(file))
            if self._dispatcher.attached_once:  # the start is the trainer's cursor
                self._stage_more()
            now_s = time.monotonic()
            self._act(self._dispatcher.tick(now_s, staging_full=self._planner.ahead.is_full))
            self._monitor.tick(now_s, self._current_block())
            if now_s - status_s > _STATUS_S:
                status_s = now_s
                self._write_status()
        self._write_status()  # before the peers end: the supervisor must know that they are done
        if self._ended:
            self._stop_decoders()

    def close(self) -> None:
        """Release everything; the kernel frees the arena with its last mapping."""
        if self._exporter is not None:
            self._exporter.close()
        self._transport.close()
        self._arena.close()
        self._remotes.close()  # before the threads that wait for it
        self._listing.close()
        self._planner.close()
        self._ledger.close()
        self._lock.close()  # last: the next fetcher writes into the same cache

    # -------------------------------------------------------------- messages and actions

    def _hear(self, peer: str, message: m.Message) -> None:
        match message:  # the part that concerns the service itself
            case m.Committed():
                self._requests.committed(
                    peer, message, self._dispatcher.trainers, units_ahead=self._dispatcher.units_ahead
                )
            case m.Done():
                self._budget.set_aside(message.tally.broken_rules)
            case m.Want():
                self._requests.wanted()
            case m.Attach():
                self._requests.attached()
                for former in self._dispatcher.trainers:
                    # Messages are handled before deaths: a new trainer must not be refused because of a dead one.
                    if former != peer and not self._transport.is_connected(former):
                        self._act(self._dispatcher.supersede(former))
        self._act(self._dispatcher.handle(peer, message))
        places = self._dispatcher.places
        is_barren = self._epochs.is_barren(places.complete_epochs) if self._epochs else places.has_barren_epoch
        if not self._config.epochs and is_barren:
            of = f" of {shown(self._config.input[0])}" if self._config.stream.is_mixed else ""
            raise BadInputError(
                f"no event of a whole epoch{of} can be trained: all are outliers, empty, invalid, quarantined, held out"
                " or filtered, so that it would never end; check stream.max_particles_per_event, stream.where, "
                "stream.held_out and the outliers"
                + (f"; the newest quarantined: {self._budget.newest}" if self._budget.newest else "")
            )

    def _act(self, actions: Sequence[dispatching.Action]) -> None:
        for action in actions:
            match action:
                case dispatching.Send(peer, message):
                    self._transport.send(peer, message)
                case dispatching.Fence(peer):
                    if self._transport.is_suspended(peer):
                        logger.warning("decoder %s is stopped or waits for this machine; no unit is to blame", peer)
                        self._dispatcher.excuse(peer)
                    if not self._transport.fence(peer):
                        logger.warning("decoder %s can't be killed from here; its slots wait for its end", peer)
                        self._act(self._dispatcher.fence_failed(peer))
                case dispatching.Replan(cursor):
                    self._planner.restart(cursor)
                case dispatching.Restage(files):
                    self._planner.restage(files)
                case dispatching.Evict(before_block):
                    self._planner.evict(before_block)
                case dispatching.Quarantine(bad_inputs):
                    for bad in bad_inputs:
                        self._budget.quarantine(bad)
                case dispatching.Remember(files):
                    self._budget.remember(files)
                case dispatching.EndRun():
                    self._ended = True
                    if self._dispatcher.units.ended and not self._dispatcher.units_ahead:
                        self._planner.evict_planned()

    # -------------------------------------------------------------- listing, staging and planning

    def _list_more(self) -> None:
        """Keep the inventory ahead of the training, and answer trainers that waited for it."""
        blocks_ahead = self._config.fetcher.blocks_ahead
        self._listing.turn(time.monotonic(), self._current_block(), blocks_ahead, self._claims.ranges_wanted)
        passed, refused = self._claims.settle()
        for peer, message in passed:
            self._hear(peer, message)
        for peer in refused:
            reason = "the checkpoint belongs to another plan"
            self._transport.send(peer, m.Refuse(reason, other_inventory=True))

    def _stage_more(self) -> None:
        """Stage and plan what is allowed; ask for a checkpoint if nothing is before files are evicted."""
        dispatcher, planner = self._dispatcher, self._planner
        planner.stage_more(self._current_block())
        while not dispatcher.plan_is_long and (units := planner.plan_next_block()) is not None:
            self._act(dispatcher.add_units(units))
        if planner.ahead.ended and not dispatcher.units.ended:
            self._act(dispatcher.end_plan())
        # The plan is long where no checkpoint was made for very many units.
        if not ((planner.ahead.waits_for_eviction or dispatcher.plan_is_long) and dispatcher.starved):
            return
        for trainer in self._requests.due(
            time.monotonic(),
            dispatcher.trainers,
            at_work=dispatcher.units.num(State.DELIVERED) > 0,
            missing_bytes=planner.ahead.missing_bytes,
        ):
            self._transport.send(trainer, m.CommitRequest())

    def _current_block(self) -> int:
        units, k = self._dispatcher.units.planned, self._dispatcher.places.furthest_k
        return units[k].block if k in units else self._planner.ahead.next_to_plan

    def _note_listed(self, directories: int, files: int) -> None:
        """Store the progress of a listing; called in another thread."""
        self._monitor.listed = f"{directories} directories, {files} files"

    # -------------------------------------------------------------- the end, and the status

    def _stop_decoders(self) -> None:
        """Announce the end of the run to the decoders, and allow them a moment to end."""
        for peer in self._dispatcher.decoders.by_name:
            self._transport.send(peer, m.Stop())
        deadline_s = time.monotonic() + _LINGER_S
        while self._dispatcher.decoders and time.monotonic() < deadline_s:
            for event in self._transport.poll(_POLL_S):
                match event:
                    case Received(peer, m.Hello()):  # it connected too late
                        self._transport.send(peer, m.Stop())
                    case Received(peer, message):
                        self._dispatcher.handle(peer, message)
                    case Lost(peer):
                        self._dispatcher.lose(peer)

    def _write_status(self) -> None:
        status = self._monitor.status(time.monotonic(), ended=self._ended)
        write_status(self._run_dir, "fetcher", status)
        if status.decoders_wanted and self._dispatcher.trainers:
            for _ in range(self._dispatcher.decoders.num_staying - status.decoders_wanted):
                self._act(self._dispatcher.retire())
