"""A fetcher's server and trainers elsewhere, in one process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from polls import MANY_POLLS, poll_for, poll_until_lost

from common import messages as m
from common.config import TransportConfig
from common.transport import Event, Received, RemotePeerTransport, ServerTransport

ROOT = Path(__file__).resolve().parents[3]
PLAN = "ab" * 16
SLOTS, SLOT_BYTES = 3, 1 << 20  # large enough that pyzmq doesn't copy
ANY_PORT = "tcp://127.0.0.1:*"
CURSOR = m.Cursor()


def payload_bytes(layout: m.Layout) -> int:
    """In these tests a particle is a byte."""
    return layout.particles


def unit(k: int, slot: int, *, particles: int = SLOT_BYTES) -> m.DeliveredUnit:
    return m.DeliveredUnit(k, 0, 0, 0, slot, 1, m.Layout(1, particles, 1), m.Tally(), ())


Serve = Callable[[TransportConfig], tuple[ServerTransport, TransportConfig]]


def remote_peer(
    config: TransportConfig,
    *,
    slots: int = 2,
    slot_bytes: int = SLOT_BYTES,
    stopped: Callable[[], bool] = lambda: False,
) -> RemotePeerTransport:
    return RemotePeerTransport(config, payload_bytes, slots=slots, slot_bytes=slot_bytes, stopped=stopped)


def connect(server: ServerTransport, config: TransportConfig, *, slots: int = 2) -> RemotePeerTransport:
    """A trainer in this process: it connects in a thread while the server polls."""
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(remote_peer, config, slots=slots)
        for _ in range(MANY_POLLS):
            assert server.poll(0.05) == []
            if future.done():
                break
        return future.result(timeout=1)


def attach(server: ServerTransport, peer: RemotePeerTransport) -> str:
    """The name that the server knows ``peer`` by."""
    peer.send(m.Attach(0, 1, PLAN, CURSOR))
    (event,) = poll_for(server, 1)
    assert isinstance(event, Received)
    assert event.message == m.Attach(0, 1, PLAN, CURSOR)
    return event.peer


def poll_until(server: ServerTransport, what: Callable[[], object]) -> None:
    for _ in range(MANY_POLLS):
        assert server.poll(0.05) == []
        if what():
            return
    raise AssertionError("it didn't come")


def close(server: ServerTransport, peer: RemotePeerTransport) -> list[Event]:
    """Close a trainer as it does it itself, with the server at work; what the server saw of it."""
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(peer.close)
        events = poll_until_lost(server)
        future.result(timeout=20)
        return events
