"""What holds in the dispatcher after every event."""

from __future__ import annotations

from services.fetcher.dispatcher import Dispatcher
from services.fetcher.dispatcher_state import State


def check_invariants(dispatcher: Dispatcher) -> None:
    """Raise AssertionError if an invariant doesn't hold."""
    units, decoders, trainers = dispatcher.units, dispatcher.decoders.by_name, dispatcher.places
    slots = [*units.free, *(unit.slot for unit in units.held.values() if unit.slot is not None)]
    for decoder in decoders.values():
        assert decoder.credit >= 0
        slots += decoder.zombies.values()
    assert sorted(slots) == list(range(units.slots)), f"each slot has exactly one owner: {sorted(slots)}"
    leases = {k: (peer, lease) for peer, decoder in decoders.items() for lease, k in decoder.leases.items()}
    delivered, first_k = set[int]().union(*(trainer.holds for trainer in trainers.all)), trainers.first_k
    for k, unit in units.held.items():
        if unit.state is State.LEASED:
            assert leases.get(k) == (unit.decoder, unit.lease), f"unit {k}: leases agree on both sides; {unit}"
            assert unit.slot is not None, f"unit {k}: a unit that is written has a slot; {unit}"
        if unit.state is State.DELIVERED:
            assert k in delivered, f"unit {k}: delivered is what a trainer reads; {unit}"
        else:
            assert k not in delivered, f"unit {k}: delivered is what a trainer reads; {unit}"
            assert k >= first_k, f"unit {k}: what is kept is needed; {unit}"
            assert units.first_k <= k < units.next_k, f"unit {k}: what is kept is planned; {unit}"
    assert units.num(State.LEASED) == len(leases), "leases agree on both sides"
    for rank, trainer in enumerate(trainers.all):
        assert trainer.rank == rank
        assert trainer.peer is not None or (trainer.want == 0 and not trainer.holds)
        assert len(trainer.holds) <= trainers.most_held, "a slot is left for the slowest trainer"
    num_planned = units.next_k - units.first_k
    assert len(units.planned) == num_planned, "the planned units have no gap"
    assert not num_planned or (units.first_k in units.planned and units.next_k - 1 in units.planned)
