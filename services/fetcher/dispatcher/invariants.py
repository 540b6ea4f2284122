"""Invariants of the dispatcher's state, which hold between any two calls. Pure; for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.fetcher.dispatcher.decoder_pool import DecoderPool
from services.fetcher.dispatcher.trainers import Trainers
from services.fetcher.dispatcher.unit_table import State, UnitTable


def check_invariants(
    units: UnitTable, decoders: DecoderPool, trainers: Trainers, story: Callable[[int], Sequence[str]]
) -> None:
    """Raise AssertionError if an invariant doesn't hold; ``story`` returns the history of the unit that breaks it."""
    _check_slots(units, decoders)
    _check_units(units, decoders, trainers, story)
    for rank, one in enumerate(trainers.all):
        assert one.rank == rank
        assert one.peer is not None or (one.want == 0 and not one.holds)
        assert len(one.holds) <= trainers.most_held, "a slot is left for the slowest trainer"
    num_planned = units.next_k - units.first_k
    assert len(units.planned) == num_planned, "the planned units have no gap"
    assert not num_planned or (units.first_k in units.planned and units.next_k - 1 in units.planned)


def _check_slots(units: UnitTable, decoders: DecoderPool) -> None:
    slots = [*units.free, *(unit.slot for unit in units.held.values() if unit.slot is not None)]
    for decoder in decoders.by_name.values():
        assert decoder.credit >= 0
        slots += decoder.zombies.values()
    assert sorted(slots) == list(range(units.slots)), f"each slot has exactly one owner: {sorted(slots)}"


def _check_units(
    units: UnitTable, decoders: DecoderPool, trainers: Trainers, story: Callable[[int], Sequence[str]]
) -> None:
    leases = {k: (peer, lease) for peer, decoder in decoders.by_name.items() for lease, k in decoder.leases.items()}
    delivered, first_k = set[int]().union(*(one.holds for one in trainers.all)), trainers.first_k
    num_leased = 0
    for k, unit in units.held.items():
        is_delivered = unit.state is State.DELIVERED
        broken = None
        if unit.state is State.LEASED:
            num_leased += 1
            if leases.get(k) != (unit.decoder, unit.lease):
                broken = "leases agree on both sides"
            elif unit.slot is None:
                broken = "a unit that is written has a slot"
        if is_delivered != (k in delivered):
            broken = "delivered is what a trainer reads"
        elif not is_delivered and k < first_k:
            broken = "what is kept is needed"
        elif not is_delivered and not units.first_k <= k < units.next_k:
            broken = "what is kept is planned"
        if broken is not None:
            raise AssertionError("\n".join([f"unit {k}: {broken}; {unit}", *story(k)]))
    assert num_leased == len(leases), "leases agree on both sides"
