"""One lane at the trainer: units that have arrived and wait for their turn, and how many it may hold."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from common import messages as m
from common.config import StreamConfig
from common.errors import BadInputError
from common.unit_arrays import UnitArrays


@dataclass
class Lane:
    """An ordered stream of units."""

    number: int
    arrived: deque[tuple[m.DeliveredUnit, UnitArrays | None]] = field(default_factory=deque)
    """Units with their arrays (None: the unit was skipped)."""
    ended: bool = False
    """The plan has no more units for this lane."""

    @property
    def used_up(self) -> bool:
        """Nothing has arrived, and nothing will."""
        return self.ended and not self.arrived


def lanes_of_rank(stream: StreamConfig, rank: int, ranks: int) -> list[Lane]:
    """The lanes that one of ``ranks`` trainers takes. Raises BadInputError if they can't be shared evenly."""
    if stream.lanes % ranks:
        raise BadInputError(f"stream.lanes = {stream.lanes} must be a multiple of the number of trainers, {ranks}")
    return [Lane(number) for number in range(stream.lanes) if number % ranks == rank]


def units_in_advance(stream: StreamConfig, prefetch_units: int) -> int:
    """How many units of each lane a trainer may ask for.

    A lane waits with its units in their slots while another one's next unit is decoded. If all slots were held by lanes
    that wait, nothing could be decoded: so all lanes together ask for no more units than there are slots, of which
    there is at least one a lane (common/config.py).
    """
    return min(prefetch_units, stream.slots // stream.lanes)
