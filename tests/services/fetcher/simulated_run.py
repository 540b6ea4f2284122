"""One run under a random schedule: the real dispatcher; peers, planner and arena as models (simulated_peers.py).

Everything comes from the seed: sizes, who acts next, and what goes wrong. Deaths of decoders and trainers are seen
late, and some of the dead's last messages are lost or come after that; messages come twice; decoders hang, are killed
or can't be, wake up and write on; a kill is accepted and does not end them (D state); the fetcher dies; trainers go
back to an older checkpoint, or find another unit in a slot; staged files go; strangers talk. One process, some or all
are suspended, the fetcher's among them.

After every event the dispatcher's invariants are checked, and that every trainer gets all units in order, exactly
once relative to the checkpoint that it began with, that all make the same batches, from slots that nobody writes to. A
decoder is fenced only if it said nothing for the time-out while the fetcher was awake, and a suspended one's unit is
not blamed. A run that doesn't end is a deadlock.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from invariants import check_invariants
from simulated_peers import EVENTS, FILLED, PLAN, Checkpoint, Decoder, Memory, Trainer

from common import messages as m
from services.fetcher.dispatcher import Action, Dispatcher, EndRun, Evict, Fence, Quarantine, Replan, Restage, Send
from services.fetcher.dispatcher_state import State

FAULTS = (
    *("kill", "hang", "hang", "stop", "wake", "leave", "retire", "trainer", "trainer", "fetcher", "rubbish"),
    *("pause trainer", "pause fetcher", "pause fetcher", "pause all"),
)
UNITS_PER_BLOCK = 3
STALL_TIMEOUT_S = 20.0
MAX_STEPS = 30_000
TICK_S = 1.0
"""The fetcher's service ticks at least this often, while it is awake."""


@lru_cache(None)
def unit(k: int) -> m.Unit:
    """Unit k of the simulated plan."""
    part = m.Part(file=k, path="f", row_group=0, first_row=0, rows=EVENTS, particles=9, file_row=0, remote="r")
    return m.Unit(k, epoch=0, block=k // UNITS_PER_BLOCK, block_first_unit=k - k % UNITS_PER_BLOCK, parts=(part,))


class SimulatedRun:
    """See the module. Use run(), which raises AssertionError for a broken promise."""

    def __init__(self, seed: int, *, trainers_leave: bool = False) -> None:
        """``trainers_leave``: trainers end in good order, with all their messages and a Bye."""
        self._trainers_leave = trainers_leave
        self.rng = rng = random.Random(seed)
        self.ranks = rng.choice((1, 1, 2, 2, 3, 4))
        self.slots = (2 if self.ranks > 1 else 1) + rng.choice((0, 0, 1, 2, 3, 5))
        self.num_decoders = rng.choice((1, 1, 2, 3))
        self.num_units = rng.randint(1, 12)
        self.microbatches = [rng.choice((0, 1, 1, 2, 7)) for _ in range(self.num_units)]
        self.poison = {k for k in range(self.num_units) if rng.random() < 0.02}
        self.batch = rng.choice((1, 1, 2, 3))
        self.batches_ahead = rng.choice((0, 0, 2))
        self.prefetch_units = rng.choice((1, 2, 4))
        self.plan_chance = rng.choice((0.1, 0.01))
        self.blocks_ahead = rng.choice((1, 1, 9))
        self.disk_budget = rng.choice((1, 2, 99))
        """Most blocks on the disk."""
        self.faults = rng.choice((0, 2, 4, 8))
        self.decoders: dict[str, Decoder] = {}
        self.trainers: dict[str, Trainer] = {}
        self.dying: dict[str, deque[m.Message]] = {}
        """Dead peers whose death the dispatcher has not seen, and what it may still hear of them."""
        self.checkpoints = [Checkpoint()]
        self.resumed: Checkpoint | None = None
        """What all ranks begin with, while they are not complete."""
        self.now_s = 0.0
        self.pauses = 0
        self.asleep = 0
        """Steps until the suspended fetcher goes on."""
        self.restaging: list[int] = []
        """Files on their way to the disk again."""
        self.awake_s = 0.0
        """Time that the fetcher was not suspended."""
        self.heard_s: dict[str, float] = {}
        """When, of that, it last heard of each decoder, or gave it its first lease."""
        self.done = False
        self.was_skipped = False
        """A unit was, at some time."""
        self._num_names = 0
        self._start_fetcher()

    def run(self) -> None:
        """To the end of the plan."""
        for _ in range(MAX_STEPS):
            if self.done:
                break
            self._step()
        assert self.done, f"deadlock: the run did not end: {self._picture()}"
        final = self.checkpoints[-1]
        assert (final.cursor.unit, final.cursor.microbatch) == (self.num_units, 0)
        assert self.poison <= final.skipped, "a poison unit is skipped and journaled"

    @property
    def _units_in_advance(self) -> int:
        return min(self.prefetch_units, self.slots)  # as ShardLink does

    def _picture(self) -> str:
        parts = (self.dispatcher.units, self.dispatcher.decoders, self.dispatcher.places, self.dispatcher.failures)
        state = [{name: value for name, value in vars(part).items() if name != "planned"} for part in parts]
        return "\n".join(map(str, state))

    # ------------------------------------------------------------ events

    def _step(self) -> None:
        rng = self.rng
        step_s = rng.random()
        self.now_s += step_s
        if self.asleep:
            self.asleep -= 1
            if rng.random() < 0.3:
                self._let_one_act()  # its messages wait for the fetcher
            return
        self.awake_s += step_s
        self._tick()
        chance = rng.random()
        if chance < 0.05:
            if self.restaging:
                self.act(self.dispatcher.restaged(self.restaging.pop(0)))
        elif chance < 0.10 and self.faults > 0:
            self.faults -= 1
            inject_fault(self)
        elif chance < 0.1 + self.plan_chance and self.planned < self.num_units and self._is_staged():
            self._plan_a_block()
        elif chance < 0.3 and self.dying:
            self._hear_of_the_dead()
        elif chance < 0.4 and sum(not one.undead for one in self.decoders.values()) < self.num_decoders:
            self._start_decoder()
        elif chance < 0.5 and len(self.trainers) < self.ranks:
            self._start_trainer()
        else:
            self._let_one_act()

    def _tick(self) -> None:
        if actions := self.dispatcher.tick(self.now_s):  # else it has changed nothing
            self.act(actions)

    def _let_one_act(self) -> None:
        rng = self.rng
        peers: list[Decoder | Trainer] = [*self.decoders.values(), *self.trainers.values()]
        if not peers:
            return
        peer = peers[int(rng.random() * len(peers))]
        if peer.outbox and not self.asleep and rng.random() < 0.7:
            self._hear(peer.name, peer.outbox.popleft())
        elif isinstance(peer, Trainer):
            if peer.paused > 0:
                peer.paused -= 1
                return
            peer.act(rng, self.memory)
            if peer.at_barrier:
                self._train(peer)
            elif not peer.attached and peer.name in self.dispatcher.trainers:
                self._reconnect(peer)  # it refused what a slot held: its former connection ends
        elif peer.undead:
            # For ever, unless the trainers, which may wait for each other, fill all slots that are left.
            read = self.dispatcher.units.num(State.DELIVERED) if self.ranks > 1 else 0
            zombies = sum(len(decoder.zombies) for decoder in self.dispatcher.decoders.by_name.values())
            if zombies + max(read, 1) > self.slots - (self.ranks > 1):
                self.kill(peer.name)
        elif not peer.hung:
            if not peer.act(rng, self.memory, self.poison):
                self.kill(peer.name)
            elif peer.retired and not (peer.inbox or peer.leases or peer.writing):
                self.leave(peer.name)
        elif self.faults == 0 and rng.random() < 0.1:
            peer.hung = peer.stopped = False  # one that can't be killed is woken, or killed, by somebody at some time

    def _hear(self, name: str, message: m.Message) -> None:
        self.heard_s[name] = self.awake_s
        if isinstance(message, m.Attach):  # as the fetcher's service does: a dead one must not be in the way
            for former in self.dispatcher.trainers:
                if former not in self.trainers:
                    self.act(self.dispatcher.supersede(former))
        self.act(self.dispatcher.handle(name, message))

    def _hear_of_the_dead(self) -> None:
        """One of its last messages, in order, or its death."""
        name = next(iter(self.dying))
        if self.dying[name]:
            self._hear(name, self.dying[name].popleft())
        else:
            del self.dying[name]
            self.act(self.dispatcher.lose(name))

    def act(self, actions: Sequence[Action]) -> None:
        """As the fetcher's service acts, with the promises that can be seen there."""
        for action in actions:
            match action:
                case Send(name, message):
                    if isinstance(message, m.Lease):
                        assert message.unit.block >= self.evicted_before, "the file of a lease is evicted"
                        assert message.unit.k not in self.restaging, "the file of a lease is gone"
                        if len(self.dispatcher.decoders.by_name[name].leases) == 1:
                            self.heard_s[name] = self.awake_s
                    peer = self.decoders.get(name) or self.trainers.get(name)
                    if peer is not None:
                        peer.inbox.append(message)
                case Fence(name):
                    self._fence(name)
                case Restage(files):
                    self.restaging += files
                case Replan(cursor):
                    self.planned = cursor.block_first_unit
                    self.evicted_before = min(self.evicted_before, cursor.block)
                    self.restaging.clear()  # the files of all its blocks are staged again, before its units are added
                case Evict(before_block):
                    self.evicted_before = max(self.evicted_before, before_block)
                case EndRun():
                    attached = (self.trainers[name] for name in self.dispatcher.trainers if name in self.trainers)
                    assert all(trainer.finished for trainer in attached), "a trainer still needs units"
                    self.done = True
                case Quarantine():
                    self.was_skipped = True
        check_invariants(self.dispatcher)

    def _fence(self, name: str) -> None:
        silent_s = self.awake_s - self.heard_s[name]
        assert silent_s > STALL_TIMEOUT_S - (1 + self.pauses) * TICK_S, f"{name} is fenced after {silent_s} s"
        decoder, chance = self.decoders.get(name), self.rng.random()
        blamed = dict(self.dispatcher.failures.counts)
        if decoder is not None and decoder.stopped:
            self.dispatcher.excuse(name)
        if decoder is None:
            pass  # dead, and nobody has heard of it yet: the kill finds no process
        elif chance < 0.5:
            self.kill(name)
        elif chance < 0.75:
            self.act(self.dispatcher.fence_failed(name))
        else:
            decoder.hung = decoder.undead = True  # the kill is accepted, and nothing follows
        if decoder is not None and decoder.stopped:
            assert blamed == self.dispatcher.failures.counts, "a suspended process is no unit's fault"

    def _is_staged(self) -> bool:
        """The next block is there: as many are staged ahead as StageAhead does, and as the disk holds.

        A disk that is full is emptied by a checkpoint, for which a trainer that waits is asked.
        """
        at = self.dispatcher.units.planned.get(self.dispatcher.places.furthest_k)
        block = unit(self.planned).block
        if at is not None and block > at.block + self.blocks_ahead:
            return False
        if block - self.evicted_before < self.disk_budget:
            return True
        if self.dispatcher.starved and self.trainers and not self.dying:
            self._save(list(self.trainers.values()))
            # A batch that needs more blocks than the disk holds ends a run with the setting; here it gets its block.
            # One that has the batch already, and not yet heard that the fetcher is another one, isn't attached.
            return self.trainers.keys() >= set(self.dispatcher.trainers)
        return False

    def _plan_a_block(self) -> None:
        first, self.planned = self.planned, min(self.planned + UNITS_PER_BLOCK, self.num_units)
        self.act(self.dispatcher.add_units([unit(k) for k in range(first, self.planned)]))
        if self.planned == self.num_units:
            self.act(self.dispatcher.end_plan())

    # ------------------------------------------------------------ who comes

    def _start_fetcher(self) -> None:
        self.dispatcher = Dispatcher(
            slots=self.slots, plan_hash=PLAN, max_unit_deaths=3, stall_timeout_s=STALL_TIMEOUT_S
        )
        self.memory = Memory(self.slots)
        self.planned = self.num_units  # nothing is planned before a trainer has attached
        self.evicted_before = 0

    def _start_decoder(self) -> None:
        decoder = Decoder(self._name("d"), self.rng.randint(1, 3))
        decoder.outbox.append(m.Hello(decoder.credit))
        self.decoders[decoder.name] = decoder

    def _start_trainer(self) -> None:
        """One of the ranks that are missing. All begin with the same checkpoint."""
        present = {trainer.rank for trainer in self.trainers.values()}
        rank = self.rng.choice([rank for rank in range(self.ranks) if rank not in present])
        if self.resumed is None:
            self.resumed = self.checkpoints[-1]
            if self.rng.random() < 0.1:
                self.resumed = self.rng.choice(self.checkpoints[-3:])  # somebody wants to go back
        trainer = Trainer(
            self._name("t"),
            rank,
            self.ranks,
            self.resumed,
            self.microbatches,
            batch=self.batch,
            units_in_advance=self._units_in_advance,
            batches_ahead=self.batches_ahead,
            paused=self.rng.choice((0, 0, 0, 40)),
        )
        self.trainers[trainer.name] = trainer
        if len(self.trainers) == self.ranks:
            self.resumed = None

    def _reconnect(self, trainer: Trainer) -> None:
        """It left in good order: what it said last is heard, and it comes by another name."""
        del self.trainers[trainer.name]
        self.dying[trainer.name] = trainer.outbox
        trainer.outbox = deque()
        trainer.name = self._name("t")
        self.trainers[trainer.name] = trainer

    def _name(self, kind: str) -> str:
        self._num_names += 1
        return f"{kind}{self._num_names}"

    # ------------------------------------------------------------ training

    def _train(self, trainer: Trainer) -> None:
        """A step of all ranks once all have the batch; perhaps a checkpoint; the end."""
        group = list(self.trainers.values())
        ready = {one.ready_at for one in group if one.at_barrier}
        is_beyond = any(not one.at_barrier and one.is_beyond(trainer) for one in group)
        if len(ready) == 1 and not is_beyond and (len(group) < self.ranks or not all(one.at_barrier for one in group)):
            return
        if len(ready) > 1 or is_beyond:
            # A unit was skipped, for want of luck, after one of them had got it: all begin the batch again.
            assert self.was_skipped, "all ranks make the same batch"
            for one in group:
                one.connection_lost()
                one.made.clear()
                self._reconnect(one)
            return
        _, used_up = trainer.ready_at
        for one in group:
            one.step()
        if used_up or self.rng.random() < 0.3:
            self._save(group)
        if used_up:
            for one in group:
                one.finish(self.rng)

    def _save(self, group: Sequence[Trainer]) -> None:
        """A checkpoint of all ranks."""
        self.checkpoints.append(Checkpoint(group[0].trained, frozenset().union(*(one.skipped for one in group))))
        for one in group:
            one.commit(self.rng)

    # ------------------------------------------------------------ peers that end

    def leave(self, name: str) -> None:
        """In good order: what it said last is heard."""
        self.dying[name] = self.decoders.pop(name).outbox + deque([m.Bye()])

    def kill(self, name: str) -> None:
        """Some of its last messages are lost with it."""
        if self._trainers_leave and name in self.trainers:
            self.dying[name] = self.trainers.pop(name).outbox + deque([m.Bye()])
            return
        peer = self.decoders.pop(name, None) or self.trainers.pop(name)
        self.dying[name] = deque(list(peer.outbox)[: self.rng.randint(0, len(peer.outbox))])

    def kill_fetcher(self) -> None:
        """Its peers see its end and connect again; the arena is a new one."""
        self._start_fetcher()
        self.restaging.clear()
        self.decoders.clear()
        self.dying.clear()
        for trainer in list(self.trainers.values()):
            del self.trainers[trainer.name]
            trainer.connection_lost()
            trainer.name = self._name("t")
            self.trainers[trainer.name] = trainer


# -------------------------------------------------------------- faults


def inject_fault(run: SimulatedRun) -> None:
    """One fault of a random kind, if it finds a victim."""
    rng = run.rng
    names = list(run.decoders)
    kind = rng.choice(FAULTS)
    if kind == "trainer" and run.trainers:
        for one in list(run.trainers):  # the others can't go on without it
            run.kill(one)
    elif kind == "fetcher" and rng.random() < 0.5:
        run.kill_fetcher()
    elif kind == "rubbish":
        _send_rubbish(run)
    elif kind in ("pause fetcher", "pause all"):
        run.now_s += rng.uniform(1.0, 300.0)
        run.pauses += 1
        run.asleep = rng.randint(0, 60) if kind == "pause fetcher" else 0
    elif kind == "pause trainer" and run.trainers:
        rng.choice(list(run.trainers.values())).paused = rng.randint(1, 40)
    elif kind == "retire":
        run.act(run.dispatcher.retire())
    elif names:
        name = rng.choice(names)
        if kind == "kill":
            run.kill(name)
        elif kind == "leave" and not run.decoders[name].hung and run.decoders[name].writing is None:
            run.leave(name)
        elif not run.decoders[name].undead:
            run.decoders[name].hung = kind in ("hang", "stop")
            run.decoders[name].stopped = kind == "stop"


def _send_rubbish(run: SimulatedRun) -> None:
    """A message that nobody should have sent: from a stranger, or from a peer of another part, or out of date."""
    rng = run.rng
    k, lease = rng.randint(0, run.num_units), rng.randint(0, 9)
    name = rng.choice(["nobody", *run.decoders, *run.trainers])
    for_trainers = (m.Want(2), m.Release(k), m.Committed(m.Cursor()), m.Finished())
    for_decoders = (m.Done(k, lease, FILLED, m.Tally(rows_read=EVENTS)), m.Failed(k, lease, "?"), m.Bye(), m.Beat())
    if name in run.trainers:  # of which a Bye would be meant
        messages = tuple(message for message in for_decoders if not isinstance(message, m.Bye))
    elif name in run.decoders:
        messages = for_trainers
    else:
        messages = (*for_trainers, *for_decoders)
    run.act(run.dispatcher.handle(name, rng.choice(messages)))
    if run.dispatcher.trainers:  # whoever else wants their places is told so, and changes nothing
        (refused,) = run.dispatcher.handle("second", m.Attach(99, 100, PLAN, m.Cursor()))
        assert isinstance(refused, Send)
        assert isinstance(refused.message, m.Refuse)
