"""Transport of a decoder or a local trainer: connected to the run's fetcher on this host, with the arena mapped."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack
import zmq

from common import messages as m
from common.arena import Arena
from common.config import TransportConfig
from common.errors import BadInputError
from common.transport.addresses import Addresses
from common.transport.events import FetcherLost, StopRequested
from common.transport.lifeline import LAST_WORD, PEERCRED

logger = logging.getLogger(__name__)

_WELCOME_BYTES = 4096
_WELCOME_S = 5.0
_RECONNECT_MS = 60_000  # -1, never, was observed to hang the context's end
_LINGER_MS = 1000  # less than the server waits for last messages


class PeerTransport:
    """Connection of a decoder or a local trainer to the fetcher, with the arena mapped."""

    def __init__(
        self,
        run_dir: Path,
        config: TransportConfig,
        *,
        writable: bool,
        stopped: Callable[[], bool],
    ) -> None:
        """Connect, waiting until the fetcher has started.

        Raises BadInputError after ``connect_timeout_s``, StopRequested once ``stopped()`` is true.
        """
        self._addresses = Addresses(run_dir, config.sockets)
        try:
            self._lifeline, welcome, arena_fd = self._connect(run_dir, config.connect_timeout_s, stopped)
        except BaseException:
            self._addresses.close()
            raise
        if welcome["v"] != m.PROTOCOL_VERSION:
            os.close(arena_fd)
            self._lifeline.close()
            self._addresses.close()
            raise BadInputError(
                f"the fetcher of {run_dir} speaks protocol version {welcome['v']}, this process "
                f"{m.PROTOCOL_VERSION}: use the same icestream for all processes of a run"
            )
        self.plan_hash = str(welcome["plan_hash"])
        self.arena = Arena.attach(arena_fd, welcome["slots"], welcome["slot_bytes"], writable=writable)
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.setsockopt(zmq.ROUTING_ID, welcome["peer"].encode())
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            self._dealer.setsockopt(option, 0)
        # After the fetcher's end another process may bind that name; the lifeline reports the end long before.
        self._dealer.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._dealer.setsockopt(zmq.LINGER, _LINGER_MS)  # a Bye or Finished must still be sent
        self._sent = 0
        self._dealer.connect(self._addresses.control(welcome["control"]))
        self._poller = zmq.Poller()
        self._poller.register(self._dealer, zmq.POLLIN)
        self._poller.register(self._lifeline.fileno(), zmq.POLLIN)

    def send(self, message: m.Message) -> None:
        """Send a message to the dispatcher."""
        self._dealer.send(m.encode(message))
        self._sent += 1

    def receive(self, timeout_s: float) -> m.Message | None:
        """Next message; None after ``timeout_s``. Raises FetcherLost when the lifeline has ended."""
        ready = dict(self._poller.poll(int(timeout_s * 1000)))
        if self._dealer in ready:
            return m.decode(self._dealer.recv())
        if self._lifeline.fileno() in ready and not self._lifeline.recv(64):
            raise FetcherLost
        return None

    @staticmethod
    def wait_for_any(transports: Sequence[PeerTransport], timeout_s: float) -> None:
        """Return once one of several has a message, or its lifeline has ended; at the latest after ``timeout_s``."""
        poller = zmq.Poller()
        for one in transports:
            poller.register(one._dealer, zmq.POLLIN)
            poller.register(one._lifeline.fileno(), zmq.POLLIN)
        poller.poll(int(timeout_s * 1000))

    def close(self) -> None:
        """Unmap the arena, then end the lifeline: its end-of-file proves that this process writes no more."""
        self._dealer.close()
        self._context.term()
        self.arena.close()
        with contextlib.suppress(OSError):  # the fetcher may be gone
            self._lifeline.send(LAST_WORD.pack(self._sent))
        self._lifeline.close()
        self._addresses.close()

    def _connect(
        self, run_dir: Path, timeout_s: float, stopped: Callable[[], bool]
    ) -> tuple[socket.socket, dict[str, Any], int]:
        """Lifeline of the fetcher, its welcome, and the arena's descriptor."""
        started_s = told_s = time.monotonic()
        while True:
            lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            lifeline.settimeout(_WELCOME_S)
            try:
                lifeline.connect(self._addresses.lifeline)
                credentials = lifeline.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEERCRED.size)
                uid = PEERCRED.unpack(credentials)[1]
                if uid != os.getuid():
                    lifeline.close()
                    raise BadInputError(
                        f"{run_dir}: its fetcher belongs to another user (uid {uid}); if it shouldn't, they have taken "
                        "the name of its socket: set transport.sockets=folder for all processes of the run"
                    )
                data, fds, _, _ = socket.recv_fds(lifeline, _WELCOME_BYTES, 1)
                if data and fds:
                    lifeline.settimeout(None)
                    return lifeline, msgpack.unpackb(data), fds[0]
            except (ConnectionError, FileNotFoundError, BlockingIOError, TimeoutError):
                pass  # there is no fetcher, or it died or hung before it answered
            lifeline.close()
            now_s = time.monotonic()
            if stopped():
                raise StopRequested
            if now_s - started_s > timeout_s:
                raise BadInputError(f"{run_dir}: no fetcher answered for {timeout_s:g} s; start it, or the whole run")
            if now_s - told_s > 10:
                told_s = now_s
                logger.info("waiting for the fetcher of %s", run_dir)
            time.sleep(0.05)
