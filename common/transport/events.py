"""What transports report: messages that arrived, peers that are gone, a fetcher that is gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from common import messages as m

MESSAGES_A_POLL = 256
BYTES_A_POLL = 4 * m.MAX_MESSAGE_BYTES
"""A poll returns after so many: who sends without end keeps nobody else waiting."""

UNREAD_MESSAGES = 1000
"""Of one peer; the kernel keeps what comes on top. A good peer never has so many: it has few credits."""


class FetcherLost(Exception):
    """The fetcher is gone: the lifeline, or the TCP connection, has ended."""


class StopRequested(Exception):
    """The process was asked to stop while it waited."""


@dataclass(frozen=True)
class Received:
    """A valid message arrived from a peer."""

    peer: str
    message: m.Message


@dataclass(frozen=True)
class Lost:
    """A peer is gone: it is dead, or has let go of the arena, and nothing reads or writes slots for it any more."""

    peer: str


Event: TypeAlias = Received | Lost
