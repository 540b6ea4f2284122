"""How the processes of a run meet: a lifeline (unix stream) and a control socket (ZeroMQ) for every peer.

Lifeline: tells who connects (SO_PEERCRED: the owner only), hands over the arena's descriptor and a name for the
control socket, and gives end-of-file when the other side is dead, however it died. A peer that closes in good order
first says there how many messages it sent: they are waited for before it counts as lost. Control: ROUTER (dispatcher)
and DEALER (peers), no high-water mark, no linger; a message from a name that no lifeline was given to is dropped.

Addresses: `abstract` names leave nothing behind and serve one host; `folder` puts socket files into the run
directory's `sockets/`, for containers that share it. There, paths go through /proc/self/fd, because a unix socket's
path has at most 107 bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgpack
import zmq

from common import messages as m
from common.arena import Arena
from common.config import TransportConfig
from common.errors import BadInputError

logger = logging.getLogger(__name__)

SOCKET_FOLDER = "sockets"
_LIFELINE = "lifeline"
_WELCOME_BYTES = 4096
_WELCOME_S = 5.0
_PEERCRED = struct.Struct("3i")  # pid, uid, gid
_LAST_WORD = struct.Struct("<Q")  # messages that a peer sent
_LAST_MESSAGES_S = 2.0
_LEAVING_POLL_S = 0.01
_RECONNECT_MS = 60_000  # -1, never, was seen to hang the context's end
_LINGER_MS = 1000  # below _LAST_MESSAGES_S


class FetcherLost(Exception):
    """The other end of the lifeline is gone."""


class StopRequested(Exception):
    """The process was asked to stop while it waited."""


@dataclass(frozen=True)
class Received:
    """A valid message arrived from a peer."""

    peer: str
    message: m.Message


@dataclass(frozen=True)
class Lost:
    """A peer's lifeline ended: it is dead, or has let go of the arena."""

    peer: str


Event: TypeAlias = Received | Lost


class _Addresses:
    """Where lifeline and control sockets of a run directory are."""

    def __init__(self, run_dir: Path, mode: str) -> None:
        self.folder_fd: int | None = None
        if mode == "folder":
            folder = run_dir / SOCKET_FOLDER
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        name = f"{os.getuid()}\0{run_dir.resolve()}".encode()
        self._abstract = f"icestream-{hashlib.blake2b(name, digest_size=12).hexdigest()}"

    @property
    def lifeline(self) -> str:
        """Address of the lifeline's listener, for socket.bind and connect."""
        if self.folder_fd is None:
            return f"\0{self._abstract}"
        return f"/proc/self/fd/{self.folder_fd}/{_LIFELINE}"

    def control(self, token: str) -> str:
        """Endpoint of the control socket, for ZeroMQ; nobody knows its token but who was welcomed."""
        if self.folder_fd is None:
            return f"ipc://@icestream-{token}"
        return f"ipc:///proc/self/fd/{self.folder_fd}/{token}"

    def close(self) -> None:
        if self.folder_fd is not None:
            os.close(self.folder_fd)
            self.folder_fd = None


@contextlib.contextmanager
def keep_fetchers_out(run_dir: Path, config: TransportConfig) -> Iterator[None]:
    """Hold the place of the run's fetcher, so that none can start. Raises BadInputError if one is running."""
    with contextlib.ExitStack() as held:
        addresses = _Addresses(run_dir, config.sockets)
        held.callback(addresses.close)
        try:
            if addresses.folder_fd is not None:
                fcntl.flock(addresses.folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)).bind(addresses.lifeline)
        except OSError:
            raise BadInputError(f"{run_dir}: a fetcher is running in this run directory") from None
        yield


@dataclass
class _Peer:
    lifeline: socket.socket
    pid: int
    pidfd: int | None
    received: int = 0
    sent: int | None = None
    """None: it did not close in good order; what it sent last may have died with it."""


class ServerTransport:
    """The dispatcher's side. Raises BadInputError if another fetcher serves this run directory."""

    def __init__(self, run_dir: Path, config: TransportConfig, arena: Arena, plan_hash: str) -> None:
        self.malformed = 0
        """Messages that were dropped because they were none."""
        self._arena = arena
        self._plan_hash = plan_hash
        self._token = secrets.token_hex(16)
        self._peers: dict[str, _Peer] = {}
        self._by_fd: dict[int, str] = {}
        self._leaving: dict[str, float] = {}  # peers that have ended, and when; their last messages may be on their way
        self._addresses = _Addresses(run_dir, config.sockets)
        self._folder = run_dir / SOCKET_FOLDER if config.sockets == "folder" else None
        self._claim_folder(run_dir)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(self._addresses.lifeline)
        except OSError as error:
            self._listener.close()
            self._addresses.close()
            raise BadInputError(f"{run_dir}: a fetcher is already running in this run directory ({error})") from None
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router.setsockopt(zmq.IPC_FILTER_UID, os.getuid())  # its abstract name can be seen by everybody
        self._router.setsockopt(zmq.MAXMSGSIZE, m.MAX_MESSAGE_BYTES)
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            self._router.setsockopt(option, 0)
        self._router.bind(self._addresses.control(self._token))
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._listener, zmq.POLLIN)

    def _claim_folder(self, run_dir: Path) -> None:
        """Lock the socket folder (the lock ends with us, however we end) and remove what a dead fetcher left."""
        if self._folder is None or self._addresses.folder_fd is None:
            return
        try:
            fcntl.flock(self._addresses.folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._addresses.close()
            raise BadInputError(f"{run_dir}: a fetcher is already running in this run directory") from None
        for stale in self._folder.iterdir():
            stale.unlink()

    def watch(self, fd: int) -> None:
        """Have poll() return when ``fd`` is readable, too."""
        self._poller.register(fd, zmq.POLLIN)

    def poll(self, timeout_s: float) -> list[Event]:
        """What happened, messages before deaths; an empty list after ``timeout_s``."""
        timeout_s = min(timeout_s, _LEAVING_POLL_S) if self._leaving else timeout_s
        ready = {fd for fd, _ in self._poller.poll(int(timeout_s * 1000)) if isinstance(fd, int)}
        if self._listener.fileno() in ready:
            self._accept_all()
        for fd in ready & self._by_fd.keys():
            if self._is_ended(self._by_fd[fd]):
                self._poller.unregister(fd)
                self._leaving[self._by_fd[fd]] = time.monotonic()
        events: list[Event] = [*self._receive_all()]
        for peer in [peer for peer in self._leaving if self._has_said_all(peer)]:
            self._forget(peer)
            events.append(Lost(peer))
        return events

    def send(self, peer: str, message: m.Message) -> None:
        """Send to a peer; one that is gone misses nothing, its end-of-file comes."""
        with contextlib.suppress(zmq.Again, zmq.ZMQError):
            self._router.send_multipart([peer.encode(), m.encode(message)], zmq.NOBLOCK)

    def is_connected(self, peer: str) -> bool:
        """False once the peer's lifeline has ended."""
        return peer in self._peers and not self._is_ended(peer)

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
        """Let go of every peer and remove the addresses."""
        for peer in list(self._peers):
            self._forget(peer)
        self._router.close()
        self._context.term()
        self._listener.close()
        if self._folder is not None:
            for path in self._folder.iterdir():
                path.unlink()
        self._addresses.close()

    def _accept_all(self) -> None:
        while True:
            try:
                lifeline, _ = self._listener.accept()
            except BlockingIOError:
                return
            pid, uid, _ = _PEERCRED.unpack(lifeline.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size))
            if uid != os.getuid():
                logger.warning("refused a peer of another user (uid %d)", uid)
                lifeline.close()
                continue
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
                continue
            self._peers[peer] = _Peer(lifeline, pid, _pidfd(pid, lifeline))
            self._by_fd[lifeline.fileno()] = peer
            self._poller.register(lifeline.fileno(), zmq.POLLIN)

    def _is_ended(self, peer: str) -> bool:
        entry = self._peers[peer]
        try:
            while word := entry.lifeline.recv(_LAST_WORD.size, socket.MSG_DONTWAIT):
                if len(word) == _LAST_WORD.size:
                    (entry.sent,) = _LAST_WORD.unpack(word)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def _has_said_all(self, peer: str) -> bool:
        """True if no message of a peer that has ended is still on its way: the lifeline is faster than ZeroMQ."""
        entry = self._peers[peer]
        is_late = time.monotonic() - self._leaving[peer] > _LAST_MESSAGES_S
        return entry.sent is None or entry.received >= entry.sent or is_late

    def _receive_all(self) -> list[Received]:
        events: list[Received] = []
        while True:
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return events
            peer = frames[0].decode("latin-1")
            if peer in self._peers:
                self._peers[peer].received += 1
            if peer not in self._peers or len(frames) != 2:
                self.malformed += 1
                continue
            try:
                events.append(Received(peer, m.decode(frames[1])))
            except m.MalformedMessage as error:
                self.malformed += 1
                logger.warning("dropped a malformed message from %s: %s", peer, error)

    def _forget(self, peer: str) -> None:
        entry = self._peers.pop(peer)
        del self._by_fd[entry.lifeline.fileno()]
        if self._leaving.pop(peer, None) is None:
            self._poller.unregister(entry.lifeline.fileno())
        entry.lifeline.close()
        if entry.pidfd is not None:
            os.close(entry.pidfd)


class PeerTransport:
    """A decoder's or the trainer's side: connected, with the arena mapped."""

    def __init__(
        self,
        run_dir: Path,
        config: TransportConfig,
        *,
        writable: bool,
        stopped: Callable[[], bool],
    ) -> None:
        """Connect, waiting for a fetcher that isn't there yet.

        Raises BadInputError after ``connect_timeout_s``, StopRequested once ``stopped()`` is true.
        """
        self._addresses = _Addresses(run_dir, config.sockets)
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
        # Who binds that name after the fetcher's end is somebody else; the lifeline tells the end long before.
        self._dealer.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._dealer.setsockopt(zmq.LINGER, _LINGER_MS)  # a Bye or Finished shall get out
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
        """The next message; None after ``timeout_s``. Raises FetcherLost when the lifeline has ended."""
        ready = dict(self._poller.poll(int(timeout_s * 1000)))
        if self._dealer in ready:
            return m.decode(self._dealer.recv())
        if self._lifeline.fileno() in ready and not self._lifeline.recv(64):
            raise FetcherLost
        return None

    def close(self) -> None:
        """Unmap the arena, then end the lifeline: who sees its end-of-file knows that we write no more."""
        self._dealer.close()
        self._context.term()
        self.arena.close()
        with contextlib.suppress(OSError):  # the fetcher may be gone
            self._lifeline.send(_LAST_WORD.pack(self._sent))
        self._lifeline.close()
        self._addresses.close()

    def _connect(
        self, run_dir: Path, timeout_s: float, stopped: Callable[[], bool]
    ) -> tuple[socket.socket, dict[str, Any], int]:
        """A fetcher's lifeline, what it said on it, and the arena's descriptor."""
        started_s = told_s = time.monotonic()
        while True:
            lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            lifeline.settimeout(_WELCOME_S)
            try:
                lifeline.connect(self._addresses.lifeline)
                credentials = lifeline.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
                if _PEERCRED.unpack(credentials)[1] != os.getuid():
                    lifeline.close()
                    raise BadInputError(f"{run_dir}: its fetcher belongs to another user")
                data, fds, _, _ = socket.recv_fds(lifeline, _WELCOME_BYTES, 1)
                if data and fds:
                    lifeline.settimeout(None)
                    return lifeline, msgpack.unpackb(data), fds[0]
            except (ConnectionError, FileNotFoundError, BlockingIOError, TimeoutError):
                pass  # there is none, or it died or hangs before it answered
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


def _pidfd(pid: int, lifeline: socket.socket) -> int | None:
    """A pidfd of the peer; None if its process can't be seen from here."""
    if pid <= 0:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    # The pid may have been given to another process since the peer connected. While the lifeline is open, it has not.
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
