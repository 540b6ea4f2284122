"""Dispatcher's transport: lifelines and the control socket of local peers, and trainers over tcp if enabled."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import msgpack
import zmq

from common import messages as m
from common.arena import Arena
from common.config import TransportConfig
from common.errors import BadInputError
from common.process import is_suspended
from common.rarely import Rarely
from common.transport.addresses import SOCKET_FOLDER, Addresses
from common.transport.events import BYTES_A_POLL, MESSAGES_A_POLL, UNREAD_MESSAGES, Event, Lost, Received
from common.transport.lifeline import LAST_WORD, PEERCRED
from common.transport.remote_server import PayloadBytes, RemoteServer

logger = logging.getLogger(__name__)

_LAST_MESSAGES_S = 2.0
_LEAVING_POLL_S = 0.01
_ACCEPTS_A_POLL = 64
_ANSWER_S = 1.0


@dataclass
class _Peer:
    lifeline: socket.socket
    pid: int
    pidfd: int | None
    received: int = 0
    sent: int | None = None
    """Number of messages it sent; None: it did not close in good order, and its last messages may be lost."""


class ServerTransport:
    """Connections of the dispatcher. The caller holds the run's lock for fetchers: no other serves this directory."""

    def __init__(self, run_dir: Path, config: TransportConfig, arena: Arena, plan_hash: str) -> None:
        self._malformed = 0
        self._drained = True  # the newest poll read all received messages
        self._refused, self._dropped = Rarely(logger), Rarely(logger)
        self._spare = _spare_descriptor()
        self._remote: RemoteServer | None = None
        self._config = config
        self._arena = arena
        self._plan_hash = plan_hash
        self._token = secrets.token_hex(16)
        self._peers: dict[str, _Peer] = {}
        self._by_fd: dict[int, str] = {}
        self._leaving: dict[
            str, float
        ] = {}  # peers that have ended, with the time; their last messages may still arrive
        self._addresses = Addresses(run_dir, config.sockets)
        self._folder = run_dir / SOCKET_FOLDER if config.sockets == "folder" else None
        if self._folder is not None:
            for stale in self._folder.iterdir():  # left by a dead fetcher
                stale.unlink()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(self._addresses.lifeline)
        except OSError as error:
            self._listener.close()
            reason = _why_taken(run_dir, self._addresses) if error.errno == errno.EADDRINUSE else f"{run_dir}: {error}"
            self._addresses.close()
            raise BadInputError(reason) from None
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.IPC_FILTER_UID, os.getuid())  # every user can see its abstract name
        self._router.setsockopt(zmq.MAXMSGSIZE, m.MAX_MESSAGE_BYTES)
        self._router.setsockopt(zmq.RCVHWM, UNREAD_MESSAGES)
        for option in (zmq.SNDHWM, zmq.LINGER):
            self._router.setsockopt(option, 0)
        self._router.bind(self._addresses.control(self._token))
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._listener, zmq.POLLIN)

    def listen(self, payload_bytes: PayloadBytes) -> str:
        """Serve trainers over tcp too, at transport.listen; returns the address, "" if it is not set.

        Raises BadInputError if the address can't be used, or keys are missing.
        """
        if not self._config.listen:
            return ""
        self._remote = RemoteServer(self._config, self._arena, self._plan_hash, payload_bytes)
        self._poller.register(self._remote.router, zmq.POLLIN)
        return self._remote.endpoint

    @property
    def malformed(self) -> int:
        """Number of dropped messages: malformed, or not valid for the peer."""
        return self._malformed + (self._remote.malformed if self._remote is not None else 0)

    def watch(self, fd: int) -> None:
        """Let poll() also return when ``fd`` is readable."""
        self._poller.register(fd, zmq.POLLIN)

    def poll(self, timeout_s: float) -> list[Event]:
        """Events so far, messages before losses; an empty list after ``timeout_s``.

        It reads a bounded number of messages, so that an endless sender can't block it: the next poll reads the rest.
        """
        if self._leaving or (self._remote is not None and self._remote.is_waiting_for_an_end):
            timeout_s = min(timeout_s, _LEAVING_POLL_S)
        ready = {fd for fd, _ in self._poller.poll(int(timeout_s * 1000)) if isinstance(fd, int)}
        if self._listener.fileno() in ready:
            self._accept_some()
        for fd in ready & self._by_fd.keys():
            if self._is_ended(self._by_fd[fd]):
                self._poller.unregister(fd)
                self._leaving[self._by_fd[fd]] = time.monotonic()
        events: list[Event] = [*self._receive_some()]
        for peer in [peer for peer in self._leaving if self._has_said_all(peer)]:
            self._forget(peer)
            events.append(Lost(peer))
        if self._remote is not None:
            events += self._remote.poll()
        return events

    def send(self, peer: str, message: m.Message) -> None:
        """Send a message to a peer; no effect if it is gone, since its end-of-file follows."""
        if self._remote is not None and self._remote.owns(peer):
            self._remote.send(peer, message)
            return
        with contextlib.suppress(zmq.Again, zmq.ZMQError):
            self._router.send_multipart([peer.encode(), m.encode(message)], zmq.NOBLOCK)

    def is_connected(self, peer: str) -> bool:
        """False once the peer's lifeline has ended, or its connection over tcp."""
        if self._remote is not None and self._remote.owns(peer):
            return self._remote.is_connected(peer)
        return peer in self._peers and not self._is_ended(peer)

    def is_suspended(self, peer: str) -> bool:
        """True if a peer's process is known to be stopped, frozen, or waiting for the machine."""
        entry = self._peers.get(peer)
        return entry is not None and entry.pidfd is not None and is_suspended(entry.pid)

    def fence(self, peer: str) -> bool:
        """Kill a peer's process; False where that isn't possible (it lives in another PID namespace)."""
        entry = self._peers.get(peer)
        if entry is None:
            return True  # it is gone already
        if entry.pidfd is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(entry.pidfd, signal.SIGKILL)
        return True

    def close(self) -> None:
        """Disconnect every peer and remove the addresses."""
        if self._remote is not None:
            self._remote.close()
        for peer in list(self._peers):
            self._forget(peer)
        self._router.close()
        self._context.term()
        self._listener.close()
        if self._folder is not None:
            for path in self._folder.iterdir():
                path.unlink()
        self._addresses.close()
        with contextlib.suppress(OSError):
            os.close(self._spare)

    def _accept_some(self) -> None:
        for _ in range(_ACCEPTS_A_POLL):
            try:
                lifeline, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no descriptor left: drop one peer, which connects again
                self._refused.log("can't accept a peer: %s", error.strerror)
                with contextlib.suppress(OSError):
                    os.close(self._spare)
                    self._listener.accept()[0].close()
                self._spare = _spare_descriptor()
                return
            self._welcome(lifeline)

    def _welcome(self, lifeline: socket.socket) -> None:
        pid, uid, _ = PEERCRED.unpack(lifeline.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEERCRED.size))
        if uid != os.getuid():
            self._refused.log("refused a peer of another user (uid %d)", uid)
            lifeline.close()
            return
        peer = f"{pid}-{secrets.token_hex(8)}"
        welcome = {
            "v": m.PROTOCOL_VERSION,
            "peer": peer,
            "control": self._token,
            "plan_hash": self._plan_hash,
            "slots": self._arena.slots,
            "slot_bytes": self._arena.slot_bytes,
        }
        try:
            socket.send_fds(lifeline, [msgpack.packb(welcome)], [self._arena.fd])
        except OSError:
            lifeline.close()
            return
        self._peers[peer] = _Peer(lifeline, pid, _pidfd(pid, lifeline))
        self._by_fd[lifeline.fileno()] = peer
        self._poller.register(lifeline.fileno(), zmq.POLLIN)

    def _is_ended(self, peer: str) -> bool:
        entry = self._peers[peer]
        try:
            while word := entry.lifeline.recv(LAST_WORD.size, socket.MSG_DONTWAIT):
                if len(word) == LAST_WORD.size:
                    (entry.sent,) = LAST_WORD.unpack(word)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def _has_said_all(self, peer: str) -> bool:
        """True if no message of an ended peer is still in transit: the lifeline is faster than ZeroMQ."""
        entry = self._peers[peer]
        is_late = time.monotonic() - self._leaving[peer] > _LAST_MESSAGES_S
        is_through = self._drained if entry.sent is None else entry.received >= entry.sent
        return is_through or is_late

    def _receive_some(self) -> list[Received]:
        events: list[Received] = []
        num_bytes = 0
        self._drained = False
        for _ in range(MESSAGES_A_POLL):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                self._drained = True
                break
            num_bytes += sum(map(len, frames))
            peer = frames[0].decode("latin-1")
            if peer in self._peers:
                self._peers[peer].received += 1
            if peer not in self._peers or len(frames) != 2:
                self._malformed += 1
                continue
            try:
                events.append(Received(peer, m.decode(frames[1])))
            except m.MalformedMessage as error:
                self._malformed += 1
                self._dropped.log("dropped a malformed message from %s: %s", peer, error)
            if num_bytes > BYTES_A_POLL:
                break
        return events

    def _forget(self, peer: str) -> None:
        entry = self._peers.pop(peer)
        del self._by_fd[entry.lifeline.fileno()]
        if self._leaving.pop(peer, None) is None:
            self._poller.unregister(entry.lifeline.fileno())
        entry.lifeline.close()
        if entry.pidfd is not None:
            os.close(entry.pidfd)


def _spare_descriptor() -> int:
    """Spare descriptor, closed when none is left; -1 if even this one is not available."""
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return -1


def _why_taken(run_dir: Path, addresses: Addresses) -> str:
    """Message with the holder of the fetcher's address."""
    running = f"{run_dir}: a fetcher is already running in this run directory"
    if addresses.folder_fd is not None:
        return running
    other = "set transport.sockets=folder for all processes of the run"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lifeline:
        lifeline.settimeout(_ANSWER_S)
        lifeline.connect(addresses.lifeline)
        uid = PEERCRED.unpack(lifeline.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEERCRED.size))[1]
        return running if uid == os.getuid() else f"{run_dir}: its socket's name is taken by user {uid}; {other}"
    return f"{running}, or another process has taken its socket's name; if it is none of yours, {other}"


def _pidfd(pid: int, lifeline: socket.socket) -> int | None:
    """Pidfd of the peer; None if its process isn't visible from here."""
    if pid <= 0:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    # The pid may have been reused since the peer connected, but not while the lifeline is open.
    try:
        alive = bool(lifeline.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        alive = True
    except OSError:
        alive = False
    if not alive:
        os.close(pidfd)
        return None
    return pidfd
