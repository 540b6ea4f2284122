"""What a fetcher's server hears and a peer is sent, within a bound."""

from __future__ import annotations

from common import messages as m
from common.transport import Event, Lost, PeerTransport, RemotePeerTransport, ServerTransport

MANY_POLLS = 600  # of 0.05 s: a bound, never a wait


def poll_for(server: ServerTransport, num_events: int) -> list[Event]:
    events: list[Event] = []
    for _ in range(MANY_POLLS):
        events += server.poll(0.05)
        if len(events) >= num_events:
            return events
    raise AssertionError(f"only {events}")


def poll_until_lost(server: ServerTransport) -> list[Event]:
    events: list[Event] = []
    for _ in range(MANY_POLLS):
        events += server.poll(0.05)
        if any(isinstance(event, Lost) for event in events):
            return events
    raise AssertionError(f"only {events}")


def receive(peer: PeerTransport | RemotePeerTransport) -> m.Message:
    for _ in range(MANY_POLLS):
        message = peer.receive(0.05)
        if message is not None:
            return message
    raise AssertionError("no message came")
