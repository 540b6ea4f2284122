"""Units of a shard: out of their slots, in order; this trainer's share of the microbatches to the device."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch

from common import messages as m
from common.config import StreamConfig, TransportConfig
from common.messages import DeliveredUnit, Source
from common.paths import shard_dir
from common.schema import EventSchema, UnitArrays
from common.transport import FetcherLost, PeerTransport
from common.unit_arrays import Array, SlotHeader, SlotMismatch, check_header, unit_arrays
from services.trainer.agreement import Dealing, ShardShare, runs_of
from services.trainer.audit import audit_line
from services.trainer.copier import UnitCopy, ids_of, make_copier, num_bytes
from services.trainer.position import StreamPosition
from workloads.base.batch import Batch, Microbatch

logger = logging.getLogger(__name__)
UNITS_IN_ADVANCE = 2
"""Units requested beside the one in use: one is decoded while the other waits, so that none is needed too late."""


class BatchWaits:
    """Waiting times and bytes at the hop `batches`, from the feed to the training step; the times are passed in.

    get: the loop waited for a unit. put: a step ran, and the data of the next batch were present at its end; such a
    step counts in full, since the time of their arrival is unknown. For each batch, in order: any number of waited(),
    given(), taken().
    """

    def __init__(self) -> None:
        self.put_s = 0.0
        self.get_s = 0.0
        self.copied_bytes = 0
        """Bytes of the microbatches copied to the device."""
        self._given_s = 0.0
        self._step_s = 0.0
        self._was_late = False

    def waited(self, seconds: float) -> None:
        """Add the time that the feed waited for a unit."""
        self.get_s += seconds
        self._was_late = True

    def given(self, now_s: float) -> None:
        """Record that the feed yields a batch: a step begins."""
        if not self._was_late:
            self.put_s += self._step_s
        self._given_s, self._step_s, self._was_late = now_s, 0.0, False

    def taken(self, now_s: float) -> None:
        """Record that the loop requests the next batch: the step has ended."""
        self._step_s = now_s - self._given_s


class FedMicrobatch(NamedTuple):
    """Microbatch on the device, and what the host keeps of it."""

    microbatch: Microbatch
    audit_lines: tuple[str, ...]
    """Lines of the audit: of each microbatch in the unit, of which several may be joined here."""
    ids: Mapping[str, Array]
    """Column of the events' ids by name, which the device does not get; empty if they are not needed."""


@dataclass(frozen=True)
class FedBatch:
    """Batch on the device, and the stream's position once all ranks have trained it."""

    batch: Batch
    position: StreamPosition
    audit_lines: tuple[tuple[int, str], ...]
    """Lines of the audit, each with its shard."""
    ids: tuple[Mapping[str, Array], ...] = ()
    """Ids of each microbatch: see FedMicrobatch."""

    @classmethod
    def of(cls, parts: Sequence[FedMicrobatch], position: StreamPosition) -> Self:
        """Batch of these microbatches."""
        lines = tuple((part.microbatch.shard, line) for part in parts for line in part.audit_lines)
        return cls(Batch(tuple(part.microbatch for part in parts)), position, lines, tuple(part.ids for part in parts))


Taken = tuple[FedMicrobatch, ...]
"""This trainer's part of what a unit adds to a batch; it may be empty."""


class Pause(Enum):
    """Reason for which a shard adds nothing to a batch now."""

    NO_UNIT = auto()
    """Its next unit has not arrived."""
    NO_EVENT = auto()
    """A whole epoch had no event: it is the other shards' turn."""
    END = auto()
    """Its stream, or that of the epoch, is at its end, or a stop was requested."""


class Rejected(Exception):
    """A slot does not match its delivered unit; the dispatcher has been informed."""


class ShardLink:
    """The end of one shard's stream: the connection to its fetcher, the units that have arrived, and the position as
    far as they were taken. A run without shards has one."""

    def __init__(
        self,
        run_dir: Path,
        workload: EventSchema,
        stream: StreamConfig,
        transport: TransportConfig,
        share: ShardShare,
        *,
        device: torch.device,
        columns: Collection[str],
        audit: bool,
        identity: str | None,
        waits: BatchWaits,
        stopped: Callable[[], bool],
    ) -> None:
        """``columns``: those that are copied; ``identity``: that of the events' ids, if the host keeps it, too.

        Raises StopRequested, and BadInputError if no fetcher answers.
        """
        self.shard = share.shard
        self.share = share
        self._workload = workload
        self._stream = stream
        self._audit, self._identity = audit, identity
        self._waits = waits
        self.arrived: deque[tuple[DeliveredUnit, UnitArrays | None]] = deque()
        """Units with their arrays (None: the unit was skipped) that wait for training."""
        self.ended = False
        """True once the plan has no more units."""
        self.dealing = Dealing(share.ranks, 0)
        """Dealing of the batch that is being made."""
        self.taken = StreamPosition()
        """Position of the shard after all units and microbatches taken."""
        self._epoch: int | None = None
        self._seen: int | None = None
        """Epoch of the last event, or the last one that was passed without one."""
        self._open: _OpenUnit | None = None
        """Unit of which a part was taken."""
        self.is_attached = False
        self._is_lost = False
        self.transport = PeerTransport(
            shard_dir(run_dir, share.shard if stream.shards > 1 else None),
            transport,
            writable=device.type == "cuda",  # which page-locking requires. Nothing is written.
            stopped=stopped,
        )
        self.copier = make_copier(self.transport.arena, device, columns)

    def used_up(self) -> bool:
        """Return True if no unit of the epoch that is read is left, and none will arrive."""
        if not self.arrived:
            return self.ended
        return self._epoch is not None and self.arrived[0][0].epoch > self._epoch

    def attach(self, at: StreamPosition, source: Source) -> None:
        """Request units from the shard's position on. ``source``: of the data of all shards so far."""
        self.is_attached, self.ended = True, False
        self.arrived.clear()
        self._open = None
        rank, ranks = self.share.rank, self.share.ranks
        self.transport.send(m.Attach(rank, ranks, self.transport.plan_hash, at.cursor, at.bad_files, source))
        self.transport.send(m.Want(min(UNITS_IN_ADVANCE, self._stream.slots)))

    def receive(self) -> m.Message | None:
        """Next message, after a unit was kept; None if there is none.

        Raises FetcherLost, and Rejected for a unit that has to be decoded again.
        """
        try:
            message = self.transport.receive(0.0)
        except FetcherLost:
            self._is_lost = True
            raise
        match message:
            case m.DeliveredUnit() as unit:
                try:
                    self.arrived.append((unit, self._arrays(unit)))
                except SlotMismatch as error:
                    # More units may follow it on this connection: only a new one is free of them.
                    self.transport.send(m.Reject(unit.k, str(error)))
                    raise Rejected(f"unit {unit.k} has to be decoded again: {error}") from None
            case m.End():
                self.ended = True
        return message

    def begin(self, at: StreamPosition, epoch: int | None) -> None:
        """Begin to take what has arrived from position ``at`` on; of one epoch, or of all."""
        self._open = self._open if at == self.taken else None  # an epoch of sets ends inside of units
        self.taken, self._epoch, self._seen = at, epoch, None

    def take(self, *, stops: bool) -> Taken | Pause:
        """Return what the next microbatches add to the batch that is being made, on the device.

        Advances the position, and deals by ``dealing``, which the caller begins anew with each batch. ``stops``: no
        further unit is begun.
        """
        while self._open is None:
            if not (self.arrived or self.ended or stops):
                return Pause.NO_UNIT
            if stops or self.used_up():
                return Pause.END
            next_epoch = self.arrived[0][0].epoch
            self._seen = next_epoch if self._seen is None else self._seen
            if next_epoch > self._seen + 1:
                self._seen = next_epoch - 1
                return Pause.NO_EVENT
            self._open = self._next_unit()
        unit, first = self._open.unit, self._open.next
        number = self.dealing.num_dealt
        ranks = self.dealing.deal(islice(self._open.costs, first, None))
        end = self._open.next = first + len(ranks)
        costs = self._open.costs[first:end]
        runs = runs_of(self.share.rank, ranks, costs, self._open.most)
        taken = tuple(self._copied(self._open, first + run.start, first + run.stop, number + run.start) for run in runs)
        num_events, num_particles = (sum(cost[place] for cost in costs) for place in (0, 1))
        self.taken = self.taken.after_microbatches(unit, end, num_events, num_particles)
        if end == unit.layout.microbatches:
            # The slot is released before the last microbatch is trained. The copy is awaited, not polled for: the
            # next poll may be a step away.
            if self._open.copy is not None:
                self._open.copy.wait()
            self._open, self._seen = None, unit.epoch
            self._close(unit)
        return taken

    def _next_unit(self) -> _OpenUnit | None:
        """Return the next unit; None if nothing of it is to be trained, and it is done with."""
        unit, arrays = self.arrived.popleft()
        at = self.taken.cursor
        if unit.k != at.unit:
            raise RuntimeError(f"unit {unit.k} was delivered where {at.unit} was due")
        is_changed = self.taken.is_changed(unit)
        if at.microbatch < unit.layout.microbatches and not is_changed:
            assert arrays is not None
            return _OpenUnit(unit, arrays, self._stream, at.microbatch)
        self._close(unit)
        if is_changed:
            logger.warning("%s", self.taken.changed_units[-1])
        return None

    def _close(self, unit: DeliveredUnit) -> None:
        """Give the slot of a unit back, request another unit, and count the events that were not trained."""
        self.transport.send(m.Release(unit.k))
        self.transport.send(m.Want(1))
        self.taken = self.taken.after_unit(unit)

    def _copied(self, opened: _OpenUnit, first: int, end: int, number: int) -> FedMicrobatch:
        """Return microbatches ``first`` to ``end`` as one, the ``number``-th of the batch."""
        unit, arrays = opened.unit, opened.arrays
        opened.copy = opened.copy or self.copier.begin(arrays, unit.epoch, unit.k)
        microbatch = replace(opened.copy.microbatch(first, end), shard=self.shard, number=number)
        self._waits.copied_bytes += num_bytes(microbatch)
        indices = range(first, end) if self._audit else ()
        lines = tuple(audit_line(arrays, self.shard, unit.epoch, unit.k, index) for index in indices)
        return FedMicrobatch(microbatch, lines, ids_of(arrays, first, end, self._identity))

    def committed(self, cursor: m.Cursor, *, waits: bool) -> None:
        """Report a checkpoint on disk with this cursor of the shard. ``waits``: see Committed."""
        if self.is_attached:
            self.transport.send(m.Committed(cursor, waits))

    def close(self, *, leaves: bool) -> None:
        """Release the arena and the sockets. ``leaves``: in good order, as far as the fetcher is there."""
        self.copier.close()
        if self.is_attached and leaves and not self._is_lost:
            self.transport.send(m.Bye())
        self.transport.close()

    def _arrays(self, unit: m.DeliveredUnit) -> UnitArrays | None:
        """Views into the unit's slot, checked against its header; None if it was skipped."""
        if unit.slot < 0:
            return None
        slot = self.transport.arena.slot(unit.slot)
        check_header(slot, SlotHeader(self.transport.plan_hash, unit.k, unit.lease, unit.layout))
        return unit_arrays(slot, self._workload, unit.layout)


class _OpenUnit:
    """A unit of which microbatches are being taken out of its slot."""

    def __init__(self, unit: DeliveredUnit, arrays: UnitArrays, stream: StreamConfig, first: int) -> None:
        self.unit = unit
        self.arrays = arrays
        self.next = first
        """Number of the next microbatch."""
        self.copy: UnitCopy | None = None
        """Copy to the device, once one was begun."""
        bounds = arrays.microbatch_bounds
        costs = [np.diff(bounds), np.diff(arrays.offsets[bounds])]
        self.most = [stream.batch_events, stream.max_particles]
        """Limits of microbatches that are joined: events, particles, and Σ N² if that is limited."""
        if stream.max_squared_particles:
            squares = np.zeros(len(arrays.offsets), np.int64)
            np.cumsum(np.diff(arrays.offsets) ** 2, out=squares[1:])
            costs.append(np.diff(squares[bounds]))
            self.most.append(stream.max_squared_particles)
        self.costs: list[tuple[int, ...]] = list(zip(*(cost.tolist() for cost in costs), strict=True))
        """The same of each microbatch."""
