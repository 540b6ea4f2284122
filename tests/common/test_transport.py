from __future__ import annotations

import gc
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from common import messages as m
from common.arena import Arena
from common.config import TransportConfig
from common.errors import BadInputError
from common.transport import (
    SOCKET_FOLDER,
    Event,
    FetcherLost,
    Lost,
    PeerTransport,
    Received,
    ServerTransport,
    StopRequested,
    addresses,
)
from common.transport import server as server_module

ROOT = Path(__file__).resolve().parents[2]
PLAN = "ab" * 16
SLOTS, SLOT_BYTES = 2, 8192
MODES = ("abstract", "folder")
_MANY_POLLS = 600  # of 0.05 s: a bound, never a wait


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena.create(SLOTS, SLOT_BYTES) as made:
        yield made


@pytest.fixture(params=MODES)
def config(request: pytest.FixtureRequest) -> TransportConfig:
    return TransportConfig(sockets=request.param, connect_timeout_s=20)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Longer than the 107 bytes that the path of a unix socket may have."""
    path = tmp_path / ("long" * 40)
    path.mkdir()
    assert len(bytes(path)) > 108
    return path


@pytest.fixture
def server(run_dir: Path, config: TransportConfig, arena: Arena) -> Iterator[ServerTransport]:
    made = ServerTransport(run_dir, config, arena, PLAN)
    yield made
    made.close()


@pytest.fixture
def peers() -> Iterator[list[PeerTransport]]:
    """Whoever is in this list at the end is closed."""
    connected: list[PeerTransport] = []
    yield connected
    for peer in connected:
        peer.close()


def connect(server: ServerTransport, run_dir: Path, config: TransportConfig, *, writable: bool = True) -> PeerTransport:
    """A peer in this process: it connects in a thread while the server accepts."""
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(PeerTransport, run_dir, config, writable=writable, stopped=lambda: False)
        for _ in range(_MANY_POLLS):
            assert server.poll(0.05) == []
            if future.done():
                break
        return future.result(timeout=1)


def poll_for(server: ServerTransport, num_events: int) -> list[Event]:
    events: list[Event] = []
    for _ in range(_MANY_POLLS):
        events += server.poll(0.05)
        if len(events) >= num_events:
            return events
    raise AssertionError(f"only {events}")


def poll_until_lost(server: ServerTransport) -> list[Event]:
    events: list[Event] = []
    for _ in range(_MANY_POLLS):
        events += server.poll(0.05)
        if any(isinstance(event, Lost) for event in events):
            return events
    raise AssertionError(f"only {events}")


def receive(peer: PeerTransport) -> m.Message:
    for _ in range(_MANY_POLLS):
        message = peer.receive(0.05)
        if message is not None:
            return message
    raise AssertionError("no message came")


def welcome_of(lifeline: socket.socket) -> dict[str, Any]:
    """What the server tells whoever connects; closes the descriptor that comes with it."""
    data, fds, _, _ = socket.recv_fds(lifeline, 4096, 1)
    for fd in fds:
        os.close(fd)
    welcome = msgpack.unpackb(data)
    assert isinstance(welcome, dict)
    return welcome


def raw_lifeline(run_dir: Path) -> socket.socket:
    """A connection to the abstract lifeline of a run, without the rest of a peer."""
    lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    lifeline.settimeout(20)
    lifeline.connect(addresses.Addresses(run_dir, "abstract").lifeline)
    return lifeline


# ------------------------------------------------------------------ meeting


def test_a_peer_gets_plan_and_arena_and_messages_go_both_ways(
    server: ServerTransport, run_dir: Path, config: TransportConfig, arena: Arena, peers: list[PeerTransport]
) -> None:
    peers.append(peer := connect(server, run_dir, config))
    assert peer.plan_hash == PLAN
    peer.arena.slot(1)[:3] = [7, 8, 9]
    assert arena.slot(1)[:3].tolist() == [7, 8, 9]
    peer.send(m.Hello(3))
    (event,) = poll_for(server, 1)
    assert isinstance(event, Received)
    assert event.message == m.Hello(3)
    server.send(event.peer, m.Refuse("no"))
    assert receive(peer) == m.Refuse("no")


def test_a_readers_arena_can_not_be_written(
    server: ServerTransport, run_dir: Path, config: TransportConfig, peers: list[PeerTransport]
) -> None:
    peers.append(peer := connect(server, run_dir, config, writable=False))
    with pytest.raises(ValueError, match="read-only"):
        peer.arena.slot(0)[0] = 1


def test_every_peer_has_a_name_of_its_own(
    server: ServerTransport, run_dir: Path, config: TransportConfig, peers: list[PeerTransport]
) -> None:
    peers += [connect(server, run_dir, config) for _ in range(3)]
    for credit, peer in enumerate(peers, 1):
        peer.send(m.Hello(credit))
    events = poll_for(server, 3)
    names = {event.message.credit: event.peer for event in events if isinstance(event, Received)}  # type: ignore[union-attr]
    assert len(set(names.values())) == 3
    server.send(names[2], m.Stop())
    assert receive(peers[1]) == m.Stop()
    assert peers[0].receive(0.0) is None
    assert peers[2].receive(0.0) is None


def test_a_peer_waits_for_a_fetcher_that_starts_later(run_dir: Path, config: TransportConfig, arena: Arena) -> None:
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return False

    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(PeerTransport, run_dir, config, writable=True, stopped=stopped)
        while asked < 2:  # it has tried in vain
            assert not future.done()
        server = ServerTransport(run_dir, config, arena, PLAN)
        for _ in range(_MANY_POLLS):
            server.poll(0.05)
            if future.done():
                break
        future.result(timeout=1).close()
        server.close()


def test_a_peer_gives_up_when_no_fetcher_comes(run_dir: Path, config: TransportConfig) -> None:
    impatient = config.model_copy(update={"connect_timeout_s": 0.01})
    with pytest.raises(BadInputError, match=r"no fetcher answered for 0\.01 s"):
        PeerTransport(run_dir, impatient, writable=True, stopped=lambda: False)


def test_a_peer_that_is_asked_to_stop_waits_no_more(run_dir: Path, config: TransportConfig) -> None:
    with pytest.raises(StopRequested):
        PeerTransport(run_dir, config, writable=True, stopped=lambda: True)


def test_a_fetcher_that_dies_before_it_answers_is_waited_for(run_dir: Path, arena: Arena) -> None:
    config = TransportConfig(sockets="abstract", connect_timeout_s=20)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(addresses.Addresses(run_dir, "abstract").lifeline)
    listener.listen()
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return False

    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(PeerTransport, run_dir, config, writable=True, stopped=stopped)
        accepted, _ = listener.accept()
        accepted.close()
        while not asked:  # it saw the end and asks whether to go on
            assert not future.done()
        listener.close()  # the next one may be in the backlog: it is reset
        server = ServerTransport(run_dir, config, arena, PLAN)
        for _ in range(_MANY_POLLS):
            server.poll(0.05)
            if future.done():
                break
        future.result(timeout=1).close()
        server.close()


def test_a_connection_that_is_reset_before_it_is_accepted_is_no_crash(run_dir: Path) -> None:
    config = TransportConfig(sockets="abstract", connect_timeout_s=20)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(addresses.Addresses(run_dir, "abstract").lifeline)
    listener.listen()
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(PeerTransport, run_dir, config, writable=True, stopped=lambda: True)
        poller = zmq.Poller()
        poller.register(listener, zmq.POLLIN)
        assert poller.poll(20_000), "it is in the backlog"
        listener.close()
        with pytest.raises(StopRequested):
            future.result(timeout=20)


def test_a_peer_of_another_protocol_version_is_told_so(
    server: ServerTransport, run_dir: Path, config: TransportConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as thread:
        packb = msgpack.packb
        monkeypatch.setattr(msgpack, "packb", lambda welcome: packb({**welcome, "v": 99}))
        future = thread.submit(PeerTransport, run_dir, config, writable=True, stopped=lambda: False)
        for _ in range(_MANY_POLLS):
            server.poll(0.05)
            if future.done():
                break
        with pytest.raises(BadInputError, match=f"speaks protocol version 99, this process {m.PROTOCOL_VERSION}"):
            future.result(timeout=1)


# ------------------------------------------------------------------ parting


def test_a_peer_that_closes_is_lost(
    server: ServerTransport, run_dir: Path, config: TransportConfig, peers: list[PeerTransport]
) -> None:
    peers.append(stays := connect(server, run_dir, config))
    leaves = connect(server, run_dir, config)
    stays.send(m.Hello(1))
    leaves.send(m.Hello(2))
    names = {e.message.credit: e.peer for e in poll_for(server, 2) if isinstance(e, Received)}  # type: ignore[union-attr]
    assert server.is_connected(names[2])
    leaves.close()
    assert poll_until_lost(server) == [Lost(names[2])]
    assert not server.is_connected(names[2])
    assert server.is_connected(names[1])


def test_messages_arrive_before_the_death_of_the_one_who_sent_them(
    server: ServerTransport, run_dir: Path, config: TransportConfig
) -> None:
    def speak_and_leave() -> None:
        peer = PeerTransport(run_dir, config, writable=True, stopped=lambda: False)
        for k in range(5):
            peer.send(m.Release(k))
        peer.close()

    with ThreadPoolExecutor(1) as thread:
        for _ in range(50):
            future = thread.submit(speak_and_leave)
            events = poll_until_lost(server)
            future.result(timeout=20)
            told = [event.message for event in events[:-1] if isinstance(event, Received)]
            assert told == [m.Release(k) for k in range(5)]
            assert isinstance(events[-1], Lost)
    assert server.malformed == 0


def test_a_peer_that_left_in_good_order_is_lost_only_once_its_last_message_is_there(
    run_dir: Path, arena: Arena
) -> None:
    server = ServerTransport(run_dir, TransportConfig(sockets="abstract"), arena, PLAN)
    with raw_lifeline(run_dir) as lifeline:
        server.poll(1.0)
        welcome = welcome_of(lifeline)
        lifeline.send(struct.pack("<Q", 1))
    assert server.poll(0.0) == []
    assert not server.is_connected(welcome["peer"])
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.ROUTING_ID, welcome["peer"].encode())
        dealer.connect(f"ipc://@icestream-{welcome['control']}")
        dealer.send(m.encode(m.Finished()))
        assert poll_until_lost(server) == [Received(welcome["peer"], m.Finished()), Lost(welcome["peer"])]
    server.close()


def test_a_peer_whose_last_messages_never_come_is_lost_all_the_same(
    run_dir: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_LAST_MESSAGES_S", 0.0)
    server = ServerTransport(run_dir, TransportConfig(sockets="abstract"), arena, PLAN)
    with raw_lifeline(run_dir) as lifeline:
        server.poll(1.0)
        welcome = welcome_of(lifeline)
        lifeline.send(struct.pack("<Q", 7))
    assert poll_until_lost(server) == [Lost(welcome["peer"])]
    server.close()


def test_a_peer_learns_of_the_fetchers_end(run_dir: Path, config: TransportConfig, arena: Arena) -> None:
    server = ServerTransport(run_dir, config, arena, PLAN)
    peer = connect(server, run_dir, config)
    server.close()
    with pytest.raises(FetcherLost):
        receive(peer)
    peer.close()


def test_sending_to_a_peer_that_is_gone_does_nothing(
    server: ServerTransport, run_dir: Path, config: TransportConfig
) -> None:
    peer = connect(server, run_dir, config)
    peer.send(m.Hello(1))
    (event,) = poll_for(server, 1)
    peer.close()
    poll_until_lost(server)
    server.send(event.peer, m.Stop())
    server.send("never-was", m.Stop())


CHILD = """
import signal, sys
from pathlib import Path
from common import messages as m
from common.config import TransportConfig
from common.transport import PeerTransport
peer = PeerTransport(Path(sys.argv[1]), TransportConfig(sockets=sys.argv[2]), writable=True, stopped=lambda: False)
peer.send(m.Hello(1))
while True:
    signal.pause()
"""


@pytest.fixture
def child(run_dir: Path, config: TransportConfig) -> Iterator[subprocess.Popen[bytes]]:
    """A peer in a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(run_dir), config.sockets], cwd=ROOT)
    yield process
    process.kill()
    process.wait()


@pytest.mark.process
def test_a_fence_kills_a_process_that_hangs(server: ServerTransport, child: subprocess.Popen[bytes]) -> None:
    (event,) = poll_for(server, 1)
    child.send_signal(signal.SIGSTOP)  # a stopped process can't be told, only killed
    assert server.fence(event.peer)
    assert poll_until_lost(server) == [Lost(event.peer)]
    assert child.wait(timeout=20) == -signal.SIGKILL
    assert server.fence(event.peer), "who is gone needs no fence"


@pytest.mark.process
def test_a_killed_process_is_lost(server: ServerTransport, child: subprocess.Popen[bytes]) -> None:
    (event,) = poll_for(server, 1)
    child.kill()
    assert poll_until_lost(server) == [Lost(event.peer)]


@pytest.mark.process
def test_who_can_not_be_seen_can_not_be_fenced(
    server: ServerTransport, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_here(pid: int) -> int:
        raise ProcessLookupError(pid)

    monkeypatch.setattr(os, "pidfd_open", not_here)
    (event,) = poll_for(server, 1)
    assert not server.fence(event.peer)
    assert child.poll() is None


# ------------------------------------------------------------------ closed by default


def test_what_is_no_message_is_counted_and_dropped(run_dir: Path, arena: Arena) -> None:
    server = ServerTransport(run_dir, TransportConfig(sockets="abstract"), arena, PLAN)
    with raw_lifeline(run_dir) as lifeline, zmq.Context() as context:
        server.poll(1.0)
        welcome = welcome_of(lifeline)
        for identity in (welcome["peer"], "a-name-that-nobody-was-given"):
            with context.socket(zmq.DEALER) as dealer:
                dealer.setsockopt(zmq.ROUTING_ID, identity.encode())
                dealer.connect(f"ipc://@icestream-{welcome['control']}")
                dealer.send(b"rubbish")
                dealer.send_multipart([b"one", b"too many"])
                dealer.send(m.encode(m.Hello(1)))
                events: list[Event] = []
                expected = 2 if identity == welcome["peer"] else 5
                for _ in range(_MANY_POLLS):
                    events += server.poll(0.05)
                    if server.malformed == expected and (events or expected == 5):
                        break
                assert server.malformed == expected
                wanted = [Received(welcome["peer"], m.Hello(1))] if expected == 2 else []
                assert events == wanted
    server.close()


def test_another_users_process_gets_nothing(run_dir: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerTransport(run_dir, TransportConfig(sockets="abstract"), arena, PLAN)
    with raw_lifeline(run_dir) as lifeline:
        uid = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
        assert server.poll(1.0) == []
        assert lifeline.recv(100) == b""
    server.close()


def test_a_fetcher_of_another_user_is_refused(run_dir: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TransportConfig(sockets="folder")
    server = ServerTransport(run_dir, config, arena, PLAN)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(BadInputError, match="belongs to another user"):
        PeerTransport(run_dir, config, writable=True, stopped=lambda: False)
    server.close()


def test_the_socket_folder_is_the_owners_only(run_dir: Path, arena: Arena) -> None:
    server = ServerTransport(run_dir, TransportConfig(sockets="folder"), arena, PLAN)
    assert stat.S_IMODE((run_dir / SOCKET_FOLDER).stat().st_mode) == 0o700
    server.close()


# ------------------------------------------------------------------ one fetcher, and nothing left of it


def test_a_second_fetcher_in_a_run_directory_is_refused(run_dir: Path, arena: Arena) -> None:
    config = TransportConfig()  # socket files: the run's lock keeps it out, tests/common/test_file_lock.py
    server = ServerTransport(run_dir, config, arena, PLAN)
    with pytest.raises(BadInputError, match="a fetcher is already running in this run directory"):
        ServerTransport(run_dir, config, arena, PLAN)
    connect(server, run_dir, config).close()  # and the first one is none the worse for it
    server.close()


def test_nothing_is_left_after_close(run_dir: Path, config: TransportConfig, arena: Arena) -> None:
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(2):  # the addresses are free again
        server = ServerTransport(run_dir, config, arena, PLAN)
        peer = connect(server, run_dir, config)
        peer.close()
        server.close()
    assert sorted(path.name for path in run_dir.rglob("*")) == ([SOCKET_FOLDER] if config.sockets == "folder" else [])
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


SERVER = """
import os, signal, sys
from pathlib import Path
from common.arena import Arena
from common.config import TransportConfig
from common.transport import ServerTransport
server = ServerTransport(Path(sys.argv[1]), TransportConfig(sockets=sys.argv[2]), Arena.create(2, 8192), "ab" * 16)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
def test_what_a_killed_fetcher_left_is_removed(run_dir: Path, config: TransportConfig, arena: Arena) -> None:
    killed = subprocess.run([sys.executable, "-c", SERVER, str(run_dir), config.sockets], cwd=ROOT, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    folder = run_dir / SOCKET_FOLDER
    stale = set(folder.iterdir()) if folder.exists() else set()
    assert len(stale) == (2 if config.sockets == "folder" else 0)
    server = ServerTransport(run_dir, config, arena, PLAN)
    connect(server, run_dir, config).close()
    if folder.exists():
        control = [path for path in folder.iterdir() if path.name != "lifeline"]
        assert not stale & set(control)
    server.close()


def test_poll_returns_for_a_descriptor_that_it_watches(server: ServerTransport) -> None:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    server.watch(fd)
    os.eventfd_write(fd, 1)
    assert server.poll(20.0) == []  # at once; the suite's timeout would tell
    os.eventfd_read(fd)
    server._poller.unregister(fd)
    os.close(fd)
