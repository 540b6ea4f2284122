"""Trainers of a shard and their places in its one stream of units. Pure: part of the dispatcher.

Every unit goes to each of the ``ranks`` trainers, in order. All begin at the cursor of the first one that attaches; a
place whose trainer is gone keeps its next unit, which isn't forgotten before another trainer took it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from common import messages as m

TAKEN = "a trainer is already attached to this run"


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
    """All trainers, by rank. Several hold fewer units than there are ``slots``, counted from the slowest one's.

    Then a slot is left for that one, which all others wait for, also where it attaches again further back.
    """

    def __init__(self, slots: int) -> None:
        self.all = [TrainerState(0, 0)]
        self.committed = m.Cursor()
        """Cursor of the newest checkpoint on disk."""
        self.barren_epochs = 0
        """Whole epochs without an event to train."""
        self.complete_epochs: dict[int, int] = {}
        """Events delivered of each epoch that was completed here, from its first unit on."""
        self._slots = slots
        self._counted_k = 0
        """Unit up to which events are counted."""
        self._counted_epoch: int | None = None
        self._counted_events: int | None = None
        """Events of that epoch; None: it was not delivered from its begin."""

    def of(self, peer: str) -> TrainerState | None:
        """State of an attached trainer."""
        return next((one for one in self.all if one.peer == peer), None)

    @property
    def peers(self) -> list[str]:
        """Attached trainers."""
        return [one.peer for one in self.all if one.peer is not None]

    @property
    def first_k(self) -> int:
        """Next unit of the trainer that is furthest behind."""
        return min(one.deliver_k for one in self.all)

    @property
    def furthest_k(self) -> int:
        """Next unit of the trainer that is furthest ahead: staging follows it."""
        return max(one.deliver_k for one in self.all)

    @property
    def _end_k(self) -> int:
        """Unit from which on none may be delivered now. A place without a trainer holds nobody back: its next one may
        have the batch already, and wait for the others to train it."""
        return min(one.oldest_k for one in self.all if one.peer is not None) + self.most_held

    @property
    def most_held(self) -> int:
        """Most units that a trainer may hold."""
        return max(self._slots - 1, 1) if len(self.all) > 1 else self._slots

    def holds(self, k: int) -> bool:
        """True if a trainer reads the unit's slot."""
        return any(k in one.holds for one in self.all)

    def may_take(self, one: TrainerState) -> bool:
        """True if the trainer wants its next unit, and isn't too far ahead of the others."""
        return one.peer is not None and one.want > 0 and one.deliver_k < self._end_k

    def heads(self, planned: Container[int]) -> set[int]:
        """Units that trainers wait for, one of each at most, as far as they are planned."""
        waiting = [one.deliver_k for one in self.all if one.want > 0 and one.deliver_k in planned]
        end_k = self._end_k if waiting else 0
        return {k for k in waiting if k < end_k}

    # -------------------------------------------------------------- messages

    def refusal(self, peer: str, attach: m.Attach, plan_hash: str) -> str | None:
        """Reason to refuse a trainer; None to accept it."""
        if attach.plan_hash != plan_hash:
            return f"the checkpoint belongs to plan {attach.plan_hash:.12}, this run has plan {plan_hash:.12}"
        if attach.rank >= attach.ranks:
            return f"rank {attach.rank} of {attach.ranks} can't be"
        if not _is_possible(attach.cursor):
            return f"no plan has the place {attach.cursor!s:.500}"
        others = [one for one in self.all if one.peer not in (None, peer)]
        if others and attach.ranks != len(self.all):
            return f"{TAKEN}: {len(self.all)} are expected, not {attach.ranks}"
        return TAKEN if any(one.rank == attach.rank for one in others) else None

    def attach(self, peer: str, attach: m.Attach) -> bool:
        """Give a trainer its place; True if it is the first of all, whose cursor is that of all."""
        unit = attach.cursor.unit
        is_first = not [one for one in self.all if one.peer not in (None, peer)]
        if is_first:
            self.all = [TrainerState(rank, unit) for rank in range(attach.ranks)]
            self._counted_k, self._counted_epoch, self._counted_events = unit, None, None
        if is_first or unit < self.committed.unit:
            self.committed = attach.cursor
        self.all[attach.rank] = TrainerState(attach.rank, unit, peer)
        return is_first

    def can_commit(self, peer: str, cursor: m.Cursor) -> bool:
        """True if the cursor is a place of the plan that was delivered to this trainer."""
        one = self.of(peer)
        return one is not None and _is_possible(cursor) and cursor.unit <= one.deliver_k

    def commit(self, cursor: m.Cursor) -> None:
        """Record a checkpoint on disk. All trainers tell of it: the later ones change nothing."""
        if (cursor.unit, cursor.microbatch) > (self.committed.unit, self.committed.microbatch):
            self.committed = cursor

    def finish(self, peer: str) -> bool:
        """Record that the trainer needs no more units; True if none does."""
        one = self.of(peer)
        if one is not None:
            one.finished = True
        return all(one.finished for one in self.all)

    def drop(self, one: TrainerState) -> list[int]:
        """Free the place of a trainer that is gone: its next one continues behind the last commit. The units that it
        held."""
        held = sorted(one.holds)
        one.deliver_k = max(one.oldest_k, min(one.deliver_k, self.committed.unit))
        one.peer, one.want = None, 0
        one.holds.clear()
        return held

    # -------------------------------------------------------------- deliveries

    def delivered(self, one: TrainerState, epoch: int, events: int) -> None:
        """Record the delivery of its next unit, of ``events`` events; count the epochs that are complete."""
        k = one.deliver_k
        one.holds.add(k)
        one.deliver_k += 1
        one.want -= 1
        if k != self._counted_k:  # another trainer had it before
            return
        self._counted_k += 1
        if epoch != self._counted_epoch:
            if self._counted_epoch is not None:
                if self._counted_events is not None:
                    self.complete_epochs[self._counted_epoch] = self._counted_events
                    self.barren_epochs += self._counted_events == 0
                self._counted_events = 0
                # A shard may have no block in an epoch.
                self.complete_epochs |= dict.fromkeys(range(self._counted_epoch + 1, epoch), 0)
            self._counted_epoch = epoch
        if self._counted_events is not None:
            self._counted_events += events


def _is_possible(cursor: m.Cursor) -> bool:
    """True if a plan may have this place: every block has at least one unit."""
    return cursor.block <= cursor.block_first_unit <= cursor.unit < 2**62
