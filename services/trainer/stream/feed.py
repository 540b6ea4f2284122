"""Feed, the trainer's end of the queue: units out of slots, microbatches to the device, batches to the loop.

Feed.stream() is a generator: when the loop requests the next batch, the last one counts as trained. Each batch takes
its events of every shard of this rank that still has data, in order; the trainers of a shard all read its stream, and
deal the microbatches to each other (shares.py). Several ranks agree on each step (agreement.py). It yields None while
there is no batch, so that the loop can commit: a fetcher without room needs that before data arrive. A rank reads from
the fetchers of one or several shards (shard_link.py). If one dies, the feed waits for its restart and attaches to all
of them at the first untrained microbatches.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import messages as m
from common.config import StreamConfig, TransportConfig
from common.errors import BadInputError
from common.schema import EventSchema
from common.transport import FetcherLost, PeerTransport, StopRequested
from services.trainer.progress import NEW_PLAN_REMEDY
from services.trainer.ranks.agreement import Agreement, BatchesDiffer, Share, Step
from services.trainer.stream.ahead import ReadAhead
from services.trainer.stream.fed_batch import FedBatch, FedMicrobatch
from services.trainer.stream.microbatch_copy import Copiers
from services.trainer.stream.one_inventory import OneInventory
from services.trainer.stream.position import StreamPosition
from services.trainer.stream.shard_link import Rejected, ShardLink
from services.trainer.stream.sharded_position import start_of
from services.trainer.stream.shares import Dealing, shares_of_rank
from services.trainer.stream.unit_stream import NO_EVENT, Kept, Taken, microbatches
from services.trainer.stream.waits import BatchWaits
from workloads.base.batch import Batch

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_NO_MORE: Any = object()


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
        copiers: Copiers,
        prefetch_units: int,
        audit: bool,
        stopped: Callable[[], bool],
        keep_ids: bool = False,
        rank: int = 0,
        ranks: int = 1,
        agreement: Agreement | None = None,
        accept_new_plan: bool = False,
        remedy: str = NEW_PLAN_REMEDY,
    ) -> None:
        """``keep_ids``: batches come with their events' ids. ``remedy``: if the inputs are not the checkpoint's."""
        self._accept_new_plan = accept_new_plan
        self._remedy = remedy
        self._run_dir = run_dir
        self._workload = workload
        self._stream = stream
        self._config = transport
        self._copiers = copiers
        self._shares = shares_of_rank(stream, rank, ranks)
        self._units_in_advance = min(prefetch_units, stream.slots)
        self._kept = Kept(audit, workload.identity if keep_ids else None)
        self._stopped = stopped
        self._agreement = agreement or Agreement.alone(stopped)
        self.position = self._begun = start_of(stream.shards)
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
        self._ready_s = 0.0
        self._inventory = OneInventory()
        self._links: list[ShardLink] = []
        self._awaited: ShardLink | None = None
        """Shard of the unit that is needed to fill the batch which is being made."""
        self._is_waiting = False
        """True while no batch that was made in advance is left, and that unit has not arrived."""
        self._connect()

    @property
    def stopped(self) -> bool:
        """True once this process, or all ranks together, stop before the next step."""
        return self._agreement.stopped

    @property
    def plan_hash(self) -> str:
        """Plan hash of the connected run."""
        return self._links[0].plan_hash

    def stream(self, position: StreamPosition, epoch: int | None = None) -> Generator[FedBatch | None]:
        """Batches from ``position`` on, until the plan ends or a stop is requested; None between two waits.

        After each item, and before the next, the caller calls take_commit_request(). With ``epoch``, the number of the
        epoch at ``position``, the batches end with that epoch, too; units of the next one that have arrived are kept
        for a call with the position then reached.
        """
        attached = self._is_attached and position == self.position
        self.position, self._epoch, self.epoch_ended = position, epoch, False
        while self._links:
            try:
                if not attached:
                    self._attach()
                attached = False
                yield from self._batches_of_connection()
                break
            except _BeginPlan:
                logger.warning("the inputs are others than those of the checkpoint: the new plan begins")
                self.position = self.position.begin_plan()
                try:
                    self._reconnect_refused()
                except StopRequested:
                    break
            except (FetcherLost, Rejected, BatchesDiffer) as error:
                level = logging.WARNING if str(error) else logging.INFO  # of a lost fetcher its supervisor warns
                logger.log(level, "%s", str(error) or "the fetcher is gone; waiting for it to come back")
                yield None  # the ranks may have agreed to save in the turn that raised
                if isinstance(error, Rejected):
                    self._agreement.refused()
                plan_hash, started_s = self.plan_hash, time.monotonic()
                self.close()
                try:
                    self._connect()
                except StopRequested:
                    break
                self.waits.waited(time.monotonic() - started_s)
                if self.plan_hash != plan_hash:
                    raise BadInputError("the fetcher came back with another plan: stop all processes first") from None
        if not (self.ended or self.epoch_ended):
            self._agreement.leave()
            yield None  # the ranks may have agreed to save

    def committed(self, position: StreamPosition) -> None:
        """Report a checkpoint on disk with this position: files behind it may be evicted.

        With several ranks the first one calls this; the others inform their fetcher once they have received it.
        """
        if self._agreement.is_first:
            self._send_committed(position.cursors)
            self._agreement.committed(position.cursors)

    def want_commit(self) -> None:
        """Make all ranks save between the same two steps, as on a request of the fetcher."""
        self._agreement.want_commit()

    def take_commit_request(self) -> bool:
        """True once for each request: save now, on every rank, and then call committed()."""
        return self._agreement.take_commit_request()

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

    def _pass_on_committed(self) -> None:
        """Report the first rank's checkpoint to this rank's fetcher."""
        if cursors := self._agreement.take_committed():
            self._send_committed(cursors)

    def _send_committed(self, cursors: tuple[m.Cursor, ...]) -> None:
        for link in self._links:
            link.committed(cursors[link.shard], waits=self._is_waiting and link is self._awaited)

    # -------------------------------------------------------------- connection

    def _connect(self) -> None:
        try:
            for share in self._shares:
                link = ShardLink(
                    self._run_dir,
                    self._workload,
                    self._stream,
                    self._config,
                    share,
                    copiers=self._copiers,
                    units_in_advance=self._units_in_advance,
                    stopped=self._stopped,
                )
                self._links.append(link)
        except BaseException:
            self.close()
            raise
        if len({link.plan_hash for link in self._links}) > 1:
            raise BadInputError("the fetchers of the shards have different plans: stop all processes first")

    def _attach(self) -> None:
        self._inventory = OneInventory()
        for link in self._links:
            # All shards judge the same source: else only those with data of a changed range would refuse.
            link.attach(self.position.shards[link.shard], self.position.source)

    def _reconnect_refused(self) -> None:
        """Connect again if refusals of other shards may be on their way: they would be taken for answers to the next
        requests. Raises StopRequested."""
        if len(self._links) == 1:
            return
        for link in self._links:
            link.is_attached = False  # there is nothing to take leave from
        self.reconnect()

    # -------------------------------------------------------------- units, microbatches, batches

    def _batches_of_connection(self) -> Generator[FedBatch | None]:
        former = self._begun = self.position
        for link in self._links:
            link.taken = self.position.shards[link.shard]
        ahead = ReadAhead(
            self._assembled(), self._links[0].copier.batches_ahead, wait=self._receive, poll=self._receive_if_there
        )
        assembled = iter(ahead)
        while True:
            item = next(assembled, (None, None))
            if item is None:
                yield None
                continue
            mine, mark = item
            if mine is None and not ahead.ended:
                return  # asked to stop
            if mine is None:  # other ranks may have data still; units without events may stand behind our last batch
                mine = FedBatch(Batch(()), self._taken(), ())
            step = yield from self._agreed(former, mine)
            if step is None:
                return  # the ranks stop: the batches taken are not trained
            former = mine.position
            if not step.microbatches:
                self.epoch_ended = self._epoch is not None
                self.ended = all(link.used_up() for link in self._links)
                self.position = step.position
                return
            if mark is not None:
                for link, of_link in zip(self._links, mark, strict=True):
                    link.copier.hand_over(of_link)
            self.waits.given(time.monotonic())
            yield replace(mine, batch=mine.batch.among(step.events, step.particles), position=step.position)
            self.waits.taken(time.monotonic())
            self.position = step.position  # the loop requests the next batch: this one is trained

    def _taken(self) -> StreamPosition:
        """Position after all units and microbatches taken; of shards of other ranks, that at the begin."""
        return self._begun.with_shards({link.shard: link.taken for link in self._links})

    def _agreed(self, former: StreamPosition, mine: FedBatch) -> Generator[None, None, Step | None]:
        """Step that all ranks make together, once all are ready; None: all stop."""
        self._is_waiting = False
        share = Share(len(mine.batch.microbatches), mine.batch.num_events, mine.batch.num_particles)
        self._ready_s = time.monotonic()
        while True:
            step = self._agreement.ready(self.position, former, mine.position, share, self._shares)
            if self._agreement.is_alone:
                return step
            yield None  # the ranks may have agreed to save: nothing may come between
            if step is not None or self._agreement.stopped:
                return step
            self._while_others_wait()

    def _assembled(self) -> Generator[tuple[FedBatch, Any] | None, None, bool]:
        """Batches whose copies have been begun, each with the copiers' marks: a source of ReadAhead."""
        streams = [
            (link, microbatches(link, self._stream, self._epoch, self._stops, self.waits, self._kept))
            for link in self._links
        ]
        while True:
            parts: list[list[FedMicrobatch]] = [[] for _ in streams]
            for link in self._links:
                link.dealing = Dealing(link.share.ranks, self._stream.shard_batch_events)
            turns = deque(range(len(streams)))
            while turns:
                number = turns.popleft()
                link, stream = streams[number]
                if not (yield from self._fill(parts[number], link, stream)):
                    turns.append(number)
                elif not link.dealing.is_full and not link.used_up(self._epoch):
                    return False  # asked to stop: the microbatches taken are not trained
            if not any(link.dealing.num_events for link in self._links):
                return True
            mine = [one for of_link in parts for one in of_link]
            yield FedBatch.of(mine, self._taken()), [link.copier.mark() for link in self._links]

    def _fill(
        self, mine: list[FedMicrobatch], link: ShardLink, stream: Iterator[Taken | None]
    ) -> Generator[None, None, bool]:
        """Fill the batch with a shard's events as far as it has data; False: its turn is over, after a whole epoch
        without an event. Else the others of a run without end would never be read, and nobody notice that none has an
        event.
        """
        while not link.dealing.is_full:
            taken = next(stream, _NO_MORE)
            if taken is _NO_MORE:
                return True
            if taken is NO_EVENT:
                return False
            if taken is None:
                self._awaited = link
                yield None
            else:
                mine += taken
        return True

    def _stops(self) -> bool:
        return self._stopped() or self._agreement.stopped

    def _while_others_wait(self) -> None:
        """Take messages that have arrived, without waiting, while this rank is ready and another one is late."""
        now_s = time.monotonic()
        self.waits.waited(now_s - self._ready_s)
        self._ready_s = now_s
        self._receive_if_there()

    def _receive(self) -> None:
        """Wait a short time for a message, and take it; records the time without data."""
        self._is_waiting = True
        self._pass_on_committed()
        if self._take_arrived():
            return
        started_s = time.monotonic()
        found = self._wait_for_message()
        self.waits.waited(time.monotonic() - started_s)
        if not found:
            self._agreement.waiting(self._taken(), self._shares)

    def _receive_if_there(self) -> bool:
        """Take messages that have arrived; False if there is none."""
        self._pass_on_committed()
        return self._take_arrived()

    def _take_arrived(self, timeout_s: float = 0.0) -> bool:
        """Take a message of each link that has one; False if none has."""
        return any([self._take(link, link.receive(timeout_s)) for link in self._links])

    def _wait_for_message(self) -> bool:
        """Wait a short time, and take a message of each link that has one then; False if none has."""
        if len(self._links) == 1:
            return self._take_arrived(_POLL_S)
        transports = [link.transport for link in self._links if isinstance(link.transport, PeerTransport)]
        PeerTransport.wait_for_any(transports, _POLL_S)
        return self._take_arrived()

    def _take(self, link: ShardLink, message: m.Message | None) -> bool:
        match message:
            case m.DeliveredUnit() as unit:
                self.outside_values = self.outside_values or unit.tally.outside_values
                if len(self._links) > 1:
                    self._inventory.require(link.shard, unit)
            case m.CommitRequest():
                self._agreement.want_commit()
            case m.Refuse(other_inventory=True) if self._accept_new_plan:
                raise _BeginPlan
            case m.Refuse(reason, other_inventory=True):
                raise BadInputError(f"{reason} {self._remedy}")
            case m.Refuse(reason):
                raise BadInputError(f"the dispatcher refused this trainer: {reason}")
        return message is not None
