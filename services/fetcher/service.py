"""The fetcher process: sockets, worker threads and the clock around the plan, the staging and the dispatcher."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from common import messages as m
from common.arena import Arena
from common.errors import BadInputError
from common.file_lock import RunLock, Wait, patience
from common.files.inputs import expand, local_path
from common.files.local_name import name_of
from common.files.remotes import Remotes
from common.metrics import Rate, Shares
from common.plan import Blocks, SlotCapacity, SourceFile, StagedFile, plan_block
from common.plan_hash import plan_hash
from common.process import StopFlag
from common.ragged import slot_bytes_needed
from common.redact import shown
from common.status import OUTLIER_FOLDER, FetcherStatus, read_status, write_status
from common.transport import Lost, Received, ServerTransport, check_listen
from services.config.root import Config
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
from services.fetcher.exporter import Exporter
from services.fetcher.hops import Hops, Queues
from services.fetcher.inventory.claims import Claims
from services.fetcher.inventory.inventory import Inventory
from services.fetcher.inventory.ledger import LEDGER_FILE, Ledger
from services.fetcher.inventory.lister import Lister
from services.fetcher.inventory.range_listing import RangeListing
from services.fetcher.inventory.ranges import make_ranges
from services.fetcher.scaling import DecoderScaling, Load
from services.fetcher.staging.cache import Cache
from services.fetcher.staging.inspection import Inspection
from services.fetcher.staging.stage import Stage
from services.fetcher.staging.stage_ahead import StageAhead
from services.fetcher.staging.stage_pool import StagePool

if TYPE_CHECKING:
    from common.pelican.listing import Progress

logger = logging.getLogger(__name__)

_POLL_S = 0.2
_STATUS_S = 0.5
_LOCK_S = 2.0
"""How long the place of a fetcher that was just killed may take to be free: a file server hears of it later."""
_LET_GO_S = 60.0
"""How long a trainer may take to see that a fetcher is gone: a step, an evaluation."""
_LINGER_S = 5.0
_LOOK_AHEAD_BLOCKS = 10_000
_REQUEST_S = 1.0
"""Pause between two requests for a checkpoint that frees disk space."""
_REQUEST_AT_WORK_S = 10.0
"""The same while the trainer has data: each checkpoint costs it something."""
_USELESS_ANSWERS = 3
"""So many in a row at the same place, and a checkpoint is no help."""
"""Blocks in which files are looked for that a former fetcher left on disk."""
_BOTTLENECKS = {"no_free_slot": "trainer", "no_credit": "decoders", "not_staged": "staging"}


def _until_former_peers_let_go(run_dir: Path) -> Wait:
    """Trainer and decoders of a fetcher that died keep its arena in memory until they see that it is gone."""
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


class FetcherService:
    """One run's fetcher: see the module. Use run()."""

    def __init__(self, run_dir: Path, config: Config) -> None:
        self._run_dir = run_dir
        self._config = config
        self._started_s = time.monotonic()
        self._listed = ""
        if config.transport.listen:
            check_listen(config.transport)
        ranges = make_ranges(config.input, config.fetcher.ranges)
        # Before anything else of the run is touched: SQLite's ledger must not be open on two hosts.
        self._lock = RunLock(run_dir, "fetcher", "fetcher", patience(_LOCK_S))
        wait_for_memory = _until_former_peers_let_go(run_dir)
        write_status(run_dir, "fetcher", FetcherStatus(pid=os.getpid()))
        workload = config.stored_workload()
        stream = config.stream
        capacity = SlotCapacity(workload, stream)
        self._hash = plan_hash(workload, stream, config.seed)
        self._blocks = Blocks.of_ranges(len(ranges), stream, config.seed, config.epochs)
        with contextlib.ExitStack() as undo:
            undo.callback(self._lock.close)  # a damaged ledger is set aside, and the service made again
            self._ledger = Ledger(run_dir / LEDGER_FILE, self._hash)
            self._inventory = Inventory(self._ledger, ranges, self._blocks)
            undo.pop_all()
        self._exporter = Exporter(run_dir, config.fetcher.metrics_port) if config.fetcher.metrics_port else None
        self._claims = Claims(self._inventory)
        self._remotes = Remotes(config.remote_access(), self._note_listed)
        for part in (run_dir / OUTLIER_FOLDER).rglob("*.part"):  # of decoders that were killed while they wrote
            part.unlink(missing_ok=True)
        self._capacity = capacity
        self._ahead = StageAhead(
            self._blocks,
            self._inventory.staged_bytes,
            budget_bytes=config.fetcher.disk_budget_bytes,
            blocks_ahead=config.fetcher.blocks_ahead,
        )
        # First of what grows with the slots: it may refuse.
        self._arena = Arena.create(stream.slots, stream.slot_bytes, wait_for_memory)
        self._dispatcher = Dispatcher(
            slots=stream.slots,
            plan_hash=self._hash,
            max_unit_deaths=config.fetcher.max_unit_deaths,
            stall_timeout_s=config.fetcher.stall_timeout_s,
            lanes=stream.lanes,
        )
        self._transport = ServerTransport(run_dir, config.transport, self._arena, self._hash)
        self._listen = self._transport.listen(partial(slot_bytes_needed, workload))
        # After the sockets: a second fetcher of this run is told what it is, not that the cache is in use.
        self._cache = Cache(config.fetcher.cache_dir or run_dir / "cache", run_dir)
        self._inspection = Inspection(config.workload, config.source, stream)
        self._stage = Stage(self._cache, workload, stream, capacity, self._remotes.fetch, self._inspection)
        self._pool = StagePool(self._stage, config.fetcher.transfers)
        self._transport.watch(self._pool.wake_fd)
        self._lister = Lister(partial(expand, remotes=self._remotes))
        self._transport.watch(self._lister.wake_fd)
        self._listing = RangeListing(self._inventory, self._ledger, self._lister, config.fetcher)
        self._next_k = 0
        self._newest_bad = ""
        self._commit_asked = False
        self._committed_by: dict[str, tuple[m.Cursor, ...]] = {}
        self._last_answer: tuple[tuple[str, tuple[m.Cursor, ...]], ...] = ()
        self._useless_answers = 0
        self._next_request_s = 0.0
        self._files_planned = 0
        self._events_planned = 0
        self._ended = False
        self._done_before = 0
        self._decoded = Rate()
        self._received = Rate()
        self._stalls = Shares()
        self._hops = Hops()
        self._scaling = DecoderScaling(self._most_decoders()) if config.local.decoders == "auto" else None

    def run(self, stop: StopFlag) -> None:
        """Serve until the trainer is through, or until asked to stop. Raises BadInputError for a user's mistake."""
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
            self._act(self._dispatcher.tick(now_s, staging_full=self._ahead.is_full))
            self._hops.tick(now_s, self._queues())
            if now_s - status_s > _STATUS_S:
                status_s = now_s
                self._write_status()
        self._write_status()  # before the peers end: whoever watches them must know that they are done
        self._stop_peers()

    def close(self) -> None:
        """Let go of everything; the kernel frees the arena with its last mapping."""
        if self._exporter is not None:
            self._exporter.close()
        self._transport.close()  # first: the next fetcher may begin while the last transfers end
        self._ledger.close()
        self._lock.close()
        self._arena.close()
        self._cache.stop()
        self._remotes.close()  # before who waits for it
        self._inspection.close()  # likewise
        self._pool.close()
        self._lister.close()
        self._cache.close()

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
                    self._next_k = cursor.block_first_unit
                    self._restart_at(cursor.block)
                case Restage(files):
                    for file in files:
                        logger.warning("%s is gone from the disk; fetching it again", self._name(file))
                        self._submit(file)
                case Evict(before_block):
                    self._delete(self._ahead.evict(before_block))
                    self._note_place(before_block)
                case Quarantine(bad):
                    for one in bad:
                        self._quarantine(one)
                case Remember(files):
                    self._remember_bad(files)
                case EndRun():
                    self._ended = True
                    if self._dispatcher.units.ended and not self._dispatcher.units_ahead:
                        self._delete(self._ahead.evict(self._ahead.next_to_plan))

    def _hear(self, peer: str, message: m.Message) -> None:
        self._note(peer, message)
        self._act(self._dispatcher.handle(peer, message, time.monotonic()))
        if self._dispatcher.lanes.barren_epochs and not self._config.epochs:
            raise BadInputError(
                "no event of a whole epoch can be trained: all are outliers, empty or quarantined, and epochs = 0 "
                "would go on for ever; look at stream.max_particles_per_event, stream.drop_empty and the outliers"
                + (f"; the newest quarantined: {self._newest_bad}" if self._newest_bad else "")
            )

    def _note(self, peer: str, message: m.Message) -> None:
        """What the service itself has to do with a message."""
        match message:
            case m.Committed(cursors) if self._commit_asked:
                self._committed_by[peer] = cursors
                if self._committed_by.keys() >= set(self._dispatcher.trainers):  # no lane's files can go before
                    self._judge_answer()
            case m.Want():
                self._useless_answers = 0  # it got further
            case m.Attach():
                self._commit_asked, self._useless_answers = False, 0
                for former in self._dispatcher.trainers:
                    # Messages are acted on before deaths: a new trainer must not be refused for the sake of a dead one.
                    if former != peer and not self._transport.is_connected(former):
                        self._act(self._dispatcher.lose(former))

    def _judge_answer(self) -> None:
        """All trainers have committed since they were asked. One answer may be of a checkpoint that was due anyway, or
        of a time when data was still to be trained: several in a row at the same place say that nothing moves."""
        answer = tuple(sorted(self._committed_by.items()))
        moved = answer != self._last_answer or self._dispatcher.units_ahead > 0
        self._useless_answers = 0 if moved else self._useless_answers + 1
        self._last_answer, self._commit_asked = answer, False

    def _quarantine(self, bad: m.Quarantined) -> None:
        logger.error("quarantined: %s", bad.reason)
        self._newest_bad = bad.reason
        self._ledger.quarantine(bad)
        num_bad = self._ledger.num_bad_files()
        allowed = self._config.fetcher.bad_files_allowed(self._inventory.num_files)
        if self._config.fetcher.strict:
            raise BadInputError(f"{bad.reason} (fetcher.strict stops at the first bad input)")
        if num_bad > allowed:
            raise BadInputError(
                f"{num_bad} bad files, fetcher.max_bad_files = {self._config.fetcher.max_bad_files} allows {allowed}; "
                f"the newest: {bad.reason}"
            )
        if self._inventory.complete and num_bad == self._inventory.num_files and bad.row_group == -1:
            raise BadInputError(f"no file is usable: {bad.reason}")

    # -------------------------------------------------------------- staging and planning

    def _list_more(self) -> None:
        """Keep the inventory ahead of the training, and tell trainers that waited for it."""
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
            return  # where to begin is the trainer's cursor
        begun = self._ahead.begin(self._current_block())
        self._delete(begun.give_up)
        for file in begun.stage:
            source = self._inventory.source(file)
            bad = self._ledger.whole_file(file)
            if bad is not None:  # once bad is bad for the whole run, or a resumed one would have another plan
                path = str(self._stage.path(source))
                self._ahead.add(StagedFile(file, path, None, reason=bad.reason, bad_rows=bad.rows))
                continue
            self._submit(file)
        self._plan_complete_blocks()
        if self._ahead.waits_for_eviction and self._dispatcher.starved:
            self._ask_for_commit()

    def _current_block(self) -> int:
        """The block that is being dealt out."""
        units, k = self._dispatcher.units.planned, self._dispatcher.lanes.furthest_k
        return units[k].block if k in units else self._ahead.next_to_plan

    def _submit(self, file: int) -> None:
        self._pool.submit(file, self._inventory.source(file), self._ledger.footer(file))

    def _name(self, file: int) -> str:
        return shown(self._inventory.source(file).url)

    def _remember_bad(self, files: Sequence[int]) -> None:
        """What the checkpoint's journal says was bad stays bad, or the cursor would point into another plan."""
        for file in files:
            if file < self._inventory.num_files and self._ledger.whole_file(file) is None:
                self._ledger.quarantine(
                    m.Quarantined(file, -1, 0, f"{self._name(file)}: quarantined before the restart")
                )

    def _collect_staged(self) -> None:
        for staged in self._pool.collect():
            if staged.footer is None:
                self._quarantine(m.Quarantined(staged.file, -1, staged.bad_rows, staged.reason[:2000]))
            elif self._ledger.footer(staged.file) is None:
                self._ledger.keep_footer(staged.file, staged.footer)
            if not self._ahead.add(staged):
                self._delete([staged.file])
            self._act(self._dispatcher.restaged(staged.file))

    def _plan_complete_blocks(self) -> None:
        while not self._dispatcher.plan_is_long and (taken := self._ahead.take_block()) is not None:
            block, staged = taken
            units = plan_block(
                block,
                self._next_k,
                self._blocks.epoch_of(block),
                staged,
                capacity=self._capacity,
                stream=self._config.stream,
                seed=self._config.seed,
                source=self._inventory.source_of(block),
            )
            self._next_k += len(units)
            self._files_planned += len(staged)
            self._events_planned += sum(unit.rows for unit in units)
            self._act(self._dispatcher.add_units(units))
        if self._ahead.ended and not self._dispatcher.units.ended:
            self._act(self._dispatcher.end_plan())

    def _ask_for_commit(self) -> None:
        """The disk is full of files that the trainer has used but not committed: a checkpoint lets them go.

        Raises BadInputError if the trainer's newest checkpoint did not help.
        """
        if self._useless_answers >= _USELESS_ANSWERS:
            raise BadInputError(
                f"fetcher.disk_budget_gib = {self._config.fetcher.disk_budget_gib:g} is too small: a batch needs "
                "more blocks than it holds; raise it, or lower stream.block_files or stream.batch_events"
            )
        now_s = time.monotonic()
        if not self._commit_asked and now_s >= self._next_request_s:
            at_work = self._dispatcher.units.num(State.DELIVERED) > 0
            self._next_request_s = now_s + (_REQUEST_AT_WORK_S if at_work else _REQUEST_S)
            self._committed_by.clear()
            for trainer in self._dispatcher.trainers:
                self._commit_asked = True
                self._transport.send(trainer, m.CommitRequest())

    def _delete(self, files: Sequence[int]) -> None:
        for file in files:
            source = self._inventory.source(file)
            if local_path(source.url) is None:
                self._cache.drop(source)

    def _note_place(self, before_block: int) -> None:
        """For `icestream ranges`. A block that is committed twice may be told as needed the second time."""
        self._done_before = max(self._done_before, before_block)
        self._ledger.note_place(self._inventory.place_before(self._done_before))

    def _restart_at(self, block: int) -> None:
        """Go on from ``block``; of what a former fetcher or plan left on disk, keep what is needed next."""
        self._done_before = block
        pinned = self._cache.pinned()
        found: dict[int, SourceFile] = {}
        for later in range(block, block + _LOOK_AHEAD_BLOCKS):
            if len(found) == len(pinned) or not self._blocks.is_known(later):
                break
            for file in self._blocks.files(later):
                source = self._inventory.source(file)
                if local_path(source.url) is None and name_of(source) in pinned:
                    found[file] = source
        for file in self._ahead.restart(block, found):
            del found[file]
        self._cache.drop_all_but(found.values())

    def _note_listed(self, progress: Progress) -> None:
        """Called in another thread."""
        self._listed = f"{progress.directories} directories, {progress.files} files"

    # -------------------------------------------------------------- the end, and what is told

    def _stop_peers(self) -> None:
        """Tell the decoders that the run is over, and give them a moment to see it."""
        if not self._ended:
            return
        for peer in self._dispatcher.decoders.names:
            self._transport.send(peer, m.Stop())
        deadline_s = time.monotonic() + _LINGER_S
        while self._dispatcher.decoders and time.monotonic() < deadline_s:
            for event in self._transport.poll(_POLL_S):
                match event:
                    case Received(peer, m.Hello()):  # it came, or came back, too late
                        self._transport.send(peer, m.Stop())
                    case Received(peer, message):
                        self._dispatcher.handle(peer, message, time.monotonic())
                    case Lost(peer):
                        self._dispatcher.lose(peer)

    def _queues(self) -> Queues | None:
        """The hops now; None before a trainer has said where to begin."""
        dispatcher = self._dispatcher
        if not dispatcher.attached_once:
            return None
        return Queues(
            stall=dispatcher.stall,
            staging_full=self._ahead.is_full,
            staged=self._ahead.part_ahead(self._current_block()),
            decoders=dispatcher.decoders.num_staying,
            decoders_busy=dispatcher.decoders.num_busy,
            slots=dispatcher.units.slots,
            slots_filled=dispatcher.units.num(State.READY) + dispatcher.units.num(State.DELIVERED),
            trainer_waits=dispatcher.trainer_waits,
            prefetched=dispatcher.prefetched,
        )

    def _most_decoders(self) -> int:
        """What local.decoders = "auto" may ask for. A decoder without a slot of its own would have nothing to do."""
        cores = len(os.sched_getaffinity(0)) - 1  # one is left to the fetcher and the trainer
        most = self._config.local.max_decoders or max(1, cores // self._config.decoder.threads)
        return min(most, self._config.stream.slots)

    def _scale_decoders(self, now_s: float, no_credit: float, idle: float) -> int:
        """Decoders wanted, 0 if that is the user's affair; tells those that are too many to leave."""
        if self._scaling is None:
            return 0
        load = Load(self._dispatcher.decoders.num_staying, no_credit, idle) if self._dispatcher.trainers else None
        wanted = self._scaling.update(now_s, load)
        for _ in range(self._dispatcher.decoders.num_staying - wanted if load is not None else 0):
            self._act(self._dispatcher.retire())
        return wanted

    def _state(self) -> Literal["listing", "waiting for a trainer", "streaming", "finished"]:
        if self._ended:
            return "finished"
        if not self._inventory.num_known:
            return "listing"
        return "streaming" if self._dispatcher.trainers else "waiting for a trainer"

    def _write_status(self) -> None:
        dispatcher = self._dispatcher
        now_s = time.monotonic()
        stalls = self._stalls.update(now_s, dispatcher.stalled_s)
        hops, batches_occupancy = self._hops.status(now_s)
        wanted = self._scale_decoders(now_s, stalls["no_credit"], hops["leases"].wait_get_share)
        worst = max(stalls, key=lambda reason: stalls[reason], default=None)
        status = FetcherStatus(
            state=self._state(),
            pid=os.getpid(),
            listen=self._listen,
            uptime_s=now_s - self._started_s,
            files_total=self._inventory.num_files * (self._config.epochs or 1),
            ranges=len(self._inventory.ranges),
            ranges_listed=self._inventory.num_known,
            listing=self._listing.listing,
            problem=self._listing.problem or self._pool.problem or self._dispatcher.problem,
            listed=self._listed,
            received_bytes=self._remotes.bytes_received,
            received_bytes_per_s=self._received.update(now_s, self._remotes.bytes_received),
            transfers=self._remotes.running,
            files_planned=self._files_planned,
            files_bad=self._ledger.num_bad_files(),
            bytes_staged=self._ahead.bytes_held,
            events_planned=self._events_planned,
            units_planned=dispatcher.units.next_k,
            units_leased=dispatcher.units.num(State.LEASED),
            units_ready=dispatcher.units.num(State.READY),
            units_delivered=dispatcher.units.num(State.DELIVERED),
            slots=dispatcher.units.slots,
            slots_free=len(dispatcher.units.free),
            arena_bytes=self._arena.size_bytes,
            decoders=len(dispatcher.decoders),
            decoder_pids=tuple(int(peer.partition("-")[0]) for peer in dispatcher.decoders.names),
            decoders_wanted=wanted,
            decoders_lost=dispatcher.counts["decoders_lost"],
            events_decoded=dispatcher.counts["events_decoded"],
            events_decoded_per_s=self._decoded.update(now_s, dispatcher.counts["events_decoded"]),
            stalled_s=dict(dispatcher.stalled_s),
            stall_shares=stalls,
            bottleneck=_BOTTLENECKS[worst] if worst is not None and stalls[worst] > 0.1 else "none",
            hops=hops,
            batches_occupancy=batches_occupancy,
        )
        write_status(self._run_dir, "fetcher", status)
