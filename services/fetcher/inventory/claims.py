"""Trainers whose checkpoint may be of other files wait until the ranges that it was trained on are known. Pure."""

from __future__ import annotations

from common import messages as m
from services.fetcher.inventory.inventory import Inventory

_MOST_HELD = 4 * m.MAX_LANES


class PendingTrainers:
    """Trainers whose messages are held back, from Attach on, until the inventory shows whether they belong here."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._held: dict[str, list[m.Message]] = {}

    @property
    def ranges_wanted(self) -> int:
        """Ranges that have to be known before the trainers that wait can be told."""
        attaches = (messages[0] for messages in self._held.values())
        return max((attach.source.ranges for attach in attaches if isinstance(attach, m.Attach)), default=0)

    def pass_on(self, peer: str, message: m.Message) -> list[m.Message]:
        """What the dispatcher may hear now, because ``peer`` said ``message``."""
        if isinstance(message, m.Attach):
            if self._inventory.knows(message.source) and self._inventory.has(message.source):
                self._held.pop(peer, None)
                return [message]
            self._held[peer] = [message]
            return []
        if peer in self._held:
            if len(self._held[peer]) < _MOST_HELD:  # a trainer says no more than Want, once a lane
                self._held[peer].append(message)
            return []
        return [message]

    def settle(self) -> tuple[list[tuple[str, m.Message]], list[str]]:
        """After more ranges became known: messages to pass on, in order, and trainers to refuse."""
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
        """It is gone."""
        self._held.pop(peer, None)
