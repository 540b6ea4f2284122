"""Transitions of the dispatcher's state: messages, deaths and time in, actions out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from common import messages as m
from common.status import STALL_REASONS
from services.fetcher.dispatcher.actions import (
    Action,
    EndRun,
    Evict,
    Fence,
    Quarantine,
    Remember,
    Replan,
    Restage,
    Send,
)
from services.fetcher.dispatcher.decoder_pool import DecoderPool, DecoderState, Silence
from services.fetcher.dispatcher.grants import Grants
from services.fetcher.dispatcher.history import History
from services.fetcher.dispatcher.invariants import check_invariants
from services.fetcher.dispatcher.trainers import TAKEN, Trainers
from services.fetcher.dispatcher.unit_failures import UnitFailures
from services.fetcher.dispatcher.unit_table import HeldUnit, State, UnitTable

logger = logging.getLogger(__name__)

_MOST_PLANNED = 1 << 16
"""Most planned units, which take 1 kB each: a checkpoint is asked for before there are more."""


class Dispatcher:
    """Dispatcher: see the module. ``slots`` of the arena; a unit that cost ``max_unit_deaths`` decoders is skipped.
    ``units``, ``decoders``, ``places`` (of the trainers) and ``failures`` are for reading."""

    def __init__(self, *, slots: int, plan_hash: str, max_unit_deaths: int, stall_timeout_s: float) -> None:
        self.plan_hash = plan_hash
        self.stall_timeout_s = stall_timeout_s
        self.units = UnitTable(slots)
        self.decoders = DecoderPool()
        self.places = Trainers(slots)
        self.failures = UnitFailures(max_unit_deaths)
        self.stall: str | None = None
        """Reason that nothing can be leased, since the last tick."""
        self.problem = ""
        """Newest machine error of a decoder; empty once a unit is decoded."""
        self.stalled_s = dict.fromkeys(STALL_REASONS, 0.0)
        self.counts: Counter[str] = Counter()
        self._ticked_s: float | None = None
        self._now_s = 0.0
        """Newest time that was passed in."""
        self._superseded: set[str] = set()  # trainers whose last messages and end are still to come
        self._history = History()
        self._grants = Grants(self.units, self.decoders, self.places, self.failures, self._history)

    # -------------------------------------------------------------- queries

    @property
    def attached_once(self) -> bool:
        """True once a trainer has sent its cursor."""
        return self._grants.began

    @property
    def trainers(self) -> list[str]:
        """Attached trainers."""
        return self.places.peers

    @property
    def starved(self) -> bool:
        """True if a trainer waits, and no planned unit is left to give it."""
        next_k = self.units.next_k
        return any(one.want > 0 and one.deliver_k >= next_k for one in self.places.all) and not self.units.ended

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
        return any(one.want and not self.units.is_over(one.deliver_k) for one in self.places.all)

    @property
    def prefetched(self) -> float:
        """Units at the trainers, as a part of those that they requested."""
        delivered = sum(len(one.holds) for one in self.places.all)
        return delivered / (delivered + sum(one.want for one in self.places.all)) if delivered else 0.0

    def retire(self) -> list[Action]:
        """Retire a decoder once it has finished its leases: the newest of those that hold the fewest."""
        peer = self.decoders.retire()
        if peer is None:
            return []
        logger.info("decoder %s is asked to leave", peer)
        return [Send(peer, m.Retire())]

    # -------------------------------------------------------------- the plan

    def add_units(self, units: Sequence[m.Unit]) -> list[Action]:
        """Continue the plan. Raises ValueError unless the units follow the last one."""
        self.units.add(units)
        return self._pump()

    def end_plan(self) -> list[Action]:
        """Mark the plan as complete: no more units follow."""
        self.units.ended = True
        return self._pump()

    # -------------------------------------------------------------- messages

    def handle(self, peer: str, message: m.Message, now_s: float) -> list[Action]:
        """Handle a message from ``peer``. A message that doesn't fit the peer's role is counted and dropped."""
        self._now_s = now_s
        if not isinstance(message, m.Beat):
            self._history.add(now_s, peer, message)
        decoder = self.decoders.by_name.get(peer)
        if decoder is not None:
            decoder.silent_s = 0.0
            actions = self._handle_decoder(peer, decoder, message)
        else:
            actions = self._handle_trainer(peer, message)
        if actions is None:
            actions = []
            self._count_unexpected(peer, message)
        return actions + self._pump()

    def _handle_decoder(self, peer: str, decoder: DecoderState, message: m.Message) -> list[Action] | None:
        """Actions for a message of a decoder; None for one that doesn't fit."""
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
        """Actions for a message of a peer that is no decoder (yet); None for one that doesn't fit."""
        match message:
            case m.Hello(credit) if self.places.of(peer) is None:
                self.decoders.by_name[peer] = DecoderState(credit=credit)
                logger.info("decoder %s joined with credit %d", peer, credit)
            case m.Attach():
                return self._attach(peer, message)
            case m.Want(units) if one := self.places.of(peer):
                one.want += units
                one.end_sent = False
            case m.Release(k) if (one := self.places.of(peer)) and k in one.holds:
                one.holds.discard(k)
                self._settle(k)
            case m.Reject(k, reason) if (one := self.places.of(peer)) and k in one.holds:
                if not self.units.held[k].is_rejected:  # each trainer that reads the slot may refuse it
                    self.failures.add(k, reason)
                self.units.held[k].is_rejected = True  # decoded again once no trainer reads the slot
                one.holds.discard(k)
                self._settle(k)
            case m.Committed(cursor) if self.places.can_commit(peer, cursor):
                return self._commit(cursor)
            case m.Finished() if self.places.of(peer):
                return [EndRun()] if self.places.finish(peer) else []
            case m.Bye() if self.places.of(peer) or peer in self._superseded:
                logger.info("trainer %s left", peer)
                self._drop_trainer(peer)
            case _:
                return [] if peer in self._superseded else None
        return []

    def _count_unexpected(self, peer: str, message: m.Message) -> None:
        self.counts["unexpected_messages"] += 1
        number = self.counts["unexpected_messages"]
        if not number & (number - 1):  # 1, 2, 4, 8, …: a peer that sends a million of them fills no disk
            logger.warning("dropped an unexpected %s from %s; so far %d", type(message).__name__, peer, number)

    def lose(self, peer: str) -> list[Action]:
        """Handle the proven death of ``peer`` (or a closed lifeline): it can't write any more."""
        self._history.add(self._now_s, peer, "lost")
        if peer in self.decoders.by_name:
            self.counts["decoders_lost"] += 1
            logger.warning("decoder %s is gone", peer)
            self._drop_decoder(peer, blame=True)
        if self.places.of(peer) or peer in self._superseded:
            self.counts["trainers_lost"] += 1
            logger.warning("trainer %s is gone", peer)
            self._drop_trainer(peer)
        return self._pump()

    def supersede(self, peer: str) -> list[Action]:
        """Free the place of a trainer whose connection has ended before its last messages came, for another one."""
        self._drop_trainer(peer)
        self._superseded.add(peer)
        return self._pump()

    def restaged(self, file: int) -> list[Action]:
        """Handle a file that was staged (or is bad): units that waited for it may be leased."""
        self.units.restaged(file)
        return self._pump()

    def fence_failed(self, peer: str) -> list[Action]:
        """Handle a decoder that could not be killed: its slots stay out of service; its units are leased to others, in
        other slots."""
        self._history.add(self._now_s, peer, "not killed")
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
        self._now_s = now_s
        gap_s = now_s - self._ticked_s if self._ticked_s is not None else 0.0
        if self.stall is not None:
            self.stalled_s[self.stall] += gap_s
        self.stall, self._ticked_s = self._grants.stall(staging_full), now_s
        actions: list[Action] = []
        for peer, decoder, verdict in self.decoders.silent(gap_s, self.stall_timeout_s):
            if verdict is Silence.HUNG:
                logger.warning("decoder %s hangs in lease %s: fencing it", peer, decoder.blamed)
                self._history.add(now_s, peer, "fenced")
                actions.append(Fence(peer))
            else:
                logger.warning("decoder %s was killed and is not dead; its slots wait for its end", peer)
                actions += self.fence_failed(peer)
        return actions

    # -------------------------------------------------------------- decoders

    def _done(self, decoder: DecoderState, done: m.Done) -> list[Action]:
        if not self._finish_lease(decoder, done.k, done.lease):
            return []
        tally, layout, unit = done.tally, done.layout, self.units.planned[done.k]
        files = {part.file for part in unit.parts}
        is_whole = tally.adds_up(layout) and tally.rows_read == unit.rows
        if not is_whole or any(bad.file not in files for bad in tally.bad):
            reason = f"the tally of unit {done.k} doesn't add up: {layout}, {tally!s:.500}"
            self._return_unit(done.k, blamed=True, reason=reason)
            return []
        self.units.fill(done)
        self.counts["events_decoded"] += tally.rows_read
        self.problem = ""
        return [Quarantine(tally.bad)] if tally.bad else []

    def _failed(self, decoder: DecoderState, failed: m.Failed) -> list[Action]:
        if not self._finish_lease(decoder, failed.k, failed.lease):
            return []
        # A file that is gone once is not at fault; one that is gone repeatedly is.
        is_new = failed.gone and not self.units.was_restaged(failed.k)
        self._return_unit(failed.k, blamed=not is_new and not failed.machine, reason=failed.reason)
        self.problem = failed.reason if failed.machine else self.problem
        return [Restage(self.units.restage(failed.k))] if is_new else []

    def _finish_lease(self, decoder: DecoderState, k: int, lease: int) -> bool:
        """Finish a decoder's lease; True if the lease still counts."""
        decoder.finish(lease)
        if lease in decoder.zombies:
            self.units.free_slot(decoder.zombies.pop(lease))
            decoder.credit += 1
            return False
        if decoder.leases.get(lease) != k:
            self.counts["stale_messages"] += 1
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
            self._return_unit(k, blamed=lease == blamed, reason=f"decoder {peer} died")

    def _return_unit(self, k: int, *, blamed: bool, reason: str) -> None:
        """Make a unit absent that no process writes or reads any more, and free its slot."""
        self.units.give_back(k)
        if blamed:
            self.failures.add(k, reason)

    # -------------------------------------------------------------- trainers

    def _attach(self, peer: str, attach: m.Attach) -> list[Action]:
        reason = self.places.refusal(peer, attach, self.plan_hash)
        if reason is None and peer in self.decoders.by_name:
            reason = TAKEN
        if reason is not None:
            return [Send(peer, m.Refuse(reason))]
        self._drop_trainer(peer)  # it attaches again
        is_first = self.places.attach(peer, attach)
        self._grants.began = True
        logger.info(
            "trainer %s attached, rank %d of %d, at unit %s", peer, attach.rank, attach.ranks, attach.cursor.unit
        )
        # In this order: begun blocks know more of a bad file than its number.
        return [*self._seek(attach.cursor, is_first=is_first), Remember(attach.bad_files)]

    def _settle(self, k: int) -> None:
        """Keep a unit that a trainer has released, if others read or need it; else free its slot."""
        if self.places.holds(k):
            return
        unit = self.units.held[k]
        # Not planned: its files may be evicted, or a seek went back and it is not planned again yet.
        if k >= self.places.first_k and k in self.units.planned and not unit.is_rejected:
            unit.state = State.READY
        else:
            self.units.give_back(k)

    def _commit(self, cursor: m.Cursor) -> list[Action]:
        self.places.commit(cursor)
        committed = self.places.committed
        block = self.units.first_needed_block(committed)
        self.failures.forget(self.units.commit(committed.unit, self.places.first_k))
        # One that came back behind the commit still needs earlier blocks, which may not even be planned again yet.
        is_behind = any(one.peer is not None and one.deliver_k < committed.unit for one in self.places.all)
        return [] if is_behind else [Evict(block)]

    def _drop_trainer(self, peer: str) -> None:
        self._superseded.discard(peer)
        one = self.places.of(peer)
        for k in self.places.drop(one) if one is not None else ():
            self._settle(k)

    def _seek(self, cursor: m.Cursor, *, is_first: bool) -> list[Action]:
        """Deliver from a trainer's cursor on: keep what is still wanted, drop the rest."""
        end_k = self.units.next_k
        known = cursor.unit >= self.units.restart_k
        if is_first:  # the others are at places of the same plan, which it reaches if it hasn't
            known = known and bool(self.units.planned) and cursor.unit <= end_k
        for k, unit in list(self.units.held.items()):
            if unit.state is not State.DELIVERED and not (known and k >= self.places.first_k):
                self._drop(k, unit)
        if known:
            return []
        self.units.restart(self.places.committed.block_first_unit)
        return [Replan(self.places.committed)]

    def _drop(self, k: int, unit: HeldUnit) -> None:
        """Drop unit k, which is not wanted any more."""
        decoder = self.decoders.by_name.get(unit.decoder or "")
        if decoder is not None:
            del decoder.leases[unit.lease]
            decoder.zombies[unit.lease] = self.units.detach(k)
        else:
            self.units.give_back(k)

    def _pump(self) -> list[Action]:
        return self._grants.pump(self._now_s)

    # -------------------------------------------------------------- checks

    def story(self, k: int) -> list[str]:
        """Kept events of unit ``k``: its messages, and events of the peers that had it. Oldest first."""
        return self._history.story(k)

    def validate(self) -> None:
        """Raise AssertionError, with the story of the unit, if an invariant doesn't hold. For tests."""
        check_invariants(self.units, self.decoders, self.places, self.story)
