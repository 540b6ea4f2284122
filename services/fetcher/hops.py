"""Waiting times at each hop, of producer and consumer, from the fetcher's queues. Pure: the time is passed in.

staged   staging -> planner
         put waits while blocks are left and none may be begun: blocks_ahead or the disk budget is used up, and no file
         is in transfer. get waits while the dispatcher stalls as `not_staged`.
         occupancy: planned blocks beyond the current one / fetcher.blocks_ahead.
leases   dispatcher -> decoders
         put waits while the dispatcher stalls as `no_credit`. get: mean part of the decoders without a lease.
         occupancy: part of the decoders with one.
slots    decoders -> trainer
         put waits while the dispatcher stalls as `no_free_slot`. get waits while the trainer wants a unit that is not
         ready. occupancy: units ready and delivered / slots.
batches  feed -> training step
         put and get: services/trainer/stream/waits.py.
         occupancy: units at the trainer / units that it requested.

The state at a tick counts until the next: the fetcher ticks after every event.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.metrics import HopMeter
from common.status import Hop


@dataclass(frozen=True)
class Queues:
    """State of the fetcher's queues at one instant."""

    stall: str | None
    """Reason that the dispatcher can't lease (STALL_REASONS); None: it can, or there is nothing to lease."""
    staging_full: bool
    """True if blocks are left and none may be begun."""
    staged: float
    """Planned blocks beyond the current one, as a part of fetcher.blocks_ahead."""
    decoders: int
    decoders_busy: int
    """Decoders that hold a lease."""
    slots: int
    slots_filled: int
    """Slots with a ready or delivered unit."""
    trainer_waits: bool
    """True if the trainer wants a unit that is not ready."""
    prefetched: float
    """Units at the trainer, as a part of those that it requested."""


class Hops:
    """Accumulator of the hops of one fetcher process; see the module."""

    def __init__(self) -> None:
        self._meters = {name: HopMeter() for name in ("staged", "leases", "slots", "batches")}
        self._queues: Queues | None = None
        self._ticked_s = 0.0

    def tick(self, now_s: float, queues: Queues | None) -> None:
        """Record the state of the queues from now on; None: nothing flows, because no trainer has attached yet."""
        if self._queues is not None:
            self._add(now_s - self._ticked_s, self._queues)
        self._queues, self._ticked_s = queues, now_s

    def status(self, now_s: float) -> tuple[dict[str, Hop], float]:
        """Hops of the fetcher by name, and the occupancy of `batches`. To be called regularly."""
        hops = {name: meter.hop(now_s) for name, meter in self._meters.items()}
        return hops, hops.pop("batches").occupancy

    def _add(self, span_s: float, queues: Queues) -> None:
        busy = queues.decoders_busy / queues.decoders if queues.decoders else 0.0
        self._meters["staged"].add(
            span_s, put=queues.staging_full, get=queues.stall == "not_staged", occupancy=queues.staged
        )
        self._meters["leases"].add(
            span_s, put=queues.stall == "no_credit", get=1.0 - busy if queues.decoders else 0.0, occupancy=busy
        )
        self._meters["slots"].add(
            span_s,
            put=queues.stall == "no_free_slot",
            get=queues.trainer_waits,
            occupancy=queues.slots_filled / queues.slots,
        )
        self._meters["batches"].add(span_s, occupancy=queues.prefetched)
