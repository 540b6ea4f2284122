"""Agreement of the ranks before each step: readiness, stop, save, and position in the stream.

A turn is one exchange of small texts. A rank that has its share of the batch, or whose shards have no more, is ready;
one that waits for data takes its turn every 0.1 s, so that it learns of a stop or of a checkpoint that the fetcher
needs. A step is made in the turn in which all are ready, so that all make the same steps. A single rank exchanges
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict

from common.config import MOST_TRAINERS, StreamConfig
from common.errors import BadInputError
from common.messages import Cursor
from services.trainer.position import StreamPosition

if TYPE_CHECKING:  # commands that need no torch read the shares of ranks here
    from services.trainer.ranks import Ranks


class ShardShare(NamedTuple):
    """Share of a rank in one shard: it is trainer ``rank`` of the shard's ``ranks``."""

    shard: int
    rank: int
    ranks: int


def shares_of_rank(stream: StreamConfig, rank: int, ranks: int) -> list[ShardShare]:
    """Shares of one of ``ranks`` trainers: several whole shards, or a part of one; of sets, a part of each. Raises
    BadInputError if the shards can't be shared evenly.

    Both ranks and shards are divided in their order, so that the ranks of one machine read neighbouring shards.
    """
    if stream.is_mixed:
        _require_shareable(stream, ranks, 1)
        return [ShardShare(shard, rank, ranks) for shard in range(stream.shards)]
    if stream.shards % ranks == 0:
        each = stream.shards // ranks
        return [ShardShare(shard, 0, 1) for shard in range(rank * each, (rank + 1) * each)]
    of_shard = ranks // stream.shards
    if ranks % stream.shards:
        raise BadInputError(
            f"{ranks} trainers can't share stream.shards = {stream.shards} evenly: one of the two numbers must be a"
            " multiple of the other"
        )
    _require_shareable(stream, ranks, stream.shards)
    return [ShardShare(rank // of_shard, rank % of_shard, of_shard)]


def _require_shareable(stream: StreamConfig, ranks: int, parts: int) -> None:
    """Raise BadInputError if a shard has too many trainers. ``parts``: parts of the trainers, one for each shard."""
    if ranks > MOST_TRAINERS * parts:
        remedy = "" if stream.is_mixed else f"; set stream.shards={-(-ranks // MOST_TRAINERS)} or more"
        raise BadInputError(
            f"{ranks} trainers for stream.shards = {stream.shards}: at most {MOST_TRAINERS} share one{remedy}"
        )
    if ranks > parts and stream.slots == 1:
        raise BadInputError("stream.slots = 1: several trainers of a shard need 2 or more")


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


class Turn(BaseModel):
    """Message of one rank to the others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ready: bool = False
    """True if it has its share of the batch, or will never have one again."""
    microbatches: int = 0
    """Number in its share; 0: it has none."""
    events: int = 0
    particles: int = 0
    places: dict[int, tuple[Cursor, str, int]] = {}
    """Cursor of each of its shards once the batch is trained, or while it isn't ready behind what was taken; contents
    of all units up to there, and number of events trained: all trainers of a shard must make the same batches."""
    growths: dict[int, StreamPosition] = {}
    """Growth of each shard of which it is the first trainer, if there are several."""
    stop: bool = False
    """True if it was asked to stop."""
    commit: bool = False
    """True if its fetcher needs a checkpoint."""
    committed: tuple[Cursor, ...] = ()
    """Cursors of the newest checkpoint on disk, from the first rank."""
    refused: bool = False
    """True if it has refused a slot since its last turn: the others must let go of the unit, too."""


class Share(NamedTuple):
    """Share of one rank in a batch."""

    microbatches: int
    events: int
    particles: int


class Step(NamedTuple):
    """Step that all ranks make together."""

    microbatches: int
    """Number over all ranks; 0: no shard has any more."""
    events: int
    particles: int
    position: StreamPosition
    """Position once the step is trained."""


class BatchesDiffer(Exception):
    """Trainers of a shard made different batches: a unit has changed, or was given up, between its deliveries to them,
    or one of them refused its slot. All ranks learn of it in the same turn, and make their batches anew."""


class Agreement:
    """Agreement, as seen by one rank. ``stopped``: true once this process was asked to stop.

    Between two turns the caller calls take_commit_request(), and saves if that is true: all ranks save together.
    """

    def __init__(self, ranks: Ranks, stopped: Callable[[], bool]) -> None:
        self._ranks = ranks
        self._asked_to_stop = stopped
        self._all_stop = False
        self._wants_commit = False
        self._commit_is_due = False
        self._has_refused = False
        self._to_tell: tuple[Cursor, ...] = ()
        self._heard: tuple[Cursor, ...] = ()

    @property
    def is_first(self) -> bool:
        """True for the rank that saves for all."""
        return self._ranks.is_first

    @property
    def is_alone(self) -> bool:
        """True for a single rank: there are no turns."""
        return self._ranks.size == 1

    @property
    def stopped(self) -> bool:
        """True once all ranks stop before the same step."""
        return self._asked_to_stop() if self.is_alone else self._all_stop

    def want_commit(self) -> None:
        """Record that the fetcher asked this rank for a checkpoint."""
        if self.is_alone:
            self._commit_is_due = True
        else:
            self._wants_commit = True

    def refused(self) -> None:
        """Record that this rank has refused a slot, which is decoded again once no trainer holds it: in the next turn
        all begin the batch again."""
        self._has_refused = not self.is_alone

    def take_commit_request(self) -> bool:
        """True once for each agreed request: on every rank between the same two turns."""
        due, self._commit_is_due = self._commit_is_due, False
        return due

    def committed(self, cursors: tuple[Cursor, ...]) -> None:
        """Record a checkpoint on disk, on the first rank; the others learn of it in the next turn."""
        self._to_tell = cursors

    def take_committed(self) -> tuple[Cursor, ...]:
        """Cursors of the first rank's newest checkpoint, once, for the other ranks. Empty: unchanged."""
        heard, self._heard = self._heard, ()
        return heard

    def waiting(self, taken: StreamPosition, shards: Sequence[ShardShare]) -> None:
        """Take a turn without a batch, of which ``taken`` was taken so far. Raises BatchesDiffer, as ready() does."""
        if not self.is_alone and not self._all_stop:
            self._turn(Turn(places=_places(taken, shards)))

    def ready(
        self,
        position: StreamPosition,
        before: StreamPosition,
        after: StreamPosition,
        share: Share,
        shards: Sequence[ShardShare],
    ) -> Step | None:
        """Take a turn with a share: the step, if all are ready. None: others are not, or all stop.

        ``position`` is the common position of all ranks; the batch leads from ``before`` to ``after`` in the shards of
        this rank. Raises BatchesDiffer on all ranks if trainers of a shard don't make the same batch.
        """
        if self.is_alone:
            return Step(*share, after)
        if self._all_stop:
            return None
        turn = Turn(ready=True, **share._asdict(), places=_places(after, shards))
        if len(after.shards) > 1:
            growths = {
                one.shard: after.shards[one.shard].since(before.shards[one.shard]) for one in shards if one.rank == 0
            }
            turn = turn.model_copy(update={"growths": growths})
        turns = self._turn(turn)
        if self._all_stop or not all(one.ready for one in turns):
            return None
        if len(after.shards) > 1:
            grown = {shard: position.shards[shard].grown(one) for turn in turns for shard, one in turn.growths.items()}
            after = position.with_shards(grown)
        return Step(
            sum(one.microbatches for one in turns),
            sum(one.events for one in turns),
            sum(one.particles for one in turns),
            after,
        )

    def leave(self) -> None:
        """Take a turn that announces a stop while waiting: the others stop with this rank."""
        if not self.is_alone and not self._all_stop:
            self._turn(Turn(stop=True))

    def _turn(self, turn: Turn) -> list[Turn]:
        """Return the turns of all ranks, in their order. What follows is a function of them, the same on every rank."""
        stop = turn.stop or self._asked_to_stop()
        told = {"commit": self._wants_commit, "committed": self._to_tell, "refused": self._has_refused}
        mine = turn.model_copy(update={"stop": stop, **told})
        self._to_tell, self._has_refused = (), False
        texts = self._ranks.gather(mine.model_dump_json(exclude_defaults=True))
        turns = [Turn.model_validate_json(text) for text in texts]
        if any(one.commit for one in turns):
            self._commit_is_due, self._wants_commit = True, False
        if not self._ranks.is_first:
            self._heard = turns[0].committed or self._heard
        self._all_stop = any(one.stop for one in turns)
        if self._all_stop:
            return turns
        if any(one.refused for one in turns):
            raise BatchesDiffer("a trainer refused what a slot held: all begin their batch again")
        if places := _differing(turns):
            raise BatchesDiffer(f"trainers of one shard made different batches, and begin again: {places!s:.500}")
        return turns


def _places(position: StreamPosition, shards: Sequence[ShardShare]) -> dict[int, tuple[Cursor, str, int]]:
    of_shards = ((one.shard, position.shards[one.shard]) for one in shards)
    return {shard: (at.cursor, at.contents + at.content, at.counters.events_trained) for shard, at in of_shards}


def _differing(turns: Sequence[Turn]) -> list[tuple[Cursor, str, int]]:
    """Return two places of trainers of a shard that can't lead to the same batch: the ends of two batches, or one that
    is beyond the end of another's, for which it may wait for ever. Empty: there are none."""
    ends: dict[int, tuple[Cursor, str, int]] = {}
    for one in sorted(turns, key=lambda turn: not turn.ready):
        for shard, place in one.places.items():
            end = ends.setdefault(shard, place) if one.ready else ends.get(shard, place)
            is_beyond = (place[0].unit, place[0].microbatch) > (end[0].unit, end[0].microbatch)
            if is_beyond or (one.ready and place != end):
                return [end, place]
    return []
