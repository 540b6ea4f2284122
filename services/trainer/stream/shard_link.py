"""Link of a trainer to the fetcher of one shard: transport, copier, units that have arrived, and the position as far as
it was taken. A run without shards has one link."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from common import messages as m
from common.config import StreamConfig, TransportConfig
from common.messages import Source
from common.ragged import SlotHeader, SlotMismatch, check_header, unit_arrays
from common.run_dir import shard_dir
from common.schema import EventSchema
from common.transport import FetcherLost
from common.unit_arrays import UnitArrays
from services.trainer.stream.connected import connected
from services.trainer.stream.microbatch_copy import Copiers
from services.trainer.stream.position import StreamPosition
from services.trainer.stream.shares import Dealing, ShardShare


class Rejected(Exception):
    """A slot does not match its delivered unit; the dispatcher has been informed."""


class ShardLink:
    """Link for ``share``. Raises StopRequested, and BadInputError if no fetcher answers."""

    def __init__(
        self,
        run_dir: Path,
        workload: EventSchema,
        stream: StreamConfig,
        transport: TransportConfig,
        share: ShardShare,
        *,
        copiers: Copiers,
        units_in_advance: int,
        stopped: Callable[[], bool],
    ) -> None:
        self.shard = share.shard
        self._workload = workload
        self.share = share
        self._units_in_advance = units_in_advance
        self.arrived: deque[tuple[m.DeliveredUnit, UnitArrays | None]] = deque()
        """Units with their arrays (None: the unit was skipped) that wait for training."""
        self.ended = False
        """True once the plan has no more units."""
        self.dealing = Dealing(share.ranks, stream.shard_batch_events)
        """Dealing of the batch that is being made."""
        self.taken = StreamPosition()
        """Position of the shard after all units and microbatches taken."""
        self.is_attached = False
        self._is_lost = False
        self.transport = connected(
            shard_dir(run_dir, share.shard if stream.shards > 1 else None),
            workload,
            stream,
            transport,
            slots=units_in_advance + 1,
            writable=copiers.writable,
            stopped=stopped,
        )
        self.copier = copiers.make(self.transport.arena)

    @property
    def plan_hash(self) -> str:
        """Plan hash of the connected run."""
        return self.transport.plan_hash

    def used_up(self, epoch: int | None = None) -> bool:
        """True if no unit is left, and none will arrive; with ``epoch``: none of that epoch."""
        if not self.arrived:
            return self.ended
        return epoch is not None and self.arrived[0][0].epoch > epoch

    def attach(self, at: StreamPosition, source: Source) -> None:
        """Request units from the shard's position on. ``source``: of the data of all shards so far."""
        self.is_attached, self.ended, self.taken = True, False, at
        self.arrived.clear()
        rank, ranks = self.share.rank, self.share.ranks
        self.transport.send(m.Attach(rank, ranks, self.plan_hash, at.cursor, at.bad_files, source))
        self.transport.send(m.Want(self._units_in_advance))

    def receive(self, timeout_s: float) -> m.Message | None:
        """Next message, after units were taken; None after ``timeout_s``.

        Raises FetcherLost, and Rejected for a unit that has to be decoded again.
        """
        try:
            message = self.transport.receive(timeout_s)
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

    def release(self, k: int) -> None:
        """Give a unit's slot back, and request another unit."""
        self.transport.send(m.Release(k))
        self.transport.send(m.Want(1))

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
        check_header(slot, SlotHeader(self.plan_hash, unit.k, unit.lease, unit.layout))
        return unit_arrays(slot, self._workload, unit.layout)
