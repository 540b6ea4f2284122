"""A fetcher's server and peers of this host, in one process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import zmq

from common import messages as m
from common.config import TransportConfig
from common.transport import Addresses, Event, Lost, PeerTransport, ServerTransport

ROOT = Path(__file__).resolve().parents[3]
PLAN = "ab" * 16
SLOTS, SLOT_BYTES = 2, 8192
MODES = ("abstract", "folder")
MANY_POLLS = 600  # of 0.05 s: a bound, never a wait


def connect(server: ServerTransport, run_dir: Path, config: TransportConfig, *, writable: bool = True) -> PeerTransport:
    """A peer in this process: it connects in a thread while the server accepts."""
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(PeerTransport, run_dir, config, writable=writable, stopped=lambda: False)
        return joined(server, future)


def joined(server: ServerTransport, future: Future[PeerTransport]) -> PeerTransport:
    """Return the peer that connects in a thread, while the server accepts."""
    for _ in range(MANY_POLLS):
        server.poll(0.05)
        if future.done():
            break
    return future.result(timeout=1)


def welcome_of(lifeline: socket.socket) -> dict[str, Any]:
    """What the server tells whoever connects; closes the descriptor that comes with it."""
    data, fds, _, _ = socket.recv_fds(lifeline, 4096, 1)
    for fd in fds:
        os.close(fd)
    welcome = msgpack.unpackb(data)
    assert isinstance(welcome, dict)
    return welcome


def raw_lifeline(run_dir: Path) -> socket.socket:
    """A connection to the abstract lifeline of a run, without the rest of a peer."""
    lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    lifeline.settimeout(20)
    lifeline.connect(Addresses(run_dir, "abstract").lifeline)
    return lifeline


@contextmanager
def dealer_of(welcome: dict[str, Any], name: str = "") -> Iterator[zmq.Socket[bytes]]:
    """The control socket of the peer that was welcomed so, or of one that gives itself another name."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as made:
        made.setsockopt(zmq.SNDHWM, 0)
        made.setsockopt(zmq.ROUTING_ID, (name or welcome["peer"]).encode())
        made.connect(f"ipc://@icestream-{welcome['control']}")
        yield made


def poll_until(server: ServerTransport, is_enough: Callable[[list[Event]], bool]) -> list[Event]:
    events: list[Event] = []
    for _ in range(MANY_POLLS):
        events += server.poll(0.05)
        if is_enough(events):
            return events
    raise AssertionError(f"only {events}")


def poll_for(server: ServerTransport, num_events: int) -> list[Event]:
    return poll_until(server, lambda events: len(events) >= num_events)


def poll_until_lost(server: ServerTransport) -> list[Event]:
    return poll_until(server, lambda events: any(isinstance(event, Lost) for event in events))


def receive(peer: PeerTransport) -> m.Message:
    for _ in range(MANY_POLLS):
        message = peer.receive(0.05)
        if message is not None:
            return message
    raise AssertionError("no message came")
