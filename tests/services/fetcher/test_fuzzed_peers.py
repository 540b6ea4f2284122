"""The dispatcher behind real sockets, with a good decoder, a good trainer, and peers that send what nobody should.

After everything that arrives the dispatcher's invariants hold; the good ones get what they get without the others.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fuzzed_messages import fuzzed, good

from common import messages as m
from common.arena import Arena
from common.config import TransportConfig
from common.transport import Lost, PeerTransport, Received, ServerTransport
from services.fetcher.dispatcher import Action, Dispatcher, EndRun, Fence, Replan, Send, State

PLAN = "ab" * 16
SLOTS = 3
UNITS = 60
UNITS_PER_BLOCK = 5
ROWS = 5
NOW_S = 1.0
_MANY_POLLS = 2000


def unit(k: int) -> m.Unit:
    part = m.Part(file=0, path="f", row_group=0, first_row=0, rows=ROWS, particles=9, file_row=0)
    first = k - k % UNITS_PER_BLOCK
    return m.Unit(k=k, epoch=0, block=k // UNITS_PER_BLOCK, block_first_unit=first, parts=(part,))


@dataclass
class Fetcher:
    """The dispatcher and its sockets, without files: what the service does, in the test's own thread."""

    run_dir: Path
    transport: ServerTransport
    dispatcher: Dispatcher
    ended: bool = False
    decodable: int = 0
    """Messages that arrived and were well-formed."""
    lost: int = 0
    """Peers that have gone, after the last of their messages."""

    def turn(self, timeout_s: float = 0.0) -> None:
        """Act on all that has arrived."""
        for event in self.transport.poll(timeout_s):
            match event:
                case Received(peer, message):
                    self.decodable += 1
                    self.act(self.dispatcher.handle(peer, message, NOW_S))
                case Lost(peer):
                    self.lost += 1
                    self.act(self.dispatcher.lose(peer))
            self.dispatcher.validate()
        self.act(self.dispatcher.tick(NOW_S))

    def turn_until(self, what: Callable[[], object]) -> None:
        for _ in range(_MANY_POLLS):
            if what():
                return
            self.turn(0.01)
        raise AssertionError("it didn't come")

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(peer, message):
                    self.transport.send(peer, message)
                case Replan(cursor):
                    self.plan_from(cursor.block_first_unit)
                case Fence(peer):
                    raise AssertionError(f"{peer} has had no time to hang")
                case EndRun():
                    self.ended = True

    def plan_from(self, k: int) -> None:
        self.act(self.dispatcher.add_units([unit(j) for j in range(k, UNITS)]))
        self.act(self.dispatcher.end_plan())

    def connect(self) -> PeerTransport:
        """A peer in this process: it connects in a thread while we accept."""
        with ThreadPoolExecutor(1) as thread:
            config = TransportConfig(connect_timeout_s=20)
            future = thread.submit(PeerTransport, self.run_dir, config, writable=False, stopped=lambda: False)
            for _ in range(_MANY_POLLS):
                self.turn(0.01)
                if future.done():
                    break
            return future.result(timeout=1)


@dataclass
class GoodDecoder:
    """Says Done for every lease, one a turn."""

    peer: PeerTransport
    leases: list[m.Lease] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.peer.send(m.Hello(2))

    def turn(self) -> None:
        match self.peer.receive(0.0):
            case m.Lease() as lease:
                self.leases.append(lease)
        if self.leases:
            lease = self.leases.pop(0)
            self.peer.send(m.Decoding(lease.unit.k, lease.lease))
            self.peer.send(m.Done(lease.unit.k, lease.lease, m.Layout(ROWS, 9, 1), m.Tally(rows_read=ROWS)))


@dataclass
class GoodTrainer:
    """Trains a unit a turn, and knows in which order they came."""

    peer: PeerTransport
    trained: list[int] = field(default_factory=list)
    ended: bool = False

    def attach(self) -> None:
        self.peer.send(dataclasses.replace(good(random.Random(0), m.Attach), **AT_THE_START))
        self.peer.send(m.Want(2))

    def turn(self) -> None:
        match self.peer.receive(0.0):
            case m.DeliveredUnit() as delivered:
                assert delivered.layout == m.Layout(ROWS, 9, 1)
                self.trained.append(delivered.k)
                self.peer.send(m.Release(delivered.k))
                self.peer.send(m.Want(1))
            case m.End():
                self.ended = True
                self.peer.send(m.Finished())
            case m.Refuse(reason):
                raise AssertionError(reason)


AT_THE_START = {
    **{"rank": 0, "ranks": 1, "plan_hash": PLAN, "cursor": m.Cursor(), "bad_files": ()},
}


@pytest.fixture
def fetcher(tmp_path: Path) -> Iterator[Fetcher]:
    with Arena.create(SLOTS, 8192) as arena:
        transport = ServerTransport(tmp_path, TransportConfig(), arena, PLAN)
        # Nobody is blamed here for what the others do: that has tests of its own.
        dispatcher = Dispatcher(slots=SLOTS, plan_hash=PLAN, max_unit_deaths=10**9, stall_timeout_s=60)
        yield Fetcher(tmp_path, transport, dispatcher)
        dispatcher.validate()
        transport.close()


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> None:
    """PeerTransport.send takes bytes as they are, too."""
    encode = m.encode
    monkeypatch.setattr(m, "encode", lambda message: message if isinstance(message, bytes) else encode(message))


def is_message(frame: bytes) -> bool:
    try:
        m.decode(frame)
    except m.MalformedMessage:
        return False
    return True


def run_to_the_end(fetcher: Fetcher, decoder: GoodDecoder, trainer: GoodTrainer) -> None:
    deadline_s = time.monotonic() + 60.0
    while not fetcher.ended:
        assert time.monotonic() < deadline_s
        fetcher.turn(0.005)
        decoder.turn()
        trainer.turn()
    assert trainer.trained == list(range(UNITS))
    assert trainer.ended


@pytest.mark.usefixtures("raw")
def test_thousands_of_fuzzed_frames_are_counted_and_change_nothing_for_the_others(fetcher: Fetcher) -> None:
    rng = random.Random(5)
    decoder, trainer = GoodDecoder(fetcher.connect()), GoodTrainer(fetcher.connect())
    rogues = [fetcher.connect() for _ in range(3)]
    trainer.attach()
    deadline_s = time.monotonic() + 60.0
    while not trainer.trained:  # the good trainer is there first, or a fuzzed Attach might take its place
        assert time.monotonic() < deadline_s
        fetcher.turn(0.01)
        decoder.turn()
        trainer.turn()
    malformed = sent = 0
    while sent < 4000:
        for _ in range(40):
            frame = fuzzed(rng)
            malformed += not is_message(frame)
            sent += 1
            rng.choice(rogues).send(frame)  # type: ignore[arg-type]
        fetcher.turn()
        if sent % 400 == 0:
            decoder.turn()
            trainer.turn()
    assert len(trainer.trained) < UNITS
    fetcher.turn_until(lambda: fetcher.transport.malformed == malformed)
    for rogue in rogues:
        rogue.close()
    run_to_the_end(fetcher, decoder, trainer)
    assert fetcher.transport.malformed == malformed
    assert malformed > 3000
    assert fetcher.dispatcher.units.num(State.DELIVERED) == 0
    decoder.peer.close()
    trainer.peer.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_decoder_that_says_what_is_not_so_breaks_no_invariant(fetcher: Fetcher, seed: int) -> None:
    rng = random.Random(seed)
    decoder, trainer, rogue = GoodDecoder(fetcher.connect()), GoodTrainer(fetcher.connect()), fetcher.connect()
    trainer.attach()
    rogue.send(m.Hello(rng.choice((1, 7, 1024))))
    told: list[m.Lease] = []
    for _ in range(100):
        match rogue.receive(0.0):
            case m.Lease() as lease:
                told.append(lease)
        rogue.send(lie(rng, told))
        fetcher.turn()
        decoder.turn()
        trainer.turn()
    rogue.close()
    run_to_the_end(fetcher, decoder, trainer)
    decoder.peer.close()
    trainer.peer.close()


def lie(rng: random.Random, told: list[m.Lease]) -> m.Message:
    """Of a decoder: about its own leases, those of others, and such that nobody has."""
    message = good(rng, rng.choice((m.Done, m.Done, m.Done, m.Failed, m.Decoding, m.Hello, m.Beat)))
    about = {}
    if hasattr(message, "lease"):
        about["lease"] = rng.choice([lease.lease for lease in told] + [0, 1, 2, 3, message.lease])
        about["k"] = rng.choice([lease.unit.k for lease in told] + [0, 1, message.k])
    return dataclasses.replace(message, **about)


@pytest.mark.parametrize("seed", range(40))
def test_a_trainer_that_says_what_is_not_so_breaks_no_invariant(fetcher: Fetcher, seed: int) -> None:
    rng = random.Random(seed)
    decoder, rogue = GoodDecoder(fetcher.connect()), fetcher.connect()
    for _ in range(60):
        rogue.send(claim(rng))
        fetcher.turn(0.001)
        decoder.turn()
        rogue.receive(0.0)
    rogue.close()
    fetcher.turn_until(lambda: fetcher.lost)  # the last of its claims may come late
    fetcher.ended = False  # a Finished may have been among the claims
    trainer = GoodTrainer(fetcher.connect())
    trainer.attach()
    run_to_the_end(fetcher, decoder, trainer)
    decoder.peer.close()
    trainer.peer.close()


def claim(rng: random.Random) -> m.Message:
    """Of a trainer: of a plan, a place, or units that it doesn't have."""
    message = good(rng, rng.choice((m.Attach, m.Attach, m.Want, m.Release, m.Committed, m.Finished)))
    if isinstance(message, m.Attach):
        claims = {"plan_hash": rng.choice((PLAN, PLAN, "00" * 16))}
        cursor = m.Cursor(rng.randrange(13), rng.randrange(UNITS), rng.randrange(UNITS + 2), rng.randrange(3))
        return dataclasses.replace(message, **claims, rank=0, ranks=1, cursor=rng.choice((cursor, message.cursor)))
    if isinstance(message, m.Release) and rng.random() < 0.7:
        return dataclasses.replace(message, k=rng.randrange(UNITS))
    return message
