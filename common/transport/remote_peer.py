"""Transport of a remote trainer over tcp: the same interface as PeerTransport, with its own arena as a ring.

A unit's payload arrives as one frame and is copied once, into a free slot of the ring; the DeliveredUnit passed on
names that slot, and Release frees it. Every message is checked; a violation of the protocol ends the connection with
an error for the user.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable

import numpy as np
import zmq

from common import messages as m
from common.arena import Arena
from common.config import MIB, TransportConfig
from common.errors import BadInputError
from common.transport import wire
from common.transport.connection import Connection, ConnectionEnded, NotAdmitted
from common.transport.endpoint import parse_endpoint, require_keys
from common.transport.events import FetcherLost, StopRequested
from common.transport.keys import client_keys
from common.transport.remote_server import PayloadBytes

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_PAUSE_S = 0.2
_TELL_S = 10.0
_LEAVE_S = 2.0


class RemotePeerTransport:
    """Connection of a remote trainer. ``slots``: maximum units held at a time; ``slot_bytes``: the run's setting."""

    def __init__(
        self,
        config: TransportConfig,
        payload_bytes: PayloadBytes,
        *,
        slots: int,
        slot_bytes: int,
        stopped: Callable[[], bool],
    ) -> None:
        """Connect, waiting until the fetcher has started.

        Raises BadInputError after ``connect_timeout_s``, or if the fetcher doesn't know the key; StopRequested once
        ``stopped()`` is true.
        """
        self._endpoint = parse_endpoint(config.connect, "transport.connect", example="tcp://gpu-node:5570")
        if not self._endpoint.port or self._endpoint.host == "*":
            raise BadInputError(f"transport.connect = {config.connect}: expected a host and a port to connect to")
        self._keys = client_keys(require_keys(config.keys, self._endpoint, "transport.connect"))
        self._config = config
        self._payload_bytes = payload_bytes
        self._held: dict[int, int] = {}  # k -> slot of the ring
        self._free = list(range(slots))
        self.arena = _ring(slots, slot_bytes)
        try:
            self._connection, welcome = self._connect(stopped)
        except BaseException:
            self.arena.close()
            raise
        if welcome.slot_bytes != slot_bytes:
            self.close()
            raise BadInputError(
                f"{self._endpoint.url}: the run's slots have {welcome.slot_bytes} bytes, by this trainer's "
                f"stream.slot_mib {slot_bytes}; start it with the config.json of the run"
            )
        self.plan_hash = welcome.plan_hash
        logger.info("connected to the fetcher at %s", self._endpoint.url)

    def send(self, message: m.Message) -> None:
        """Send a message to the dispatcher. A Release frees the unit's slot for reuse."""
        if isinstance(message, m.Release) and message.k in self._held:
            self._free.append(self._held.pop(message.k))
        self._connection.send(wire.MESSAGE, m.encode(message))

    def receive(self, timeout_s: float) -> m.Message | None:
        """Next message; None after ``timeout_s``.

        Raises FetcherLost when the connection has ended, BadInputError if the fetcher violates the protocol.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                frames = self._connection.receive(max(0.0, deadline_s - time.monotonic()))
            except ConnectionEnded as error:
                logger.warning("%s: %s", self._endpoint.url, error)
                raise FetcherLost from None
            if frames is None:
                if self._connection.silent_s > self._config.heartbeat_timeout_s:
                    logger.warning("%s: silent for %.0f s", self._endpoint.url, self._connection.silent_s)
                    raise FetcherLost
                return None
            if frames[0].bytes != wire.PROBE:
                return self._accept(frames)

    def close(self) -> None:
        """Wait until the fetcher has read all messages, end the connection and free the ring."""
        with contextlib.suppress(ConnectionEnded):
            self._connection.send(wire.LEAVE)
            deadline_s = time.monotonic() + _LEAVE_S
            while (left_s := deadline_s - time.monotonic()) > 0:
                frames = self._connection.receive(left_s)
                if frames is not None and frames[0].bytes == wire.LEAVE:
                    break
        self._connection.close()
        self.arena.close()

    # -------------------------------------------------------------- received messages

    def _accept(self, frames: list[zmq.Frame]) -> m.Message:
        if frames[0].bytes != wire.MESSAGE or len(frames) not in (2, 3):
            raise self._broken(f"{len(frames)} frames of kind {frames[0].bytes!r:.20}")
        try:
            message = m.decode(frames[1].bytes)
        except m.MalformedMessage as error:
            raise self._broken(str(error)) from None
        payload = frames[2].buffer if len(frames) == 3 else None
        if isinstance(message, m.DeliveredUnit) and message.slot >= 0:
            return dataclasses.replace(message, slot=self._keep(message, payload))
        if payload is not None:
            raise self._broken(f"a {type(message).__name__} with a payload")
        return message

    def _keep(self, unit: m.DeliveredUnit, payload: memoryview | None) -> int:
        """Copy a payload into the ring and return its slot there."""
        if payload is None:
            raise self._broken(f"unit {unit.k} without its payload")
        expected = self._payload_bytes(unit.layout)
        if len(payload) != expected or expected > self.arena.slot_bytes:
            raise self._broken(
                f"{len(payload)} bytes for unit {unit.k}; {unit.layout} takes {expected}, a slot has "
                f"{self.arena.slot_bytes}"
            )
        if unit.k in self._held:
            raise self._broken(f"unit {unit.k} twice")
        if not self._free:
            raise self._broken(f"unit {unit.k} on top of the {self.arena.slots} that fit")
        slot = self._free.pop()
        self.arena.slot(slot)[:expected] = np.frombuffer(payload, np.uint8)
        self._held[unit.k] = slot
        return slot

    def _broken(self, what: str) -> BadInputError:
        return BadInputError(
            f"{self._endpoint.url}: the fetcher sent {what}; use the same icestream and config.json on both sides"
        )

    # -------------------------------------------------------------- connection

    def _connect(self, stopped: Callable[[], bool]) -> tuple[Connection, wire.Welcome]:
        """Welcomed connection, with a new name for each attempt."""
        started_s = told_s = time.monotonic()
        timeout_s = self._config.connect_timeout_s
        while True:
            connection = Connection(
                self._endpoint,
                self._keys,
                heartbeat_timeout_s=self._config.heartbeat_timeout_s,
                max_frame_bytes=self.arena.slot_bytes + MIB,
            )
            try:
                welcome = self._join(connection, stopped)
            except ConnectionEnded as error:
                reason = str(error)
                connection.close()
            except BaseException:
                connection.close()
                raise
            else:
                return connection, welcome
            now_s = time.monotonic()
            if stopped():
                raise StopRequested
            if now_s - started_s > timeout_s:
                raise BadInputError(
                    f"{self._endpoint.url}: no fetcher answered for {timeout_s:g} s ({reason}); start it, or check the "
                    "address"
                )
            if now_s - told_s > _TELL_S:
                told_s = now_s
                logger.info("waiting for the fetcher at %s (%s)", self._endpoint.url, reason)
            time.sleep(_PAUSE_S)

    def _join(self, connection: Connection, stopped: Callable[[], bool]) -> wire.Welcome:
        """Welcome of the fetcher. Raises ConnectionEnded if none arrives."""
        connection.send(wire.JOIN, wire.encode_handshake(wire.Join()))
        while connection.silent_s < self._config.heartbeat_timeout_s:
            try:
                frames = connection.receive(_POLL_S)
            except NotAdmitted:
                raise BadInputError(
                    f"{self._endpoint.url}: the fetcher refused this trainer's key; its public key has to be in the "
                    "folder `clients` of the fetcher's keys"
                ) from None
            if stopped():
                raise StopRequested
            if frames is None or frames[0].bytes == wire.PROBE:
                continue
            if frames[0].bytes != wire.WELCOME or len(frames) != 2:
                raise self._broken(f"{len(frames)} frames of kind {frames[0].bytes!r:.20} instead of its welcome")
            try:
                return wire.decode_handshake(frames[1].bytes, wire.Welcome)
            except wire.OtherVersion as error:
                raise BadInputError(
                    f"{self._endpoint.url}: its fetcher speaks protocol version {error}, this process "
                    f"{m.PROTOCOL_VERSION}: use the same icestream for all processes of a run"
                ) from None
            except m.MalformedMessage as error:
                raise self._broken(str(error)) from None
        raise ConnectionEnded("no answer")


def _ring(slots: int, slot_bytes: int) -> Arena:
    try:
        return Arena.create(slots, slot_bytes)
    except BadInputError:  # its text is about the fetcher's arena
        raise BadInputError(
            f"{slots} slots of {slot_bytes / MIB:g} MiB for units that come over tcp do not fit into memory; lower "
            "trainer.prefetch_units"
        ) from None
