"""TCP connection of a trainer, under a random name that is never used again after its end."""

from __future__ import annotations

import contextlib
import secrets
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

from common.transport.endpoint import Endpoint
from common.transport.keys import KeyPair
from common.transport.tcp import set_heartbeat

_RECONNECT_MS = 60_000  # -1, never, was observed to hang the context's end; an end is noticed long before
_ENDS = {
    zmq.EVENT_CONNECT_RETRIED: "no process listens there",
    zmq.EVENT_DISCONNECTED: "the connection ended",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the handshake failed: is server.key that of this fetcher?",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the handshake failed: what listens there is no fetcher with keys",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the key was refused",
}


class ConnectionEnded(Exception):
    """End of a connection; the text is the reason."""


class NotAdmitted(ConnectionEnded):
    """Refusal by the other side: it doesn't know this key."""


class Connection:
    """TCP connection to a fetcher. Received frames have ``max_frame_bytes`` at most."""

    def __init__(
        self,
        endpoint: Endpoint,
        keys: tuple[bytes, KeyPair],
        *,
        heartbeat_timeout_s: float,
        max_frame_bytes: int,
    ) -> None:
        self._ended: ConnectionEnded | None = None
        self._heard_s = time.monotonic()
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.setsockopt(zmq.ROUTING_ID, secrets.token_hex(16).encode())
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            self._dealer.setsockopt(option, 0)
        self._dealer.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._dealer.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
        self._dealer.setsockopt(zmq.IPV6, 1)
        set_heartbeat(self._dealer, heartbeat_timeout_s)
        server, own = keys
        self._dealer.setsockopt(zmq.CURVE_SERVERKEY, server)
        self._dealer.setsockopt(zmq.CURVE_PUBLICKEY, own.public)
        self._dealer.setsockopt(zmq.CURVE_SECRETKEY, own.secret)
        events = 0
        for event in _ENDS:
            events |= event
        self._monitor = self._dealer.get_monitor_socket(events)
        self._poller = zmq.Poller()
        self._poller.register(self._dealer, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._dealer.connect(endpoint.url)

    @property
    def silent_s(self) -> float:
        """Seconds since the last received message, or since the start."""
        return time.monotonic() - self._heard_s

    def send(self, *frames: bytes) -> None:
        """Send a message; after the connection's end this has no effect, and receive() reports the end."""
        with contextlib.suppress(zmq.Again):
            self._dealer.send_multipart(frames, zmq.NOBLOCK)

    def receive(self, timeout_s: float) -> list[zmq.Frame] | None:
        """Frames of the next message; None after ``timeout_s``.

        Raises ConnectionEnded once all messages before the end have been received.
        """
        ready = dict(self._poller.poll(int(timeout_s * 1000) if self._ended is None else 0))
        if self._monitor in ready and self._ended is None:
            self._ended = self._read_end()
        try:
            frames = self._dealer.recv_multipart(
                zmq.NOBLOCK, copy=False
            )  # after the check for the end: all messages were there
        except zmq.Again:
            if self._ended is not None:
                raise self._ended from None
            return None
        self._heard_s = time.monotonic()
        return frames

    def close(self) -> None:
        """End the connection; unsent messages are dropped."""
        self._dealer.disable_monitor()
        self._monitor.close()
        self._dealer.close()
        self._context.term()

    def _read_end(self) -> ConnectionEnded:
        event = zmq.Event(recv_monitor_message(self._monitor)["event"])
        return (NotAdmitted if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH else ConnectionEnded)(_ENDS[event])
