"""A fetcher for tests of feed and loops: real transport and dispatcher; units are filled in place of a decoder."""

from __future__ import annotations

import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from invariants import check_invariants

from common import messages as m
from common.config import StreamConfig, TransportConfig
from common.transport import Arena, Lost, Received, ServerTransport
from common.unit_arrays import SlotHeader, content_digest, slot_bytes_needed, unit_arrays, write_header
from services.decoder.microbatch import microbatch_bounds
from services.fetcher.dispatcher import Action, Dispatcher, EndRun, Evict, Replan, Send
from services.trainer.feed import Feed
from services.trainer.position import StreamPosition
from services.trainer.units import FedBatch
from workloads.muons.columns import MUONS

Kind = TypeVar("Kind", bound=m.Message)
PLAN = "ab" * 16
STREAM = StreamConfig(batch_events=4, max_particles=6, slots=2, slot_mib=0.02)
CONFIG = TransportConfig()
COLUMNS = ("muons", "primary", "source_row")
"""Columns that a feed of these tests copies: rows() tells the events apart by their source."""
EVENTS = (10, 0, 7, 9, 1, 12)
"""Events of units 0, 1, …; event e of unit k has e % 3 particles."""


def unit(k: int, source: m.Source = m.Source()) -> m.Unit:  # noqa: B008  frozen
    part = m.Part(k, "f", 0, 0, EVENTS[k], 99, 0) if EVENTS[k] else None
    parts = (part,) if part else ()
    return m.Unit(k=k, epoch=0, block=k // 2, block_first_unit=k - k % 2, parts=parts, source=source)


class Fetcher:
    """Dispatcher, transport and one imagined decoder in a thread.

    `wrong_headers`: for each such unit, the times that its slot gets another
    unit's header; `damaged`: units of which the last three events can't be read; `source`: its inventory;
    `plan_of_units`: a plan without end, in place of unit(); `as_seen`: change of the first deliveries of some units to
    the second of several trainers.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        plan: str = PLAN,
        wrong_headers: dict[int, int] | None = None,
        damaged: tuple[int, ...] = (),
        stream: StreamConfig = STREAM,
        decodes: bool = True,
        source: m.Source = m.Source(),  # noqa: B008  frozen
        plan_of_units: Sequence[m.Unit] = (),
        as_seen: dict[int, Callable[[m.DeliveredUnit], m.DeliveredUnit]] | None = None,
    ):
        self._decodes = decodes
        self._plan_of_units = plan_of_units
        self.as_seen = as_seen or {}
        self._source = source
        self.arena = Arena.create(stream.slots, stream.slot_bytes)
        self.dispatcher = Dispatcher(
            slots=stream.slots, plan_hash=plan, max_unit_deaths=1 if wrong_headers is None else 3, stall_timeout_s=1000
        )
        self._stream = stream
        self.transport = ServerTransport(run_dir, CONFIG, self.arena, plan)
        self.finished = threading.Event()
        self.evicted: list[int] = []
        self.committed = threading.Event()
        self.ask_for_commit = False
        self._plan = plan
        self._wrong_headers = Counter(wrong_headers)
        self._damaged = damaged
        self.received: list[m.Message] = []
        self.released: queue.SimpleQueue[int] = queue.SimpleQueue()
        """Units, as they are released."""
        self._leases: deque[m.Lease] = deque()
        self._stopped = False
        self._act(self.dispatcher.handle("decoder", m.Hello(1)))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopped:
            for event in self.transport.poll(0.01):
                match event:
                    case Received(peer, message):
                        self.received.append(message)
                        if isinstance(message, m.Release):
                            self.released.put(message.k)
                        for former in self.dispatcher.trainers if isinstance(message, m.Attach) else ():
                            if not self.transport.is_connected(former):
                                self._act(self.dispatcher.supersede(former))  # as the service
                        if isinstance(message, m.Attach) and message.source not in (m.Source(), self._source):
                            self.transport.send(peer, m.Refuse("of another inventory", other_inventory=True))
                            continue
                        self._act(self.dispatcher.handle(peer, message))
                    case Lost(peer):
                        self._act(self.dispatcher.lose(peer))
            while self._leases and self._decodes:
                self._decode(self._leases.popleft())
            if self.ask_for_commit and self.dispatcher.trainers:
                self.ask_for_commit = False
                self.transport.send(self.dispatcher.trainers[0], m.CommitRequest())

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send("decoder", m.Lease() as lease):
                    self._leases.append(lease)
                case Send(peer, m.DeliveredUnit(k) as delivered) if k in self.as_seen and self._is_second(peer):
                    self.transport.send(peer, self.as_seen.pop(k)(delivered))
                case Send(peer, message):
                    self.transport.send(peer, message)
                case Replan(cursor):
                    units = self._plan_of_units or [unit(k, self._source) for k in range(len(EVENTS))]
                    self._act(self.dispatcher.add_units(units[cursor.block_first_unit :]))
                    if not self._plan_of_units:
                        self._act(self.dispatcher.end_plan())
                case Evict(before_block):
                    self.evicted.append(before_block)
                    self.committed.set()
                case EndRun():
                    self.finished.set()

    def _is_second(self, peer: str) -> bool:
        one = self.dispatcher.places.of(peer)
        return one is not None and one.rank == 1

    def _decode(self, lease: m.Lease) -> None:
        k = lease.unit.k
        num_events = lease.unit.rows - 3 * (k in self._damaged)
        counts = np.arange(num_events) % 3
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        bounds = microbatch_bounds(offsets, self._stream.microbatch_events, self._stream.max_particles)
        layout = m.Layout(num_events, int(offsets[-1]), len(bounds) - 1)
        assert slot_bytes_needed(MUONS, layout) <= STREAM.slot_bytes
        slot = self.arena.slot(lease.slot)
        slot[:] = 0xEE  # whoever still reads a former unit here sees rubbish
        arrays = unit_arrays(slot, MUONS, layout)
        arrays.offsets[:] = offsets
        arrays.microbatch_bounds[:] = bounds
        arrays.event_columns["source_row"][:, 0] = 100 * k + np.arange(num_events)
        arrays.event_columns["primary_id"][:] = np.stack([np.full(num_events, k), np.arange(num_events)], 1)
        arrays.particle_columns["muons"][:, 0] = np.repeat(100 * k + np.arange(num_events), counts)
        is_wrong = self._wrong_headers[k] > 0
        self._wrong_headers[k] -= is_wrong
        write_header(slot, SlotHeader(self._plan, k + is_wrong, lease.lease, layout))
        tally = m.Tally(rows_read=lease.unit.rows, quarantined=lease.unit.rows - num_events)
        done = m.Done(k, lease.lease, layout, tally, content_digest(arrays))
        self._act(self.dispatcher.handle("decoder", done))

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Messages of a kind, as they came."""
        return [message for message in self.received if isinstance(message, kind)]

    def close(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._thread.join(timeout=20)
            self.transport.close()
            self.arena.close()
            check_invariants(self.dispatcher)


def rows(fed: FedBatch) -> list[int]:
    """The events of a batch, after a look at their particles."""
    found: list[int] = []
    for microbatch in fed.batch.microbatches:
        numbers = microbatch.event_columns["source_row"][:, 0].tolist()
        counts = microbatch.offsets_E1.diff()
        assert counts.tolist() == [number % 100 % 3 for number in numbers]
        energies = torch.repeat_interleave(torch.tensor(numbers), counts).float()
        assert torch.equal(microbatch.particle_columns["muons"][:, 0], energies)
        assert microbatch.num_particles <= STREAM.max_particles
        found += numbers
    return found


def given_up(unit: m.DeliveredUnit) -> m.DeliveredUnit:
    """Unit, as if no decoder could read it."""
    rows = unit.tally.rows_read
    tally = m.Tally(rows_read=rows, quarantined=rows)
    return replace(unit, slot=-1, layout=m.Layout(0, 0, 0), tally=tally, content="")


def with_other_events(unit: m.DeliveredUnit) -> m.DeliveredUnit:
    """Unit, as if its files had changed."""
    return replace(unit, content="ff" * 16)


ALL_ROWS = [100 * k + e for k, events in enumerate(EVENTS) for e in range(events)]


class BatchFeed(Feed):
    """A feed for those who only want its batches."""

    def batches(self, position: StreamPosition) -> Generator[FedBatch]:
        """The stream without its waits."""
        with closing(self.stream(position)) as stream:
            yield from (fed for fed in stream if fed is not None)


Fetch = Callable[..., Fetcher]
Connect = Callable[..., BatchFeed]
"""Fixtures of the tests of the feed: they make fetchers and feeds of one run directory."""
