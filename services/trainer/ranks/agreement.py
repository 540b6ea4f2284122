"""What the ranks agree on before each step: that every one is ready, whether to stop, to save, and where the stream is.

A turn is one exchange of small texts. A rank that has its share of the batch, or whose lanes are used up, is ready; one
that waits for data takes its turn every 0.1 s, so that it hears of a stop or of a checkpoint that the fetcher needs.
A step is made in the turn in which all are ready, so that all make the same steps. Alone, nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from common.messages import Cursor
from services.trainer.ranks.rank_group import RankGroup, SingleRank
from services.trainer.stream.position import Growth, StreamPosition


class Turn(BaseModel):
    """What one rank tells the others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ready: bool = False
    """It has its share of the batch, or will never have one again."""
    microbatches: int = 0
    """Of its share; 0: it has none."""
    events: int = 0
    particles: int = 0
    growth: Growth = Growth()
    """Once its share is trained."""
    stop: bool = False
    """It was asked to stop."""
    commit: bool = False
    """Its fetcher needs a checkpoint."""
    committed: tuple[Cursor, ...] = ()
    """Of the first rank: a checkpoint with these cursors is on disk."""


class Share(NamedTuple):
    """One rank's share of a batch."""

    microbatches: int
    events: int
    particles: int


class Step(NamedTuple):
    """What all ranks together are about to train."""

    microbatches: int
    """Of all ranks; 0: the lanes of all are used up."""
    events: int
    particles: int
    position: StreamPosition
    """Once it is trained."""


class Agreed(NamedTuple):
    """What all ranks read from the same turn."""

    ready: bool
    """All are: the step is made."""
    stop: bool
    commit: bool
    """All save a checkpoint now, before they do anything else together."""
    committed: tuple[Cursor, ...]
    """A checkpoint with these cursors is on disk; empty: no news."""


def agree(turns: Sequence[Turn]) -> Agreed:
    """The outcome of a turn, the same on every rank: a function of what all have brought, in their order."""
    return Agreed(
        ready=all(one.ready for one in turns),
        stop=any(one.stop for one in turns),
        commit=any(one.commit for one in turns),
        committed=turns[0].committed,
    )


class Agreement:
    """One rank's side. ``stopped``: this process was asked to stop.

    Between two turns the caller asks take_commit_request(), and saves if that is true: saving is a matter of all ranks.
    """

    def __init__(self, ranks: RankGroup, stopped: Callable[[], bool]) -> None:
        self._ranks = ranks
        self._asked_to_stop = stopped
        self._all_stop = False
        self._wants_commit = False
        self._commit_is_due = False
        self._to_tell: tuple[Cursor, ...] = ()
        self._heard: tuple[Cursor, ...] = ()

    @classmethod
    def alone(cls, stopped: Callable[[], bool]) -> Agreement:
        """Of one trainer, with itself."""
        return cls(SingleRank(), stopped)

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
        """The fetcher asked this rank for a checkpoint."""
        if self.is_alone:
            self._commit_is_due = True
        else:
            self._wants_commit = True

    def take_commit_request(self) -> bool:
        """True once for each agreed request: on every rank between the same two turns."""
        due, self._commit_is_due = self._commit_is_due, False
        return due

    def committed(self, cursors: tuple[Cursor, ...]) -> None:
        """On the first rank: a checkpoint is on disk; the others hear of it in the next turn."""
        self._to_tell = cursors

    def take_committed(self) -> tuple[Cursor, ...]:
        """On the other ranks, once: the cursors of the first one's newest checkpoint. Empty: no news."""
        heard, self._heard = self._heard, ()
        return heard

    def waiting(self) -> None:
        """A turn of a rank that has no data yet."""
        if not self.is_alone and not self._all_stop:
            self._turn(Turn())

    def ready(
        self, position: StreamPosition, before: StreamPosition, after: StreamPosition, share: Share
    ) -> Step | None:
        """A turn of a rank that has its share: the step, if all are ready. None: others are not, or all stop.

        ``position`` is where all ranks are together; this rank's share leads from ``before`` to ``after``, which know
        nothing of the others' lanes.
        """
        if self.is_alone:
            return Step(*share, after)
        if self._all_stop:
            return None
        turns, agreed = self._turn(Turn(ready=True, **share._asdict(), growth=after.since(before)))
        if agreed.stop or not agreed.ready:
            return None
        return Step(
            sum(one.microbatches for one in turns),
            sum(one.events for one in turns),
            sum(one.particles for one in turns),
            position.merged([one.growth for one in turns]),
        )

    def leave(self) -> None:
        """A turn of a rank that was asked to stop while it waited: the others stop with it."""
        if not self.is_alone and not self._all_stop:
            self._turn(Turn(stop=True))

    def _turn(self, turn: Turn) -> tuple[list[Turn], Agreed]:
        stop = turn.stop or self._asked_to_stop()
        mine = turn.model_copy(update={"stop": stop, "commit": self._wants_commit, "committed": self._to_tell})
        self._to_tell = ()
        texts = self._ranks.gather(mine.model_dump_json(exclude_defaults=True))
        turns = [Turn.model_validate_json(text) for text in texts]
        agreed = agree(turns)
        if agreed.commit:
            self._commit_is_due, self._wants_commit = True, False
        if not self._ranks.is_first:
            self._heard = agreed.committed or self._heard
        self._all_stop = agreed.stop
        return turns, agreed
