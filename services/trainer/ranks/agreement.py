"""What the ranks agree on before each step: that every one is ready, whether to stop, to save, and where the stream is.

A turn is one exchange of small texts. A rank that has its share of the batch, or whose lanes are used up, is ready; one
that waits for data takes its turn every 0.1 s, so that it hears of a stop or of a checkpoint that the fetcher needs.
A step is made in the turn in which all are ready, so that all make the same steps. Alone, nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
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


class Agreement:
    """One rank's side. ``stopped``: this process was asked to stop."""

    def __init__(self, ranks: RankGroup, stopped: Callable[[], bool]) -> None:
        self._ranks = ranks
        self._asked_to_stop = stopped
        self._all_stop = False
        self._wants_commit = False
        self._told: tuple[Cursor, ...] = ()
        self.on_commit: Callable[[], None] = lambda: None
        """Called on every rank between the same two steps: save a checkpoint, the fetcher needs it."""
        self.on_committed: Callable[[tuple[Cursor, ...]], None] = lambda cursors: None
        """Called on the other ranks: the first one's checkpoint with these cursors is on disk."""

    @classmethod
    def alone(cls, stopped: Callable[[], bool]) -> Agreement:
        """Of one trainer, with itself."""
        return cls(SingleRank(), stopped)

    @property
    def is_first(self) -> bool:
        """True for the rank that saves for all."""
        return self._ranks.is_first

    @property
    def stopped(self) -> bool:
        """True once all ranks stop before the same step."""
        return self._asked_to_stop() if self._ranks.size == 1 else self._all_stop

    def want_commit(self) -> None:
        """The fetcher asked this rank for a checkpoint."""
        if self._ranks.size == 1:
            self.on_commit()
        else:
            self._wants_commit = True

    def committed(self, cursors: tuple[Cursor, ...]) -> None:
        """On the first rank: a checkpoint is on disk; the others are told with the next turn."""
        self._told = cursors

    def waiting(self) -> None:
        """This rank has no data yet."""
        if self._ranks.size > 1 and not self._all_stop:
            self._turn(Turn())

    def ready(
        self,
        position: StreamPosition,
        before: StreamPosition,
        after: StreamPosition,
        share: Share,
        meanwhile: Callable[[], None],
    ) -> Step | None:
        """Wait until all ranks are ready; ``meanwhile`` is called between turns. None: all stop, and make no step.

        ``position`` is where all ranks are together; this rank's share leads from ``before`` to ``after``, which know
        nothing of the others' lanes.
        """
        if self._ranks.size == 1:
            return Step(*share, after)
        turn = Turn(ready=True, **share._asdict(), growth=after.since(before))
        while not self._all_stop:
            turns = self._turn(turn)
            if self._all_stop:
                break
            if all(one.ready for one in turns):
                return Step(
                    sum(one.microbatches for one in turns),
                    sum(one.events for one in turns),
                    sum(one.particles for one in turns),
                    position.merged([one.growth for one in turns]),
                )
            meanwhile()
        return None

    def leave(self) -> None:
        """This rank was asked to stop while it waited: the others stop with it."""
        if self._ranks.size > 1 and not self._all_stop:
            self._turn(Turn(stop=True))

    def _turn(self, turn: Turn) -> list[Turn]:
        stop = turn.stop or self._asked_to_stop()
        mine = turn.model_copy(update={"stop": stop, "commit": self._wants_commit, "committed": self._told})
        self._told = ()
        texts = self._ranks.gather(mine.model_dump_json(exclude_defaults=True))
        turns = [Turn.model_validate_json(text) for text in texts]
        if turns[0].committed and not self._ranks.is_first:
            self.on_committed(turns[0].committed)
        if any(one.commit for one in turns):
            self._wants_commit = False
            self.on_commit()
        self._all_stop = any(one.stop for one in turns)
        return turns
