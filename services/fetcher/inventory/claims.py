"""Pending trainers: messages held back until the ranges that their checkpoint was trained on are known. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common import messages as m

if TYPE_CHECKING:
    from services.fetcher.inventory.inventory import Inventory

_MOST_HELD = 16


class PendingTrainers:
    """Trainers with messages held back, from Attach on, until the inventory shows that their checkpoint fits or not."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._held: dict[str, list[m.Message]] = {}

    @property
    def ranges_wanted(self) -> int:
        """Number of ranges to be known before the waiting trainers can be answered."""
        attaches = (messages[0] for messages in self._held.values())
        return max((attach.source.ranges for attach in attaches if isinstance(attach, m.Attach)), default=0)

    def pass_on(self, peer: str, message: m.Message) -> list[m.Message]:
        """Messages for the dispatcher after ``message`` from ``peer``."""
        if isinstance(message, m.Attach):
            if self._inventory.knows(message.source) and self._inventory.has(message.source):
                self._held.pop(peer, None)
                return [message]
            self._held[peer] = [message]
            return []
        if peer in self._held:
            if len(self._held[peer]) < _MOST_HELD:  # a trainer sends no more than Want
                self._held[peer].append(message)
            return []
        return [message]

    def settle(self) -> tuple[list[tuple[str, m.Message]], list[str]]:
        """Messages to pass on, in order, and trainers to refuse; after more ranges became known."""
        passed: list[tuple[str, m.Message]] = []
        refused: list[str] = []
        for peer, messages in list(self._held.items()):
            attach = messages[0]
            assert isinstance(attach, m.Attach)
            if not self._inventory.knows(attach.source):
                continue
            del self._held[peer]
            if self._inventory.has(attach.source):
                passed += [(peer, message) for message in messages]
            else:
                refused.append(peer)
        return passed, refused

    def forget(self, peer: str) -> None:
        """Remove a trainer that is gone."""
        self._held.pop(peer, None)
