"""The dispatcher: the only owner of units, leases and slots. Messages and deaths in, actions out; no IO, no clock.

A unit is absent, leased, ready, delivered, and absent again. The slot is bound when the lease is given, and leases go
to the lowest unit that is wanted and absent, heads of lanes first. So a head that its trainer waits for gets a free
slot, or takes the slot of a unit that nobody waits for, and delivery in order can't deadlock. "Next to lease" is
derived, never stored.

Unit k belongs to lane k mod ``lanes``; each lane is delivered in order, to the one trainer that took it. There are at
least as many slots as lanes, and a trainer asks for at most slots / lanes units of each
(services/trainer/stream/lane.py).

Silence of a decoder counts only while the dispatcher itself is awake: the gap between two ticks counts as at most
``_LONGEST_GAP_S``, so that a suspended fetcher doesn't take its own sleep for hung decoders.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import TypeAlias

from common import messages as m
from common.status import STALL_REASONS

logger = logging.getLogger(__name__)

NOTHING = m.Layout(events=0, particles=0, microbatches=0)
FENCE_GRACE_S = 5.0
"""An accepted SIGKILL that has not ended the decoder by then is not trusted: a process in uninterruptible sleep."""
_LONGEST_GAP_S = 1.0
"""Most of the time between two ticks that counts as silence of the decoders."""
_MOST_PLANNED = 1 << 16
"""Planned units, which take 1 kB each: lanes that are so far apart don't come from one checkpoint."""
_STIMULI = 4096
"""Newest messages, deaths, leases and deliveries that are kept for story()."""


class State(Enum):
    """Of a unit that is in the table; a unit that isn't is absent."""

    LEASED = "leased"
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
    """Kill this decoder: it is hung with units in work. Report back with fence_failed() if that can't be done, and
    before it with excuse() if the process is suspended."""

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
class Remember:
    """A trainer was accepted whose journal says that these whole files are bad: they stay bad."""

    files: tuple[int, ...]


@dataclass(frozen=True)
class Restage:
    """These files are gone from the disk: stage them again, and report each with restaged()."""

    files: tuple[int, ...]


@dataclass(frozen=True)
class EndRun:
    """No trainer needs more units."""


Action: TypeAlias = Send | Fence | Replan | Evict | Quarantine | Remember | Restage | EndRun


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
    content: str = ""
    """Digest of what the slot holds, as its decoder said."""


@dataclass
class _Decoder:
    """A decoder that said Hello."""

    credit: int
    silent_s: float = 0.0
    """Time awake without a message of it."""
    leases: dict[int, int] = field(default_factory=dict)
    """Lease -> k, oldest first: a decoder works in this order."""
    zombies: dict[int, int] = field(default_factory=dict)
    """Lease -> slot of units that were taken from it while it may still write."""
    decoding: int | None = None
    """Lease in work, as far as it said."""
    fenced: bool = False
    excused: bool = False
    """Its process is suspended: no unit is to blame for its silence."""
    retired: bool = False
    """It was told to leave and gets no more leases."""


@dataclass
class _Lane:
    """One ordered stream of units."""

    number: int
    deliver_k: int
    """Next unit to deliver."""
    trainer: str | None = None
    want: int = 0
    end_sent: bool = False
    finished: bool = False
    epoch: int = -1
    """Of the newest unit that was delivered."""
    committed: m.Cursor = field(default_factory=m.Cursor)


class Dispatcher:
    """See the module. ``slots`` of the arena, at least one a lane; a unit that cost ``max_unit_deaths`` decoders is
    skipped."""

    def __init__(
        self, *, slots: int, plan_hash: str, max_unit_deaths: int, stall_timeout_s: float, lanes: int = 1
    ) -> None:
        if slots < lanes:
            raise ValueError(f"{slots} slots can't serve {lanes} lanes")
        self.slots = slots
        self.lanes = [_Lane(number, deliver_k=number) for number in range(lanes)]
        self.plan_hash = plan_hash
        self.max_unit_deaths = max_unit_deaths
        self.stall_timeout_s = stall_timeout_s
        self.free = list(range(slots))  # heap
        self.units: dict[int, m.Unit] = {}
        self.first_k = self.next_k = 0  # planned are the units from the one to below the other
        self._committed_k = 0  # files of what is before it may be evicted
        self.plan_ended = False
        self.attached_once = False
        self.stall: str | None = None
        """Why nothing can be leased since the last tick."""
        self.problem = ""
        """Newest machine error of a decoder; empty once a unit is decoded."""
        self.stalled_s = dict.fromkeys(STALL_REASONS, 0.0)
        self.barren_epochs = 0
        """Whole epochs of which no unit had an event to train."""
        self.counts: Counter[str] = Counter()
        self._table: dict[int, _Entry] = {}
        self._decoders: dict[str, _Decoder] = {}
        self._deaths: Counter[int] = Counter()
        self._skip: dict[int, str] = {}
        self._restaged: dict[int, set[int]] = {}  # unit -> files of it that are still on their way
        self._last_lease = 0
        self._ticked_s: float | None = None
        self._judged_epoch: int | None = None
        """The epoch in which deliveries began; then the newest of which all units were delivered."""
        self._events_of_epoch: Counter[int] = Counter()
        """Events delivered of later ones."""
        self._now_s = 0.0
        """Newest time that was passed in."""
        self._stimuli: deque[tuple[float, str, object]] = deque(maxlen=_STIMULI)
        """(time, peer, message or word): what arrived, and the leases and deliveries that followed."""

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
    def trainers(self) -> list[str]:
        """Trainers that took a lane."""
        return list(dict.fromkeys(lane.trainer for lane in self.lanes if lane.trainer is not None))

    @property
    def starved(self) -> bool:
        """True if a trainer waits for a lane, and no planned unit is left to give it."""
        return any(lane.want > 0 and lane.deliver_k >= self.next_k for lane in self.lanes) and not self.plan_ended

    @property
    def plan_is_long(self) -> bool:
        """True if no more units need to be planned now, wherever a trainer says that it is."""
        return len(self.units) >= _MOST_PLANNED

    @property
    def furthest_k(self) -> int:
        """The next unit of the lane that is furthest ahead: staging follows it."""
        return max(lane.deliver_k for lane in self.lanes)

    @property
    def units_ahead(self) -> int:
        """Planned units that are not delivered yet."""
        return sum(len(range(lane.deliver_k, self.next_k, len(self.lanes))) for lane in self.lanes)

    @property
    def num_staying(self) -> int:
        """Decoders that were not told to leave."""
        return sum(not decoder.retired for decoder in self._decoders.values())

    @property
    def num_busy(self) -> int:
        """Those of them that hold a lease."""
        return sum(bool(decoder.leases) and not decoder.retired for decoder in self._decoders.values())

    @property
    def trainer_waits(self) -> bool:
        """True if a trainer wants a unit that is not ready."""
        return any(lane.want and not (self.plan_ended and lane.deliver_k >= self.next_k) for lane in self.lanes)

    @property
    def prefetched(self) -> float:
        """Units at the trainers, as a part of those that they asked for."""
        delivered = self.num(State.DELIVERED)
        return delivered / (delivered + sum(lane.want for lane in self.lanes)) if delivered else 0.0

    def retire(self) -> list[Action]:
        """Let a decoder go once it has finished what it holds: the newest of those that hold least."""
        staying = [(len(d.leases), -i, peer) for i, (peer, d) in enumerate(self._decoders.items()) if not d.retired]
        if not staying:
            return []
        peer = min(staying)[2]
        self._decoders[peer].retired = True
        logger.info("decoder %s is told to leave", peer)
        return [Send(peer, m.Retire())]

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
        if not isinstance(message, m.Beat):
            self._stimuli.append((now_s, peer, message))
        decoder = self._decoders.get(peer)
        if decoder is not None:
            decoder.silent_s = 0.0
        match message:
            case m.Hello(credit) if decoder is None and not self._lanes_of(peer):
                self._decoders[peer] = _Decoder(credit=credit)
                logger.info("decoder %s joined with credit %d", peer, credit)
            case m.Decoding(_, lease) if decoder is not None and lease in (decoder.leases | decoder.zombies):
                decoder.decoding = lease
            case m.Done(k, lease) if decoder is not None:
                actions += self._done(decoder, message)
            case m.Failed(k, lease, reason, gone, machine) if decoder is not None:
                if self._finish_lease(decoder, k, lease):
                    # Once is no fault of its own; what is gone again and again is.
                    is_new = gone and k not in self._restaged
                    self._return_unit(k, blamed=not is_new and not machine, reason=reason)
                    self.problem = reason if machine else self.problem
                    if is_new:
                        actions += self._restage(k)
            case m.Beat() if decoder is not None:
                pass
            case m.Bye() if decoder is not None:
                logger.info("decoder %s left", peer)
                self._drop_decoder(peer, blame=False)
            case m.Attach():
                actions += self._attach(peer, message)
            case m.Want(number, units) if self._takes(peer, number):
                self.lanes[number].want += units
                self.lanes[number].end_sent = False
            case m.Release(k) if self._takes(peer, k % len(self.lanes)) and self._is(k, State.DELIVERED):
                self._free_slot(self._table.pop(k).slot)
            case m.Reject(k, reason) if self._takes(peer, k % len(self.lanes)) and self._is(k, State.DELIVERED):
                self._return_unit(k, blamed=True, reason=reason)  # decoded again once the trainer attaches before it
            case m.Committed(cursors) if self._can_be_committed(peer, cursors):
                for lane in self._lanes_of(peer):
                    lane.committed = cursors[lane.number]
                actions.append(Evict(min(self._first_needed_block(lane.committed) for lane in self.lanes)))
                self._committed_k = max(self._committed_k, min(lane.committed.unit for lane in self.lanes))
                self._forget_before(self._committed_k)
            case m.Finished() if self._lanes_of(peer):
                for lane in self._lanes_of(peer):
                    lane.finished = True
                if all(lane.finished for lane in self.lanes):
                    actions.append(EndRun())
            case _:
                self.counts["unexpected_messages"] += 1
                number = self.counts["unexpected_messages"]
                if not number & (number - 1):  # 1, 2, 4, 8, …: who sends a million of them fills no disk
                    logger.warning("dropped an unexpected %s from %s; so far %d", type(message).__name__, peer, number)
        return actions + self._pump()

    def lose(self, peer: str) -> list[Action]:
        """``peer`` is proven dead (or closed its lifeline): it can't write any more."""
        self._stimuli.append((self._now_s, peer, "lost"))
        if peer in self._decoders:
            self.counts["decoders_lost"] += 1
            logger.warning("decoder %s is gone", peer)
            self._drop_decoder(peer, blame=True)
        if self._lanes_of(peer):
            self.counts["trainers_lost"] += 1
            logger.warning("trainer %s is gone", peer)
            for lane in self._lanes_of(peer):
                self._drop_trainer(lane)
        return self._pump()

    def restaged(self, file: int) -> list[Action]:
        """A file was staged (or turned out to be bad): units that waited for it may be leased."""
        for files in self._restaged.values():
            files.discard(file)
        return self._pump()

    def fence_failed(self, peer: str) -> list[Action]:
        """``peer`` could not be killed: its slots stay out of service, its units go to others in other slots."""
        self._stimuli.append((self._now_s, peer, "not killed"))
        decoder = self._decoders.get(peer)
        if decoder is not None:
            blamed = self._blamed(decoder)
            for lease, k in decoder.leases.items():
                self._make_zombie(decoder, lease, k)
                if lease == blamed:
                    self._blame(k, f"decoder {peer} hung")
            decoder.leases.clear()
        return self._pump()

    def excuse(self, peer: str) -> None:
        """``peer`` is silent because its process is stopped or waits for the machine: its unit is not to blame."""
        if peer in self._decoders:
            self._decoders[peer].excused = True

    def tick(self, now_s: float, *, staging_full: bool = False) -> list[Action]:
        """Time passed: find hung decoders, and note why nothing could be leased.

        ``staging_full``: nothing is on its way, because as much is staged ahead of the trainer as may be.
        """
        self._now_s = now_s
        gap_s = now_s - self._ticked_s if self._ticked_s is not None else 0.0
        if self.stall is not None:
            self.stalled_s[self.stall] += gap_s
        self.stall, self._ticked_s = self._stall(staging_full), now_s
        actions: list[Action] = []
        for peer, decoder in self._decoders.items():
            decoder.silent_s += min(gap_s, _LONGEST_GAP_S)
            if not decoder.leases or decoder.silent_s <= self.stall_timeout_s:
                continue
            if not decoder.fenced:
                logger.warning("decoder %s hangs in lease %s: fencing it", peer, self._blamed(decoder))
                decoder.fenced = True
                self._stimuli.append((now_s, peer, "fenced"))
                actions.append(Fence(peer))
            elif decoder.silent_s > self.stall_timeout_s + FENCE_GRACE_S:
                logger.warning("decoder %s was killed and is not dead; its slots wait for its end", peer)
                actions += self.fence_failed(peer)
        return actions

    # -------------------------------------------------------------- decoders

    def _done(self, decoder: _Decoder, done: m.Done) -> list[Action]:
        if not self._finish_lease(decoder, done.k, done.lease):
            return []
        tally, layout, unit = done.tally, done.layout, self.units[done.k]
        accounted = layout.events + tally.outliers + tally.empty + tally.quarantined
        files = {part.file for part in unit.parts}
        if not accounted == tally.rows_read == unit.rows or any(bad.file not in files for bad in tally.bad):
            reason = f"the tally of unit {done.k} doesn't add up: {layout}, {tally!s:.500}"
            self._return_unit(done.k, blamed=True, reason=reason)
            return []
        entry = self._table[done.k]
        entry.state, entry.decoder, entry.layout, entry.tally = State.READY, None, layout, tally
        entry.content = done.content
        self.counts["events_decoded"] += tally.rows_read
        self.problem = ""
        return [Quarantine(tally.bad)] if tally.bad else []

    def _finish_lease(self, decoder: _Decoder, k: int, lease: int) -> bool:
        """The decoder is through with a lease; True if the lease still counts."""
        if decoder.decoding == lease:
            decoder.decoding = None
        decoder.fenced = decoder.excused = False
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
            self._return_unit(k, blamed=lease == blamed, reason=f"decoder {peer} died")

    @staticmethod
    def _blamed(decoder: _Decoder) -> int | None:
        """The lease in work. A decoder may die before its Decoding got out: then it is the oldest."""
        if decoder.excused:
            return None
        return decoder.decoding if decoder.decoding is not None else next(iter(decoder.leases), None)

    def _return_unit(self, k: int, *, blamed: bool, reason: str) -> None:
        """A unit that nobody writes or reads any more is absent again, and its slot free."""
        self._free_slot(self._table.pop(k).slot)
        if blamed:
            self._blame(k, reason)

    def _restage(self, k: int) -> list[Action]:
        files = {part.file for part in self.units[k].parts if part.remote}
        on_their_way = set().union(*self._restaged.values())
        self._restaged[k] = files
        return [Restage(tuple(sorted(files - on_their_way)))]

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
        reason = self._refusal(peer, attach)
        if reason is not None:
            return [Send(peer, m.Refuse(reason))]
        taken = [lane for lane in self.lanes if lane.number % attach.ranks == attach.rank]
        for lane in taken:
            lane.trainer, lane.want, lane.end_sent, lane.finished = peer, 0, False, False
        logger.info("trainer %s attached, rank %d of %d, at %s", peer, attach.rank, attach.ranks, attach.cursors)
        # The first one knows where all lanes are; the others then say where theirs are.
        moved = taken if self.attached_once else self.lanes
        self.attached_once = True
        return [Remember(attach.bad_files), *self._seek(moved, attach.cursors)]

    def _refusal(self, peer: str, attach: m.Attach) -> str | None:
        """Why a trainer can't have what it asks for; None if it can."""
        num_lanes = len(self.lanes)
        if attach.plan_hash != self.plan_hash:
            return f"the checkpoint belongs to plan {attach.plan_hash:.12}, this run has plan {self.plan_hash:.12}"
        if num_lanes % attach.ranks or attach.rank >= attach.ranks:
            return (
                f"rank {attach.rank} of {attach.ranks} can't be: stream.lanes = {num_lanes} must be a multiple of the "
                "number of trainers"
            )
        wrong = any(cursor.unit % num_lanes != lane for lane, cursor in enumerate(attach.cursors))
        if len(attach.cursors) != num_lanes or wrong:
            return f"its cursors are not those of {num_lanes} lanes"
        if not _are_possible(attach.cursors):
            return f"no plan has the places {attach.cursors!s:.500}"
        taken = [lane for lane in self.lanes if lane.number % attach.ranks == attach.rank]
        if peer in self._decoders or any(lane.trainer not in (None, peer) for lane in taken):
            return "a trainer is already attached to this run"
        return None

    def _can_be_committed(self, peer: str, cursors: Sequence[m.Cursor]) -> bool:
        """True if ``peer`` has lanes, and each of their cursors is a place of the plan that it was delivered."""
        lanes = self._lanes_of(peer)
        return (
            bool(lanes)
            and len(cursors) == len(self.lanes)
            and all(
                _are_possible([cursors[lane.number]])
                and cursors[lane.number].unit % len(self.lanes) == lane.number
                and cursors[lane.number].unit <= lane.deliver_k
                for lane in lanes
            )
        )

    def _takes(self, peer: str, number: int) -> bool:
        return number < len(self.lanes) and self.lanes[number].trainer == peer

    def _lanes_of(self, peer: str) -> list[_Lane]:
        return [lane for lane in self.lanes if lane.trainer == peer]

    def _drop_trainer(self, lane: _Lane) -> None:
        lane.trainer, lane.want = None, 0
        for k, entry in list(self._table.items()):
            if entry.state is State.DELIVERED and k % len(self.lanes) == lane.number:
                is_needed = k >= lane.committed.unit
                if is_needed:
                    lane.deliver_k = min(lane.deliver_k, k)
                if is_needed and k in self.units:
                    entry.state = State.READY
                else:  # its files may be evicted; or another lane's seek went back, and it is not planned again yet
                    self._free_slot(self._table.pop(k).slot)

    def _seek(self, lanes: Sequence[_Lane], cursors: Sequence[m.Cursor]) -> list[Action]:
        """Deliver ``lanes`` from their cursors on: keep what is still wanted, drop the rest."""
        moved = {lane.number for lane in lanes}
        for lane in lanes:
            lane.committed = cursors[lane.number]
        needed = [lane.committed for lane in self.lanes]
        end_k = self.next_k + len(self.lanes)  # a lane's next unit may be the first few that are not planned yet
        # A unit behind a commit may still be planned, because it was held; its files are evicted.
        first_k = max(self.first_k, self._committed_k)
        known = bool(self.units) and all(first_k <= cursor.unit < end_k for cursor in needed)
        for k, entry in list(self._table.items()):
            number = k % len(self.lanes)
            if entry.state is State.DELIVERED and number not in moved:
                continue  # its trainer reads it
            if not known or (number in moved and k < cursors[number].unit):
                self._drop(k)
            elif entry.state is State.DELIVERED:
                entry.state = State.READY
        for lane in lanes:
            lane.deliver_k = cursors[lane.number].unit
        if known:
            return []
        earliest = min(needed, key=lambda cursor: (cursor.block, cursor.block_first_unit))
        self.units.clear()
        self._restaged.clear()
        self.first_k = self.next_k = self._committed_k = earliest.block_first_unit
        self.plan_ended = False
        return [Replan(earliest)]

    def _drop(self, k: int) -> None:
        """Nobody wants unit k any more."""
        entry = self._table[k]
        decoder = self._decoders.get(entry.decoder or "")
        if decoder is not None:
            del decoder.leases[entry.lease]
            self._make_zombie(decoder, entry.lease, k)
        else:
            self._free_slot(self._table.pop(k).slot)

    # -------------------------------------------------------------- leasing and delivering

    def _pump(self) -> list[Action]:
        actions: list[Action] = []
        while leased := self._lease_next():
            actions += leased
        for lane in self.lanes:
            while lane.want > 0 and self._is(lane.deliver_k, State.READY):
                actions.append(self._deliver(lane))
            if lane.want > 0 and self.plan_ended and lane.deliver_k >= self.next_k and not lane.end_sent:
                assert lane.trainer is not None
                lane.end_sent = True
                actions.append(Send(lane.trainer, m.End(lane.number)))
        return actions

    def _lease_next(self) -> list[Action]:
        """Lease (or skip) the first unit that can be; nothing if none can."""
        for k in self._to_lease():
            if k in self._skip:
                return self._skip_unit(k)
            peer = self._idle_decoder()
            if peer is None:
                return []
            slot = self._claim_slot(k)
            if slot is not None:
                return [self._lease(k, slot, peer)]
        return []

    def _to_lease(self) -> Iterator[int]:
        """Units that are wanted, planned and absent: heads that a trainer waits for, then the lowest of each lane. Not
        all that there are: who asks takes the first it can.
        """
        if not self.attached_once:
            return
        yield from sorted(
            lane.deliver_k for lane in self.lanes if self._is_awaited(lane) and self._is_to_lease(lane.deliver_k)
        )
        yield from sorted(k for lane in self.lanes if (k := self._first_to_lease(lane)) is not None)

    def _is_awaited(self, lane: _Lane) -> bool:
        return lane.want > 0 and lane.deliver_k in self.units

    def _is_to_lease(self, k: int) -> bool:
        return k not in self._table and not self._restaged.get(k)

    def _first_to_lease(self, lane: _Lane) -> int | None:
        for k in range(lane.deliver_k, self.next_k, len(self.lanes)):
            if self._is_to_lease(k):
                return k
        return None

    def _idle_decoder(self) -> str | None:
        """The decoder with the most credit; the name decides among equals."""
        idle = [
            (-d.credit, peer) for peer, d in self._decoders.items() if d.credit > 0 and not d.fenced and not d.retired
        ]
        return min(idle)[1] if idle else None

    def _claim_slot(self, k: int) -> int | None:
        """A free slot; an awaited head may take one of a unit that nobody waits for."""
        if self.free:
            return heapq.heappop(self.free)
        heads = {lane.deliver_k for lane in self.lanes if self._is_awaited(lane)}
        if k not in heads:
            return None
        held = (j for j in self._table if self._is(j, State.READY) and self._table[j].slot is not None)
        behind = [j for j in held if j not in heads]
        return self._table.pop(max(behind)).slot if behind else None

    def _lease(self, k: int, slot: int, peer: str) -> Send:
        decoder = self._decoders[peer]
        self._last_lease += 1
        if not decoder.leases:
            decoder.silent_s = 0.0  # an idle decoder says nothing: it is late from now on
        self._table[k] = _Entry(State.LEASED, slot, self._last_lease, peer)
        decoder.leases[self._last_lease] = k
        decoder.credit -= 1
        lease = m.Lease(self._last_lease, slot, self.units[k])
        self._stimuli.append((self._now_s, peer, lease))
        return Send(peer, lease)

    def _skip_unit(self, k: int) -> list[Action]:
        """Put unit k on the line without content; its events are quarantined."""
        unit = self.units[k]
        # One entry: what killed the decoders may be any of its files, and none of them counts as bad for it twice.
        bad = tuple(
            m.Quarantined(part.file, part.row_group, unit.rows, self._skip[k][:2000]) for part in unit.parts[:1]
        )
        tally = m.Tally(rows_read=unit.rows, quarantined=unit.rows, bad=bad)
        self._table[k] = _Entry(State.READY, None, tally=tally)
        logger.error("skipping: %s", self._skip[k])
        return [Quarantine(bad)]

    def _deliver(self, lane: _Lane) -> Send:
        assert lane.trainer is not None
        k = lane.deliver_k
        entry, unit = self._table[k], self.units[k]
        entry.state = State.DELIVERED
        self._judge_epochs(lane, unit.epoch, entry.layout.events)
        lane.deliver_k += len(self.lanes)
        lane.want -= 1
        slot = -1 if entry.slot is None else entry.slot
        first = k == unit.block_first_unit
        delivered = m.DeliveredUnit(
            k=k,
            epoch=unit.epoch,
            block=unit.block,
            block_first_unit=unit.block_first_unit,
            slot=slot,
            lease=entry.lease,
            layout=entry.layout,
            tally=entry.tally,
            block_quarantined=unit.quarantined if first else (),
            bad_files=self._bad_files_since(k - len(self.lanes), k),
            source=unit.source,
            content=entry.content,
        )
        self._stimuli.append((self._now_s, lane.trainer, delivered))
        return Send(lane.trainer, delivered)

    def _judge_epochs(self, lane: _Lane, epoch: int, events: int) -> None:
        """Count the epochs of which every lane has been delivered the last unit, and none had an event."""
        lane.epoch = epoch
        self._events_of_epoch[epoch] += events
        if self._judged_epoch is None:
            self._judged_epoch = epoch
        for complete in range(self._judged_epoch + 1, min(lane.epoch for lane in self.lanes)):
            self._judged_epoch = complete
            self.barren_epochs += self._events_of_epoch.pop(complete, None) == 0

    def _bad_files_since(self, former_k: int, k: int) -> tuple[int, ...]:
        """Files that gave no units, of the blocks that begin behind unit ``former_k``, up to ``k``."""
        units = (self.units[j] for j in range(former_k + 1, k + 1) if j in self.units)
        return tuple(dict.fromkeys(bad.file for unit in units for bad in unit.quarantined))  # epochs may be short

    # -------------------------------------------------------------- small things

    def _first_needed_block(self, cursor: m.Cursor) -> int:
        """The block of the first unit that a trainer at ``cursor`` needs of a lane, as far as it is planned."""
        if cursor.unit in self.units:
            return self.units[cursor.unit].block
        # A block's units are planned together: if none follows in the lane, all that are planned are used up.
        used_up = cursor.unit >= self.next_k and self.next_k - 1 in self.units
        return self.units[self.next_k - 1].block + 1 if used_up else cursor.block

    def _forget_before(self, k: int) -> None:
        """Nobody can come back for units before k; one that is still held is kept until its release."""
        held = (j for j in self._table if self._is(j, State.DELIVERED))
        bound = min([k, *(lane.deliver_k for lane in self.lanes), *held])
        while self.first_k < min(bound, self.next_k):
            del self.units[self.first_k]
            self._deaths.pop(self.first_k, None)
            self._restaged.pop(self.first_k, None)
            self.first_k += 1

    def _is(self, k: int, *states: State) -> bool:
        return k in self._table and self._table[k].state in states

    def _free_slot(self, slot: int | None) -> None:
        if slot is not None:
            heapq.heappush(self.free, slot)

    def _stall(self, staging_full: bool) -> str | None:
        """Why nothing can be leased now; None if nothing needs to be."""
        if not self.attached_once or (self.plan_ended and next(self._to_lease(), None) is None):
            return None
        waits = self.num(State.READY) or self._idle_decoder() is not None  # somebody waits for a slot to become free
        if not self.free and waits:
            # The trainer may wait for the head of the line while all behind it is ready: then a decoder is late.
            waits_for_head = any(lane.want > 0 and self._is(lane.deliver_k, State.LEASED) for lane in self.lanes)
            return "no_credit" if waits_for_head else "no_free_slot"
        if next(self._to_lease(), None) is None:
            # What is staged ahead is decoded, and the trainer has some of it in hand: the data waits for it.
            waits_for_trainer = staging_full and (self.num(State.READY) or self.num(State.DELIVERED))
            return "no_free_slot" if waits_for_trainer else "not_staged"
        return "no_credit"

    def story(self, k: int) -> list[str]:
        """The kept stimuli of unit ``k``: its messages, and what befell the peers that had it. Oldest first."""
        about = [(now_s, peer, what) for now_s, peer, what in self._stimuli if _unit_of(what) == k]
        peers = {peer for _, peer, _ in about}
        return [
            f"{now_s:.1f} s {peer}: {what!s:.300}"
            for now_s, peer, what in self._stimuli
            if _unit_of(what) == k or (peer in peers and (isinstance(what, str | m.Hello | m.Attach | m.Bye)))
        ]

    def validate(self) -> None:
        """Raise AssertionError, with the story of the unit, if an invariant doesn't hold. For tests."""
        slots = [*self.free]
        leases: dict[int, tuple[str, int]] = {}
        for peer, decoder in self._decoders.items():
            assert decoder.credit >= 0
            slots += decoder.zombies.values()
            leases.update({k: (peer, lease) for lease, k in decoder.leases.items()})
        num_lanes, num_leased = len(self.lanes), 0
        for k, entry in self._table.items():
            state = entry.state
            if entry.slot is not None:
                slots.append(entry.slot)
            if state is State.LEASED:
                num_leased += 1
                self._check(k, leases.get(k) == (entry.decoder, entry.lease), "leases agree on both sides")
            is_delivered = state is State.DELIVERED
            has_slot = entry.slot is not None
            self._check(k, has_slot or is_delivered or state is State.READY, "who writes has a slot")
            is_behind = k < self.lanes[k % num_lanes].deliver_k
            self._check(k, is_delivered == is_behind, "delivered is what is behind the head")
            self._check(k, is_delivered or self.first_k <= k < self.next_k, "what is kept is planned")
        assert sorted(slots) == list(range(self.slots)), f"each slot has exactly one owner: {sorted(slots)}"
        assert num_leased == len(leases), "leases agree on both sides"
        for lane in self.lanes:
            assert lane.deliver_k % num_lanes == lane.number
            assert lane.trainer is not None or lane.want == 0
        num_planned = self.next_k - self.first_k
        assert len(self.units) == num_planned, "the planned units have no gap"
        assert not num_planned or (self.first_k in self.units and self.next_k - 1 in self.units)

    def _check(self, k: int, holds: bool, invariant: str) -> None:
        if not holds:
            story = "\n".join(self.story(k))
            raise AssertionError(f"unit {k}: {invariant}; {self._table.get(k)}\n{story}")


def _unit_of(what: object) -> int | None:
    """The unit that a message is about; None if it is about none."""
    return what.unit.k if isinstance(what, m.Lease) else getattr(what, "k", None)


def _are_possible(cursors: Sequence[m.Cursor]) -> bool:
    """True if one plan may have all these places: every block has at least one unit, later blocks have later units, and
    planning from the earliest block reaches all of them."""
    by_block = sorted(cursors, key=lambda cursor: (cursor.block, cursor.block_first_unit))
    return all(
        cursor.block <= cursor.block_first_unit <= cursor.unit < 2**62 and by_block[0].block_first_unit <= cursor.unit
        for cursor in cursors
    ) and all(
        later.block_first_unit - earlier.block_first_unit >= later.block - earlier.block
        and (later.block > earlier.block or later.block_first_unit == earlier.block_first_unit)
        for earlier, later in pairwise(by_block)
    )
