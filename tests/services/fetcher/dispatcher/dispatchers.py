"""Units, and what is read off the dispatcher's actions, for its tests."""

from __future__ import annotations

from collections.abc import Sequence

from common import messages as m
from services.fetcher.dispatcher import Action, Send

PLAN = "00" * 16
LAYOUT = m.Layout(5, 9, 1)
TALLY = m.Tally(rows_read=5)
START = m.Cursor()


def unit(k: int, block: int = 0, first: int = 0) -> m.Unit:
    part = m.Part(file=k, path="f", row_group=0, first_row=0, rows=5, particles=9, file_row=0)
    return m.Unit(k=k, epoch=0, block=block, block_first_unit=first, parts=(part,))


def leases(actions: list[Action]) -> list[tuple[str, int, int]]:
    """(decoder, unit, slot) of every lease that was given."""
    return [
        (a.peer, a.message.unit.k, a.message.slot)
        for a in actions
        if isinstance(a, Send) and isinstance(a.message, m.Lease)
    ]


def lease_of(actions: list[Action]) -> int:
    return next(a.message.lease for a in actions if isinstance(a, Send) and isinstance(a.message, m.Lease))


def delivered(actions: list[Action]) -> list[int]:
    return [a.message.k for a in actions if isinstance(a, Send) and isinstance(a.message, m.DeliveredUnit)]


def staged_unit(k: int) -> m.Unit:
    parts = tuple(
        m.Part(file, f"/cache/{file}", 0, 0, 5, 9, 0, remote=f"https://h/{file}") for file in (2 * k, 2 * k + 1)
    )
    return m.Unit(k=k, epoch=0, block=0, block_first_unit=0, parts=parts)


def leases_in(actions: Sequence[Action]) -> list[m.Lease]:
    return [a.message for a in actions if isinstance(a, Send) and isinstance(a.message, m.Lease)]
