"""Dispatcher's transport of units over tcp: a trainer on another machine gets units as zero-copy frames.

Admission: any holder of a certificate in the key folder (CURVE; the folder is read at each handshake), on loopback
too: every user of a host can reach that. Only a trainer's messages are accepted: a decoder needs the arena. gate.py
limits the connections and the bytes that each may send; a poll reads a bounded part of the received messages.
Replacement of the lifeline: there is no descriptor, and no end-of-file. A trainer is gone when its connection is
gone. The kernel ends it when the trainer's process ends; ZeroMQ's heartbeats end it when the other side is silent for
heartbeat_timeout_s. Each second a probe is sent to every trainer, and ROUTER_MANDATORY refuses it if the connection is
gone. Messages received before are read first. A name is valid for one connection: a trainer that connects again takes
another one, and its socket would not return under the old one within a minute.
Reuse of a slot (rule R3): a payload is sent straight from the slot, without a copy, so ZeroMQ may read it at any time
until its tracker is done. A Release proves that the trainer has the whole payload: nothing is left to read. A trainer
that is gone releases nothing; the end of its connection drops the frames not yet received, and it is reported as lost
only when all its trackers are done. (A trainer that sends Release before it has the payload spoils only its own
payload: its check of the slot's header or sizes rejects it.)
"""

from __future__ import annotations

import errno
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, get_args

import zmq
from zmq.auth.thread import ThreadAuthenticator

from common import messages as m
from common.arena import Arena
from common.config import TransportConfig
from common.errors import BadInputError
from common.rarely import Rarely
from common.transport import wire
from common.transport.endpoint import Endpoint, parse_endpoint, require_keys
from common.transport.events import BYTES_A_POLL, MESSAGES_A_POLL, UNREAD_MESSAGES, Event, Lost, Received
from common.transport.gate import HANDSHAKE_S, Gate
from common.transport.keys import KeyPair, known_clients, server_keys
from common.transport.tcp import ZAP_DOMAIN, set_heartbeat

logger = logging.getLogger(__name__)

PayloadBytes: TypeAlias = Callable[[m.Layout], int]
"""Size in bytes of a unit with this layout in a slot."""

_PROBE_S = 1.0
_LAST_MESSAGES_S = 2.0
_MOST_FRAMES = 3
"""Maximum frames of a message, with the sender's name."""
_SETTLE_S = 1.0
_SETTLE_POLL_S = 0.01
_ROUTING_ID = re.compile(rb"[0-9a-f]{32}")
_FROM_TRAINERS = get_args(m.TrainerMessage)


@dataclass
class _RemotePeer:
    routing_id: bytes
    trackers: list[zmq.MessageTracker] = field(default_factory=list)
    leaving: bool = False
    """True once it has sent its last message."""
    gone_s: float | None = None
    """Time at which the end of its connection was noticed."""

    def is_settled(self) -> bool:
        """True if ZeroMQ reads no slot for it any more."""
        self.trackers = [tracker for tracker in self.trackers if not tracker.done]
        return not self.trackers


def check_listen(config: TransportConfig) -> tuple[Endpoint, Path, KeyPair]:
    """Address to listen at, folder of keys, and the fetcher's keys. Raises BadInputError if one is missing or wrong."""
    endpoint = parse_endpoint(config.listen, "transport.listen", example="tcp://0.0.0.0:5570")
    folder = require_keys(config.keys, endpoint, "transport.listen")
    known_clients(folder)
    return endpoint, folder, server_keys(folder)


class RemoteServer:
    """Transport of remote trainers. Raises BadInputError if the address can't be used, or there are no keys."""

    def __init__(self, config: TransportConfig, arena: Arena, plan_hash: str, payload_bytes: PayloadBytes) -> None:
        self.malformed = 0
        """Number of dropped messages: malformed, or not a trainer's."""
        self._arena = arena
        self._welcome = wire.Welcome(plan_hash, arena.slots, arena.slot_bytes)
        self._payload_bytes = payload_bytes
        self._peers: dict[str, _RemotePeer] = {}
        self._probe_s = 0.0
        self._drained = True  # the newest poll read all received messages
        self._came, self._dropped = Rarely(logger, logging.INFO), Rarely(logger)
        endpoint, folder, keys = check_listen(config)
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self.router = self._context.socket(zmq.ROUTER)
        """Descriptor for polling together with other sockets."""
        self.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.router.setsockopt(zmq.MAXMSGSIZE, m.MAX_MESSAGE_BYTES)
        self.router.setsockopt(zmq.IPV6, int(endpoint.is_ipv6))
        self.router.setsockopt(zmq.SNDHWM, 0)
        self.router.setsockopt(zmq.LINGER, 0)
        self.router.setsockopt(zmq.RCVHWM, UNREAD_MESSAGES)
        self.router.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
        heartbeat_s = set_heartbeat(self.router, config.heartbeat_timeout_s)
        self._gate = Gate(self.router, heartbeat_s)
        try:
            self._authenticator.start()
            self._authenticator.configure_curve_callback(ZAP_DOMAIN, _Clients(folder))
            self.router.setsockopt_string(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            self.router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without the authenticator every connection is refused
            self.router.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
            self.router.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
            self.router.setsockopt(zmq.CURVE_SERVER, 1)
            self.router.bind(endpoint.url)
        except zmq.ZMQError as error:
            self.close()
            raise BadInputError(
                f"transport.listen = {endpoint.url}: can't listen there ({error.strerror}); choose another address"
            ) from None
        except BaseException:
            self.close()
            raise
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        """Bound address, with the port chosen for `*`."""
        self._gate.start(int(self.endpoint.rpartition(":")[2]))
        logger.info("a trainer may come over %s, with one of the keys in %s", self.endpoint, folder)

    @property
    def is_waiting_for_an_end(self) -> bool:
        """True while a trainer is leaving, or is gone and not reported yet: poll again soon."""
        return any(peer.leaving or peer.gone_s is not None for peer in self._peers.values())

    def owns(self, name: str) -> bool:
        """True for the name of a trainer connected over tcp and not lost."""
        return name in self._peers

    def poll(self) -> list[Event]:
        """Events, messages before losses, without waiting. Of many messages, the rest is read by the next poll."""
        now_s = time.monotonic()
        is_due = now_s >= self._probe_s
        if is_due:
            self._probe_s = now_s + _PROBE_S
        for peer in self._peers.values():
            if is_due or peer.leaving:
                self._write(peer, wire.PROBE)
        events: list[Event] = [*self._receive_some()]
        for name in [name for name, peer in self._peers.items() if self._is_lost(peer, now_s)]:
            del self._peers[name]
            events.append(Lost(name))
        return events

    def send(self, name: str, message: m.Message) -> None:
        """Send a message to a trainer, a delivered unit with its slot's content; no effect if the trainer is gone."""
        peer = self._peers[name]
        if isinstance(message, m.DeliveredUnit) and message.slot >= 0:
            payload = self._arena.slot(message.slot)[: self._payload_bytes(message.layout)].data
            tracker = self._write(peer, wire.MESSAGE, m.encode(message), payload)
            if tracker is not None and not tracker.done:
                peer.is_settled()  # drop finished trackers
                peer.trackers.append(tracker)
        else:
            self._write(peer, wire.MESSAGE, m.encode(message))

    def is_connected(self, name: str) -> bool:
        """False once the connection has ended and its slots are free to be written."""
        peer = self._peers[name]
        self._write(peer, wire.PROBE)
        deadline_s = time.monotonic() + _SETTLE_S
        while peer.gone_s is not None and not peer.is_settled() and time.monotonic() < deadline_s:
            self.router.getsockopt(zmq.EVENTS)  # lets ZeroMQ process the end of the connection
            time.sleep(_SETTLE_POLL_S)
        return peer.gone_s is None or not peer.is_settled()

    def close(self) -> None:
        """Disconnect every trainer."""
        self._gate.close()
        self.router.close()
        self._authenticator.stop()
        self._context.term()
        self._peers.clear()

    def _write(self, peer: _RemotePeer, *frames: bytes | memoryview) -> zmq.MessageTracker | None:
        """Pass frames to ZeroMQ, large ones without a copy; None, and the peer is gone, if its connection has ended."""
        if peer.gone_s is not None:
            return None
        try:
            tracker = self.router.send_multipart([peer.routing_id, *frames], zmq.NOBLOCK, copy=False, track=True)
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            peer.gone_s = time.monotonic()
            return None
        assert tracker is not None
        return tracker

    def _is_lost(self, peer: _RemotePeer, now_s: float) -> bool:
        """True once its connection has ended, all its messages were read, and nothing reads a slot for it."""
        if peer.gone_s is None or not peer.is_settled():
            return False
        return self._drained or now_s - peer.gone_s > _LAST_MESSAGES_S  # in a flood, most messages are from other peers

    def _receive_some(self) -> list[Received]:
        received: list[Received] = []
        num_bytes = 0
        self._drained = False
        for _ in range(MESSAGES_A_POLL):
            try:
                frames = self.router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._drained = True
                break
            connection = frames[0].get(zmq.SRCFD)
            self._gate.read(connection, frames[1:])
            try:
                received += self._hear(frames)
            except m.MalformedMessage as error:
                self.malformed += 1
                self._dropped.log("dropped a message from %s: %s", frames[0].get("Peer-Address"), error)
                self._gate.complain(connection)
            num_bytes += sum(len(frame) for frame in frames)
            if num_bytes > BYTES_A_POLL:
                break
        return received

    def _hear(self, frames: list[zmq.Frame]) -> list[Received]:
        """Message in ``frames``, if it is one for the dispatcher. Raises MalformedMessage for anything invalid."""
        if len(frames) > _MOST_FRAMES:
            raise m.MalformedMessage(f"{len(frames)} frames")
        routing_id, *body = (frame.bytes for frame in frames)
        if not _ROUTING_ID.fullmatch(routing_id):
            raise m.MalformedMessage("its name is none of a trainer")
        name = f"tcp-{routing_id.decode()}"
        peer = self._peers.get(name)
        match body:
            case [wire.JOIN, handshake] if peer is None:
                self._join(name, routing_id, handshake, str(frames[0].get("Peer-Address")))
                return []
            case [wire.LEAVE] if peer is not None:
                peer.leaving = True
                self._write(peer, wire.LEAVE)
                return []
            case [wire.MESSAGE, raw] if peer is not None:
                message = m.decode(raw)
                if not isinstance(message, _FROM_TRAINERS):
                    raise m.MalformedMessage(f"a {type(message).__name__}: only a trainer may come over tcp")
                return [Received(name, message)]
        raise m.MalformedMessage(f"{len(body)} frames, of kind {body[0] if body else b''!r:.20}")

    def _join(self, name: str, routing_id: bytes, handshake: bytes, address: str) -> None:
        try:
            wire.decode_handshake(handshake, wire.Join)
            self._came.log("trainer %s came from %s", name, address)
        except wire.OtherVersion as error:  # the answer contains this version, so that the trainer sees the difference
            self._dropped.log(
                "a trainer from %s speaks protocol version %s, this process %d", address, error, m.PROTOCOL_VERSION
            )
        self._peers[name] = _RemotePeer(routing_id)
        self._write(self._peers[name], wire.WELCOME, wire.encode_handshake(self._welcome))


class _Clients:
    """Callback of the authenticator: admission of the holder of a public key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._refused, self._let_in = Rarely(logger), Rarely(logger, logging.INFO)

    def callback(self, domain: str, key: bytes) -> bool:
        """True if the key (in Z85) is admitted. Called in the authenticator's thread."""
        try:
            name = known_clients(self._folder).get(key)
        except BadInputError as error:
            self._refused.log("refused a trainer: %s", error)
            return False
        if name is None:
            self._refused.log("refused a trainer: its key %s is not in %s", key.decode(), self._folder)
            return False
        self._let_in.log("trainer with the key of %s", name)
        return True
