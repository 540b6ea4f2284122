"""Transport between the processes of a run, all on this host: shared memory, and two sockets for every peer.

Arena: an anonymous memfd, cut into slots of equal size. Bytes only: no lock, counter or cursor lives in it.

Lifeline (unix stream): identifies the peer (SO_PEERCRED: the owner only), passes the arena's descriptor and a name for
the control socket, and gives end-of-file when the other side is dead, for any cause. A peer that closes in good order
first sends its number of messages there: they are awaited before it counts as lost.

Control (ZeroMQ): ROUTER (dispatcher) and DEALER (peers), no high-water mark, no linger; a message from a name that was
given to no lifeline is dropped.

Names of the sockets: `abstract` ones leave nothing behind and serve one host; `folder` puts socket files into the run
directory's `sockets/`, for containers that share it. There, paths go through /proc/self/fd, because a unix socket's
path has at most 107 bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import mmap
import os
import secrets
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgpack
import numpy as np
import numpy.typing as npt
import zmq

from common import messages as m
from common.config import CONNECT_TIMEOUT_S, TransportConfig
from common.errors import BadInputError
from common.memory import available_memory_bytes
from common.process import Rarely, is_suspended

logger = logging.getLogger(__name__)

# linux/fcntl.h: not in Python's fcntl module before 3.13.
_F_ADD_SEALS = 1033
_F_SEAL_SEAL = 0x0001
_F_SEAL_SHRINK = 0x0002
_F_SEAL_GROW = 0x0004

Bytes = npt.NDArray[np.uint8]


class Arena(contextlib.AbstractContextManager["Arena"]):
    """Mapping of the slab. Use it as a context manager, or close it.

    Contract (rule R3 of the queue; the dispatcher holds it by leases, this class by types):

        caller   call                 time                           guarantee afterwards
        fetcher  Arena.create         once, at start                 all pages are allocated, size and seals are sealed
        fetcher  Arena.fd             a peer's lifeline opened       the peer has a descriptor of its own
        decoder  Arena.attach(write)  after its lifeline opened      it may write into slots that it has leased, only
        decoder  slot(i)              between Lease and Done         no other process reads or writes slot i
        trainer  Arena.attach(read)   after its lifeline opened      it may read slots that were delivered to it, only
        trainer  slot(i)              delivery to Release or Reject  no process writes slot i
        any      close                at its end                     its mapping is gone; the last one frees the memory
    """

    def __init__(self, fd: int, slots: int, slot_bytes: int, *, writable: bool) -> None:
        self.fd = fd
        self.slots = slots
        self.slot_bytes = slot_bytes
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(fd, slots * slot_bytes, mmap.MAP_SHARED, protection)
        self._bytes: Bytes | None = np.frombuffer(self._map, np.uint8)

    @classmethod
    def create(cls, slots: int, slot_bytes: int, wait: Callable[[], bool] = lambda: False) -> Self:
        """Allocate the slab in full.

        ``wait`` is called while there is too little memory: it pauses, and returns False to give up. Raises
        BadInputError if there is not enough memory.
        """
        while True:
            try:
                return cls._allocate(slots, slot_bytes)
            except BadInputError:
                if not wait():
                    raise

    @classmethod
    def _allocate(cls, slots: int, slot_bytes: int) -> Self:
        size = slots * slot_bytes
        fd = os.memfd_create("icestream-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # tmpfs pages are allocated on first touch, and a touch that finds no memory is a SIGBUS: ask now.
            if size > available_memory_bytes():
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            os.posix_fallocate(fd, 0, size)
            fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
            return cls(fd, slots, slot_bytes, writable=True)
        except OSError as error:
            os.close(fd)
            if error.errno not in (errno.ENOMEM, errno.ENOSPC):
                raise
            raise BadInputError(
                f"an arena of stream.slots = {slots} × stream.slot_mib = {slot_bytes / 2**20:g} "
                f"({size / 2**30:.2f} GiB) does not fit into memory; lower one of them"
            ) from None

    @classmethod
    def attach(cls, fd: int, slots: int, slot_bytes: int, *, writable: bool) -> Self:
        """Map a slab whose descriptor was received; takes the descriptor over."""
        if os.fstat(fd).st_size != slots * slot_bytes:
            os.close(fd)
            raise ValueError("the arena's descriptor has another size than was announced")
        return cls(fd, slots, slot_bytes, writable=writable)

    @property
    def size_bytes(self) -> int:
        """Size of the whole slab."""
        return self.slots * self.slot_bytes

    def slot(self, index: int) -> Bytes:
        """(slot_bytes,) uint8 view of one slot. Raises IndexError outside the arena."""
        if not 0 <= index < self.slots:
            raise IndexError(f"slot {index} of {self.slots}")
        assert self._bytes is not None, "the arena is closed"
        return self._bytes[index * self.slot_bytes : (index + 1) * self.slot_bytes]

    def whole(self) -> Bytes:
        """(size_bytes,) uint8 view of the slab."""
        assert self._bytes is not None, "the arena is closed"
        return self._bytes

    def close(self) -> None:
        """Drop the mapping and the descriptor. Views into it must be gone."""
        if self._bytes is None:
            return
        self._bytes = None
        with contextlib.suppress(BufferError):  # the traceback of an error may hold a view; the mapping ends with it
            self._map.close()
        os.close(self.fd)

    def __exit__(self, *_: object) -> None:
        self.close()


SOCKET_FOLDER = "sockets"
MESSAGES_A_POLL = 256
BYTES_A_POLL = 4 * m.MAX_MESSAGE_BYTES
"""Maximum messages and bytes of one poll, so that an endless sender can't block the others."""
ACCEPTS_A_POLL = 64

_UNREAD_MESSAGES = 1000
"""Maximum queued messages of one peer; the kernel holds the rest. A good peer never has so many: its credit is low."""
_LAST_WORD = struct.Struct("<Q")
"""Format of a peer's last bytes before it closes in good order: its number of sent messages."""
_WELCOME_BYTES = 4096
_WELCOME_S = 5.0
_RECONNECT_MS = 60_000  # -1, never, was observed to hang the context's end
_LINGER_MS = 1000  # less than the server waits for last messages
_LAST_MESSAGES_S = 2.0
_LEAVING_POLL_S = 0.01
_ANSWER_S = 1.0


def _peer_of(lifeline: socket.socket) -> tuple[int, int]:
    """Process id and user of the other side, from the kernel."""
    credentials = struct.Struct("3i")  # with the group
    return credentials.unpack(lifeline.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size))[:2]


class FetcherLost(Exception):
    """The fetcher is dead: the lifeline has ended."""


class StopRequested(Exception):
    """The process was asked to stop while it waited."""


@dataclass(frozen=True)
class Received:
    """A valid message has arrived from a peer."""

    peer: str
    message: m.Message


@dataclass(frozen=True)
class Lost:
    """A peer is dead, or has released the arena: nothing reads or writes slots for it any more."""

    peer: str


Event: TypeAlias = Received | Lost


class Addresses:
    """Addresses of a run directory's lifeline and control sockets."""

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
        return f"/proc/self/fd/{self.folder_fd}/lifeline"

    def control(self, token: str) -> str:
        """Return the endpoint of the control socket, for ZeroMQ; only welcomed peers know its token."""
        if self.folder_fd is None:
            return f"ipc://@icestream-{token}"
        return f"ipc:///proc/self/fd/{self.folder_fd}/{token}"

    def close(self) -> None:
        if self.folder_fd is not None:
            os.close(self.folder_fd)
            self.folder_fd = None


class PeerTransport:
    """Connection of a decoder or a local trainer to the fetcher, with the arena mapped."""

    def __init__(self, run_dir: Path, config: TransportConfig, *, writable: bool, stopped: Callable[[], bool]) -> None:
        """Connect, waiting until the fetcher has started.

        Raises BadInputError after CONNECT_TIMEOUT_S, StopRequested once ``stopped()`` is true.
        """
        self._addresses = Addresses(run_dir, config.sockets)
        try:
            self._lifeline, welcome, arena_fd = self._connect(run_dir, stopped)
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
        """Return the next message; None after ``timeout_s``. Raises FetcherLost when the lifeline has ended."""
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
            self._lifeline.send(_LAST_WORD.pack(self._sent))
        self._lifeline.close()
        self._addresses.close()

    def _connect(self, run_dir: Path, stopped: Callable[[], bool]) -> tuple[socket.socket, dict[str, Any], int]:
        """Return the lifeline of the fetcher, its welcome, and the arena's descriptor."""
        started_s = told_s = time.monotonic()
        while True:
            lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            lifeline.settimeout(_WELCOME_S)
            try:
                lifeline.connect(self._addresses.lifeline)
                _, uid = _peer_of(lifeline)
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
            if now_s - started_s > CONNECT_TIMEOUT_S:
                raise BadInputError(
                    f"{run_dir}: no fetcher answered for {CONNECT_TIMEOUT_S:g} s; start it, or the whole run"
                )
            if now_s - told_s > 10:
                told_s = now_s
                logger.info("waiting for the fetcher of %s", run_dir)
            time.sleep(0.05)


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
        self.malformed = 0
        """Number of dropped messages: malformed, or not valid for the peer."""
        self._drained = True  # the newest poll read all received messages
        self._refused, self._dropped = Rarely(logger), Rarely(logger)
        self._spare = _spare_descriptor()
        self._arena = arena
        self._plan_hash = plan_hash
        self._token = secrets.token_hex(16)
        self._peers: dict[str, _Peer] = {}
        self._by_fd: dict[int, str] = {}
        self._leaving: dict[str, float] = {}
        """Peers that have ended, with the time: their last messages may still arrive."""
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
        self._router.setsockopt(zmq.RCVHWM, _UNREAD_MESSAGES)
        for option in (zmq.SNDHWM, zmq.LINGER):
            self._router.setsockopt(option, 0)
        self._router.bind(self._addresses.control(self._token))
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._listener, zmq.POLLIN)

    def watch(self, fd: int) -> None:
        """Let poll() also return when ``fd`` is readable."""
        self._poller.register(fd, zmq.POLLIN)

    def poll(self, timeout_s: float) -> list[Event]:
        """Return the events so far, messages before losses; an empty list after ``timeout_s``.

        It reads a bounded number of messages, so that an endless sender can't block it: the next poll reads the rest.
        """
        if self._leaving:
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
        return events

    def send(self, peer: str, message: m.Message) -> None:
        """Send a message to a peer; no effect if it is gone, since its end-of-file follows."""
        with contextlib.suppress(zmq.Again, zmq.ZMQError):
            self._router.send_multipart([peer.encode(), m.encode(message)], zmq.NOBLOCK)

    def is_connected(self, peer: str) -> bool:
        """Return False once the peer's lifeline has ended."""
        return peer in self._peers and not self._is_ended(peer)

    def is_suspended(self, peer: str) -> bool:
        """Return True if a peer's process is known to be stopped, frozen, or waiting for the machine."""
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
        for _ in range(ACCEPTS_A_POLL):
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
        pid, uid = _peer_of(lifeline)
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
            while word := entry.lifeline.recv(_LAST_WORD.size, socket.MSG_DONTWAIT):
                if len(word) == _LAST_WORD.size:
                    (entry.sent,) = _LAST_WORD.unpack(word)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def _has_said_all(self, peer: str) -> bool:
        """Return True if no message of an ended peer is still in transit: the lifeline is faster than ZeroMQ."""
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
                self.malformed += 1
                continue
            try:
                events.append(Received(peer, m.decode(frames[1])))
            except m.MalformedMessage as error:
                self.malformed += 1
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
    """Return the spare descriptor, closed when none is left; -1 if even this one is not available."""
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return -1


def _why_taken(run_dir: Path, addresses: Addresses) -> str:
    """Return the message with the holder of the fetcher's address."""
    running = f"{run_dir}: a fetcher is already running in this run directory"
    if addresses.folder_fd is not None:
        return running
    other = "set transport.sockets=folder for all processes of the run"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lifeline:
        lifeline.settimeout(_ANSWER_S)
        lifeline.connect(addresses.lifeline)
        _, uid = _peer_of(lifeline)
        return running if uid == os.getuid() else f"{run_dir}: its socket's name is taken by user {uid}; {other}"
    return f"{running}, or another process has taken its socket's name; if it is none of yours, {other}"


def _pidfd(pid: int, lifeline: socket.socket) -> int | None:
    """Return the pidfd of the peer; None if its process isn't visible from here."""
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
