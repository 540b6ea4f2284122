"""Lane at the trainer: units that have arrived and wait for training, and their highest number."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from common import messages as m
from common.config import StreamConfig
from common.errors import BadInputError
from common.unit_arrays import UnitArrays


@dataclass
class Lane:
    """Ordered stream of units."""

    number: int
    """Number in its shard."""
    arrived: deque[tuple[m.DeliveredUnit, UnitArrays | None]] = field(default_factory=deque)
    """Units with their arrays (None: the unit was skipped)."""
    ended: bool = False
    """True once the plan has no more units for this lane."""

    def used_up(self, epoch: int | None = None) -> bool:
        """True if no unit is left, and none will arrive; with ``epoch``: none of that epoch."""
        if not self.arrived:
            return self.ended
        return epoch is not None and self.arrived[0][0].epoch > epoch


class ShardShare(NamedTuple):
    """Share of a rank in one shard: the lanes l of the shard with l mod ``ranks`` = ``rank``."""

    shard: int
    rank: int
    ranks: int


def shares_of_rank(stream: StreamConfig, rank: int, ranks: int) -> list[ShardShare]:
    """Shares of one of ``ranks`` trainers: several whole shards, or a part of one. Raises BadInputError if the lanes
    can't be shared evenly.

    Both ranks and shards are divided in their order, so that the ranks of one machine read neighbouring shards.
    """
    if stream.lanes % ranks:
        raise BadInputError(f"stream.lanes = {stream.lanes} must be a multiple of the number of trainers, {ranks}")
    if stream.shards % ranks == 0:
        each = stream.shards // ranks
        return [ShardShare(shard, 0, 1) for shard in range(rank * each, (rank + 1) * each)]
    of_shard = ranks // stream.shards
    if ranks % stream.shards or stream.shard_lanes % of_shard:
        raise BadInputError(
            f"{ranks} trainers can't share stream.shards = {stream.shards} of {stream.shard_lanes} lanes evenly: one of"
            " the numbers of trainers and shards must be a multiple of the other, and each trainer needs lanes"
        )
    return [ShardShare(rank // of_shard, rank % of_shard, of_shard)]


def lanes_of_share(stream: StreamConfig, share: ShardShare) -> list[Lane]:
    """Lanes of a share, with their numbers in the shard."""
    return [Lane(number) for number in range(stream.shard_lanes) if number % share.ranks == share.rank]


def lane_numbered(number: int, lanes: Sequence[Lane]) -> Lane:
    """Lane of that number. Raises RuntimeError if it is not among those of this trainer."""
    for lane in lanes:
        if lane.number == number:
            return lane
    raise RuntimeError(f"lane {number} was delivered to the trainer of lanes {[lane.number for lane in lanes]}")


def units_in_advance(stream: StreamConfig, prefetch_units: int) -> int:
    """Number of units of each lane that a trainer may request, of the slots of a shard.

    A lane waits with its units in their slots while another one's next unit is decoded. If all slots were held by lanes
    that wait, nothing could be decoded: so all lanes together request no more units than there are slots, of which
    there is at least one a lane (common/config.py).
    """
    return min(prefetch_units, stream.slots // stream.shard_lanes)
