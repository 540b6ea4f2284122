"""Socket options shared by both ends of a tcp connection."""

from __future__ import annotations

import zmq

ZAP_DOMAIN = "icestream"
_HEARTBEATS = 4
"""Number of heartbeats within the timeout."""


def set_heartbeat(socket: zmq.Socket[bytes], timeout_s: float) -> float:
    """Let ZeroMQ end a connection after ``timeout_s`` of silence; returns the seconds between two heartbeats."""
    timeout_ms = max(_HEARTBEATS, int(timeout_s * 1000))
    socket.setsockopt(zmq.HEARTBEAT_IVL, timeout_ms // _HEARTBEATS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, timeout_ms)
    return timeout_ms / _HEARTBEATS / 1000
