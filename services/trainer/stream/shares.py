"""Shares of the trainers: which shards each of them reads, and which microbatches of a batch it trains. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from common.config import MOST_TRAINERS, StreamConfig
from common.errors import BadInputError


class ShardShare(NamedTuple):
    """Share of a rank in one shard: it is trainer ``rank`` of the shard's ``ranks``."""

    shard: int
    rank: int
    ranks: int


def shares_of_rank(stream: StreamConfig, rank: int, ranks: int) -> list[ShardShare]:
    """Shares of one of ``ranks`` trainers: several whole shards, or a part of one. Raises BadInputError if the shards
    can't be shared evenly.

    Both ranks and shards are divided in their order, so that the ranks of one machine read neighbouring shards.
    """
    if stream.shards % ranks == 0:
        each = stream.shards // ranks
        return [ShardShare(shard, 0, 1) for shard in range(rank * each, (rank + 1) * each)]
    of_shard = ranks // stream.shards
    if ranks % stream.shards:
        raise BadInputError(
            f"{ranks} trainers can't share stream.shards = {stream.shards} evenly: one of the two numbers must be a"
            " multiple of the other"
        )
    if of_shard > MOST_TRAINERS:
        raise BadInputError(
            f"{ranks} trainers for stream.shards = {stream.shards}: at most {MOST_TRAINERS} share one; set"
            f" stream.shards={-(-ranks // MOST_TRAINERS)} or more"
        )
    if of_shard > 1 and stream.slots == 1:
        raise BadInputError("stream.slots = 1: several trainers of a shard need 2 or more")
    return [ShardShare(rank // of_shard, rank % of_shard, of_shard)]


class Dealing:
    """Dealing of the microbatches of a batch, in order: each goes to the trainer that has the least so far.

    It needs no knowledge of those that follow: a unit can be released before the next one arrives.
    """

    def __init__(self, ranks: int, most_events: int) -> None:
        """``most_events``: the batch is full with so many."""
        self.num_dealt = 0
        self.num_events = 0
        self._most_events = most_events
        self._work = [0] * ranks

    @property
    def is_full(self) -> bool:
        """True if the batch is complete."""
        return self.num_events >= self._most_events

    def deal(self, counts: Iterable[Sequence[int]]) -> list[int]:
        """Ranks of the next microbatches, given the events and particles of each, as many as fit the batch; the first
        rank of several with equal work."""
        ranks = []
        for num_events, num_particles, *_ in counts:
            if self.is_full:
                break
            ranks.append(self._work.index(min(self._work)))
            self._work[ranks[-1]] += num_events + num_particles
            self.num_events += num_events
        self.num_dealt += len(ranks)
        return ranks


def runs_of(rank: int, ranks: Sequence[int], costs: Sequence[Sequence[int]], most: Sequence[int]) -> list[range]:
    """Runs of neighbouring microbatches of a rank, each within the limits ``most`` on the sums of ``costs``."""
    runs: list[range] = []
    sums = [0] * len(most)
    for index, (of_rank, cost) in enumerate(zip(ranks, costs, strict=True)):
        if of_rank != rank:
            continue
        sums = [before + one for before, one in zip(sums, cost, strict=True)]
        if runs and runs[-1].stop == index and all(one <= limit for one, limit in zip(sums, most, strict=True)):
            runs[-1] = range(runs[-1].start, index + 1)
        else:
            runs.append(range(index, index + 1))
            sums = list(cost)
    return runs
