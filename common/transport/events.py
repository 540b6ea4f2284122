"""Events of transports: received messages, lost peers, a lost fetcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from common import messages as m

MESSAGES_A_POLL = 256
BYTES_A_POLL = 4 * m.MAX_MESSAGE_BYTES
"""Maximum messages and bytes of one poll, so that an endless sender can't block the others."""

UNREAD_MESSAGES = 1000
"""Maximum queued messages of one peer; the kernel holds the rest. A good peer never has so many: its credit is low."""


class FetcherLost(Exception):
    """Loss of the fetcher: the lifeline, or the TCP connection, has ended."""


class StopRequested(Exception):
    """Request to stop that arrived while the process waited."""


@dataclass(frozen=True)
class Received:
    """Valid message from a peer."""

    peer: str
    message: m.Message


@dataclass(frozen=True)
class Lost:
    """Loss of a peer: it is dead, or has released the arena, and nothing reads or writes slots for it any more."""

    peer: str


Event: TypeAlias = Received | Lost
