"""Limits on the connections of a tcp port: ZeroMQ has none itself.

ZeroMQ accepts every connection, until descriptors run out, and stores a multipart message that never ends. A thread
learns of each connection from ZeroMQ's monitor, and ends one (ZeroMQ then sees its end-of-file, and closes it)

- that exceeds the number allowed in all or from its address: so clients without a key take a bounded number of
  descriptors, each at most for the time of a handshake, and can't exclude clients from other addresses;
- that has sent more than was read as messages: an endless one, or more than a busy fetcher reads. The kernel counts
  the received bytes (TCP_INFO), the server those that it has read;
- that sends nothing but malformed messages.

A descriptor's number may be reused at any moment. So it is examined through a duplicate, and only a connection to the
fetcher's own port is ended; a new one ended by mistake connects again.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import resource
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import recv_monitor_message

from common import messages as m
from common.rarely import Rarely

logger = logging.getLogger(__name__)

HANDSHAKE_S = 5.0
"""Time limit of a handshake. ZeroMQ's 30 s would allow six times as many descriptors for unfinished handshakes."""
_DESCRIPTORS = 65_536
_MOST = 1024
_LOOK_S = 0.1
_UNKNOWN_BYTES = 16 * 1024
"""Bytes before the first message: a handshake and a JOIN have less than 2 kB."""
_UNREAD_BYTES = 4 * m.MAX_MESSAGE_BYTES
_FRAME_BYTES = 64
"""Maximum overhead of a frame: more than ZeroMQ and CURVE add to it."""
_MALFORMED = 100
"""Maximum malformed messages of one connection."""
_HEARTBEAT_BYTES = 256
"""Tolerance for heartbeats, which are never read as messages: more than is sent in one interval."""
_BYTES_RECEIVED = struct.Struct("128xQ")
"""Format that reads tcpi_bytes_received from struct tcp_info."""


@dataclass
class _Connection:
    address: str
    came_s: float
    read_bytes: int = 0
    is_known: bool = False
    """True once it has sent a message, which proves that it has a key."""
    malformed: int = 0


class Gate:
    """Connection limits of ``router``: create it before the router is bound, and close it before the router."""

    def __init__(self, router: zmq.Socket[bytes], heartbeat_s: float) -> None:
        self.most = min(_MOST, _raise_descriptor_limit() // 4)
        """Maximum connections."""
        self.most_of_one = self.most // 4
        """Maximum connections from one address."""
        self._heartbeat_s = heartbeat_s
        self._router = router
        self._port = 0
        self._lock = threading.Lock()
        self._open: dict[int, _Connection] = {}
        self._from: Counter[str] = Counter()
        self._ended = Rarely(logger)
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED
        self._monitor = router.get_monitor_socket(events)
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)

    def start(self, port: int) -> None:
        """Watch the connections to ``port``, which the router was bound to."""
        self._port = port
        self._thread.start()

    def read(self, fd: int, frames: list[zmq.Frame]) -> None:
        """Record a message that was read from the connection ``fd``."""
        with self._lock:
            connection = self._open.get(fd)
            if connection is not None:
                connection.is_known = True
                connection.read_bytes += sum(len(frame) + _FRAME_BYTES for frame in frames)

    def complain(self, fd: int) -> None:
        """Record a message that is not a trainer's; above the limit, the connection is ended."""
        with self._lock:
            connection = self._open.get(fd)
            if connection is not None:
                connection.malformed += 1
                if connection.malformed > _MALFORMED:
                    self._end(fd, f"it sent {connection.malformed} malformed messages")

    def close(self) -> None:
        """Stop watching."""
        if self._monitor.closed:
            return
        self._router.disable_monitor()
        if self._thread.ident is not None:
            self._thread.join()
        self._monitor.close()

    def _run(self) -> None:
        looked_s = time.monotonic()
        while True:
            if self._monitor.poll(int(_LOOK_S * 1000) if self._open else None):
                event = recv_monitor_message(self._monitor)
                if event["event"] == zmq.EVENT_MONITOR_STOPPED:
                    return
                with self._lock:
                    if event["event"] == zmq.EVENT_ACCEPTED:
                        self._admit(event["value"])
                    else:
                        self._forget(event["value"])
            if time.monotonic() - looked_s > _LOOK_S:
                with self._lock:
                    for fd in list(self._open):
                        self._look(fd)
                looked_s = time.monotonic()

    def _admit(self, fd: int) -> None:
        address = ""
        with contextlib.suppress(OSError), self._duplicate(fd) as there:
            address = _network(there.getpeername()[0])
        self._open[fd] = _Connection(address, time.monotonic())
        self._from[address] += 1
        if self._from[address] > self.most_of_one or len(self._open) > self.most:
            self._end(fd, f"there are {self._from[address]} from there, {len(self._open)} in all")

    def _look(self, fd: int) -> None:
        """End a connection with more unread bytes than a good one has."""
        try:
            with self._duplicate(fd) as there:
                (received,) = _BYTES_RECEIVED.unpack_from(there.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256))
        except OSError:  # it has ended, or no descriptor is free: no evidence about the received bytes
            return
        one = self._open[fd]
        one.read_bytes = min(one.read_bytes, received)
        heartbeats = (time.monotonic() - one.came_s) / self._heartbeat_s * _HEARTBEAT_BYTES
        unread = received - one.read_bytes - heartbeats
        if unread > (_UNREAD_BYTES if one.is_known else _UNKNOWN_BYTES):
            self._end(fd, f"it sent {unread:.0f} bytes that are no messages, or more than can be read")

    def _end(self, fd: int, why: str) -> None:
        with contextlib.suppress(OSError), self._duplicate(fd) as there:
            there.shutdown(socket.SHUT_RDWR)
            one = self._forget(fd)
            self._ended.log("ended a connection from %s: %s", one.address if one is not None else "a trainer", why)

    def _forget(self, fd: int) -> _Connection | None:
        one = self._open.pop(fd, None)
        if one is not None:
            self._from[one.address] -= 1
            if not self._from[one.address]:
                del self._from[one.address]
        return one

    def _duplicate(self, fd: int) -> socket.socket:
        """Duplicate socket of a connection to the fetcher's port. Raises OSError if the descriptor is none."""
        duplicate = os.dup(fd)
        try:
            there = socket.socket(fileno=duplicate)
        except OSError:
            os.close(duplicate)
            raise
        if there.family not in (socket.AF_INET, socket.AF_INET6) or there.getsockname()[1] != self._port:
            there.close()
            raise OSError(f"descriptor {fd} is no connection to port {self._port}")
        return there


def _network(address: str) -> str:
    """Unit of the limit: an IPv4 address, or an IPv6 network of 64 bits, of which one host may have all addresses."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.IPv6Network((parsed, 64), strict=False))
    return str(parsed)


def _raise_descriptor_limit() -> int:
    """Maximum descriptors of this process, raised to its hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return _DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
