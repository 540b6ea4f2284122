"""Grants that the dispatcher's state allows: leases to decoders and deliveries to trainers. Pure.

The slot is bound when the lease is given, and leases go to the lowest unit that is wanted and absent, heads of lanes
first. So a head that its trainer waits for gets a free slot, or takes the slot of a unit that no trainer waits for,
and delivery in order can't deadlock. "Next to lease" is derived, never stored.

There are at least as many slots as lanes, and a trainer asks for at most slots / lanes units of each
(services/trainer/stream/lane.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from common import messages as m
from services.fetcher.dispatcher.actions import Action, Quarantine, Send
from services.fetcher.dispatcher.decoder_pool import DecoderPool
from services.fetcher.dispatcher.history import History
from services.fetcher.dispatcher.lanes import Lanes, LaneState
from services.fetcher.dispatcher.unit_failures import UnitFailures
from services.fetcher.dispatcher.unit_table import HeldUnit, State, UnitTable


class Grants:
    """Leases and deliveries: use pump() after each change of the state."""

    def __init__(
        self, units: UnitTable, decoders: DecoderPool, lanes: Lanes, failures: UnitFailures, history: History
    ) -> None:
        self._units = units
        self._decoders = decoders
        self._lanes = lanes
        self._failures = failures
        self._history = history
        self._last_lease = 0
        self.began = False
        """True once a trainer has sent its cursors: nothing is leased before."""

    def pump(self, now_s: float) -> list[Action]:
        """Give all leases and deliveries that are possible."""
        actions: list[Action] = []
        while leased := self._lease_next(now_s):
            actions += leased
        for lane in self._lanes.all:
            while lane.want > 0 and self._units.has(lane.deliver_k, State.READY):
                actions.append(self._deliver(lane, now_s))
            if lane.want > 0 and self._units.is_over(lane.deliver_k) and not lane.end_sent:
                assert lane.trainer is not None
                lane.end_sent = True
                actions.append(Send(lane.trainer, m.End(lane.number)))
        return actions

    def _lease_next(self, now_s: float) -> list[Action]:
        """Lease (or skip) the first possible unit; no action without one."""
        heads = self._lanes.heads(self._units.planned)
        for k in self._to_lease(heads):
            if self._failures.is_skipped(k):
                tally = self._failures.skipped(self._units.planned[k])
                self._units.held[k] = HeldUnit(State.READY, None, tally=tally)
                return [Quarantine(tally.bad)]
            peer = self._decoders.idle
            if peer is None:
                return []
            slot = self._units.claim_slot(k, heads)
            if slot is not None:
                return [self._lease(k, slot, peer, now_s)]
        return []

    def _to_lease(self, heads: Collection[int]) -> Iterator[int]:
        """Units that are wanted, planned and absent: heads that a trainer waits for, then the lowest of each lane. Not
        a complete list: the caller takes the first it can.
        """
        if not self.began:
            return
        yield from sorted(k for k in heads if self._units.can_be_leased(k))
        first = (self._units.first_to_lease(lane.deliver_k, self._lanes.num) for lane in self._lanes.all)
        yield from sorted(k for k in first if k is not None)

    def _lease(self, k: int, slot: int, peer: str, now_s: float) -> Send:
        self._last_lease += 1
        self._units.held[k] = HeldUnit(State.LEASED, slot, self._last_lease, peer)
        self._decoders.by_name[peer].lease(self._last_lease, k)
        lease = m.Lease(self._last_lease, slot, self._units.planned[k])
        self._history.add(now_s, peer, lease)
        return Send(peer, lease)

    def _deliver(self, lane: LaneState, now_s: float) -> Send:
        assert lane.trainer is not None
        k = lane.deliver_k
        held, unit = self._units.held[k], self._units.planned[k]
        held.state = State.DELIVERED
        self._lanes.delivered(lane, unit.epoch, held.layout.events)
        delivered = m.DeliveredUnit(
            k=k,
            epoch=unit.epoch,
            block=unit.block,
            block_first_unit=unit.block_first_unit,
            slot=-1 if held.slot is None else held.slot,
            lease=held.lease,
            layout=held.layout,
            tally=held.tally,
            block_quarantined=unit.quarantined if k == unit.block_first_unit else (),
            bad_files=self._units.bad_files_since(k - self._lanes.num, k),
            source=unit.source,
            content=held.content,
        )
        self._history.add(now_s, lane.trainer, delivered)
        return Send(lane.trainer, delivered)

    def stall(self, staging_full: bool) -> str | None:
        """Reason that nothing can be leased now; None if nothing needs to be."""
        units = self._units
        if not self.began or (units.ended and self._nothing_to_lease()):
            return None
        waits = units.num(State.READY) or self._decoders.idle is not None  # a peer waits for a slot to become free
        if not units.free and waits:
            # The trainer may wait for a lane's head while all units behind it are ready: then a decoder is late.
            waits_for_head = any(lane.want > 0 and units.has(lane.deliver_k, State.LEASED) for lane in self._lanes.all)
            return "no_credit" if waits_for_head else "no_free_slot"
        if self._nothing_to_lease():
            # All staged units are decoded, and the trainer still holds some of them: the data waits for it.
            waits_for_trainer = staging_full and (units.num(State.READY) or units.num(State.DELIVERED))
            return "no_free_slot" if waits_for_trainer else "not_staged"
        return "no_credit"

    def _nothing_to_lease(self) -> bool:
        return next(self._to_lease(self._lanes.heads(self._units.planned)), None) is None
