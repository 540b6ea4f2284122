"""Feed, the trainer's end of the queue: units out of slots, microbatches to the device, batches to the loop.

Feed.stream() is a generator: when the loop requests the next batch, the last one counts as trained. Each batch takes
its events of every shard of this rank that still has data, in order; the trainers of a shard all read its stream, and
deal the microbatches to each other. Several ranks agree on each step (agreement.py). It yields None while there is no
batch, so that the loop can commit: a fetcher without room needs that before data arrive. A rank reads from the fetchers
of one or several shards (units.py). If one dies, the feed waits for its restart and attaches to all of them at the
first untrained microbatches.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from common import messages as m
from common.config import StreamConfig, TransportConfig
from common.errors import BadInputError
from common.schema import EventSchema
from common.transport import FetcherLost, PeerTransport, StopRequested
from services.trainer.agreement import Agreement, BatchesDiffer, Dealing, Share, shares_of_rank
from services.trainer.position import StreamPosition, start_of
from services.trainer.ranks import Ranks
from services.trainer.units import BatchWaits, FedBatch, FedMicrobatch, Pause, Rejected, ShardLink

logger = logging.getLogger(__name__)

_POLL_S = 0.1


class _BeginPlan(Exception):
    """The checkpoint was trained on other files, and this plan begins from its start."""


class Feed:
    """Feed: see the module. Raises BadInputError if the checkpoint belongs to another plan."""

    def __init__(
        self,
        run_dir: Path,
        workload: EventSchema,
        stream: StreamConfig,
        transport: TransportConfig,
        *,
        device: torch.device,
        columns: Collection[str],
        audit: bool,
        stopped: Callable[[], bool],
        keep_ids: bool = False,
        rank: int = 0,
        ranks: int = 1,
        agreement: Agreement | None = None,
        accept_new_plan: bool = False,
        remedy: str = "",
        epochs: int = 0,
    ) -> None:
        """``columns``: those of the batches. ``keep_ids``: these come with their events' ids. ``remedy``: if the inputs
        are not the checkpoint's. ``epochs``: those of a run with sets, whose own streams have no end; 0: no end."""
        self._accept_new_plan = accept_new_plan
        self._remedy = remedy
        self._stream = stream
        self._epochs = epochs
        self._shares = shares_of_rank(stream, rank, ranks)
        self._stopped = stopped
        self.agreement = agreement or Agreement(Ranks.alone(), stopped)
        """Agreement with the other ranks, on stops and checkpoints."""
        self.position = self._begun = start_of(stream)
        """Position of the stream after all trained batches."""
        self.ended = False
        """True once the plan has no more units."""
        self._epoch: int | None = None
        self.epoch_ended = False
        """True once the epoch that stream() was called for has no more units."""
        self.outside_values = ""
        """The first values that were reported outside of their physical ranges; empty: none so far."""
        self.waits = BatchWaits()
        """Time the step waits for data, and data wait for the step."""
        self._link = partial(
            ShardLink,
            run_dir,
            workload,
            stream,
            transport,
            device=device,
            columns=columns,
            audit=audit,
            identity=workload.identity if keep_ids else None,
            waits=self.waits,
            stopped=stopped,
        )
        """Maker of the link to one shard, given this rank's share of it."""
        self._inventories: dict[tuple[int, bool], tuple[int, str]] = {}
        """A shard and the digest of its list of files, by their ranges and whether these are complete."""
        self._links: list[ShardLink] = []
        self._assembly = _Assembly([], stream, self._stops, None)
        self._is_waiting = False
        """True while no batch that was made in advance is left, and a unit is needed to fill the next one."""
        self._turn_s = 0.0
        """Time of the last turn without a batch, or since which one is asked for."""
        self._connect()

    @property
    def plan_hash(self) -> str:
        """Plan hash of the connected run."""
        return self._links[0].transport.plan_hash

    def stream(self, position: StreamPosition, epoch: int | None = None) -> Generator[FedBatch | None]:
        """Batches from ``position`` on, until the plan ends or a stop is requested; None between two waits.

        After each item, and before the next, the caller calls agreement.take_commit_request(). With ``epoch``, the
        number of the epoch at ``position``, the batches end with that epoch, too; units of the next one that have
        arrived are kept for a call with the position then reached.
        """
        attached = self._is_attached and position == self.position
        self.position, self._epoch, self.epoch_ended = position, epoch, False
        while self._links:
            try:
                if not attached:
                    self._attach()
                attached = False
                yield from self._batches()
                break
            except _BeginPlan:
                logger.warning("the inputs are others than those of the checkpoint: the new plan begins")
                self.position = start_of(self._stream, self.position)
                if len(self._links) > 1:
                    # Refusals of other shards may be on their way: they would be taken for answers to new requests.
                    for link in self._links:
                        link.is_attached = False  # there is nothing to take leave from
                    try:
                        self.reconnect()
                    except StopRequested:
                        break
            except (FetcherLost, Rejected, BatchesDiffer) as error:
                level = logging.WARNING if str(error) else logging.INFO  # of a lost fetcher its supervisor warns
                logger.log(level, "%s", str(error) or "the fetcher is gone; waiting for it to come back")
                yield None  # the ranks may have agreed to save in the turn that raised
                if isinstance(error, Rejected):
                    self.agreement.refused()
                plan_hash, started_s = self.plan_hash, time.monotonic()
                try:
                    self.reconnect()
                except StopRequested:
                    break
                self.waits.waited(time.monotonic() - started_s)
                if self.plan_hash != plan_hash:
                    raise BadInputError("the fetcher came back with another plan: stop all processes first") from None
        if not (self.ended or self.epoch_ended):
            self.agreement.leave()
            yield None  # the ranks may have agreed to save

    def committed(self, position: StreamPosition) -> None:
        """Report a checkpoint on disk with this position: files behind it may be evicted.

        With several ranks the first one calls this; the others inform their fetcher once they have received it.
        """
        if self.agreement.is_first:
            self._send_committed(position.cursors)
            self.agreement.committed(position.cursors)

    def finished(self, position: StreamPosition) -> None:
        """Report the end of the run: no more units are needed after ``position``."""
        if not self._is_attached:  # there was nothing to do; the dispatcher accepts messages of its trainer only
            self.position = position
            self._attach()
        for link in self._links:
            link.transport.send(m.Finished())

    def reconnect(self) -> None:
        """Release all units after stream() was closed, so that the next stream() may begin anywhere.

        Raises StopRequested.
        """
        self.close()
        self.ended = False
        self._connect()

    def close(self) -> None:
        """Release the arenas and the sockets."""
        # The fetchers of other shards see no death where that of one was lost.
        leaves = self.ended or self._stops() or len(self._links) > 1
        links, self._links = self._links, []
        for link in links:
            link.close(leaves=leaves)

    @property
    def _is_attached(self) -> bool:
        return any(link.is_attached for link in self._links)

    def _send_committed(self, cursors: tuple[m.Cursor, ...]) -> None:
        for link in self._links:
            link.committed(cursors[link.shard], waits=self._is_waiting and link is self._assembly.awaited)

    # -------------------------------------------------------------- connection

    def _connect(self) -> None:
        try:
            for share in self._shares:
                self._links.append(self._link(share))
        except BaseException:
            self.close()
            raise
        if len({link.transport.plan_hash for link in self._links}) > 1:
            raise BadInputError("the fetchers of the shards have different plans: stop all processes first")

    def _attach(self) -> None:
        self._inventories = {}
        for link in self._links:
            # All shards judge the same source: else only those with data of a changed range would refuse.
            of_shard = self.position.shards[link.shard]
            link.attach(of_shard, of_shard.source if self._stream.is_mixed else self.position.source)

    # -------------------------------------------------------------- batches

    def _batches(self) -> Generator[FedBatch | None]:
        """Return the batches of one connection, each once all ranks have their share of it.

        On CUDA up to two are made in advance, as far as their data have arrived: their copies run while the device
        trains. On a CPU none is: a copy there takes time of the same core. A rank that waits for the others goes on to
        make them, up to the same place as all: two that stay at two places may hold all slots, and a late one get none.
        """
        former = self._begun = self.position
        end, of_link = None, self._epoch
        if self._stream.is_mixed:  # a set goes on when it was read: the batches say when all were
            end, of_link = self._epochs or None if self._epoch is None else self._epoch + 1, None
        for link in self._links:
            link.begin(self.position.shards[link.shard], of_link)
        ahead = self._links[0].copier.batches_ahead
        assembly = self._assembly = _Assembly(self._links, self._stream, self._stops, end)
        while True:
            self._turn_s = time.monotonic()
            while not assembly.made and not assembly.is_over:
                if not assembly.advance():
                    self._receive()
                    yield None
            self._make(ahead + 1)
            if assembly.made:
                parts, taken, marks = assembly.made.popleft()
                share = FedBatch.of(parts, self._begun.with_shards(taken))
            elif assembly.ended:
                # Other ranks may have data still; units without events may stand behind the last batch.
                share, marks = FedBatch.of([], self._taken()), []
            else:
                return  # asked to stop: what was taken is not trained
            self._is_waiting = False
            ready_s = time.monotonic()
            sizes = Share(len(share.batch.microbatches), share.batch.num_events, share.batch.num_particles)
            turn = (former, share.position, sizes, self._shares)
            while (step := self.agreement.ready(self.position, *turn)) is None or not self.agreement.is_alone:
                yield None  # the ranks may have agreed to save: nothing may come between
                if step is not None or self.agreement.stopped:
                    break
                now_s = time.monotonic()
                self.waits.waited(now_s - ready_s)  # this rank is ready, and another one is late
                ready_s = now_s
                self._receive_if_there()
                self._make(ahead)
            if step is None:
                return  # the ranks stop: the batches taken are not trained
            former = share.position
            if not step.microbatches:
                self.epoch_ended = self._epoch is not None
                self.ended = self._epoch is None or all(link.ended and not link.arrived for link in self._links)
                self.position = step.position
                return
            for link, mark in zip(self._links, marks, strict=False):
                link.copier.hand_over(mark)
            self.waits.given(time.monotonic())
            yield replace(share, batch=share.batch.among(step.events, step.particles), position=step.position)
            self.waits.taken(time.monotonic())
            self.position = step.position  # the loop requests the next batch: this one is trained

    def _make(self, batches: int) -> None:
        """Make so many batches in advance, as far as their data have arrived."""
        while len(self._assembly.made) < batches and not self._assembly.is_over:
            if not self._assembly.advance() and not self._receive_if_there():
                break

    def _taken(self) -> StreamPosition:
        """Return the position after all units and microbatches taken; of shards of other ranks, that at the begin."""
        return self._begun.with_shards({link.shard: link.taken for link in self._links})

    def _stops(self) -> bool:
        return self._stopped() or self.agreement.stopped

    def _receive(self) -> None:
        """Wait a short time for a message, and take it; records the time without data.

        The others get this rank's turn after that time, however many units without events arrive: they wait for it.
        """
        self._is_waiting = True
        has_message = self._receive_if_there()
        if not has_message:
            started_s = time.monotonic()
            PeerTransport.wait_for_any([link.transport for link in self._links], _POLL_S)
            self.waits.waited(time.monotonic() - started_s)
            has_message = self._receive_if_there()
        if not has_message or time.monotonic() - self._turn_s >= _POLL_S:
            self.agreement.waiting(self._taken(), self._shares)
            self._turn_s = time.monotonic()

    def _receive_if_there(self) -> bool:
        """Take a message of each link that has one, and report the first rank's checkpoint; False if none has."""
        if cursors := self.agreement.take_committed():
            self._send_committed(cursors)
        return any([self._take(link, link.receive()) for link in self._links])

    def _take(self, link: ShardLink, message: m.Message | None) -> bool:
        match message:
            case m.DeliveredUnit() as unit:
                self.outside_values = self.outside_values or unit.tally.outside_values
                if len(self._links) > 1 and not self._stream.is_mixed:
                    # From the second epoch on, the digest is that of complete ranges.
                    key, digest = (unit.source.ranges, unit.epoch > 0), unit.source.digest
                    former, of_former = self._inventories.setdefault(key, (link.shard, digest))
                    if digest != of_former:
                        raise BadInputError(
                            f"shards {former} and {link.shard} were planned from different lists of files: stop all"
                            " processes, and start over with --fresh"
                        )
            case m.CommitRequest():
                self.agreement.want_commit()
            case m.Refuse(other_inventory=True) if self._accept_new_plan:
                raise _BeginPlan
            case m.Refuse(reason, other_inventory=True):
                raise BadInputError(f"{reason} {self._remedy}".rstrip())
            case m.Refuse(reason):
                raise BadInputError(f"the dispatcher refused this trainer: {reason}")
        return message is not None


class _Assembly:
    """Batches that are made of the units which have arrived, from every shard in turn. It waits for nothing."""

    def __init__(
        self, links: Sequence[ShardLink], stream: StreamConfig, stops: Callable[[], bool], end: int | None
    ) -> None:
        """``end``: epoch before which batches of sets end; None: those of every link do."""
        self._links = links
        self._stream = stream
        self._stops = stops
        self._end = end
        self.made: deque[tuple[list[FedMicrobatch], dict[int, StreamPosition], list[Any]]] = deque()
        """Batches whose copies have been begun: microbatches, position of each shard behind them, marks of copiers."""
        self.ended = False
        """True once all data are taken."""
        self.is_over = False
        """True once no more batches are made: all data are taken, or a stop was requested."""
        self.awaited: ShardLink | None = None
        """Shard whose next unit is needed to fill the batch."""
        self._parts: dict[int, list[FedMicrobatch]] = {}
        self._turns: deque[ShardLink] = deque()
        """Shards that may still add to the batch. Empty: none was begun."""
        self._end_with_epoch()  # nothing may be left of it

    def advance(self) -> bool:
        """Make one more batch, or notice the end; False where a unit has to arrive first."""
        if not self._turns:
            self._turns.extend(self._links)
            self._parts = {link.shard: [] for link in self._links}
            due = self._stream.due_of_shards([link.taken.counters.events_trained for link in self._links])
            for link in self._links:
                link.dealing = Dealing(link.share.ranks, due[link.shard])
        while self._turns:
            link = self._turns[0]
            taken = Pause.END if link.dealing.is_full else link.take(stops=self._stops())
            if taken is Pause.NO_UNIT:
                self.awaited = link
                return False
            if taken is Pause.NO_EVENT and self._stream.is_mixed:
                raise BadInputError(
                    f"input {link.shard + 1} of stream.weights has no event of a whole epoch that can be trained"
                )
            if taken is Pause.NO_EVENT:
                # Else the others of a run without end would never be read, and nobody notice that none has an event.
                self._turns.rotate(-1)
            elif taken is not Pause.END:
                self._parts[link.shard] += taken
            elif link.dealing.is_full or link.used_up():
                self._turns.popleft()
            else:
                self.is_over = True
                return True  # asked to stop
        if any(link.dealing.num_events for link in self._links):
            parts = [part for of_shard in self._parts.values() for part in of_shard]
            taken_of = {link.shard: link.taken for link in self._links}
            self.made.append((parts, taken_of, [link.copier.mark() for link in self._links]))
            self._end_with_epoch()
        else:
            self.is_over = self.ended = True
        return True

    def _end_with_epoch(self) -> None:
        if self._end is not None and min(link.taken.epoch for link in self._links) >= self._end:
            self.is_over = self.ended = True
