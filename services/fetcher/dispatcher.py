"""The dispatcher: the only owner of units, leases and slots. Messages and deaths in, actions out; no IO, no clock.

A unit is absent, leased, orphaned (leased, its decoder gone; it keeps its slot), ready, delivered, and absent again.
The slot is bound when the lease is given, and leases go to the lowest unit that is wanted and absent. So the head of
the line always owns a slot, or takes the slot of a unit behind it, and delivery in order can't deadlock.
"Next to lease" is derived, never stored.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from common import messages as m
from common.status import STALL_REASONS

logger = logging.getLogger(__name__)

NOTHING = m.Layout(events=0, particles=0, microbatches=0)


class State(Enum):
    """Of a unit that is in the table; a unit that isn't is absent."""

    LEASED = "leased"
    ORPHANED = "orphaned"
    READY = "ready"
    DELIVERED = "delivered"


# ------------------------------------------------------------------ actions: what the service shall do


@dataclass(frozen=True)
class Send:
    """Send a message to a peer."""

    peer: str
    message: m.Message


@dataclass(frozen=True)
class Fence:
    """Kill this decoder: it is hung with units in work. Report back with lose() or fence_failed()."""

    peer: str


@dataclass(frozen=True)
class Replan:
    """Plan again from this cursor's block on, and add its units from the block's first one."""

    cursor: m.Cursor


@dataclass(frozen=True)
class Evict:
    """Files of blocks before this one are not needed any more."""

    before_block: int


@dataclass(frozen=True)
class Quarantine:
    """Something turned out to be bad: count it against the failure budget."""

    bad: tuple[m.Quarantined, ...]


@dataclass(frozen=True)
class EndRun:
    """The trainer needs no more units."""


Action: TypeAlias = Send | Fence | Replan | Evict | Quarantine | EndRun


# ------------------------------------------------------------------ state


@dataclass
class _Entry:
    """A unit in the table."""

    state: State
    slot: int | None
    """None: skipped, there is nothing to hold."""
    lease: int = 0
    decoder: str | None = None
    layout: m.Layout = NOTHING
    tally: m.Tally = field(default_factory=m.Tally)


@dataclass
class _Decoder:
    """A decoder that said Hello."""

    credit: int
    heard_s: float
    leases: dict[int, int] = field(default_factory=dict)
    """Lease -> k, oldest first: a decoder works in this order."""
    zombies: dict[int, int] = field(default_factory=dict)
    """Lease -> slot of units that were taken from it while it may still write."""
    decoding: int | None = None
    """Lease in work, as far as it said."""
    fenced: bool = False


class Dispatcher:
    """See the module. ``slots`` of the arena; a unit that cost ``max_unit_deaths`` decoders is skipped."""

    def __init__(self, *, slots: int, plan_hash: str, max_unit_deaths: int, stall_timeout_s: float) -> None:
        self.slots = slots
        self.plan_hash = plan_hash
        self.max_unit_deaths = max_unit_deaths
        self.stall_timeout_s = stall_timeout_s
        self.free = list(range(slots))  # heap
        self.units: dict[int, m.Unit] = {}
        self.next_k = 0  # first unit that is not planned yet
        self.plan_ended = False
        self.deliver_k = 0
        self.trainer: str | None = None
        self.attached_once = False
        self.stalled_s = dict.fromkeys(STALL_REASONS, 0.0)
        self.counts: Counter[str] = Counter()
        self._table: dict[int, _Entry] = {}
        self._decoders: dict[str, _Decoder] = {}
        self._deaths: Counter[int] = Counter()
        self._skip: dict[int, str] = {}
        self._want = 0
        self._end_sent = False
        self._last_lease = 0
        self._ticked_s: float | None = None
        self._now_s = 0.0
        """Newest time that was passed in."""

    # -------------------------------------------------------------- what others may ask

    @property
    def decoders(self) -> list[str]:
        """Decoders that said Hello and are not lost."""
        return list(self._decoders)

    @property
    def num_decoders(self) -> int:
        """Their number."""
        return len(self._decoders)

    def num(self, state: State) -> int:
        """Units in this state."""
        return sum(entry.state is state for entry in self._table.values())

    @property
    def starved(self) -> bool:
        """True if the trainer waits, and no planned unit is left to give it."""
        return self.trainer is not None and self._want > 0 and self.deliver_k == self.next_k and not self.plan_ended

    @property
    def units_ahead(self) -> int:
        """Planned units that are not delivered yet."""
        return self.next_k - self.deliver_k

    # -------------------------------------------------------------- the plan

    def add_units(self, units: Sequence[m.Unit]) -> list[Action]:
        """Continue the plan. Raises ValueError unless the units follow the last one."""
        for unit in units:
            if unit.k != self.next_k or self.plan_ended:
                raise ValueError(f"unit {unit.k} doesn't follow the plan, which goes on with {self.next_k}")
            self.units[unit.k] = unit
            self.next_k += 1
        return self._pump()

    def end_plan(self) -> list[Action]:
        """No unit follows those that were added."""
        self.plan_ended = True
        return self._pump()

    # -------------------------------------------------------------- messages

    def handle(self, peer: str, message: m.Message, now_s: float) -> list[Action]:
        """A message arrived from ``peer``. One that doesn't fit the peer's part is counted and dropped."""
        actions: list[Action] = []
        self._now_s = now_s
        decoder = self._decoders.get(peer)
        if decoder is not None:
            decoder.heard_s = now_s
        match message:
            case m.Hello(credit) if decoder is None and peer != self.trainer:
                self._decoders[peer] = _Decoder(credit=credit, heard_s=now_s)
                logger.info("decoder %s joined with credit %d", peer, credit)
            case m.Decoding(_, lease) if decoder is not None and lease in (decoder.leases | decoder.zombies):
                decoder.decoding = lease
            case m.Done(k, lease) if decoder is not None:
                actions += self._done(decoder, message)
            case m.Failed(k, lease, reason) if decoder is not None:
                if self._finish_lease(decoder, k, lease):
                    self._orphan(k, blamed=True, reason=reason)
            case m.Beat() if decoder is not None:
                pass
            case m.Bye() if decoder is not None:
                logger.info("decoder %s left", peer)
                self._drop_decoder(peer, blame=False)
            case m.Attach():
                actions += self._attach(peer, message)
            case m.Want(units) if peer == self.trainer:
                self._want += units
                self._end_sent = False
            case m.Release(k) if peer == self.trainer and self._is(k, State.DELIVERED):
                self._free_slot(self._table.pop(k).slot)
            case m.Committed(cursor) if peer == self.trainer:
                actions.append(Evict(self._first_needed_block(cursor)))
                self._forget_before(cursor.unit)
            case m.Finished() if peer == self.trainer:
                actions.append(EndRun())
            case _:
                self.counts["unexpected_messages"] += 1
                logger.warning("dropped an unexpected %s from %s", type(message).__name__, peer)
        return actions + self._pump()

    def lose(self, peer: str) -> list[Action]:
        """``peer`` is proven dead (or closed its lifeline): it can't write any more."""
        if peer in self._decoders:
            self.counts["decoders_lost"] += 1
            logger.warning("decoder %s is gone", peer)
            self._drop_decoder(peer, blame=True)
        if peer == self.trainer:
            self.counts["trainers_lost"] += 1
            logger.warning("trainer %s is gone", peer)
            self._drop_trainer()
        return self._pump()

    def fence_failed(self, peer: str) -> list[Action]:
        """``peer`` could not be killed: its slots stay out of service, its units go to others in other slots."""
        decoder = self._decoders.get(peer)
        if decoder is not None:
            blamed = self._blamed(decoder)
            for lease, k in decoder.leases.items():
                self._make_zombie(decoder, lease, k)
                if lease == blamed:
                    self._blame(k, f"decoder {peer} hung")
            decoder.leases.clear()
        return self._pump()

    def tick(self, now_s: float) -> list[Action]:
        """Time passed: find hung decoders, and note why nothing could be leased."""
        self._now_s = now_s
        reason = self._stall()
        if reason is not None and self._ticked_s is not None:
            self.stalled_s[reason] += now_s - self._ticked_s
        self._ticked_s = now_s
        actions: list[Action] = []
        for peer, decoder in self._decoders.items():
            if decoder.leases and not decoder.fenced and now_s - decoder.heard_s > self.stall_timeout_s:
                logger.warning("decoder %s hangs in lease %s: fencing it", peer, self._blamed(decoder))
                decoder.fenced = True
                actions.append(Fence(peer))
        return actions

    # -------------------------------------------------------------- decoders

    def _done(self, decoder: _Decoder, done: m.Done) -> list[Action]:
        if not self._finish_lease(decoder, done.k, done.lease):
            return []
        tally, layout = done.tally, done.layout
        accounted = layout.events + tally.outliers + tally.empty + tally.quarantined
        if not accounted == tally.rows_read == self.units[done.k].rows:
            reason = f"the tally of unit {done.k} doesn't add up: {layout}, {tally}"
            self._orphan(done.k, blamed=True, reason=reason)
            return []
        entry = self._table[done.k]
        entry.state, entry.decoder, entry.layout, entry.tally = State.READY, None, layout, tally
        self.counts["events_decoded"] += tally.rows_read
        return [Quarantine(tally.bad)] if tally.bad else []

    def _finish_lease(self, decoder: _Decoder, k: int, lease: int) -> bool:
        """The decoder is through with a lease; True if the lease still counts."""
        if decoder.decoding == lease:
            decoder.decoding = None
        decoder.fenced = False
        if lease in decoder.zombies:
            self._free_slot(decoder.zombies.pop(lease))
            decoder.credit += 1
            return False
        if decoder.leases.get(lease) != k:
            self.counts["stale_messages"] += 1
            return False
        del decoder.leases[lease]
        decoder.credit += 1
        return True

    def _drop_decoder(self, peer: str, *, blame: bool) -> None:
        decoder = self._decoders.pop(peer)
        for slot in decoder.zombies.values():
            self._free_slot(slot)
        blamed = self._blamed(decoder) if blame else None
        for lease, k in decoder.leases.items():
            self._orphan(k, blamed=lease == blamed, reason=f"decoder {peer} died")

    @staticmethod
    def _blamed(decoder: _Decoder) -> int | None:
        """The lease in work. A decoder may die before its Decoding got out: then it is the oldest."""
        return decoder.decoding if decoder.decoding is not None else next(iter(decoder.leases), None)

    def _orphan(self, k: int, *, blamed: bool, reason: str) -> None:
        entry = self._table[k]
        entry.state, entry.decoder = State.ORPHANED, None
        if blamed:
            self._blame(k, reason)

    def _blame(self, k: int, reason: str) -> None:
        self._deaths[k] += 1
        logger.warning("unit %d failed %d time(s): %s", k, self._deaths[k], reason)
        if self._deaths[k] >= self.max_unit_deaths:
            self._skip[k] = f"unit {k} failed {self._deaths[k]} times, last: {reason}"

    def _make_zombie(self, decoder: _Decoder, lease: int, k: int) -> None:
        """Take a unit from a decoder that may still write into its slot."""
        slot = self._table.pop(k).slot
        assert slot is not None
        decoder.zombies[lease] = slot

    # -------------------------------------------------------------- the trainer

    def _attach(self, peer: str, attach: m.Attach) -> list[Action]:
        if attach.plan_hash != self.plan_hash:
            reason = f"the checkpoint belongs to plan {attach.plan_hash:.12}, this run has plan {self.plan_hash:.12}"
            return [Send(peer, m.Refuse(reason))]
        if self.trainer not in (None, peer) or peer in self._decoders:
            return [Send(peer, m.Refuse("a trainer is already attached to this run"))]
        if not _is_possible(attach.cursor):
            return [Send(peer, m.Refuse(f"no plan has a place {attach.cursor}"))]
        self.trainer = peer
        self.attached_once = True
        self._want = 0
        self._end_sent = False
        for k in attach.skipped_units:
            self._skip.setdefault(k, f"unit {k} was skipped before")
        logger.info("trainer %s attached at %s", peer, attach.cursor)
        return self._seek(attach.cursor)

    def _drop_trainer(self) -> None:
        self.trainer = None
        self._want = 0
        for k, entry in self._table.items():
            if entry.state is State.DELIVERED:
                entry.state = State.READY
                self.deliver_k = min(self.deliver_k, k)

    def _seek(self, cursor: m.Cursor) -> list[Action]:
        """Deliver from ``cursor`` on: keep what is still wanted, drop the rest."""
        actions: list[Action] = []
        first_k = next(iter(self.units), self.next_k)
        known = bool(self.units) and first_k <= cursor.unit <= self.next_k
        for k, entry in list(self._table.items()):
            if k < cursor.unit or not known:
                decoder = self._decoders.get(entry.decoder or "")
                if decoder is not None:
                    del decoder.leases[entry.lease]
                    self._make_zombie(decoder, entry.lease, k)
                else:
                    self._free_slot(self._table.pop(k).slot)
            elif entry.state is State.DELIVERED:
                entry.state = State.READY
        self.deliver_k = cursor.unit
        if not known:
            self.units.clear()
            self.next_k = cursor.block_first_unit
            self.plan_ended = False
            actions.append(Replan(cursor))
        return actions

    # -------------------------------------------------------------- leasing and delivering

    def _pump(self) -> list[Action]:
        actions: list[Action] = []
        while (k := self._next_to_lease()) is not None:
            if k in self._skip:
                actions += self._skip_unit(k)
                continue
            peer = self._idle_decoder()
            slot = self._claim_slot(k) if peer is not None else None
            if peer is None or slot is None:
                break
            actions.append(self._lease(k, slot, peer))
        while self._want > 0 and self._is(self.deliver_k, State.READY):
            actions.append(self._deliver(self.deliver_k))
        if self._want > 0 and self.plan_ended and self.deliver_k >= self.next_k and not self._end_sent:
            assert self.trainer is not None
            self._end_sent = True
            actions.append(Send(self.trainer, m.End()))
        return actions

    def _next_to_lease(self) -> int | None:
        """Lowest unit that is wanted, planned, and absent or orphaned."""
        if not self.attached_once:
            return None
        for k in range(self.deliver_k, self.next_k):
            if k not in self._table or self._table[k].state is State.ORPHANED:
                return k
        return None

    def _idle_decoder(self) -> str | None:
        """The decoder with the most credit; the name decides among equals."""
        idle = [(-d.credit, peer) for peer, d in self._decoders.items() if d.credit > 0 and not d.fenced]
        return min(idle)[1] if idle else None

    def _claim_slot(self, k: int) -> int | None:
        """The orphan's own slot, else a free one; the head of the line may take one from a unit behind it."""
        if k in self._table:
            return self._table[k].slot
        if self.free:
            return heapq.heappop(self.free)
        if k != self.deliver_k:
            return None
        behind = [
            j for j in self._table if self._is(j, State.READY, State.ORPHANED) and self._table[j].slot is not None
        ]
        return self._table.pop(max(behind)).slot if behind else None

    def _lease(self, k: int, slot: int, peer: str) -> Send:
        decoder = self._decoders[peer]
        self._last_lease += 1
        if not decoder.leases:
            decoder.heard_s = self._now_s  # an idle decoder says nothing: it is late from now on
        self._table[k] = _Entry(State.LEASED, slot, self._last_lease, peer)
        decoder.leases[self._last_lease] = k
        decoder.credit -= 1
        return Send(peer, m.Lease(self._last_lease, slot, self.units[k]))

    def _skip_unit(self, k: int) -> list[Action]:
        """Put unit k on the line without content; its events are quarantined."""
        if k in self._table:
            self._free_slot(self._table[k].slot)
        unit = self.units[k]
        # One entry: what killed the decoders may be any of its files, and none of them counts as bad for it twice.
        bad = tuple(
            m.Quarantined(part.file, part.row_group, unit.rows, self._skip[k][:2000]) for part in unit.parts[:1]
        )
        tally = m.Tally(rows_read=unit.rows, quarantined=unit.rows, bad=bad)
        self._table[k] = _Entry(State.READY, None, tally=tally)
        logger.error("skipping: %s", self._skip[k])
        return [Quarantine(bad)]

    def _deliver(self, k: int) -> Send:
        assert self.trainer is not None
        entry, unit = self._table[k], self.units[k]
        entry.state = State.DELIVERED
        self.deliver_k += 1
        self._want -= 1
        slot = -1 if entry.slot is None else entry.slot
        first = k == unit.block_first_unit
        return Send(
            self.trainer,
            m.DeliveredUnit(
                k=k,
                epoch=unit.epoch,
                block=unit.block,
                block_first_unit=unit.block_first_unit,
                slot=slot,
                lease=entry.lease,
                layout=entry.layout,
                tally=entry.tally,
                block_quarantined=unit.quarantined if first else (),
            ),
        )

    # -------------------------------------------------------------- small things

    def _first_needed_block(self, cursor: m.Cursor) -> int:
        """The block of the first unit that a trainer at ``cursor`` needs, as far as it is planned."""
        if cursor.unit in self.units:
            return self.units[cursor.unit].block
        # A block's units are planned together: if none follows, the cursor's block is used up.
        used_up = cursor.unit == self.next_k and cursor.unit - 1 in self.units
        return cursor.block + 1 if used_up else cursor.block

    def _forget_before(self, k: int) -> None:
        """Nobody can come back for units before k; one that is still held is kept until its release."""
        bound = min([k, self.deliver_k, *(j for j in self._table if self._is(j, State.DELIVERED))])
        for j in [j for j in self.units if j < bound]:
            del self.units[j]
            self._deaths.pop(j, None)

    def _is(self, k: int, *states: State) -> bool:
        return k in self._table and self._table[k].state in states

    def _free_slot(self, slot: int | None) -> None:
        if slot is not None:
            heapq.heappush(self.free, slot)

    def _stall(self) -> str | None:
        """Why nothing can be leased now; None if nothing needs to be."""
        if not self.attached_once or (self.plan_ended and self._next_to_lease() is None):
            return None
        if not self.free and self.num(State.READY) and not self.num(State.ORPHANED):
            # The trainer may wait for the head of the line while all behind it is ready: then a decoder is late.
            waits_for_head = self._want > 0 and self._is(self.deliver_k, State.LEASED)
            return "no_credit" if waits_for_head else "no_free_slot"
        if self._next_to_lease() is None:
            return "not_staged"
        return "no_credit"

    def validate(self) -> None:
        """Raise AssertionError if an invariant doesn't hold. For tests."""
        zombies = [slot for decoder in self._decoders.values() for slot in decoder.zombies.values()]
        held = [entry.slot for entry in self._table.values() if entry.slot is not None]
        assert sorted([*self.free, *zombies, *held]) == list(range(self.slots)), "each slot has exactly one owner"
        leased = {k: e for k, e in self._table.items() if e.state is State.LEASED}
        of_decoders = {k: (peer, lease) for peer, d in self._decoders.items() for lease, k in d.leases.items()}
        assert of_decoders == {k: (e.decoder, e.lease) for k, e in leased.items()}, "leases agree on both sides"
        assert all(d.credit >= 0 for d in self._decoders.values())
        assert all(e.slot is not None for e in self._table.values() if e.state in (State.LEASED, State.ORPHANED))
        delivered = [k for k, e in self._table.items() if e.state is State.DELIVERED]
        assert all(k < self.deliver_k for k in delivered), "what is delivered is behind the line's head"
        assert all(k >= self.deliver_k for k in self._table if k not in delivered), "nothing is kept that nobody wants"
        assert _consecutive(self.units, self.next_k), "the planned units have no gap"
        assert self.trainer is not None or self._want == 0


def _is_possible(cursor: m.Cursor) -> bool:
    """Every block has at least one unit, and a plan goes on from any of them."""
    return cursor.block <= cursor.block_first_unit <= cursor.unit < 2**62


def _consecutive(keys: Iterable[int], end: int) -> bool:
    found = list(keys)
    return found == list(range(end - len(found), end))
