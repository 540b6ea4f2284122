"""Link of a trainer to the fetcher of one shard: transport, copier, lanes, and the position as far as it was taken.

A run without shards has one link. Lanes and units are numbered in the shard here, in the feed lanes in the run.
"""

from __future__ import annotations

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
from services.trainer.stream.lane import ShardShare, lane_numbered, lanes_of_share
from services.trainer.stream.microbatch_copy import Copiers
from services.trainer.stream.position import StreamPosition


class Rejected(Exception):
    """A slot does not match its delivered unit; the dispatcher has been informed."""


class ShardLink:
    """Link for the lanes of ``share``. Raises StopRequested, and BadInputError if no fetcher answers."""

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
        self._share = share
        self._units_in_advance = units_in_advance
        self.lanes = lanes_of_share(stream, share)
        self._num_lanes = stream.shard_lanes
        self.taken = StreamPosition.start(stream.shard_lanes)
        """Position of the shard after all units and microbatches taken."""
        self.is_attached = False
        self._is_lost = False
        self.transport = connected(
            shard_dir(run_dir, share.shard if stream.shards > 1 else None),
            workload,
            stream,
            transport,
            slots=units_in_advance * len(self.lanes) + 1,
            writable=copiers.writable,
            stopped=stopped,
        )
        self.copier = copiers.make(self.transport.arena)

    @property
    def plan_hash(self) -> str:
        """Plan hash of the connected run."""
        return self.transport.plan_hash

    def lane_of_run(self, number: int) -> int:
        """Number, in the run, of a lane of the shard."""
        return self.shard * self._num_lanes + number

    def attach(self, at: StreamPosition, source: Source) -> None:
        """Request the lanes from the shard's position on. ``source``: of the data of all shards so far."""
        self.is_attached, self.taken = True, at
        for lane in self.lanes:
            lane.arrived.clear()
            lane.ended = False
        bad_files = tuple(sorted({*at.bad_files, *(bad.file for bad in at.quarantined if bad.row_group == -1)}))
        rank, ranks = self._share.rank, self._share.ranks
        self.transport.send(m.Attach(rank, ranks, self.plan_hash, at.cursors, bad_files, source))
        for lane in self.lanes:
            self.transport.send(m.Want(lane.number, self._units_in_advance))

    def receive(self, timeout_s: float) -> m.Message | None:
        """Next message, after units and ends of lanes were put into their lanes; None after ``timeout_s``.

        Raises FetcherLost, and Rejected for a unit that has to be decoded again.
        """
        try:
            message = self.transport.receive(timeout_s)
        except FetcherLost:
            self._is_lost = True
            raise
        match message:
            case m.DeliveredUnit() as unit:
                lane = lane_numbered(unit.k % self._num_lanes, self.lanes)
                try:
                    lane.arrived.append((unit, self._arrays(unit)))
                except SlotMismatch as error:
                    # More units of the lane may follow it on this connection: only a new one is free of them.
                    self.transport.send(m.Reject(unit.k, str(error)))
                    raise Rejected(f"unit {unit.k} has to be decoded again: {error}") from None
            case m.End(number):
                lane_numbered(number, self.lanes).ended = True
        return message

    def release(self, k: int, lane: int) -> None:
        """Give a unit's slot back, and request another unit of the lane."""
        self.transport.send(m.Release(k))
        self.transport.send(m.Want(lane, 1))

    def committed(self, cursors: tuple[m.Cursor, ...], *, waits: bool) -> None:
        """Report a checkpoint on disk with these cursors of all lanes of the run. ``waits``: see Committed."""
        if self.is_attached:
            first = self.lane_of_run(0)
            self.transport.send(m.Committed(cursors[first : first + self._num_lanes], waits))

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
