"""State of the dispatcher, in parts that don't know each other: units and slots, decoders, trainers. Pure.

A unit is absent, leased, ready, delivered to one trainer or several, and absent again. A slot is free, or held by a
unit, or out of service: a decoder that lost its unit may still write there.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from common import messages as m

logger = logging.getLogger(__name__)

NO_EVENTS = m.Layout(events=0, particles=0, microbatches=0)
TAKEN = "a trainer is already attached to this run"
FENCE_GRACE_S = 5.0
"""Time after a SIGKILL from which a living decoder counts as in uninterruptible sleep: the kill is not trusted."""
_LONGEST_GAP_S = 1.0
"""Longest time between two ticks that counts as silence of the decoders: a suspended fetcher must not take its own
sleep for hung decoders."""


# -------------------------------------------------------------- units and slots


class State(Enum):
    """State of a unit in the table; a unit that isn't in it is absent."""

    LEASED = "leased"
    READY = "ready"
    DELIVERED = "delivered"


@dataclass
class HeldUnit:
    """Unit in the table."""

    state: State
    slot: int | None
    """Slot of the unit; None: skipped, there is nothing to hold."""
    lease: int = 0
    decoder: str | None = None
    layout: m.Layout = NO_EVENTS
    tally: m.Tally = field(default_factory=m.Tally)
    content: str = ""
    """Digest of the slot's content, from its decoder."""
    is_rejected: bool = False
    """True if a trainer found something else in the slot: it is decoded again once no trainer reads it."""


class UnitTable:
    """Units of the plan from ``first_k`` to below ``next_k``, and the ``slots`` slots that some of them hold."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.free = list(range(slots))
        """Heap of free slots."""
        self.planned: dict[int, m.Unit] = {}
        self.held: dict[int, HeldUnit] = {}
        self.first_k = self.next_k = 0
        self.ended = False
        """True once no more units follow."""
        self._committed_k = 0
        """Unit before which files may be evicted."""
        self.missing: dict[int, set[int]] = {}
        """Unit -> its files that were gone and are staged again; empty once all are staged."""

    # The plan.

    def add(self, units: Iterable[m.Unit]) -> None:
        """Continue the plan. Raises ValueError unless the units follow the last one."""
        for unit in units:
            if unit.k != self.next_k or self.ended:
                raise ValueError(f"unit {unit.k} doesn't follow the plan, which continues with {self.next_k}")
            self.planned[unit.k] = unit
            self.next_k += 1

    def is_over(self, k: int) -> bool:
        """Return True if the plan has ended before unit ``k``."""
        return self.ended and k >= self.next_k

    def restart(self, first_k: int) -> None:
        """Forget the plan; units are added from ``first_k`` on."""
        self.planned.clear()
        self.missing.clear()
        self.first_k = self.next_k = self._committed_k = first_k
        self.ended = False

    @property
    def restart_k(self) -> int:
        """First unit that can be delivered without planning again.

        A unit behind a commit may still be planned, because it was held; its files are evicted.
        """
        return max(self.first_k, self._committed_k)

    def commit(self, k: int, keep_from_k: int) -> list[int]:
        """Remove the units before ``k``, for which no trainer can come back, and return their numbers.

        Units are kept from ``keep_from_k`` on, and from the first that is still held, until its release.
        """
        self._committed_k = max(self._committed_k, k)
        held = (j for j, unit in self.held.items() if unit.state is State.DELIVERED)
        bound = min([self._committed_k, keep_from_k, self.next_k, *held])
        forgotten = list(range(self.first_k, bound))
        for j in forgotten:
            del self.planned[j]
            self.missing.pop(j, None)
        self.first_k = max(self.first_k, bound)
        return forgotten

    def first_needed_block(self, cursor: m.Cursor) -> int:
        """Return the block of the first unit that a trainer at ``cursor`` needs, if it is planned."""
        if cursor.unit in self.planned:
            return self.planned[cursor.unit].block
        # A block's units are planned together: if none follows, all that are planned are used up.
        used_up = cursor.unit >= self.next_k and self.next_k - 1 in self.planned
        return self.planned[self.next_k - 1].block + 1 if used_up else cursor.block

    # States of units.

    def num(self, state: State) -> int:
        """Return the number of units in this state."""
        return sum(unit.state is state for unit in self.held.values())

    def can_be_leased(self, k: int) -> bool:
        """Return True if a planned unit is absent and its files are staged."""
        return k not in self.held and not self.missing.get(k)

    def is_decoded(self, k: int) -> bool:
        """Return True if unit ``k`` can be delivered."""
        return k in self.held and self.held[k].state is not State.LEASED and not self.held[k].is_rejected

    def fill(self, done: m.Done) -> None:
        """Mark a leased unit as ready."""
        unit = self.held[done.k]
        unit.state, unit.decoder = State.READY, None
        unit.layout, unit.tally, unit.content = done.layout, done.tally, done.content

    def give_back(self, k: int) -> None:
        """Make a unit absent that no process writes or reads any more, and free its slot."""
        slot = self.held.pop(k).slot
        if slot is not None:
            self.free_slot(slot)

    def detach(self, k: int) -> int:
        """Make a leased unit absent, and return its slot, which stays out of service until free_slot()."""
        slot = self.held.pop(k).slot
        assert slot is not None
        return slot

    # Slots.

    def free_slot(self, slot: int) -> None:
        """Free ``slot``: it may be written again."""
        heapq.heappush(self.free, slot)

    def claim_slot(self, k: int, heads: Collection[int]) -> int | None:
        """Return a slot for unit ``k``, or None. If none is free, one of ``heads``, the units that trainers wait for,
        takes it from the last ready unit that is no head."""
        if self.free:
            return heapq.heappop(self.free)
        if k not in heads:
            return None
        behind = [
            j for j, unit in self.held.items() if unit.state is State.READY and unit.slot is not None and j not in heads
        ]
        return self.held.pop(max(behind)).slot if behind else None

    # Files that are gone from the disk.

    def restage(self, k: int) -> tuple[int, ...]:
        """Hold unit ``k`` back until its files are staged again; return the files that are not in transfer already."""
        files = {part.file for part in self.planned[k].parts if part.remote}
        on_their_way = set().union(*self.missing.values())
        self.missing[k] = files
        return tuple(sorted(files - on_their_way))

    def restaged(self, file: int) -> None:
        """Record that ``file`` was staged again (or is bad)."""
        for files in self.missing.values():
            files.discard(file)


class UnitFailures:
    """Failures of units, lost decoders and refusals; a unit that failed ``most`` times is skipped."""

    def __init__(self, most: int) -> None:
        self.counts: Counter[int] = Counter()
        """Number of failures by unit."""
        self._most = most
        self.skip: dict[int, str] = {}
        """Reason by unit that is skipped."""

    def add(self, k: int, reason: str) -> None:
        """Count a failure of unit ``k``."""
        self.counts[k] += 1
        logger.warning("unit %d failed %d time(s): %s", k, self.counts[k], reason)
        if self.counts[k] >= self._most:
            self.skip[k] = f"unit {k} failed {self.counts[k]} times, last: {reason}"

    def skipped(self, unit: m.Unit) -> m.Tally:
        """Return the tally of a skipped unit: all its events are quarantined."""
        # One entry: any of its files may have killed the decoders, and none of them counts as bad twice.
        reason = self.skip[unit.k]
        bad = tuple(m.Quarantined(part.file, part.row_group, unit.rows, reason[:2000]) for part in unit.parts[:1])
        logger.error("skipping: %s", reason)
        return m.Tally(rows_read=unit.rows, quarantined=unit.rows, bad=bad)

    def forget(self, units: Iterable[int]) -> None:
        """Remove the counts of units that don't come again, except the skipped ones."""
        for k in units:
            self.counts.pop(k, None)


# -------------------------------------------------------------- decoders


@dataclass
class DecoderState:
    """Credit, leases and silence of a decoder that sent Hello."""

    credit: int
    silent_s: float = 0.0
    """Time awake without a message from it."""
    leases: dict[int, int] = field(default_factory=dict)
    """Lease -> k, oldest first: a decoder works in this order."""
    zombies: dict[int, int] = field(default_factory=dict)
    """Lease -> slot of units taken from it while it may still write."""
    decoding: int | None = None
    """Lease in work, as reported by the decoder."""
    fenced: bool = False
    excused: bool = False
    """True while its process is suspended: no unit is to blame for its silence."""
    retired: bool = False
    """True once it was asked to leave: it gets no more leases."""

    @property
    def blamed(self) -> int | None:
        """Lease in work. A decoder may die before its Decoding message is sent: then it is the oldest lease."""
        if self.excused:
            return None
        return self.decoding if self.decoding is not None else next(iter(self.leases), None)

    def lease(self, lease: int, k: int) -> None:
        """Record a lease given to it."""
        if not self.leases:
            self.silent_s = 0.0  # an idle decoder sends nothing: its silence counts from now on
        self.leases[lease] = k
        self.credit -= 1

    def finish(self, lease: int) -> None:
        """Record the end of a lease, of any unit and any age."""
        if self.decoding == lease:
            self.decoding = None
        self.fenced = self.excused = False


class DecoderPool:
    """Decoders that sent Hello and are not lost, by name, in the order of arrival."""

    def __init__(self) -> None:
        self.by_name: dict[str, DecoderState] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    @property
    def num_staying(self) -> int:
        """Number of decoders that were not asked to leave."""
        return sum(not decoder.retired for decoder in self.by_name.values())

    @property
    def num_busy(self) -> int:
        """Number of staying decoders that hold a lease."""
        return sum(bool(decoder.leases) and not decoder.retired for decoder in self.by_name.values())

    @property
    def idle(self) -> str | None:
        """Decoder with the most credit; the name decides among equals."""
        idle = [
            (-decoder.credit, peer)
            for peer, decoder in self.by_name.items()
            if decoder.credit > 0 and not decoder.fenced and not decoder.retired
        ]
        return min(idle)[1] if idle else None

    def retire(self) -> str | None:
        """Retire the newest of the decoders that hold the fewest leases, and return its name; None without one."""
        staying = [(len(d.leases), -i, peer) for i, (peer, d) in enumerate(self.by_name.items()) if not d.retired]
        if not staying:
            return None
        peer = min(staying)[2]
        self.by_name[peer].retired = True
        return peer

    def silent(self, gap_s: float, stall_timeout_s: float) -> Iterator[tuple[str, DecoderState]]:
        """Yield the decoders with leases that are silent for too long, ``gap_s`` after the former call.

        One that is ``fenced`` already was killed and is still alive.
        """
        counted_s = min(gap_s, _LONGEST_GAP_S)
        for peer, decoder in self.by_name.items():
            decoder.silent_s += counted_s
            limit_s = stall_timeout_s + (FENCE_GRACE_S if decoder.fenced else 0.0)
            if decoder.leases and decoder.silent_s > limit_s:
                yield peer, decoder


# -------------------------------------------------------------- trainers


@dataclass
class TrainerState:
    """One trainer's place in the stream."""

    rank: int
    deliver_k: int
    """Next unit to deliver."""
    peer: str | None = None
    want: int = 0
    end_sent: bool = False
    finished: bool = False
    holds: set[int] = field(default_factory=set)
    """Units delivered to it that it has not released."""

    @property
    def oldest_k(self) -> int:
        """Oldest unit that it still needs."""
        return min(self.holds, default=self.deliver_k)


class Trainers:
    """All trainers, by rank, and their places in the one stream of units, of which each gets every unit in order.

    All begin at the cursor of the first one that attaches; a place whose trainer is gone keeps its next unit, which
    isn't forgotten before another trainer took it. Several hold fewer units than there are ``slots``, counted from the
    slowest one's: then a slot is left for that one, which all others wait for, also where it attaches again further
    back. If several are further back, that slot serves them in turn: none keeps a unit unread while it waits for the
    others (the feed).
    """

    def __init__(self, slots: int) -> None:
        self.all = [TrainerState(0, 0)]
        self.committed = m.Cursor()
        """Cursor of the newest checkpoint on disk."""
        self.complete_epochs: dict[int, int] = {}
        """Events delivered of each epoch that was completed here, from its first unit on."""
        self.has_barren_epoch = False
        """True once one of these had no event."""
        self._slots = slots
        self._counted_k = 0
        """Unit up to which events are counted."""
        self._counted_epoch: int | None = None
        self._counted_events: int | None = None
        """Events of that epoch; None: it was not delivered from its begin."""

    def of(self, peer: str) -> TrainerState | None:
        """Return the state of an attached trainer."""
        return next((trainer for trainer in self.all if trainer.peer == peer), None)

    @property
    def first_k(self) -> int:
        """Next unit of the trainer that is furthest behind."""
        return min(trainer.deliver_k for trainer in self.all)

    @property
    def furthest_k(self) -> int:
        """Next unit of the trainer that is furthest ahead: staging follows it."""
        return max(trainer.deliver_k for trainer in self.all)

    @property
    def most_held(self) -> int:
        """Most units that a trainer may hold."""
        return max(self._slots - 1, 1) if len(self.all) > 1 else self._slots

    @property
    def _end_k(self) -> int:
        """Unit from which on none may be delivered now. A place without a trainer holds nobody back: its next one may
        have the batch already, and wait for the others to train it."""
        return min(trainer.oldest_k for trainer in self.all if trainer.peer is not None) + self.most_held

    def holds(self, k: int) -> bool:
        """Return True if a trainer reads the unit's slot."""
        return any(k in trainer.holds for trainer in self.all)

    def may_take(self, trainer: TrainerState) -> bool:
        """Return True if the trainer wants its next unit, and isn't too far ahead of the others."""
        return trainer.peer is not None and trainer.want > 0 and trainer.deliver_k < self._end_k

    def heads(self, planned: Container[int]) -> set[int]:
        """Return the planned units that trainers wait for, one of each at most."""
        waiting = [trainer.deliver_k for trainer in self.all if trainer.want > 0 and trainer.deliver_k in planned]
        end_k = self._end_k if waiting else 0
        return {k for k in waiting if k < end_k}

    # Messages.

    def refusal(self, peer: str, attach: m.Attach, plan_hash: str) -> str | None:
        """Return the reason to refuse a trainer; None to accept it."""
        if attach.plan_hash != plan_hash:
            return f"the checkpoint belongs to plan {attach.plan_hash:.12}, this run has plan {plan_hash:.12}"
        if attach.rank >= attach.ranks:
            return f"rank {attach.rank} of {attach.ranks} can't be"
        if not _is_possible(attach.cursor):
            return f"no plan has the place {attach.cursor!s:.500}"
        others = [trainer for trainer in self.all if trainer.peer not in (None, peer)]
        if others and attach.ranks != len(self.all):
            return f"{TAKEN}: {len(self.all)} are expected, not {attach.ranks}"
        return TAKEN if any(trainer.rank == attach.rank for trainer in others) else None

    def attach(self, peer: str, attach: m.Attach) -> bool:
        """Give a trainer its place; return True if it is the first of all, whose cursor is that of all."""
        unit = attach.cursor.unit
        is_first = not [trainer for trainer in self.all if trainer.peer not in (None, peer)]
        if is_first:
            self.all = [TrainerState(rank, unit) for rank in range(attach.ranks)]
            self._counted_k, self._counted_epoch, self._counted_events = unit, None, None
        if is_first or unit < self.committed.unit:
            self.committed = attach.cursor
        self.all[attach.rank] = TrainerState(attach.rank, unit, peer)
        return is_first

    def can_commit(self, peer: str, cursor: m.Cursor) -> bool:
        """Return True if the cursor is a place of the plan that was delivered to this trainer."""
        trainer = self.of(peer)
        return trainer is not None and _is_possible(cursor) and cursor.unit <= trainer.deliver_k

    def commit(self, cursor: m.Cursor) -> None:
        """Record a checkpoint on disk. All trainers tell of it: the later ones change nothing."""
        if (cursor.unit, cursor.microbatch) > (self.committed.unit, self.committed.microbatch):
            self.committed = cursor

    def drop(self, trainer: TrainerState) -> list[int]:
        """Free the place of a trainer that is gone, and return the units that it held. The next one in its place
        continues behind the last commit."""
        held = sorted(trainer.holds)
        trainer.deliver_k = max(trainer.oldest_k, min(trainer.deliver_k, self.committed.unit))
        trainer.peer, trainer.want = None, 0
        trainer.holds.clear()
        return held

    def delivered(self, trainer: TrainerState, epoch: int, events: int) -> None:
        """Record the delivery of its next unit, of ``events`` events; count the epochs that are complete."""
        k = trainer.deliver_k
        trainer.holds.add(k)
        trainer.deliver_k += 1
        trainer.want -= 1
        if k != self._counted_k:  # another trainer had it before
            return
        self._counted_k += 1
        if epoch != self._counted_epoch:
            if self._counted_epoch is not None:
                if self._counted_events is not None:
                    self.complete_epochs[self._counted_epoch] = self._counted_events
                    self.has_barren_epoch |= self._counted_events == 0
                self._counted_events = 0
                # A shard may have no block in an epoch.
                self.complete_epochs |= dict.fromkeys(range(self._counted_epoch + 1, epoch), 0)
            self._counted_epoch = epoch
        if self._counted_events is not None:
            self._counted_events += events


def _is_possible(cursor: m.Cursor) -> bool:
    """Return True if a plan may have this place: every block has at least one unit."""
    return cursor.block <= cursor.block_first_unit <= cursor.unit < 2**62
