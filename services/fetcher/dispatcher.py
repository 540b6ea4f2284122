"""Dispatcher: the only owner of units, leases and slots. Messages, deaths and time in, actions out; no IO, no clock.

The slot is bound when the lease is given, and leases go to the lowest unit that is wanted and absent, first to heads:
units that a trainer waits for. So a head gets a free slot, or takes the slot of a unit that no trainer waits for, and
delivery in order can't deadlock: several trainers never hold all slots (Trainers). "Next to lease" is derived, never
stored.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from common import messages as m
from common.status import STALL_REASONS
from services.fetcher import dispatcher_state as states

logger = logging.getLogger(__name__)

MAX_UNIT_DEATHS = 3
"""Killed decoders after which a unit is quarantined: one or two may have died by chance."""
STALL_TIMEOUT_S = 120.0
"""Time without progress after which a decoder that holds a unit is killed: none is that slow on a busy machine."""
_MOST_PLANNED = 1 << 16
"""Most planned units, which take 1 kB each: a checkpoint is asked for before there are more."""


# -------------------------------------------------------------- actions, which the fetcher's service carries out


@dataclass(frozen=True)
class Send:
    """Send a message to a peer."""

    peer: str
    message: m.Message


@dataclass(frozen=True)
class Fence:
    """Kill this decoder: it is hung with units in work. Report back with fence_failed() if that can't be done, and
    before it with excuse() if the process is suspended."""

    peer: str


@dataclass(frozen=True)
class Replan:
    """Plan again from this cursor's block on, and add its units from the block's first one."""

    cursor: m.Cursor


@dataclass(frozen=True)
class Evict:
    """Delete the files of blocks before this one: they are not needed any more."""

    before_block: int


@dataclass(frozen=True)
class Quarantine:
    """Count a bad input against the failure budget."""

    bad: tuple[m.Quarantined, ...]


@dataclass(frozen=True)
class Remember:
    """Keep these whole files as bad, which the journal of an accepted trainer lists."""

    files: tuple[int, ...]


@dataclass(frozen=True)
class Restage:
    """Stage files again that are gone from the disk, and report each with restaged()."""

    files: tuple[int, ...]


@dataclass(frozen=True)
class EndRun:
    """End the run: no trainer needs more units."""


Action: TypeAlias = Send | Fence | Replan | Evict | Quarantine | Remember | Restage | EndRun


# -------------------------------------------------------------- the dispatcher


class Dispatcher:
    """Dispatcher: see the module. ``slots`` of the arena; a unit that cost ``max_unit_deaths`` decoders is skipped.
    ``units``, ``decoders``, ``places`` (of the trainers) and ``failures`` are for reading."""

    def __init__(
        self,
        *,
        slots: int,
        plan_hash: str,
        max_unit_deaths: int = MAX_UNIT_DEATHS,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
        self.plan_hash = plan_hash
        self.units = states.UnitTable(slots)
        self.decoders = states.DecoderPool()
        self.places = states.Trainers(slots)
        self.failures = states.UnitFailures(max_unit_deaths)
        self.attached_once = False
        """True once a trainer has sent its cursor: nothing is leased before."""
        self.stall: str | None = None
        """Reason that nothing can be leased, since the last tick."""
        self.problem = ""
        """Newest machine error of a decoder; empty once a unit is decoded."""
        self.stalled_s = dict.fromkeys(STALL_REASONS, 0.0)
        self.counts: Counter[str] = Counter()
        self._stall_timeout_s = stall_timeout_s
        self._ticked_s: float | None = None
        self._superseded: set[str] = set()  # trainers whose last messages and end are still to come
        self._last_lease = 0

    # -------------------------------------------------------------- queries

    @property
    def trainers(self) -> list[str]:
        """Attached trainers."""
        return [trainer.peer for trainer in self.places.all if trainer.peer is not None]

    @property
    def starved(self) -> bool:
        """True if a trainer waits, and no planned unit is left to give it."""
        next_k = self.units.next_k
        waits = any(trainer.want > 0 and trainer.deliver_k >= next_k for trainer in self.places.all)
        return waits and not self.units.ended

    @property
    def plan_is_long(self) -> bool:
        """True if no more units need to be planned now, whatever cursor a trainer sends."""
        return len(self.units.planned) >= _MOST_PLANNED

    @property
    def units_ahead(self) -> int:
        """Planned units that are not delivered yet."""
        return max(self.units.next_k - self.places.furthest_k, 0)

    @property
    def trainer_waits(self) -> bool:
        """True if a trainer wants a unit that is not ready."""
        return any(trainer.want and not self.units.is_over(trainer.deliver_k) for trainer in self.places.all)

    @property
    def prefetched(self) -> float:
        """Units at the trainers, as a part of those that they requested."""
        delivered = sum(len(trainer.holds) for trainer in self.places.all)
        return delivered / (delivered + sum(trainer.want for trainer in self.places.all)) if delivered else 0.0

    # -------------------------------------------------------------- the plan, and the fetcher's own wishes

    def add_units(self, units: Sequence[m.Unit]) -> list[Action]:
        """Continue the plan. Raises ValueError unless the units follow the last one."""
        self.units.add(units)
        return self._pump()

    def end_plan(self) -> list[Action]:
        """Mark the plan as complete: no more units follow."""
        self.units.ended = True
        return self._pump()

    def restaged(self, file: int) -> list[Action]:
        """Handle a file that was staged (or is bad): units that waited for it may be leased."""
        self.units.restaged(file)
        return self._pump()

    def retire(self) -> list[Action]:
        """Retire a decoder once it has finished its leases: the newest of those that hold the fewest."""
        peer = self.decoders.retire()
        if peer is None:
            return []
        logger.info("decoder %s is asked to leave", peer)
        return [Send(peer, m.Retire())]

    # -------------------------------------------------------------- messages

    def handle(self, peer: str, message: m.Message) -> list[Action]:
        """Handle a message from ``peer``. A message that doesn't fit the peer's role is counted and dropped."""
        decoder = self.decoders.by_name.get(peer)
        if decoder is not None:
            decoder.silent_s = 0.0
            actions = self._handle_decoder(peer, decoder, message)
        else:
            actions = self._handle_trainer(peer, message)
        if actions is None:
            actions = []
            self.counts["unexpected_messages"] += 1
            number = self.counts["unexpected_messages"]
            if not number & (number - 1):  # 1, 2, 4, 8, …: a peer that sends a million of them fills no disk
                logger.warning("dropped an unexpected %s from %s; so far %d", type(message).__name__, peer, number)
        return actions + self._pump()

    def _handle_decoder(self, peer: str, decoder: states.DecoderState, message: m.Message) -> list[Action] | None:
        """Return the actions for a message of a decoder; None for one that doesn't fit."""
        match message:
            case m.Decoding(_, lease) if lease in decoder.leases or lease in decoder.zombies:
                decoder.decoding = lease
            case m.Done():
                return self._done(decoder, message)
            case m.Failed():
                return self._failed(decoder, message)
            case m.Beat():
                pass
            case m.Bye():
                logger.info("decoder %s left", peer)
                self._drop_decoder(peer, blame=False)
            case m.Attach():
                return self._attach(peer, message)
            case _:
                return None
        return []

    def _handle_trainer(self, peer: str, message: m.Message) -> list[Action] | None:
        """Return the actions for a message of a peer that is no decoder (yet); None for one that doesn't fit."""
        trainer = self.places.of(peer)
        match message:
            case m.Hello(credit) if trainer is None:
                self.decoders.by_name[peer] = states.DecoderState(credit=credit)
                logger.info("decoder %s joined with credit %d", peer, credit)
            case m.Attach():
                return self._attach(peer, message)
            case m.Want(units) if trainer:
                trainer.want += units
                trainer.end_sent = False
            case m.Release(k) if trainer and k in trainer.holds:
                trainer.holds.discard(k)
                self._settle(k)
            case m.Reject(k, reason) if trainer and k in trainer.holds:
                if not self.units.held[k].is_rejected:  # each trainer that reads the slot may refuse it
                    self.failures.add(k, reason)
                self.units.held[k].is_rejected = True  # decoded again once no trainer reads the slot
                trainer.holds.discard(k)
                self._settle(k)
            case m.Committed(cursor) if self.places.can_commit(peer, cursor):
                return self._commit(cursor)
            case m.Finished() if trainer:
                trainer.finished = True
                return [EndRun()] if all(other.finished for other in self.places.all) else []
            case m.Bye() if trainer or peer in self._superseded:
                logger.info("trainer %s left", peer)
                self._drop_trainer(peer)
            case _:
                return [] if peer in self._superseded else None
        return []

    # -------------------------------------------------------------- deaths, silence and time

    def lose(self, peer: str) -> list[Action]:
        """Handle the proven death of ``peer`` (or a closed lifeline): it can't write any more."""
        if peer in self.decoders.by_name:
            self.counts["decoders_lost"] += 1
            logger.warning("decoder %s is gone", peer)
            self._drop_decoder(peer, blame=True)
        if self.places.of(peer) or peer in self._superseded:
            logger.warning("trainer %s is gone", peer)
            self._drop_trainer(peer)
        return self._pump()

    def supersede(self, peer: str) -> list[Action]:
        """Free the place of a trainer whose connection has ended before its last messages came, for another one."""
        self._drop_trainer(peer)
        self._superseded.add(peer)
        return self._pump()

    def fence_failed(self, peer: str) -> list[Action]:
        """Handle a decoder that could not be killed: its slots stay out of service; its units are leased to others, in
        other slots."""
        decoder = self.decoders.by_name.get(peer)
        if decoder is not None:
            blamed = decoder.blamed
            for lease, k in decoder.leases.items():
                decoder.zombies[lease] = self.units.detach(k)
                if lease == blamed:
                    self.failures.add(k, f"decoder {peer} hung")
            decoder.leases.clear()
        return self._pump()

    def excuse(self, peer: str) -> None:
        """Excuse a ``peer`` that is silent because its process is stopped or waits for the machine: its unit is not to
        blame."""
        if peer in self.decoders.by_name:
            self.decoders.by_name[peer].excused = True

    def tick(self, now_s: float, *, staging_full: bool = False) -> list[Action]:
        """Handle the passing of time: find hung decoders, and note why nothing could be leased.

        ``staging_full``: nothing is in transfer, because as much is staged ahead of the trainer as allowed.
        """
        gap_s = now_s - self._ticked_s if self._ticked_s is not None else 0.0
        if self.stall is not None:
            self.stalled_s[self.stall] += gap_s
        self.stall, self._ticked_s = self._reason_of_stall(staging_full), now_s
        actions: list[Action] = []
        for peer, decoder in self.decoders.silent(gap_s, self._stall_timeout_s):
            if not decoder.fenced:
                decoder.fenced = True
                logger.warning("decoder %s hangs in lease %s: fencing it", peer, decoder.blamed)
                actions.append(Fence(peer))
            else:
                logger.warning("decoder %s was killed and is not dead; its slots wait for its end", peer)
                actions += self.fence_failed(peer)
        return actions

    # -------------------------------------------------------------- decoders

    def _done(self, decoder: states.DecoderState, done: m.Done) -> list[Action]:
        if not self._finish_lease(decoder, done.k, done.lease):
            return []
        tally, layout, unit = done.tally, done.layout, self.units.planned[done.k]
        files = {part.file for part in unit.parts}
        is_complete = tally.adds_up(layout) and tally.rows_read == unit.rows
        if not is_complete or any(bad.file not in files for bad in tally.bad):
            self.units.give_back(done.k)
            self.failures.add(done.k, f"the tally of unit {done.k} doesn't add up: {layout}, {tally!s:.500}")
            return []
        self.units.fill(done)
        self.counts["events_decoded"] += tally.rows_read
        self.problem = ""
        return [Quarantine(tally.bad)] if tally.bad else []

    def _failed(self, decoder: states.DecoderState, failed: m.Failed) -> list[Action]:
        if not self._finish_lease(decoder, failed.k, failed.lease):
            return []
        # A file that is gone once is not at fault; one that is gone repeatedly is.
        is_new = failed.gone and failed.k not in self.units.missing
        self.units.give_back(failed.k)
        if not is_new and not failed.machine:
            self.failures.add(failed.k, failed.reason)
        self.problem = failed.reason if failed.machine else self.problem
        return [Restage(self.units.restage(failed.k))] if is_new else []

    def _finish_lease(self, decoder: states.DecoderState, k: int, lease: int) -> bool:
        """Finish a decoder's lease; return True if the lease still counts."""
        decoder.finish(lease)
        if lease in decoder.zombies:
            self.units.free_slot(decoder.zombies.pop(lease))
            decoder.credit += 1
            return False
        if decoder.leases.get(lease) != k:
            return False
        del decoder.leases[lease]
        decoder.credit += 1
        return True

    def _drop_decoder(self, peer: str, *, blame: bool) -> None:
        decoder = self.decoders.by_name.pop(peer)
        for slot in decoder.zombies.values():
            self.units.free_slot(slot)
        blamed = decoder.blamed if blame else None
        for lease, k in decoder.leases.items():
            self.units.give_back(k)
            if lease == blamed:
                self.failures.add(k, f"decoder {peer} died")

    # -------------------------------------------------------------- trainers

    def _attach(self, peer: str, attach: m.Attach) -> list[Action]:
        reason = self.places.refusal(peer, attach, self.plan_hash)
        if reason is None and peer in self.decoders.by_name:
            reason = states.TAKEN
        if reason is not None:
            return [Send(peer, m.Refuse(reason))]
        self._drop_trainer(peer)  # it attaches again
        is_first = self.places.attach(peer, attach)
        self.attached_once = True
        logger.info(
            "trainer %s attached, rank %d of %d, at unit %s", peer, attach.rank, attach.ranks, attach.cursor.unit
        )
        # In this order: begun blocks know more of a bad file than its number.
        return [*self._seek(attach.cursor, is_first=is_first), Remember(attach.bad_files)]

    def _seek(self, cursor: m.Cursor, *, is_first: bool) -> list[Action]:
        """Deliver from a trainer's cursor on: keep what is still wanted, drop the other units."""
        end_k = self.units.next_k
        known = cursor.unit >= self.units.restart_k
        if is_first:  # the others are at places of the same plan, which it reaches if it hasn't
            known = known and bool(self.units.planned) and cursor.unit <= end_k
        for k, unit in list(self.units.held.items()):
            if unit.state is states.State.DELIVERED or (known and k >= self.places.first_k):
                continue
            decoder = self.decoders.by_name.get(unit.decoder or "")
            if decoder is not None:
                del decoder.leases[unit.lease]
                decoder.zombies[unit.lease] = self.units.detach(k)
            else:
                self.units.give_back(k)
        if known:
            return []
        self.units.restart(self.places.committed.block_first_unit)
        return [Replan(self.places.committed)]

    def _settle(self, k: int) -> None:
        """Keep a unit that a trainer has released, if others read or need it; else free its slot."""
        if self.places.holds(k):
            return
        unit = self.units.held[k]
        # Not planned: its files may be evicted, or a seek went back and it is not planned again yet.
        if k >= self.places.first_k and k in self.units.planned and not unit.is_rejected:
            unit.state = states.State.READY
        else:
            self.units.give_back(k)

    def _commit(self, cursor: m.Cursor) -> list[Action]:
        self.places.commit(cursor)
        committed = self.places.committed
        block = self.units.first_needed_block(committed)
        self.failures.forget(self.units.commit(committed.unit, self.places.first_k))
        # One that came back behind the commit still needs earlier blocks, which may not even be planned again yet.
        is_behind = any(trainer.peer is not None and trainer.deliver_k < committed.unit for trainer in self.places.all)
        return [] if is_behind else [Evict(block)]

    def _drop_trainer(self, peer: str) -> None:
        self._superseded.discard(peer)
        trainer = self.places.of(peer)
        for k in self.places.drop(trainer) if trainer is not None else ():
            self._settle(k)

    # -------------------------------------------------------------- leases and deliveries that the state allows

    def _pump(self) -> list[Action]:
        """Give all leases and deliveries that are possible, after each change of the state."""
        actions: list[Action] = []
        while leased := self._lease_next():
            actions += leased
        for trainer in self.places.all:
            while self.places.may_take(trainer) and self.units.is_decoded(trainer.deliver_k):
                actions.append(self._deliver(trainer))
            if trainer.want > 0 and self.units.is_over(trainer.deliver_k) and not trainer.end_sent:
                assert trainer.peer is not None
                trainer.end_sent = True
                actions.append(Send(trainer.peer, m.End()))
        return actions

    def _lease_next(self) -> list[Action]:
        """Lease (or skip) the first possible unit; no action without one."""
        heads = self.places.heads(self.units.planned)
        for k in self._to_lease(heads):
            if k in self.failures.skip:
                tally = self.failures.skipped(self.units.planned[k])
                self.units.held[k] = states.HeldUnit(states.State.READY, None, tally=tally)
                return [Quarantine(tally.bad)]
            peer = self.decoders.idle
            if peer is None:
                return []
            slot = self.units.claim_slot(k, heads)
            if slot is not None:
                self._last_lease += 1
                self.units.held[k] = states.HeldUnit(states.State.LEASED, slot, self._last_lease, peer)
                self.decoders.by_name[peer].lease(self._last_lease, k)
                lease = m.Lease(self._last_lease, slot, self.units.planned[k], self.failures.counts.get(k, 0))
                return [Send(peer, lease)]
        return []

    def _to_lease(self, heads: Collection[int]) -> Iterator[int]:
        """Yield units that are wanted, planned and absent: heads, then the lowest. Not a complete list: the caller
        takes the first it can."""
        if not self.attached_once:
            return
        yield from sorted(k for k in heads if self.units.can_be_leased(k))
        for k in range(self.places.first_k, self.units.next_k):
            if self.units.can_be_leased(k):
                yield k
                return

    def _deliver(self, trainer: states.TrainerState) -> Send:
        assert trainer.peer is not None
        k = trainer.deliver_k
        held, unit = self.units.held[k], self.units.planned[k]
        held.state = states.State.DELIVERED
        self.places.delivered(trainer, unit.epoch, held.layout.events)
        delivered = m.DeliveredUnit(
            k=k,
            epoch=unit.epoch,
            block=unit.block,
            block_first_unit=unit.block_first_unit,
            slot=-1 if held.slot is None else held.slot,
            lease=held.lease,
            layout=held.layout,
            tally=held.tally,
            block_quarantined=unit.quarantined if k == unit.block_first_unit else (),
            source=unit.source,
            content=held.content,
        )
        return Send(trainer.peer, delivered)

    def _reason_of_stall(self, staging_full: bool) -> str | None:
        """Return why nothing can be leased now; None if nothing needs to be."""
        units, heads = self.units, self.places.heads(self.units.planned)
        nothing_to_lease = next(self._to_lease(heads), None) is None
        if not self.attached_once or (units.ended and nothing_to_lease):
            return None
        waits = (
            units.num(states.State.READY) or self.decoders.idle is not None
        )  # a peer waits for a slot to become free
        if not units.free and waits:
            # A trainer may wait for a unit while all behind it are ready: then a decoder is late.
            waits_for_head = any(k in units.held and units.held[k].state is states.State.LEASED for k in heads)
            return "no_credit" if waits_for_head else "no_free_slot"
        if nothing_to_lease:
            # All staged units are decoded, and the trainer still holds some of them: the data waits for it.
            waits_for_trainer = staging_full and (units.num(states.State.READY) or units.num(states.State.DELIVERED))
            return "no_free_slot" if waits_for_trainer else "not_staged"
        return "no_credit"
