"""A random-schedule simulation of the dispatcher: deaths, hangs, late and duplicate messages, seeks, any sizes.

Every peer is a small model with queues in both directions. After each step the dispatcher's invariants are checked;
a model memory proves that nobody writes into a slot that somebody else may read. At the end every unit of every lane
was trained exactly once relative to the last checkpoint's lineage, in order. Trainers may go in lockstep: then no rank
trains a batch before all others have one for each of their lanes.

`ICESTREAM_SEEDS=100000 pytest tests/fetcher/test_dispatcher_chaos.py` tries more schedules.
"""

from __future__ import annotations

import os
import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from common import messages as m
from services.fetcher import dispatcher
from services.fetcher.dispatcher import Dispatcher, EndRun, Evict, Fence, Quarantine, Replan, Send

PLAN = "00" * 16
UNITS_PER_BLOCK = 3


def unit(k: int) -> m.Unit:
    part = m.Part(file=k, path="f", row_group=0, first_row=0, rows=5, particles=9, file_row=0)
    first = k - k % UNITS_PER_BLOCK
    return m.Unit(k=k, epoch=0, block=k // UNITS_PER_BLOCK, block_first_unit=first, parts=(part,))


@dataclass
class Decoder:
    name: str
    credit: int
    inbox: deque[m.Message] = field(default_factory=deque)
    outbox: deque[m.Message] = field(default_factory=deque)
    leases: deque[m.Lease] = field(default_factory=deque)
    writing: m.Lease | None = None
    hung: bool = False


@dataclass
class Lane:
    number: int
    k: int
    """The unit that it trains, or waits for."""
    batch: int
    """First batch of that unit that was not trained."""
    arrived: deque[m.DeliveredUnit] = field(default_factory=deque)
    ended: bool = False


@dataclass
class Trainer:
    name: str
    lanes: dict[int, Lane]
    inbox: deque[m.Message] = field(default_factory=deque)
    outbox: deque[m.Message] = field(default_factory=deque)
    finished: bool = False


class World:
    """Dispatcher, peers, slots and planner under one random schedule."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.slots = self.rng.choice([1, 1, 2, 3, 5, 8])
        self.ranks = self.rng.choice([1, 1, 1, 2, 3])
        self.num_lanes = self.ranks * self.rng.choice([1, 1, 2])
        self.in_advance = max(1, min(self.rng.randint(1, 3), self.slots // self.num_lanes))
        self.lockstep = self.rng.random() < 0.7
        self.num_units = self.rng.randint(1, 14)
        self.poison = {k for k in range(self.num_units) if self.rng.random() < 0.03}
        self.num_batches = [self.rng.choice([0, 0, 1, 1, 2, 6]) for _ in range(self.num_units)]
        self.dispatcher = Dispatcher(
            slots=self.slots, plan_hash=PLAN, max_unit_deaths=3, stall_timeout_s=60, lanes=self.num_lanes
        )
        self.memory: list[tuple[int, int] | None] = [None] * self.slots
        self.decoders: dict[str, Decoder] = {}
        self.trainers: dict[int, Trainer] = {}
        """By rank."""
        self.checkpoint = {number: (number, 0) for number in range(self.num_lanes)}
        """Unit and batch of every lane."""
        self.trained: dict[int, list[tuple[int, int]]] = {number: [] for number in range(self.num_lanes)}
        """(unit, batch) of every lane since the beginning; what a lost trainer did behind its checkpoint is cut off."""
        self.plan_from: int | None = None
        self.now_s = 0.0
        self.names = iter(range(1_000_000))
        self.skipped: set[int] = set()
        self.faults = self.rng.randint(0, 14)
        self.done = False

    # ------------------------------------------------------------ actions of the dispatcher

    def act(self, actions: list[object]) -> None:
        for action in actions:
            match action:
                case Send(peer, message):
                    self._send(peer, message)
                case Fence(peer):
                    if self.rng.random() < 0.5:
                        self.kill_decoder(peer)
                    else:
                        self.act(self.dispatcher.fence_failed(peer))
                case Replan(cursor):
                    self.plan_from = cursor.block_first_unit
                case EndRun():
                    self.done = True
                case Evict() | Quarantine():
                    pass
                case _:
                    raise AssertionError(action)
        self.dispatcher.validate()

    def _send(self, peer: str, message: m.Message) -> None:
        if peer in self.decoders:
            self.decoders[peer].inbox.append(message)
        for trainer in self.trainers.values():
            if peer == trainer.name:
                trainer.inbox.append(message)

    # ------------------------------------------------------------ possible steps

    def start_decoder(self) -> None:
        decoder = Decoder(f"d{next(self.names)}", self.rng.randint(1, 3))
        decoder.outbox.append(m.Hello(decoder.credit))
        self.decoders[decoder.name] = decoder

    def kill_decoder(self, name: str) -> None:
        decoder = self.decoders.pop(name)
        for message in list(decoder.outbox)[: self.rng.randint(0, len(decoder.outbox))]:
            self.act(self.dispatcher.handle(name, message, self.now_s))
        self.act(self.dispatcher.lose(name))

    def leave(self, name: str) -> None:
        decoder = self.decoders.pop(name)
        decoder.outbox.append(m.Bye())
        for message in decoder.outbox:
            self.act(self.dispatcher.handle(name, message, self.now_s))
        self.act(self.dispatcher.lose(name))

    def step_decoder(self, decoder: Decoder) -> None:
        if decoder.inbox:
            message = decoder.inbox.popleft()
            assert isinstance(message, m.Lease)
            decoder.leases.append(message)
        elif decoder.writing is None and decoder.leases:
            decoder.writing = decoder.leases.popleft()
            decoder.outbox.append(m.Decoding(decoder.writing.unit.k, decoder.writing.lease))
        elif decoder.writing is not None:
            lease, decoder.writing = decoder.writing, None
            if lease.unit.k in self.poison:
                self.kill_decoder(decoder.name)
                return
            self._write(lease)
            if self.rng.random() < 0.05:
                message = m.Failed(lease.unit.k, lease.lease, "bad luck")
            else:
                message = m.Done(lease.unit.k, lease.lease, m.Layout(5, 9, 1), m.Tally(rows_read=5))
            decoder.outbox.append(message)
            if self.rng.random() < 0.1:
                decoder.outbox.append(message)  # a duplicate

    def _write(self, lease: m.Lease) -> None:
        arrived = (u for t in self.trainers.values() for lane in t.lanes.values() for u in lane.arrived)
        readers = [u.k for u in arrived if u.slot == lease.slot and not self._is_copied_out]
        assert not readers, f"unit {lease.unit.k} was written over unit {readers} which a trainer reads"
        self.memory[lease.slot] = (lease.unit.k, lease.lease)

    @property
    def _is_copied_out(self) -> bool:
        """With fewer slots than lanes a trainer holds none: see services/trainer/lane.py."""
        return self.slots < self.num_lanes

    def start_trainer(self, rank: int) -> None:
        lanes = {n: Lane(n, *self.checkpoint[n]) for n in range(self.num_lanes) if n % self.ranks == rank}
        trainer = Trainer(f"t{next(self.names)}", lanes)
        self.trainers[rank] = trainer
        for lane in lanes.values():
            self.trained[lane.number] = [done for done in self.trained[lane.number] if done < (lane.k, lane.batch)]
        trainer.outbox.append(m.Attach(rank, self.ranks, PLAN, self._cursors()))
        trainer.outbox += [m.Want(number, self.in_advance) for number in lanes]

    def _cursors(self) -> tuple[m.Cursor, ...]:
        """Of the checkpoint."""
        return tuple(self._cursor(*self.checkpoint[number]) for number in range(self.num_lanes))

    def _cursor(self, k: int, batch: int) -> m.Cursor:
        # A trainer knows the block of the unit that it trained last.
        last = k if batch else max(k - self.num_lanes, 0)
        return m.Cursor(last // UNITS_PER_BLOCK, last - last % UNITS_PER_BLOCK, k, batch)

    def kill_trainer(self, rank: int) -> None:
        trainer = self.trainers.pop(rank)
        for message in list(trainer.outbox)[: self.rng.randint(0, len(trainer.outbox))]:
            self.act(self.dispatcher.handle(trainer.name, message, self.now_s))
        self.act(self.dispatcher.lose(trainer.name))

    def step_trainer(self, trainer: Trainer) -> None:
        if trainer.inbox:
            self._receive(trainer, trainer.inbox.popleft())
            return
        ranks = list(self.trainers.values()) if self.lockstep else [trainer]
        if len(ranks) < self.ranks and self.lockstep:
            return  # an all-reduce waits for a rank that is dead
        lanes = [lane for rank in ranks for lane in rank.lanes.values()]
        if not all(lane.arrived or lane.ended for lane in lanes):
            return
        for rank in ranks:
            for lane in rank.lanes.values():
                if lane.arrived:
                    self._train_batch(rank, lane)
            if self.rng.random() < 0.3:
                self._commit(rank)
            if all(lane.ended and not lane.arrived for lane in rank.lanes.values()) and not rank.finished:
                rank.finished = True
                self._commit(rank)  # first the checkpoint, then the end
                rank.outbox.append(m.Finished())

    def _receive(self, trainer: Trainer, message: m.Message) -> None:
        match message:
            case m.DeliveredUnit() as delivered:
                lane = trainer.lanes[delivered.k % self.num_lanes]
                due = lane.k + len(lane.arrived) * self.num_lanes
                assert delivered.k == due, "in order, none lost and none twice"
                lane.arrived.append(delivered)
                if delivered.slot == -1:
                    self.skipped.add(delivered.k)
                elif self._is_copied_out:
                    assert self.memory[delivered.slot] == (delivered.k, delivered.lease)
                    trainer.outbox.append(m.Release(delivered.k))
                self._finish_unit(trainer, lane)
            case m.End(number):
                trainer.lanes[number].ended = True
            case other:
                raise AssertionError(other)

    def _train_batch(self, trainer: Trainer, lane: Lane) -> None:
        delivered = lane.arrived[0]
        if delivered.slot != -1 and not self._is_copied_out:
            assert self.memory[delivered.slot] == (delivered.k, delivered.lease)
        self.trained[lane.number].append((lane.k, lane.batch))
        lane.batch += 1
        self._finish_unit(trainer, lane)

    def _finish_unit(self, trainer: Trainer, lane: Lane) -> None:
        """Let go of units of which no batch is left; the next may be empty, too."""
        while lane.arrived and lane.batch >= self.num_batches[lane.k]:
            delivered = lane.arrived.popleft()
            if delivered.slot == -1 or not self._is_copied_out:
                trainer.outbox.append(m.Release(delivered.k))
            trainer.outbox.append(m.Want(lane.number, 1))
            lane.k, lane.batch = lane.k + self.num_lanes, 0

    def _commit(self, trainer: Trainer) -> None:
        for lane in trainer.lanes.values():
            self.checkpoint[lane.number] = (lane.k, lane.batch)
        trainer.outbox.append(m.Committed(self._cursors()))

    def plan_more(self) -> None:
        assert self.plan_from is not None
        k = self.plan_from
        self.plan_from = min(k + UNITS_PER_BLOCK, self.num_units)
        self.act(self.dispatcher.add_units([unit(j) for j in range(k, self.plan_from)]))
        if self.plan_from == self.num_units:
            self.plan_from = None
            self.act(self.dispatcher.end_plan())

    def step(self) -> None:
        rng = self.rng
        self.now_s += rng.random()
        if self.faults > 0 and rng.random() < 0.08:
            self.faults -= 1
            self._fault()
        if len(self.decoders) < 1 + int(4 * rng.random()):
            self.start_decoder()
        if len(self.trainers) < self.ranks and rng.random() < 0.3:
            self.start_trainer(rng.choice([rank for rank in range(self.ranks) if rank not in self.trainers]))
        peers = [*self.decoders.values(), *self.trainers.values()]
        if not peers:
            return
        for _ in range(3):  # most have nothing to do, most of the time
            peer = peers[int(len(peers) * rng.random())]
            if peer.outbox or peer.inbox or (isinstance(peer, Decoder) and (peer.writing or peer.leases)):
                break
        if self.plan_from is not None and rng.random() < 0.4:
            self.plan_more()
        elif peer.outbox and rng.random() < 0.6:
            self.act(self.dispatcher.handle(peer.name, peer.outbox.popleft(), self.now_s))
        elif isinstance(peer, Trainer):
            self.step_trainer(peer)
        elif not peer.hung:
            self.step_decoder(peer)
        if rng.random() < 0.2:
            self.act(self.dispatcher.tick(self.now_s))

    def _fault(self) -> None:
        rng = self.rng
        names = list(self.decoders)
        kind = rng.choice(["kill", "hang", "wake", "leave", "trainer", "rubbish"])
        if kind == "trainer":
            # One of them, or all as when a job is restarted.
            ranks = list(self.trainers)
            for rank in rng.sample(ranks, min(len(ranks), rng.choice([1, 1, self.ranks]))):
                self.kill_trainer(rank)
        elif kind == "rubbish":
            message = rng.choice(
                [m.Release(3), m.Done(0, 1, m.Layout(5, 9, 1), m.Tally(rows_read=5)), m.Want(0, 1), m.Beat()]
            )
            self.act(self.dispatcher.handle("nobody", message, self.now_s))
        elif names:
            name = rng.choice(names)
            if kind == "kill":
                self.kill_decoder(name)
            elif kind == "leave" and not self.decoders[name].hung and self.decoders[name].writing is None:
                self.leave(name)
            else:
                self.decoders[name].hung = kind == "hang"

    def run(self) -> None:
        for _ in range(20_000):
            if self.done:
                break
            self.step()
            if self.faults == 0 and all(decoder.hung for decoder in self.decoders.values()):
                self.start_decoder()
            if self.faults == 0 and self.rng.random() < 0.01:
                for decoder in self.decoders.values():
                    decoder.hung = False  # who was stopped for good would be fenced or continued by somebody
        assert self.done, "deadlock: the run did not end"
        for number in range(self.num_lanes):
            units = range(number, self.num_units, self.num_lanes)
            expected = [(k, batch) for k in units for batch in range(self.num_batches[k])]
            assert self.trained[number] == expected, f"lane {number}"


SEEDS = int(os.environ.get("ICESTREAM_SEEDS", "20000"))
AT_A_TIME = 1000
FIRST_SEEDS = [
    pytest.param(first, marks=() if first < 2 * AT_A_TIME else pytest.mark.slow) for first in range(0, SEEDS, AT_A_TIME)
]


@pytest.fixture(autouse=True)
def no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every transition is logged: here that would be most of the time."""
    monkeypatch.setattr(dispatcher.logger, "disabled", True)


@pytest.mark.parametrize("first_seed", FIRST_SEEDS)
def test_no_random_schedule_breaks_a_promise_of_the_queue(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + AT_A_TIME):
        try:
            World(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
