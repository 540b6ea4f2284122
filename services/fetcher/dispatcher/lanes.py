"""Lanes, their trainers and their cursors. Pure: part of the dispatcher.

Unit k belongs to lane k mod ``lanes``; each lane is delivered in order, to the one trainer that took it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from common import messages as m

TAKEN = "a trainer is already attached to this run"


@dataclass
class LaneState:
    """State of one ordered stream of units."""

    number: int
    deliver_k: int
    """Next unit to deliver."""
    trainer: str | None = None
    want: int = 0
    end_sent: bool = False
    finished: bool = False
    epoch: int = -1
    """Block of the newest delivered unit."""
    committed: m.Cursor = field(default_factory=m.Cursor)


class Lanes:
    """All lanes of a run, in order."""

    def __init__(self, num: int) -> None:
        self.all = [LaneState(number, deliver_k=number) for number in range(num)]
        self.num = num
        self.barren_epochs = 0
        """Whole epochs without an event to train."""
        self.complete_epochs: dict[int, int] = {}
        """Events delivered of each epoch that every lane has completed here, from its first unit on."""
        self._judged_epoch: int | None = None
        """Epoch in which deliveries began; then the newest epoch with all units delivered."""
        self._events_of_epoch: Counter[int] = Counter()
        """Events delivered of later epochs."""

    def of(self, trainer: str) -> list[LaneState]:
        """Lanes that a trainer took."""
        return [lane for lane in self.all if lane.trainer == trainer]

    def takes(self, trainer: str, number: int) -> bool:
        """True if the lane exists and this trainer took it."""
        return number < self.num and self.all[number].trainer == trainer

    @property
    def trainers(self) -> list[str]:
        """Trainers that took a lane."""
        return list(dict.fromkeys(lane.trainer for lane in self.all if lane.trainer is not None))

    @property
    def furthest_k(self) -> int:
        """Next unit of the lane that is furthest ahead: staging follows it."""
        return max(lane.deliver_k for lane in self.all)

    def heads(self, planned: Container[int]) -> list[int]:
        """Units that trainers wait for, one of a lane at most, as far as they are planned."""
        return [lane.deliver_k for lane in self.all if lane.want > 0 and lane.deliver_k in planned]

    # -------------------------------------------------------------- trainers

    def refusal(self, peer: str, attach: m.Attach, plan_hash: str) -> str | None:
        """Reason to refuse a trainer; None to accept it."""
        if attach.plan_hash != plan_hash:
            return f"the checkpoint belongs to plan {attach.plan_hash:.12}, this run has plan {plan_hash:.12}"
        if self.num % attach.ranks or attach.rank >= attach.ranks:
            return (
                f"rank {attach.rank} of {attach.ranks} can't be: stream.lanes = {self.num} must be a multiple of the "
                "number of trainers"
            )
        wrong = any(cursor.unit % self.num != lane for lane, cursor in enumerate(attach.cursors))
        if len(attach.cursors) != self.num or wrong:
            return f"its cursors are not those of {self.num} lanes"
        if not _are_possible(attach.cursors):
            return f"no plan has the places {attach.cursors!s:.500}"
        if any(lane.trainer not in (None, peer) for lane in self._of_rank(attach)):
            return TAKEN
        return None

    def attach(self, peer: str, attach: m.Attach) -> list[LaneState]:
        """Assign the lanes of its rank to a trainer, and return them."""
        taken = self._of_rank(attach)
        for lane in taken:
            lane.trainer, lane.want, lane.end_sent, lane.finished = peer, 0, False, False
        return taken

    def _of_rank(self, attach: m.Attach) -> list[LaneState]:
        return [lane for lane in self.all if lane.number % attach.ranks == attach.rank]

    def can_commit(self, peer: str, cursors: Sequence[m.Cursor]) -> bool:
        """True if ``peer`` has lanes, and each of their cursors is a place of the plan that was delivered to it."""
        lanes = self.of(peer)
        return (
            bool(lanes)
            and len(cursors) == self.num
            and all(
                _are_possible([cursors[lane.number]])
                and cursors[lane.number].unit % self.num == lane.number
                and cursors[lane.number].unit <= lane.deliver_k
                for lane in lanes
            )
        )

    def commit(self, peer: str, cursors: Sequence[m.Cursor]) -> None:
        """Record a trainer's checkpoint on disk, with these cursors."""
        for lane in self.of(peer):
            lane.committed = cursors[lane.number]

    def finish(self, peer: str) -> bool:
        """Record that the trainer needs no more units; True if none does."""
        for lane in self.of(peer):
            lane.finished = True
        return all(lane.finished for lane in self.all)

    # -------------------------------------------------------------- epochs

    def delivered(self, lane: LaneState, epoch: int, events: int) -> None:
        """Record the delivery of a unit of ``events`` events, and advance the lane.

        Counts the epochs that every lane has completed without an event.
        """
        lane.deliver_k += self.num
        lane.want -= 1
        lane.epoch = epoch
        self._events_of_epoch[epoch] += events
        if self._judged_epoch is None:
            self._judged_epoch = epoch
        for complete in range(self._judged_epoch + 1, min(lane.epoch for lane in self.all)):
            self._judged_epoch = complete
            delivered = self._events_of_epoch.pop(complete, None)
            self.barren_epochs += delivered == 0
            self.complete_epochs[complete] = delivered or 0


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
