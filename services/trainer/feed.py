"""The trainer's end of the queue: units out of slots, microbatches onto the device, batches to the loop.

Feed.batches() is a generator: when the loop asks for the next batch, the last one counts as trained. If the fetcher
dies, the feed waits for it to come back and attaches at the first microbatch that has not been trained.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from common import messages as m
from common.config import StreamConfig, TransportConfig
from common.errors import BadInputError
from common.ragged import SlotHeader, UnitArrays, check_header, unit_arrays
from common.schema import Workload
from common.transport import FetcherLost, PeerTransport, StopRequested
from services.trainer.audit import audit_line
from services.trainer.batch import Batch, Microbatch
from services.trainer.copier import Copier, make_copier
from services.trainer.position import StreamPosition
from services.trainer.waits import BatchWaits

logger = logging.getLogger(__name__)

_POLL_S = 0.1


@dataclass(frozen=True)
class FedBatch:
    """A batch on the device, and where the stream is once it has been trained."""

    batch: Batch
    position: StreamPosition
    audit_lines: tuple[str, ...]


class Feed:
    """See the module. Raises BadInputError if the checkpoint belongs to another plan."""

    def __init__(
        self,
        run_dir: Path,
        workload: Workload,
        stream: StreamConfig,
        transport: TransportConfig,
        *,
        device: torch.device,
        prefetch_units: int,
        audit: bool,
        stopped: Callable[[], bool],
    ) -> None:
        self._run_dir = run_dir
        self._workload = workload
        self._stream = stream
        self._config = transport
        self._device = device
        self._prefetch_units = prefetch_units
        self._audit = audit
        self._stopped = stopped
        self.position = StreamPosition()
        """Where the stream is after all batches that were trained."""
        self.ended = False
        """True once the plan has no more units."""
        self.on_commit_request: Callable[[], None] = lambda: None
        """Called when the fetcher needs a checkpoint to free disk space; calls committed()."""
        self.on_wait: Callable[[], None] = lambda: None
        """Called again and again while there is no unit."""
        self.waits = BatchWaits()
        """Who waited for whom between feed and steps."""
        self._connected = self._attached = False
        self._connect()

    @property
    def plan_hash(self) -> str:
        """Of the run that the feed is connected to."""
        return self._transport.plan_hash

    def batches(self, position: StreamPosition) -> Generator[FedBatch]:
        """Batches from ``position`` on, until the plan ends or the process is asked to stop."""
        self.position = position
        while True:
            try:
                self._attach()
                yield from self._batches_of_connection()
                return
            except FetcherLost:
                logger.warning("the fetcher is gone; waiting for it to come back")
                plan_hash = self.plan_hash
                started_s = time.monotonic()
                self._disconnect()
                try:
                    self._connect()
                except StopRequested:
                    return
                self.waits.waited(time.monotonic() - started_s)
                if self.plan_hash != plan_hash:
                    raise BadInputError("the fetcher came back with another plan: stop all processes first") from None

    def committed(self, position: StreamPosition) -> None:
        """A checkpoint with this position is on disk: files behind it may be evicted."""
        if self._attached:
            self._transport.send(m.Committed(position.cursor))

    def finished(self, position: StreamPosition) -> None:
        """The run is over: no more units are needed after ``position``."""
        if not self._attached:  # there was nothing to do at all; the dispatcher listens to its trainer only
            self.position = position
            self._attach()
        self._transport.send(m.Finished())

    def close(self) -> None:
        """Let go of the arena and the sockets."""
        self._disconnect()

    # -------------------------------------------------------------- connection

    def _connect(self) -> None:
        writable = self._device.type == "cuda"  # page-locking wants a writable mapping; nothing is written
        self._transport = PeerTransport(self._run_dir, self._config, writable=writable, stopped=self._stopped)
        self._copier: Copier = make_copier(self._transport.arena, self._device)
        self._connected = True

    def _disconnect(self) -> None:
        if self._connected:
            self._connected = self._attached = False
            self._copier.close()
            self._transport.close()

    def _attach(self) -> None:
        at = self.position
        self._attached = True
        bad_files = tuple(bad.file for bad in at.quarantined if bad.row_group == -1)
        self._transport.send(m.Attach(0, self.plan_hash, at.cursor, at.skipped_units, bad_files))
        self._transport.send(m.Want(self._prefetch_units))

    # -------------------------------------------------------------- units, microbatches, batches

    def _batches_of_connection(self) -> Iterator[FedBatch]:
        position = self.position
        microbatches: list[Microbatch] = []
        lines: list[str] = []
        num_events = 0
        for unit in self._units():
            if unit.k != position.cursor.unit:
                raise RuntimeError(f"unit {unit.k} was delivered where {position.cursor.unit} was due")
            arrays = self._arrays(unit)
            for index in range(position.cursor.microbatch, unit.layout.microbatches):
                assert arrays is not None
                microbatch = self._copier.copy(arrays, unit.epoch, unit.k, index)
                microbatches.append(microbatch)
                num_events += microbatch.num_events
                if self._audit:
                    lines.append(audit_line(arrays, unit.epoch, unit.k, index))
                position = position.after_microbatch(unit, index, microbatch.num_events, microbatch.num_particles)
                if index == unit.layout.microbatches - 1:
                    break  # the unit is through: its slot is released before the batch is trained
                if num_events >= self._stream.batch_events:
                    yield from self._give(microbatches, position, lines)
                    microbatches, lines, num_events = [], [], 0
            arrays = None
            self._copier.finish_unit(lambda k=unit.k: self._release(k))  # type: ignore[misc]
            position = position.after_unit(unit)
            if num_events >= self._stream.batch_events:
                yield from self._give(microbatches, position, lines)
                microbatches, lines, num_events = [], [], 0
        if microbatches and self.ended:
            yield from self._give(microbatches, position, lines)
        if self.ended:
            self.position = position  # units without events may stand behind the last batch

    def _give(self, microbatches: list[Microbatch], position: StreamPosition, lines: list[str]) -> Iterator[FedBatch]:
        self.waits.given(time.monotonic())
        yield FedBatch(Batch(tuple(microbatches)), position, tuple(lines))
        self.waits.taken(time.monotonic())
        self.position = position  # the loop came back for the next batch: this one is trained

    def _units(self) -> Iterator[m.DeliveredUnit]:
        while not self._stopped():
            self._copier.poll()
            match self._receive():
                case m.DeliveredUnit() as unit:
                    yield unit
                case m.End():
                    self.ended = True
                    return
                case m.CommitRequest():
                    self.on_commit_request()
                case m.Refuse(reason):
                    raise BadInputError(f"the dispatcher refused this trainer: {reason}")

    def _receive(self) -> m.Message | None:
        """The next message, or None after a short time; notes how long nothing was there."""
        message = self._transport.receive(0.0)
        if message is None:
            started_s = time.monotonic()
            message = self._transport.receive(_POLL_S)
            self.waits.waited(time.monotonic() - started_s)
            self.on_wait()
        return message

    def _arrays(self, unit: m.DeliveredUnit) -> UnitArrays | None:
        """Views into the unit's slot, checked against its header; None if it was skipped."""
        if unit.slot < 0:
            return None
        slot = self._transport.arena.slot(unit.slot)
        check_header(slot, SlotHeader(self.plan_hash, unit.k, unit.lease, unit.layout))
        return unit_arrays(slot, self._workload, unit.layout)

    def _release(self, k: int) -> None:
        self._transport.send(m.Release(k))
        self._transport.send(m.Want(1))
