"""Fetcher process: sockets, worker threads and the clock around the plan, the staging and the dispatcher."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from common import messages as m
from common.arena import Arena
from common.attempt import attempt_of, publishing_of
from common.errors import BadInputError
from common.file_lock import RunLock, Wait, patience
from common.files.remotes import Remotes
from common.plan import Blocks, SlotCapacity
from common.plan_hash import plan_hash
from common.process import StopFlag
from common.ragged import slot_bytes_needed
from common.run_dir import shard_dir
from common.status import INVALID_FOLDER, OUTLIER_FOLDER, FetcherStatus
from common.status_files import read_status, write_status
from common.transport import Lost, Received, ServerTransport, check_listen
from services.config.root import Config
from services.fetcher.commit_requests import CommitRequests
from services.fetcher.dispatcher import (
    Action,
    Dispatcher,
    EndRun,
    Evict,
    Fence,
    Quarantine,
    Remember,
    Replan,
    Restage,
    Send,
    State,
)
from services.fetcher.exporter import open_exporter
from services.fetcher.failure_budget import FailureBudget
from services.fetcher.inventory.claims import PendingTrainers
from services.fetcher.inventory.done import list_range, listed
from services.fetcher.inventory.grown_inputs import GrownInputs
from services.fetcher.inventory.inventory import Inventory
from services.fetcher.inventory.ledger import LEDGER_FILE, Ledger
from services.fetcher.inventory.lister import Lister
from services.fetcher.inventory.range_listing import RangeListing
from services.fetcher.inventory.ranges import InputRange, make_ranges
from services.fetcher.inventory.shared_folder import SharedFolder
from services.fetcher.monitor import Monitor
from services.fetcher.planner import Planner

if TYPE_CHECKING:
    from common.pelican.listing import ListingProgress

logger = logging.getLogger(__name__)

_POLL_S = 0.2
_STATUS_S = 0.5
_LOCK_S = 2.0
"""Time for the lock of a killed fetcher to become free: a file server notices its end later."""
_LET_GO_S = 60.0
"""Time for a trainer to notice that a fetcher is gone: a step, an evaluation."""
_LINGER_S = 5.0


def _until_former_peers_let_go(run_dir: Path) -> Wait:
    """Wait for memory held by the peers of a dead fetcher: they keep its arena mapped until they notice its end."""
    if read_status(run_dir, "fetcher", FetcherStatus) is None:
        return lambda: False  # the first of this run
    wait, told = patience(_LET_GO_S), False

    def wait_and_tell() -> bool:
        nonlocal told
        if not told:
            told = True
            problem = f"too little memory for the arena; waiting up to {_LET_GO_S:g} s for that of the former fetcher"
            logger.warning(problem)
            write_status(run_dir, "fetcher", FetcherStatus(pid=os.getpid(), problem=problem))
        return wait()

    return wait_and_tell


def _remove_unfinished_outliers(run_dir: Path, shard: int | None) -> None:
    """Delete the unfinished files of killed decoders. Raises OutdatedAttemptError: those of a newer attempt stay."""
    attempt = attempt_of(os.environ)
    folder = run_dir if attempt is None else shard_dir(attempt.shared, shard)
    with publishing_of(attempt)():
        for aside in (OUTLIER_FOLDER, INVALID_FOLDER):
            for part in (folder / aside).rglob("*.part"):
                part.unlink(missing_ok=True)


def _dispatcher_for(config: Config, plan_hash: str) -> Dispatcher:
    return Dispatcher(
        slots=config.stream.slots,
        plan_hash=plan_hash,
        max_unit_deaths=config.fetcher.max_unit_deaths,
        stall_timeout_s=config.fetcher.stall_timeout_s,
    )


class FetcherService:
    """Fetcher of one run, or of one shard of it: see the module. Use run()."""

    def __init__(self, of_run: Path, config: Config, shared: SharedFolder = SharedFolder()) -> None:  # noqa: B008
        """``of_run``: directory of the run, of which this may be the fetcher of one shard."""
        self._run_dir = run_dir = shard_dir(of_run, config.stream.shard)
        self._config = config
        started_s = time.monotonic()
        if config.transport.listen:
            check_listen(config.transport)
        ranges = make_ranges(config.input, config.fetcher.ranges, config.fetcher.done)
        # Before anything else of the run is opened: SQLite's ledger must not be open on two hosts.
        self._lock = RunLock(run_dir, "fetcher", "fetcher", patience(_LOCK_S))
        wait_for_memory = _until_former_peers_let_go(run_dir)
        write_status(run_dir, "fetcher", FetcherStatus(pid=os.getpid()))
        workload, stream = config.stored_workload(), config.stream
        capacity = SlotCapacity(workload, stream)
        self._hash = plan_hash(workload, stream, config.seed)
        blocks = Blocks.of_ranges(len(ranges), stream, config.seed, config.epochs)
        self._open_inventory(ranges, blocks)
        self._exporter = open_exporter(of_run, config.fetcher)
        self._budget = FailureBudget(self._ledger, self._inventory, config.fetcher, shared.bad_files)
        self._epochs = shared.epochs
        self._claims = PendingTrainers(self._inventory)
        self._remotes = Remotes(config.remote_access(), self._note_listed)
        _remove_unfinished_outliers(run_dir, config.stream.shard)
        # First of the parts that grow with the slots: it may fail.
        self._arena = Arena.create(stream.slots, stream.slot_bytes, wait_for_memory)
        self._dispatcher = _dispatcher_for(config, self._hash)
        self._transport = ServerTransport(run_dir, config.transport, self._arena, self._hash)
        listen = self._transport.listen(partial(slot_bytes_needed, workload))
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
        skips = config.fetcher.missing_ranges == "skip"
        expand, may_list = shared.listing(partial(list_range, remotes=self._remotes), skips=skips)
        self._lister = Lister(expand)
        self._transport.watch(self._lister.wake_fd)
        self._listing = RangeListing(self._inventory, self._ledger, self._lister, config.fetcher, may_list)
        self._grown = self._compared_inputs(ranges)
        self._ended = False
        self._requests = CommitRequests(config.fetcher.disk_budget)
        self._monitor = Monitor(
            config,
            started_s,
            dispatcher=self._dispatcher,
            inventory=self._inventory,
            ledger=self._ledger,
            listing=self._listing,
            planner=self._planner,
            remotes=self._remotes,
            arena_bytes=self._arena.size_bytes,
            listen=listen,
        )

    def _open_inventory(self, ranges: Sequence[InputRange], blocks: Blocks) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(self._lock.close)  # a damaged ledger is set aside, and the service created again
            self._ledger = Ledger(self._run_dir / LEDGER_FILE, self._hash)
            self._inventory = Inventory(self._ledger, ranges, blocks)
            undo.pop_all()

    def _compared_inputs(self, ranges: Sequence[InputRange]) -> GrownInputs:
        lists = self._config.stream.shard in (None, 0)  # one of the shards says it for all
        known = ranges[: self._inventory.num_known] if lists else ()
        return GrownInputs(known, self._ledger, lambda one: listed(one, self._remotes).files)

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
                    case Received(peer, said):
                        for message in self._claims.pass_on(peer, said):
                            self._hear(peer, message)
                    case Lost(peer):
                        self._claims.forget(peer)
                        self._act(self._dispatcher.lose(peer))
            self._list_more()
            self._collect_staged()
            self._stage_more()
            now_s = time.monotonic()
            self._act(self._dispatcher.tick(now_s, staging_full=self._planner.ahead.is_full))
            self._monitor.tick(now_s, self._current_block())
            if now_s - status_s > _STATUS_S:
                status_s = now_s
                self._write_status()
        self._write_status()  # before the peers end: the supervisor must know that they are done
        self._stop_peers()

    def close(self) -> None:
        """Release everything; the kernel frees the arena with its last mapping."""
        if self._exporter is not None:
            self._exporter.close()
        self._transport.close()  # first: the next fetcher may begin while the last transfers end
        self._ledger.close()
        self._lock.close()
        self._arena.close()
        self._planner.stop()
        self._remotes.close()  # before the threads that wait for it
        self._lister.close()
        self._planner.close()

    # -------------------------------------------------------------- actions

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(peer, message):
                    self._transport.send(peer, message)
                case Fence(peer):
                    if self._transport.is_suspended(peer):
                        logger.warning("decoder %s is stopped or waits for this machine; no unit is to blame", peer)
                        self._dispatcher.excuse(peer)
                    if not self._transport.fence(peer):
                        logger.warning("decoder %s can't be killed from here; its slots wait for its end", peer)
                        self._act(self._dispatcher.fence_failed(peer))
                case Replan(cursor):
                    self._planner.restart(cursor)
                case Restage(files):
                    self._planner.restage(files)
                case Evict(before_block):
                    self._planner.evict(before_block)
                case Quarantine(bad):
                    for one in bad:
                        self._budget.quarantine(one)
                case Remember(files):
                    self._budget.remember(files)
                case EndRun():
                    self._ended = True
                    if self._dispatcher.units.ended and not self._dispatcher.units_ahead:
                        self._planner.evict_planned()

    def _hear(self, peer: str, message: m.Message) -> None:
        self._note(peer, message)
        self._act(self._dispatcher.handle(peer, message, time.monotonic()))
        if not self._config.epochs and self._is_barren():
            raise BadInputError(
                "no event of a whole epoch can be trained: all are outliers, empty, invalid, quarantined or held out, "
                "and epochs = 0 would never end; check stream.max_particles_per_event, stream.drop_empty, "
                "stream.held_out and the outliers"
                + (f"; the newest quarantined: {self._budget.newest}" if self._budget.newest else "")
            )

    def _is_barren(self) -> bool:
        """True if a whole epoch had no event to train, in any shard."""
        if self._epochs is None:
            return self._dispatcher.places.barren_epochs > 0
        return self._epochs.is_barren(self._dispatcher.places.complete_epochs)

    def _note(self, peer: str, message: m.Message) -> None:
        """Handle the part of a message that concerns the service itself."""
        match message:
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

    # -------------------------------------------------------------- staging and planning

    def _list_more(self) -> None:
        """Keep the inventory ahead of the training, and answer trainers that waited for it."""
        self._grown.turn()
        wanted = self._claims.ranges_wanted
        blocks_ahead = self._config.fetcher.blocks_ahead
        self._listing.turn(time.monotonic(), self._current_block(), blocks_ahead, wanted)
        passed, refused = self._claims.settle()
        for peer, message in passed:
            self._hear(peer, message)
        for peer in refused:
            reason = "the checkpoint belongs to another plan"
            self._transport.send(peer, m.Refuse(reason, other_inventory=True))

    def _stage_more(self) -> None:
        if not self._dispatcher.attached_once:
            return  # the start is the trainer's cursor
        self._planner.stage_more(self._current_block())
        self._plan_complete_blocks()
        # The plan is long where no checkpoint was made for so many units.
        no_room = self._planner.ahead.waits_for_eviction or self._dispatcher.plan_is_long
        if no_room and self._dispatcher.starved:
            self._ask_for_commit()

    def _current_block(self) -> int:
        """Block being delivered."""
        units, k = self._dispatcher.units.planned, self._dispatcher.places.furthest_k
        return units[k].block if k in units else self._planner.ahead.next_to_plan

    def _collect_staged(self) -> None:
        for file in self._planner.collect():
            self._act(self._dispatcher.restaged(file))

    def _plan_complete_blocks(self) -> None:
        while not self._dispatcher.plan_is_long and (units := self._planner.plan_next_block()) is not None:
            self._act(self._dispatcher.add_units(units))
        if self._planner.ahead.ended and not self._dispatcher.units.ended:
            self._act(self._dispatcher.end_plan())

    def _ask_for_commit(self) -> None:
        at_work = self._dispatcher.units.num(State.DELIVERED) > 0
        for trainer in self._requests.due(
            time.monotonic(),
            self._dispatcher.trainers,
            at_work=at_work,
            missing_bytes=self._planner.ahead.missing_bytes,
        ):
            self._transport.send(trainer, m.CommitRequest())

    def _note_listed(self, progress: ListingProgress) -> None:
        """Store the progress of a listing; called in another thread."""
        self._monitor.listed = f"{progress.directories} directories, {progress.files} files"

    # -------------------------------------------------------------- the end, and the status

    def _stop_peers(self) -> None:
        """Announce the end of the run to the decoders, and allow them a moment to end."""
        if not self._ended:
            return
        for peer in self._dispatcher.decoders.names:
            self._transport.send(peer, m.Stop())
        deadline_s = time.monotonic() + _LINGER_S
        while self._dispatcher.decoders and time.monotonic() < deadline_s:
            for event in self._transport.poll(_POLL_S):
                match event:
                    case Received(peer, m.Hello()):  # it connected too late
                        self._transport.send(peer, m.Stop())
                    case Received(peer, message):
                        self._dispatcher.handle(peer, message, time.monotonic())
                    case Lost(peer):
                        self._dispatcher.lose(peer)

    def _write_status(self) -> None:
        status = self._monitor.status(time.monotonic(), ended=self._ended)
        write_status(self._run_dir, "fetcher", status)
        if status.decoders_wanted and self._dispatcher.trainers:
            for _ in range(self._dispatcher.decoders.num_staying - status.decoders_wanted):
                self._act(self._dispatcher.retire())
