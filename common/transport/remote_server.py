"""The dispatcher's side of a lane over tcp: a trainer on another machine gets units as zero-copy frames.

Who may come: with keys, whoever holds a certificate of the key folder (CURVE; the folder is read at each handshake).
Without keys, whoever can reach a loopback address. Only a trainer's messages are accepted: a decoder needs the arena.

What takes the lifeline's place: there is no descriptor, and no end-of-file. The proof that a trainer is gone is that
its connection is gone. The kernel ends it when the trainer's process ends; ZeroMQ's heartbeats end it when the other
side is silent for heartbeat_timeout_s. Each second a probe is sent to everyone, and ROUTER_MANDATORY refuses it where
the connection is gone. What was received before is read first. A name is good for one connection: a trainer that
connects again takes another one, and its socket would not come back under the old one within a minute.

When a slot may be written again (rule R3): a payload is sent straight from the slot, without a copy, so ZeroMQ may read
it at any time until its tracker is done. A Release proves that the trainer has the whole payload: nothing is left to
read. A trainer that is gone releases nothing; the end of its connection drops the frames that it did not get, and it is
reported as lost only when all its trackers are done. (A trainer that sends Release for what it has not got spoils its
own payload, and nothing else: its check of the slot's header or sizes rejects it.)
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
from common.transport import wire
from common.transport.endpoint import Endpoint, parse_endpoint, require_keys
from common.transport.events import Event, Lost, Received
from common.transport.keys import KeyPair, known_clients, server_keys
from common.transport.tcp import ZAP_DOMAIN, set_heartbeat

logger = logging.getLogger(__name__)

PayloadBytes: TypeAlias = Callable[[m.Layout], int]
"""How many bytes of a slot a unit with this layout takes."""

_PROBE_S = 1.0
_SETTLE_S = 1.0
_SETTLE_POLL_S = 0.01
_ROUTING_ID = re.compile(rb"[0-9a-f]{32}")
_FROM_TRAINERS = get_args(m.TrainerMessage)


@dataclass
class _RemotePeer:
    routing_id: bytes
    trackers: list[zmq.MessageTracker] = field(default_factory=list)
    leaving: bool = False
    """It said its last message."""
    gone: bool = False
    """Its connection has ended."""

    def is_settled(self) -> bool:
        """True if ZeroMQ reads no slot for it any more."""
        self.trackers = [tracker for tracker in self.trackers if not tracker.done]
        return not self.trackers


def check_listen(config: TransportConfig) -> tuple[Endpoint, KeyPair | None]:
    """Where to listen, and the fetcher's certificate. Raises BadInputError if it may not, or not without keys."""
    endpoint = parse_endpoint(config.listen, "transport.listen", example="tcp://0.0.0.0:5570")
    require_keys(endpoint, config.keys, "transport.listen")
    if config.keys is None:
        return endpoint, None
    known_clients(config.keys)
    return endpoint, server_keys(config.keys)


class RemoteServer:
    """See the module. Raises BadInputError if the address can't be used, or not without keys."""

    def __init__(self, config: TransportConfig, arena: Arena, plan_hash: str, payload_bytes: PayloadBytes) -> None:
        self.malformed = 0
        """Messages that were dropped because they were none, or none of a trainer."""
        self._arena = arena
        self._welcome = wire.Welcome(plan_hash, arena.slots, arena.slot_bytes)
        self._payload_bytes = payload_bytes
        self._peers: dict[str, _RemotePeer] = {}
        self._probe_s = 0.0
        endpoint, keys = check_listen(config)
        self._context = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        self.router = self._context.socket(zmq.ROUTER)
        """To wait on, beside other sockets."""
        self.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.router.setsockopt(zmq.MAXMSGSIZE, m.MAX_MESSAGE_BYTES)
        self.router.setsockopt(zmq.IPV6, int(endpoint.is_ipv6))
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            self.router.setsockopt(option, 0)
        set_heartbeat(self.router, config.heartbeat_timeout_s)
        try:
            if config.keys is not None and keys is not None:
                self._authenticator = ThreadAuthenticator(self._context)
                self._authenticator.start()
                self._authenticator.configure_curve_callback(ZAP_DOMAIN, _Clients(config.keys))
                self.router.setsockopt_string(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
                self.router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # nobody comes in if the authenticator is gone
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
        """As it was bound, with the port that was chosen for `*`."""
        logger.info(
            "a trainer may come over %s, %s",
            self.endpoint,
            "without encryption" if keys is None else f"with one of the keys in {config.keys}",
        )

    @property
    def is_waiting_for_an_end(self) -> bool:
        """True while a trainer leaves, or is gone and not reported yet: poll again soon."""
        return any(peer.leaving or peer.gone for peer in self._peers.values())

    def owns(self, name: str) -> bool:
        """True for the name of a trainer that came over tcp and is not lost."""
        return name in self._peers

    def poll(self) -> list[Event]:
        """What happened, messages before deaths; doesn't wait."""
        now_s = time.monotonic()
        is_due = now_s >= self._probe_s
        if is_due:
            self._probe_s = now_s + _PROBE_S
        for peer in self._peers.values():
            if is_due or peer.leaving:
                self._write(peer, wire.PROBE)
        events: list[Event] = [*self._receive_all()]  # a connection that is gone has given all that it had
        for name in [name for name, peer in self._peers.items() if peer.gone and peer.is_settled()]:
            del self._peers[name]
            events.append(Lost(name))
        return events

    def send(self, name: str, message: m.Message) -> None:
        """Send to a trainer, a delivered unit with what its slot holds; one that is gone misses nothing."""
        peer = self._peers[name]
        if isinstance(message, m.DeliveredUnit) and message.slot >= 0:
            payload = self._arena.slot(message.slot)[: self._payload_bytes(message.layout)].data
            tracker = self._write(peer, wire.MESSAGE, m.encode(message), payload)
            if tracker is not None and not tracker.done:
                peer.is_settled()  # forget those that are done
                peer.trackers.append(tracker)
        else:
            self._write(peer, wire.MESSAGE, m.encode(message))

    def is_connected(self, name: str) -> bool:
        """False once the connection has ended and its slots are free to be written."""
        peer = self._peers[name]
        self._write(peer, wire.PROBE)
        deadline_s = time.monotonic() + _SETTLE_S
        while peer.gone and not peer.is_settled() and time.monotonic() < deadline_s:
            self.router.getsockopt(zmq.EVENTS)  # has it go on with the end of the connection
            time.sleep(_SETTLE_POLL_S)
        return not (peer.gone and peer.is_settled())

    def close(self) -> None:
        """Let go of every trainer."""
        self.router.close()
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()
        self._peers.clear()

    def _write(self, peer: _RemotePeer, *frames: bytes | memoryview) -> zmq.MessageTracker | None:
        """Hand frames to ZeroMQ, large ones without a copy; None, and the peer is gone, if its connection has ended."""
        if peer.gone:
            return None
        try:
            tracker = self.router.send_multipart([peer.routing_id, *frames], zmq.NOBLOCK, copy=False, track=True)
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            peer.gone = True
            return None
        assert tracker is not None
        return tracker

    def _receive_all(self) -> list[Received]:
        received: list[Received] = []
        while True:
            try:
                frames = self.router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return received
            routing_id, *body = (frame.bytes for frame in frames)
            if not _ROUTING_ID.fullmatch(routing_id) or not body:
                self.malformed += 1
                continue
            name = f"tcp-{routing_id.decode()}"
            peer = self._peers.get(name)
            match body:
                case [wire.JOIN, handshake] if peer is None:
                    self._join(name, routing_id, handshake, str(frames[0].get("Peer-Address")))
                case [wire.LEAVE] if peer is not None:
                    peer.leaving = True
                    self._write(peer, wire.LEAVE)
                case [wire.MESSAGE, raw] if peer is not None:
                    received += self._decode(name, raw)
                case _:
                    self.malformed += 1

    def _join(self, name: str, routing_id: bytes, handshake: bytes, address: str) -> None:
        try:
            wire.decode_handshake(handshake, wire.Join)
            logger.info("trainer %s came from %s", name, address)
        except wire.OtherVersion as error:  # it is told ours, and sees the difference
            logger.warning(
                "a trainer from %s speaks protocol version %s, this process %d", address, error, m.PROTOCOL_VERSION
            )
        except m.MalformedMessage as error:
            self.malformed += 1
            logger.warning("dropped a malformed handshake from %s: %s", address, error)
            return
        self._peers[name] = _RemotePeer(routing_id)
        self._write(self._peers[name], wire.WELCOME, wire.encode_handshake(self._welcome))

    def _decode(self, name: str, raw: bytes) -> list[Received]:
        try:
            message = m.decode(raw)
        except m.MalformedMessage as error:
            self.malformed += 1
            logger.warning("dropped a malformed message from %s: %s", name, error)
            return []
        if not isinstance(message, _FROM_TRAINERS):
            self.malformed += 1
            logger.warning("dropped a %s from %s: only a trainer may come over tcp", type(message).__name__, name)
            return []
        return [Received(name, message)]


class _Clients:
    """Answers the authenticator: may the holder of this public key come?"""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def callback(self, domain: str, key: bytes) -> bool:
        """Called in the authenticator's thread, with the key in Z85."""
        try:
            name = known_clients(self._folder).get(key)
        except BadInputError as error:
            logger.error("refused a trainer: %s", error)
            return False
        if name is None:
            logger.warning("refused a trainer: its key %s is not in %s", key.decode(), self._folder)
            return False
        logger.info("trainer with the key of %s", name)
        return True
