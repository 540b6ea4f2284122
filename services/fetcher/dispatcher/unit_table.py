"""Table of planned units with the state of each, and the arena's slots. Pure: independent of the peers.

A unit is absent, leased, ready, delivered to one trainer or several, and absent again. A slot is free, or held by a
unit, or out of service: a decoder that lost its unit may still write there (decoder_pool.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum

from common import messages as m

NO_EVENTS = m.Layout(events=0, particles=0, microbatches=0)


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
        self._missing: dict[int, set[int]] = {}
        """Unit -> its files that are being staged again; empty once all are staged."""

    # -------------------------------------------------------------- the plan

    def add(self, units: Iterable[m.Unit]) -> None:
        """Continue the plan. Raises ValueError unless the units follow the last one."""
        for unit in units:
            if unit.k != self.next_k or self.ended:
                raise ValueError(f"unit {unit.k} doesn't follow the plan, which continues with {self.next_k}")
            self.planned[unit.k] = unit
            self.next_k += 1

    def is_over(self, k: int) -> bool:
        """True if the plan has ended before unit ``k``."""
        return self.ended and k >= self.next_k

    def restart(self, first_k: int) -> None:
        """Forget the plan; units are added from ``first_k`` on."""
        self.planned.clear()
        self._missing.clear()
        self.first_k = self.next_k = self._committed_k = first_k
        self.ended = False

    @property
    def restart_k(self) -> int:
        """First unit that can be delivered without planning again.

        A unit behind a commit may still be planned, because it was held; its files are evicted.
        """
        return max(self.first_k, self._committed_k)

    def commit(self, k: int, keep_from_k: int) -> list[int]:
        """Remove the units before ``k``, for which no trainer can come back; their numbers.

        Units are kept from ``keep_from_k`` on, and from the first that is still held, until its release.
        """
        self._committed_k = max(self._committed_k, k)
        held = (j for j, unit in self.held.items() if unit.state is State.DELIVERED)
        bound = min([self._committed_k, keep_from_k, self.next_k, *held])
        forgotten = list(range(self.first_k, bound))
        for j in forgotten:
            del self.planned[j]
            self._missing.pop(j, None)
        self.first_k = max(self.first_k, bound)
        return forgotten

    def first_needed_block(self, cursor: m.Cursor) -> int:
        """Block of the first unit that a trainer at ``cursor`` needs, as far as it is planned."""
        if cursor.unit in self.planned:
            return self.planned[cursor.unit].block
        # A block's units are planned together: if none follows, all that are planned are used up.
        used_up = cursor.unit >= self.next_k and self.next_k - 1 in self.planned
        return self.planned[self.next_k - 1].block + 1 if used_up else cursor.block

    # -------------------------------------------------------------- states

    def num(self, state: State) -> int:
        """Units in this state."""
        return sum(unit.state is state for unit in self.held.values())

    def has(self, k: int, state: State) -> bool:
        """True if unit ``k`` is in this state."""
        return k in self.held and self.held[k].state is state

    def can_be_leased(self, k: int) -> bool:
        """True if a planned unit is absent and its files are staged."""
        return k not in self.held and not self._missing.get(k)

    def is_decoded(self, k: int) -> bool:
        """True if unit ``k`` can be delivered."""
        return k in self.held and self.held[k].state is not State.LEASED and not self.held[k].is_rejected

    def first_to_lease(self, from_k: int) -> int | None:
        """First unit from ``from_k`` on that can be leased; None without one."""
        for k in range(from_k, self.next_k):
            if self.can_be_leased(k):
                return k
        return None

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

    # -------------------------------------------------------------- slots

    def free_slot(self, slot: int) -> None:
        """Free ``slot``: it may be written again."""
        heapq.heappush(self.free, slot)

    def claim_slot(self, k: int, heads: Collection[int]) -> int | None:
        """Slot for unit ``k``, or None. If none is free, one of ``heads``, the units that trainers wait for, takes it
        from the last ready unit that is no head."""
        if self.free:
            return heapq.heappop(self.free)
        if k not in heads:
            return None
        behind = [
            j for j, unit in self.held.items() if unit.state is State.READY and unit.slot is not None and j not in heads
        ]
        return self.held.pop(max(behind)).slot if behind else None

    # -------------------------------------------------------------- files that are gone from the disk

    def was_restaged(self, k: int) -> bool:
        """True if files of unit ``k`` were missing before."""
        return k in self._missing

    def restage(self, k: int) -> tuple[int, ...]:
        """Hold unit ``k`` back until its files are staged again; the files that are not in transfer already."""
        files = {part.file for part in self.planned[k].parts if part.remote}
        on_their_way = set().union(*self._missing.values())
        self._missing[k] = files
        return tuple(sorted(files - on_their_way))

    def restaged(self, file: int) -> None:
        """Record that ``file`` was staged again (or is bad)."""
        for files in self._missing.values():
            files.discard(file)
