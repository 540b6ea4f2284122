"""Grants that the dispatcher's state allows: leases to decoders and deliveries to trainers. Pure.

The slot is bound when the lease is given, and leases go to the lowest unit that is wanted and absent, first to heads:
units that a trainer waits for. So a head gets a free slot, or takes the slot of a unit that no trainer waits for, and
delivery in order can't deadlock: several trainers never hold all slots (trainers.py). "Next to lease" is derived, never
stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from common import messages as m
from services.fetcher.dispatcher.actions import Action, Quarantine, Send
from services.fetcher.dispatcher.decoder_pool import DecoderPool
from services.fetcher.dispatcher.history import History
from services.fetcher.dispatcher.trainers import Trainers, TrainerState
from services.fetcher.dispatcher.unit_failures import UnitFailures
from services.fetcher.dispatcher.unit_table import HeldUnit, State, UnitTable


class Grants:
    """Leases and deliveries: use pump() after each change of the state."""

    def __init__(
        self, units: UnitTable, decoders: DecoderPool, trainers: Trainers, failures: UnitFailures, history: History
    ) -> None:
        self._units = units
        self._decoders = decoders
        self._trainers = trainers
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
        for one in self._trainers.all:
            while self._trainers.may_take(one) and self._units.is_decoded(one.deliver_k):
                actions.append(self._deliver(one, now_s))
            if one.want > 0 and self._units.is_over(one.deliver_k) and not one.end_sent:
                assert one.peer is not None
                one.end_sent = True
                actions.append(Send(one.peer, m.End()))
        return actions

    def _lease_next(self, now_s: float) -> list[Action]:
        """Lease (or skip) the first possible unit; no action without one."""
        heads = self._trainers.heads(self._units.planned)
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
        """Units that are wanted, planned and absent: heads, then the lowest. Not a complete list: the caller takes the
        first it can."""
        if not self.began:
            return
        yield from sorted(k for k in heads if self._units.can_be_leased(k))
        first = self._units.first_to_lease(self._trainers.first_k)
        if first is not None:
            yield first

    def _lease(self, k: int, slot: int, peer: str, now_s: float) -> Send:
        self._last_lease += 1
        self._units.held[k] = HeldUnit(State.LEASED, slot, self._last_lease, peer)
        self._decoders.by_name[peer].lease(self._last_lease, k)
        lease = m.Lease(self._last_lease, slot, self._units.planned[k], self._failures.counts.get(k, 0))
        self._history.add(now_s, peer, lease)
        return Send(peer, lease)

    def _deliver(self, one: TrainerState, now_s: float) -> Send:
        assert one.peer is not None
        k = one.deliver_k
        held, unit = self._units.held[k], self._units.planned[k]
        held.state = State.DELIVERED
        self._trainers.delivered(one, unit.epoch, held.layout.events)
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
            source=unit.source,
            content=held.content,
        )
        self._history.add(now_s, one.peer, delivered)
        return Send(one.peer, delivered)

    def stall(self, staging_full: bool) -> str | None:
        """Reason that nothing can be leased now; None if nothing needs to be."""
        units = self._units
        if not self.began or (units.ended and self._nothing_to_lease()):
            return None
        waits = units.num(State.READY) or self._decoders.idle is not None  # a peer waits for a slot to become free
        if not units.free and waits:
            # A trainer may wait for a unit while all behind it are ready: then a decoder is late.
            waits_for_head = any(units.has(k, State.LEASED) for k in self._trainers.heads(units.planned))
            return "no_credit" if waits_for_head else "no_free_slot"
        if self._nothing_to_lease():
            # All staged units are decoded, and the trainer still holds some of them: the data waits for it.
            waits_for_trainer = staging_full and (units.num(State.READY) or units.num(State.DELIVERED))
            return "no_free_slot" if waits_for_trainer else "not_staged"
        return "no_credit"

    def _nothing_to_lease(self) -> bool:
        return next(self._to_lease(self._trainers.heads(self._units.planned)), None) is None
