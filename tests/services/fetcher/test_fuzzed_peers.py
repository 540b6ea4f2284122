"""The dispatcher with a good decoder, a good trainer, and a peer that says what nobody should.

After everything that it says the dispatcher's invariants hold; the good ones get what they get without it.
"""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict, deque
from dataclasses import dataclass, field

import pytest
from fuzzed_messages import good
from invariants import check_invariants
from simulated_peers import EVENTS, FILLED, PLAN
from simulated_run import unit

from common import messages as m
from services.fetcher.dispatcher import Action, Dispatcher, EndRun, Replan, Restage, Send

SLOTS = 3
UNITS = 60


@dataclass
class Fetcher:
    """The dispatcher without sockets and files: messages lie in the boxes of their peers."""

    # Nobody is blamed here for what the others do: that has tests of its own.
    dispatcher: Dispatcher = field(
        default_factory=lambda: Dispatcher(slots=SLOTS, plan_hash=PLAN, max_unit_deaths=10**9, stall_timeout_s=60)
    )
    boxes: dict[str, deque[m.Message]] = field(default_factory=lambda: defaultdict(deque))
    trained: list[int] = field(default_factory=list)
    ended: bool = False

    def hear(self, peer: str, message: m.Message) -> None:
        self.act(self.dispatcher.handle(peer, message))
        check_invariants(self.dispatcher)

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(peer, message):
                    self.boxes[peer].append(message)
                case Replan(cursor):
                    self.act(self.dispatcher.add_units([unit(j) for j in range(cursor.block_first_unit, UNITS)]))
                    self.act(self.dispatcher.end_plan())
                case Restage(files):
                    for file in files:
                        self.act(self.dispatcher.restaged(file))
                case EndRun():
                    self.ended = True

    def decode(self) -> None:
        """Have the good decoder say Done for its next lease."""
        if self.boxes["decoder"]:
            lease = self.boxes["decoder"].popleft()
            assert isinstance(lease, m.Lease)
            self.hear("decoder", m.Decoding(lease.unit.k, lease.lease))
            self.hear("decoder", m.Done(lease.unit.k, lease.lease, FILLED, m.Tally(rows_read=EVENTS)))

    def train(self) -> None:
        """Have the good trainer train its next unit."""
        match self.boxes["trainer"].popleft() if self.boxes["trainer"] else None:
            case m.DeliveredUnit() as delivered:
                assert delivered.layout == FILLED
                self.trained.append(delivered.k)
                self.hear("trainer", m.Release(delivered.k))
                self.hear("trainer", m.Want(1))
            case m.End():
                self.hear("trainer", m.Finished())
            case m.Refuse(reason):
                raise AssertionError(reason)

    def attach(self) -> None:
        self.hear("trainer", m.Attach(0, 1, PLAN, m.Cursor()))
        self.hear("trainer", m.Want(2))

    def run_to_the_end(self) -> None:
        for _ in range(100 * UNITS):
            self.decode()
            self.train()
        assert self.ended
        assert self.trained == list(range(UNITS))


@pytest.fixture
def fetcher() -> Fetcher:
    made = Fetcher()
    made.hear("decoder", m.Hello(2))
    return made


@pytest.mark.parametrize("seed", range(20))
def test_a_decoder_that_says_what_is_not_so_breaks_no_invariant(fetcher: Fetcher, seed: int) -> None:
    rng = random.Random(seed)
    fetcher.attach()
    fetcher.hear("rogue", m.Hello(rng.choice((1, 7, 1024))))
    for _ in range(100):
        leases = [message for message in fetcher.boxes["rogue"] if isinstance(message, m.Lease)]
        fetcher.hear("rogue", lie(rng, leases))
        fetcher.decode()
        fetcher.train()
    fetcher.act(fetcher.dispatcher.lose("rogue"))
    fetcher.run_to_the_end()


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
    for _ in range(60):
        fetcher.hear("rogue", claim(rng))
        fetcher.decode()
    fetcher.act(fetcher.dispatcher.lose("rogue"))
    fetcher.ended = False  # a Finished may have been among the claims
    fetcher.attach()
    fetcher.run_to_the_end()


def claim(rng: random.Random) -> m.Message:
    """Of a trainer: of a plan, a place, or units that it doesn't have."""
    message = good(rng, rng.choice((m.Attach, m.Attach, m.Want, m.Release, m.Committed, m.Finished)))
    if isinstance(message, m.Attach):
        claims = {"plan_hash": rng.choice((PLAN, PLAN, "ab" * 16))}
        cursor = m.Cursor(rng.randrange(21), rng.randrange(UNITS), rng.randrange(UNITS + 2), rng.randrange(3))
        return dataclasses.replace(message, **claims, rank=0, ranks=1, cursor=rng.choice((cursor, message.cursor)))
    if isinstance(message, m.Release) and rng.random() < 0.7:
        return dataclasses.replace(message, k=rng.randrange(UNITS))
    return message
