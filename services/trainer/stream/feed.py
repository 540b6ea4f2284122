"""Feed, the trainer's end of the queue: units out of slots, microbatches to the device, batches to the loop.

Feed.stream() is a generator: when the loop requests the next batch, the last one counts as trained. Each batch takes
its share of every lane of this rank that still has data, in the lanes' order; several ranks agree on each step
(agreement.py). It yields None while there is no batch, so that the loop can commit: a fetcher without room needs that
before data arrive. If the fetcher dies, the feed waits for its restart and attaches at the first untrained
microbatches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import messages as m
from common.config import StreamConfig, TransportConfig
from common.errors import BadInputError
from common.ragged import SlotHeader, SlotMismatch, check_header, unit_arrays
from common.schema import EventSchema
from common.transport import FetcherLost, StopRequested
from common.unit_arrays import UnitArrays
from services.trainer.progress import NEW_PLAN_REMEDY
from services.trainer.ranks.agreement import Agreement, Share, Step
from services.trainer.stream.ahead import ReadAhead
from services.trainer.stream.audit import audit_line
from services.trainer.stream.connected import connected
from services.trainer.stream.fed_batch import FedBatch, FedMicrobatch
from services.trainer.stream.lane import Lane, lane_numbered, lanes_of_rank, units_in_advance
from services.trainer.stream.microbatch_copy import Copiers, ids_of, num_bytes
from services.trainer.stream.position import StreamPosition
from services.trainer.stream.waits import BatchWaits
from workloads.base.batch import Batch

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_NO_MORE: Any = object()


class _BeginPlan(Exception):
    """The checkpoint was trained on other files, and this plan begins from its start."""


class _Rejected(Exception):
    """A slot does not match its delivered unit; the dispatcher has been informed."""


class Feed:
    """Feed: see the module. Raises BadInputError if the checkpoint belongs to another plan."""

    def __init__(
        self,
        run_dir: Path,
        workload: EventSchema,
        stream: StreamConfig,
        transport: TransportConfig,
        *,
        copiers: Copiers,
        prefetch_units: int,
        audit: bool,
        stopped: Callable[[], bool],
        keep_ids: bool = False,
        rank: int = 0,
        ranks: int = 1,
        agreement: Agreement | None = None,
        accept_new_plan: bool = False,
        remedy: str = NEW_PLAN_REMEDY,
    ) -> None:
        """``keep_ids``: batches come with their events' ids. ``remedy``: if the inputs are not the checkpoint's."""
        self._accept_new_plan = accept_new_plan
        self._remedy = remedy
        self._run_dir = run_dir
        self._workload = workload
        self._stream = stream
        self._config = transport
        self._copiers = copiers
        self._rank, self._ranks = rank, ranks
        self._lanes = lanes_of_rank(stream, rank, ranks)
        self._units_in_advance = units_in_advance(stream, prefetch_units)
        self._audit = audit
        self._identity = workload.identity if keep_ids else None
        self._stopped = stopped
        self._agreement = agreement or Agreement.alone(stopped)
        self.position = self._taken = StreamPosition.start(stream.lanes)
        """Position of the stream after all trained batches."""
        self.ended = False
        """True once the plan has no more units."""
        self._epoch: int | None = None
        self.epoch_ended = False
        """True once the epoch that stream() was called for has no more units."""
        self.outside_values = ""
        """The first values that were reported outside of their physical ranges; empty: none so far."""
        self.waits = BatchWaits()
        """Time the step waits for data, and data wait for the step."""
        self._ready_s = 0.0
        self._connected = self._attached = False
        self._connect()

    @property
    def stopped(self) -> bool:
        """True once this process, or all ranks together, stop before the next step."""
        return self._agreement.stopped

    @property
    def plan_hash(self) -> str:
        """Plan hash of the connected run."""
        return self._transport.plan_hash

    def stream(self, position: StreamPosition, epoch: int | None = None) -> Generator[FedBatch | None]:
        """Batches from ``position`` on, until the plan ends or a stop is requested; None between two waits.

        After each item, and before the next, the caller calls take_commit_request(). With ``epoch``, the number of the
        epoch at ``position``, the batches end with that epoch, too; units of the next one that have arrived are kept
        for a call with the position then reached.
        """
        attached = self._attached and position == self.position
        self.position, self._epoch, self.epoch_ended = position, epoch, False
        while self._connected:
            try:
                if not attached:
                    self._attach()
                attached = False
                yield from self._batches_of_connection()
                break
            except _BeginPlan:
                logger.warning("the inputs are others than those of the checkpoint: the new plan begins")
                self.position = self.position.begin_plan()
            except (FetcherLost, _Rejected) as error:
                level = logging.WARNING if str(error) else logging.INFO  # of a lost fetcher its supervisor warns
                logger.log(level, "%s", str(error) or "the fetcher is gone; waiting for it to come back")
                plan_hash, started_s = self.plan_hash, time.monotonic()
                self.close()
                try:
                    self._connect()
                except StopRequested:
                    break
                self.waits.waited(time.monotonic() - started_s)
                if self.plan_hash != plan_hash:
                    raise BadInputError("the fetcher came back with another plan: stop all processes first") from None
        if not (self.ended or self.epoch_ended):
            self._agreement.leave()
            yield None  # the ranks may have agreed to save

    def committed(self, position: StreamPosition) -> None:
        """Report a checkpoint on disk with this position: files behind it may be evicted.

        With several ranks the first one calls this; the others inform their fetcher once they have received it.
        """
        if self._agreement.is_first:
            self._send_committed(position.cursors)
            self._agreement.committed(position.cursors)

    def want_commit(self) -> None:
        """Make all ranks save between the same two steps, as on a request of the fetcher."""
        self._agreement.want_commit()

    def take_commit_request(self) -> bool:
        """True once for each request: save now, on every rank, and then call committed()."""
        return self._agreement.take_commit_request()

    def finished(self, position: StreamPosition) -> None:
        """Report the end of the run: no more units are needed after ``position``."""
        if not self._attached:  # there was nothing to do; the dispatcher accepts messages of its trainer only
            self.position = position
            self._attach()
        self._transport.send(m.Finished())

    def reconnect(self) -> None:
        """Release all units after stream() was closed, so that the next stream() may begin anywhere.

        Raises StopRequested.
        """
        self.close()
        self.ended = False
        self._connect()

    def close(self) -> None:
        """Release the arena and the sockets."""
        if self._connected:
            self._copier.close()
            if self._attached and (self.ended or self._stops()):
                self._transport.send(m.Bye())
            self._connected = self._attached = False
            self._transport.close()

    def _pass_on_committed(self) -> None:
        """Report the first rank's checkpoint to this rank's fetcher."""
        if cursors := self._agreement.take_committed():
            self._send_committed(cursors)

    def _send_committed(self, cursors: tuple[m.Cursor, ...]) -> None:
        if self._attached:
            self._transport.send(m.Committed(cursors))

    # -------------------------------------------------------------- connection

    def _connect(self) -> None:
        self._transport = connected(
            self._run_dir,
            self._workload,
            self._stream,
            self._config,
            slots=self._units_in_advance * len(self._lanes) + 1,
            writable=self._copiers.writable,
            stopped=self._stopped,
        )
        self._copier = self._copiers.make(self._transport.arena)
        self._connected = True

    def _attach(self) -> None:
        at = self.position
        self._attached = True
        self._lanes = lanes_of_rank(self._stream, self._rank, self._ranks)
        bad_files = tuple(sorted({*at.bad_files, *(bad.file for bad in at.quarantined if bad.row_group == -1)}))
        self._transport.send(m.Attach(self._rank, self._ranks, self.plan_hash, at.cursors, bad_files, at.source))
        for lane in self._lanes:
            self._transport.send(m.Want(lane.number, self._units_in_advance))

    # -------------------------------------------------------------- units, microbatches, batches

    def _batches_of_connection(self) -> Generator[FedBatch | None]:
        former = self._taken = self.position
        ahead = ReadAhead(
            self._assembled(), self._copier.batches_ahead, wait=self._receive, poll=self._receive_if_there
        )
        assembled = iter(ahead)
        while True:
            item = next(assembled, (None, None))
            if item is None:
                yield None
                continue
            mine, mark = item
            if mine is None and not ahead.ended:
                return  # asked to stop
            if mine is None:  # other ranks may have data still; units without events may stand behind our last batch
                mine = FedBatch(Batch(()), self._taken, ())
            step = yield from self._agreed(former, mine)
            if step is None:
                return  # the ranks stop: the batches taken are not trained
            former = mine.position
            if not step.microbatches:
                self.epoch_ended = self._epoch is not None
                self.ended = all(lane.used_up() for lane in self._lanes)
                self.position = step.position
                return
            if mark is not None:
                self._copier.hand_over(mark)
            self.waits.given(time.monotonic())
            yield replace(mine, batch=mine.batch.among(step.events, step.particles), position=step.position)
            self.waits.taken(time.monotonic())
            self.position = step.position  # the loop requests the next batch: this one is trained

    def _agreed(self, former: StreamPosition, mine: FedBatch) -> Generator[None, None, Step | None]:
        """Step that all ranks make together, once all are ready; None: all stop."""
        share = Share(len(mine.batch.microbatches), mine.batch.num_events, mine.batch.num_particles)
        self._ready_s = time.monotonic()
        while True:
            step = self._agreement.ready(self.position, former, mine.position, share)
            if self._agreement.is_alone:
                return step
            yield None  # the ranks may have agreed to save: nothing may come between
            if step is not None or self._agreement.stopped:
                return step
            self._while_others_wait()

    def _assembled(self) -> Generator[tuple[FedBatch, Any] | None, None, bool]:
        """Batches whose copies have been begun, each with the copier's mark: a source of ReadAhead."""
        streams = [(lane, self._microbatches(lane)) for lane in self._lanes]
        while True:
            parts: list[FedMicrobatch] = []
            for lane, stream in streams:
                num_events = 0
                while num_events < self._stream.lane_batch_events:
                    taken = next(stream, _NO_MORE)
                    if taken is _NO_MORE:
                        break
                    if taken is None:
                        yield None
                        continue
                    parts.append(taken)
                    num_events += taken.microbatch.num_events
                if num_events < self._stream.lane_batch_events and not lane.used_up(self._epoch):
                    return False  # asked to stop: the microbatches taken are not trained
            if not parts:
                return True
            yield FedBatch.of(parts, self._taken), self._copier.mark()

    def _microbatches(self, lane: Lane) -> Iterator[FedMicrobatch | None]:
        """Microbatches of a lane on the device; None while the next unit has not arrived.

        Ends with the lane's data, or those of the epoch, or on a stop.
        """
        while True:
            while not lane.arrived and not lane.ended and not self._stops():
                yield None
            if lane.used_up(self._epoch) or self._stops():
                return
            unit, arrays = lane.arrived.popleft()
            at = self._taken.lane_of(unit).cursor
            if unit.k != at.unit:
                raise RuntimeError(f"unit {unit.k} was delivered where {at.unit} was due")
            taken: FedMicrobatch | None = None
            changed = self._taken.is_changed(unit)
            if self._taken.is_unchecked(unit):
                logger.info("the checkpoint of a former version can't show that unit %d is the same", unit.k)
            if at.microbatch < unit.layout.microbatches and not changed:
                assert arrays is not None
                copy = self._copier.begin(arrays, unit.epoch, unit.k)
                for index in range(at.microbatch, unit.layout.microbatches):
                    if taken is not None:
                        yield taken
                    microbatch = replace(copy.microbatch(index), lane=lane.number)
                    self.waits.copied_bytes += num_bytes(microbatch)
                    line = audit_line(arrays, lane.number, unit.epoch, unit.k, index) if self._audit else ""
                    taken = FedMicrobatch(microbatch, line, ids_of(arrays, index, self._identity))
                    self._taken = self._taken.after_microbatch(
                        unit, index, microbatch.num_events, microbatch.num_particles
                    )
                # The slot is released before the last microbatch is trained. The copy is awaited, not polled for: the
                # next poll may be a step away.
                copy.wait()
                del copy
            del arrays
            self._transport.send(m.Release(unit.k))
            self._transport.send(m.Want(lane.number, 1))
            self._taken = self._taken.after_unit(unit)
            if changed:
                logger.warning("%s", self._taken.changed_units[-1])
            if taken is not None:
                yield taken

    def _stops(self) -> bool:
        return self._stopped() or self._agreement.stopped

    def _while_others_wait(self) -> None:
        """Take messages that have arrived, without waiting, while this rank is ready and another one is late."""
        now_s = time.monotonic()
        self.waits.waited(now_s - self._ready_s)
        self._ready_s = now_s
        self._receive_if_there()

    def _receive(self) -> None:
        """Wait a short time for a message, and take it."""
        self._pass_on_committed()
        self._take(self._next_message())

    def _receive_if_there(self) -> bool:
        """Take a message that has arrived; False if there is none."""
        self._pass_on_committed()
        message = self._transport.receive(0.0)
        self._take(message)
        return message is not None

    def _take(self, message: m.Message | None) -> None:
        match message:
            case m.DeliveredUnit() as unit:
                self.outside_values = self.outside_values or unit.tally.outside_values
                lane = lane_numbered(unit.k % self._stream.lanes, self._lanes)
                try:
                    lane.arrived.append((unit, self._arrays(unit)))
                except SlotMismatch as error:
                    # More units of the lane may follow it on this connection: only a new one is free of them.
                    self._transport.send(m.Reject(unit.k, str(error)))
                    raise _Rejected(f"unit {unit.k} has to be decoded again: {error}") from None
            case m.End(number):
                lane_numbered(number, self._lanes).ended = True
            case m.CommitRequest():
                self._agreement.want_commit()
            case m.Refuse(other_inventory=True) if self._accept_new_plan:
                raise _BeginPlan
            case m.Refuse(reason, other_inventory=True):
                raise BadInputError(f"{reason} {self._remedy}")
            case m.Refuse(reason):
                raise BadInputError(f"the dispatcher refused this trainer: {reason}")

    def _next_message(self) -> m.Message | None:
        """Next message, or None after a short time; records the time without data."""
        message = self._transport.receive(0.0)
        if message is None:
            started_s = time.monotonic()
            message = self._transport.receive(_POLL_S)
            self.waits.waited(time.monotonic() - started_s)
            if message is None:
                self._agreement.waiting()
        return message

    def _arrays(self, unit: m.DeliveredUnit) -> UnitArrays | None:
        """Views into the unit's slot, checked against its header; None if it was skipped."""
        if unit.slot < 0:
            return None
        slot = self._transport.arena.slot(unit.slot)
        check_header(slot, SlotHeader(self.plan_hash, unit.k, unit.lease, unit.layout))
        return unit_arrays(slot, self._workload, unit.layout)
