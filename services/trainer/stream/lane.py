"""Lane at the trainer: units that have arrived and wait for training, and their highest number."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from common import messages as m
from common.config import StreamConfig
from common.errors import BadInputError
from common.unit_arrays import UnitArrays


@dataclass
class Lane:
    """Ordered stream of units."""

    number: int
    arrived: deque[tuple[m.DeliveredUnit, UnitArrays | None]] = field(default_factory=deque)
    """Units with their arrays (None: the unit was skipped)."""
    ended: bool = False
    """True once the plan has no more units for this lane."""

    def used_up(self, epoch: int | None = None) -> bool:
        """True if no unit is left, and none will arrive; with ``epoch``: none of that epoch."""
        if not self.arrived:
            return self.ended
        return epoch is not None and self.arrived[0][0].epoch > epoch


def lanes_of_rank(stream: StreamConfig, rank: int, ranks: int) -> list[Lane]:
    """Lanes of one of ``ranks`` trainers. Raises BadInputError if they can't be shared evenly."""
    if stream.lanes % ranks:
        raise BadInputError(f"stream.lanes = {stream.lanes} must be a multiple of the number of trainers, {ranks}")
    return [Lane(number) for number in range(stream.lanes) if number % ranks == rank]


def lane_numbered(number: int, lanes: Sequence[Lane]) -> Lane:
    """Lane of that number. Raises RuntimeError if it is not among those of this trainer."""
    for lane in lanes:
        if lane.number == number:
            return lane
    raise RuntimeError(f"lane {number} was delivered to the trainer of lanes {[lane.number for lane in lanes]}")


def units_in_advance(stream: StreamConfig, prefetch_units: int) -> int:
    """Number of units of each lane that a trainer may request.

    A lane waits with its units in their slots while another one's next unit is decoded. If all slots were held by lanes
    that wait, nothing could be decoded: so all lanes together request no more units than there are slots, of which
    there is at least one a lane (common/config.py).
    """
    return min(prefetch_units, stream.slots // stream.lanes)
