"""Peers of a simulated run: decoders and trainers as small models with a queue in both directions.

A trainer is what services/trainer/feed.py makes of it: it asks for as many units as the
feed does, takes every microbatch of the batch and reads its own, and now and then finds that a slot does not hold what
was delivered.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from common import messages as m

PLAN = "00" * 16
EVENTS = 5
FILLED = m.Layout(EVENTS, 9, 1)


@dataclass(frozen=True)
class Checkpoint:
    """What is saved with the weights: the cursor, and the journal of skipped units."""

    cursor: m.Cursor = m.Cursor()  # noqa: RUF009  frozen
    skipped: frozenset[int] = frozenset()


class Memory:
    """The arena: which unit each slot holds, and whether it is whole. Whoever finds another one there raises.

    The header that a lease left may be damaged: its reader sees that.
    """

    def __init__(self, slots: int) -> None:
        self._held: list[tuple[int, bool]] = [(0, False)] * slots
        self.damaged: set[int] = set()
        """Leases."""

    def begin(self, lease: m.Lease) -> None:
        """A decoder begins to write."""
        self._held[lease.slot] = (lease.lease, False)

    def end(self, lease: m.Lease) -> None:
        """It has written the last byte."""
        assert self._held[lease.slot] == (lease.lease, False), f"unit {lease.unit.k} was written over while it was made"
        self._held[lease.slot] = (lease.lease, True)

    def read(self, unit: m.DeliveredUnit) -> None:
        """A trainer reads."""
        assert self._held[unit.slot] == (unit.lease, True), f"unit {unit.k} was written over while it was read"


@dataclass
class Decoder:
    """Takes leases, one at a time, in order."""

    name: str
    credit: int
    inbox: deque[m.Message] = field(default_factory=deque)
    outbox: deque[m.Message] = field(default_factory=deque)
    leases: deque[m.Lease] = field(default_factory=deque)
    writing: m.Lease | None = None
    hung: bool = False
    stopped: bool = False
    """Hung by SIGSTOP, which shows."""
    undead: bool = False
    """Killed, and not dead: in uninterruptible sleep."""
    retired: bool = False

    def act(self, rng: random.Random, memory: Memory, poison: set[int]) -> bool:
        """One step; False if it died of a poison unit."""
        lease = self.writing
        if self.inbox:
            match self.inbox.popleft():
                case m.Lease() as given:
                    self.leases.append(given)
                case m.Retire():
                    self.retired = True
                case other:
                    raise AssertionError(other)
        elif lease is None and self.leases:
            self.writing = lease = self.leases.popleft()
            self.outbox.append(m.Decoding(lease.unit.k, lease.lease))
            memory.begin(lease)
        elif lease is not None:
            if lease.unit.k in poison:
                return False
            memory.end(lease)
            if rng.random() < 0.01:
                memory.damaged.add(lease.lease)
            self.writing = None
            self.outbox.append(_outcome(lease, rng.random()))
            if rng.random() < 0.05:
                self.outbox.append(self.outbox[-1])  # a duplicate
        elif rng.random() < 0.1:
            self.outbox.append(m.Beat())
        return True


def _outcome(lease: m.Lease, chance: float) -> m.Message:
    k, number = lease.unit.k, lease.lease
    if chance < 0.03:
        return m.Failed(k, number, "bad luck")
    if chance < 0.04:
        return m.Failed(k, number, "gone", gone=True)
    if chance < 0.05:
        return m.Failed(k, number, "EIO", machine=True)
    if chance < 0.06:
        return m.Done(k, number, FILLED, m.Tally(rows_read=EVENTS + 1))  # an event too many
    return m.Done(k, number, FILLED, m.Tally(rows_read=EVENTS))


@dataclass(eq=False)
class Trainer:
    """One rank. ``microbatches[k]`` of unit k; ``batch`` microbatches make a step, of which it reads its share.

    It makes so many ``batches_ahead``, also while it waits for the others.
    """

    name: str
    rank: int
    ranks: int
    checkpoint: Checkpoint
    microbatches: Sequence[int]
    batch: int
    units_in_advance: int
    batches_ahead: int
    inbox: deque[m.Message] = field(default_factory=deque)
    outbox: deque[m.Message] = field(default_factory=deque)
    made: deque[tuple[m.Cursor, bool, set[int]]] = field(default_factory=deque)
    """Batches that are complete: where each ends, whether no data was left for it, and all units skipped up to it."""
    finished: bool = False
    attached: bool = False
    paused: int = 0
    """Turns that it is suspended for."""

    def __post_init__(self) -> None:
        self.trained = self.checkpoint.cursor
        """Where the weights are."""
        self.skipped = set(self.checkpoint.skipped)

    def connection_lost(self) -> None:
        """The fetcher died. The first batch that is complete will be trained all the same."""
        self.attached = False
        self.finished = False
        self.inbox.clear()
        self.outbox.clear()
        while len(self.made) > 1:
            self.made.pop()

    def act(self, rng: random.Random, memory: Memory) -> None:
        """One step, unless it waits for the others and has made all that it may."""
        if self.finished:
            return
        if not self.attached:
            if not self.at_barrier:
                self._attach()
        elif self.inbox and rng.random() < 0.6:
            self._receive(memory)
        elif len(self.made) <= self.batches_ahead and not (self.made and self.made[-1][1]):
            self._fill(rng, memory)

    @property
    def at_barrier(self) -> bool:
        """A batch is complete."""
        return bool(self.made)

    @property
    def ready_at(self) -> tuple[m.Cursor, bool]:
        """Where the batch ends that it is ready to train, and whether no data was left for it."""
        return self.made[0][:2]

    def is_beyond(self, ready: Trainer) -> bool:
        """It has taken more than one that is ready, for which it may wait for ever."""
        if not self.attached:
            return False
        mine, end = self._taken, ready.made[0][0]
        return (mine.unit, mine.microbatch) > (end.unit, end.microbatch)

    def step(self) -> None:
        """The optimiser's: the batch is trained."""
        self.trained, _, skipped = self.made.popleft()
        self.skipped |= skipped

    def commit(self, rng: random.Random) -> None:
        """A checkpoint with what is trained is on disk."""
        if self.attached:
            self._send(rng, m.Committed(self.trained))

    def finish(self, rng: random.Random) -> None:
        """It needs no more units."""
        if not self.attached:  # the fetcher was lost since: only an attached trainer is listened to
            self._attach()
        self.finished = True
        self._send(rng, m.Finished())

    # ------------------------------------------------------------ as in the feed

    def _attach(self) -> None:
        self.attached = True
        self._taken = self.trained
        self._skipping: set[int] = set()
        self._arrived: deque[m.DeliveredUnit] = deque()
        self._ended = False
        self._filled = 0  # microbatches
        self.outbox.append(m.Attach(self.rank, self.ranks, PLAN, self.trained))
        self.outbox.append(m.Want(self.units_in_advance))

    def _receive(self, memory: Memory) -> None:
        match self.inbox.popleft():
            case m.DeliveredUnit() as unit if unit.lease in memory.damaged:
                self.outbox.append(m.Reject(unit.k, "another unit"))
                self.attached = False
                self.inbox.clear()
                self.made.clear()
            case m.DeliveredUnit() as unit:
                self._arrived.append(unit)
            case m.End():
                self._ended = True
            case other:
                raise AssertionError(other)

    def _fill(self, rng: random.Random, memory: Memory) -> None:
        """Take one microbatch."""
        if self._filled == self.batch or (not self._arrived and self._ended):
            self.made.append((self._taken, not self._filled, set(self._skipping)))
            self._filled = 0
        elif self._arrived:
            unit, cursor = self._arrived[0], self._taken
            assert unit.k == cursor.unit, "in order, none lost and none twice"
            number = cursor.microbatch
            microbatches = self.microbatches[unit.k] if unit.slot >= 0 else 0
            if number < microbatches:
                if self._filled % self.ranks == self.rank:
                    self._read(memory, unit)
                number += 1
                self._filled += 1
            if number < microbatches:
                self._taken = m.Cursor(unit.block, unit.block_first_unit, unit.k, number)
                return
            if unit.slot < 0:
                self._skipping.add(unit.k)
            self._taken = m.Cursor(unit.block, unit.block_first_unit, unit.k + 1, 0)
            self._read(memory, self._arrived.popleft())  # its copies may be under way until now
            self._send(rng, m.Release(unit.k))
            self.outbox.append(m.Want(1))

    def _read(self, memory: Memory, unit: m.DeliveredUnit) -> None:
        if unit.slot >= 0:
            memory.read(unit)

    def _send(self, rng: random.Random, message: m.Message) -> None:
        """Send a message that may come twice without harm."""
        self.outbox.append(message)
        if rng.random() < 0.05:
            self.outbox.append(message)
