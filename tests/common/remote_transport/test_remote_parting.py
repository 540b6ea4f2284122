"""How a trainer elsewhere and its fetcher part, in good order or not."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zmq
from polls import MANY_POLLS, poll_for, poll_until_lost, receive
from remote_peers import ROOT, SLOTS, Serve, attach, close, connect, poll_until, remote_peer, unit

from common import messages as m
from common.arena import Arena
from common.config import TransportConfig
from common.transport import FetcherLost, Lost, Received, wire
from common.transport import remote_peer as remote_peer_module

pytestmark = pytest.mark.process


def test_a_trainer_that_closes_is_lost_after_its_last_message(serve: Serve, config: TransportConfig) -> None:
    server, where = serve(config)
    for _ in range(10):
        peer = connect(server, where)
        name = attach(server, peer)
        for k in range(SLOTS - 1):
            server.send(name, unit(k, slot=k))  # it closes with these unread
        peer.send(m.Finished())
        assert close(server, peer) == [Received(name, m.Finished()), Lost(name)]
        assert not server.is_connected(name)
    assert server.malformed == 0


def test_a_trainer_that_closes_waits_until_the_fetcher_has_read_its_last_message(
    serve: Serve, config: TransportConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_peer_module, "_LEAVE_S", 60.0)
    server, where = serve(config)
    peer = connect(server, where)
    name = attach(server, peer)
    peer.send(m.Finished())
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(peer.close)
        with pytest.raises(TimeoutError):
            future.result(timeout=0.3)
        assert poll_until_lost(server) == [Received(name, m.Finished()), Lost(name)]
        future.result(timeout=20)


def test_a_trainer_learns_of_the_fetchers_end(serve: Serve, config: TransportConfig) -> None:
    server, where = serve(config)
    peer = connect(server, where)
    server.close()
    with pytest.raises(FetcherLost):
        receive(peer)
    with pytest.raises(FetcherLost):
        receive(peer)
    peer.send(m.Finished())  # nothing happens
    peer.close()


def test_messages_that_came_before_the_fetchers_end_are_received(serve: Serve, config: TransportConfig) -> None:
    server, where = serve(config)
    peer = connect(server, where)
    name = attach(server, peer)
    server.send(name, m.CommitRequest())
    assert receive(peer) == m.CommitRequest()  # no probe is on its way any more
    server.send(name, unit(0, slot=0))
    assert peer._connection._poller.poll(20_000), "it is there"
    server.close()
    assert isinstance(receive(peer), m.DeliveredUnit)
    with pytest.raises(FetcherLost):
        receive(peer)
    peer.close()


def test_sending_to_a_trainer_that_is_gone_does_nothing(serve: Serve, config: TransportConfig) -> None:
    server, where = serve(config)
    peer = connect(server, where)
    name = attach(server, peer)
    close(server, peer)
    server.send(name, unit(0, slot=0))
    server.send(name, m.End())


CHILD = """
import sys
from pathlib import Path
from common import messages as m
from common.config import TransportConfig
from common.transport import RemotePeerTransport
config = TransportConfig.model_validate_json(sys.argv[1])
peer = RemotePeerTransport(config, lambda layout: layout.particles, slots=2, slot_bytes=1 << 20, stopped=lambda: False)
peer.send(m.Want(1))
while True:
    peer.receive(1.0)
"""
Child = Callable[[TransportConfig], subprocess.Popen[bytes]]


@pytest.fixture
def child() -> Iterator[Child]:
    """A trainer in a process of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(where: TransportConfig) -> subprocess.Popen[bytes]:
        started.append(process := subprocess.Popen([sys.executable, "-c", CHILD, where.model_dump_json()], cwd=ROOT))
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_trainer_that_is_killed_is_lost_at_once(serve: Serve, config: TransportConfig, child: Child) -> None:
    server, where = serve(config.model_copy(update={"heartbeat_timeout_s": 3600.0}))
    process = child(where)
    (event,) = poll_for(server, 1)
    assert server.is_connected(event.peer)
    process.kill()
    assert poll_until_lost(server) == [Lost(event.peer)]


def test_a_killed_trainers_connection_is_seen_as_ended_before_it_is_reported(
    serve: Serve, config: TransportConfig, child: Child
) -> None:
    server, where = serve(config)
    process = child(where)
    (event,) = poll_for(server, 1)
    server.send(event.peer, unit(0, slot=0))
    process.kill()
    process.wait()
    for _ in range(MANY_POLLS):
        if not server.is_connected(event.peer):
            break
        threading.Event().wait(0.05)
    assert not server.is_connected(event.peer)
    assert poll_until_lost(server) == [Lost(event.peer)]


def test_a_trainer_that_hangs_is_lost_after_the_heartbeats_timeout(
    serve: Serve, config: TransportConfig, child: Child
) -> None:
    server, where = serve(config.model_copy(update={"heartbeat_timeout_s": 1.0}))
    process = child(where.model_copy(update={"heartbeat_timeout_s": config.heartbeat_timeout_s}))
    (event,) = poll_for(server, 1)
    process.send_signal(signal.SIGSTOP)
    assert poll_until_lost(server) == [Lost(event.peer)]


SERVER = """
import sys
from pathlib import Path
from common.arena import Arena
from common.config import TransportConfig
from common.transport import ServerTransport
config = TransportConfig.model_validate_json(sys.argv[2])
server = ServerTransport(Path(sys.argv[1]), config, Arena.create(3, 1 << 20), "ab" * 16)
print(server.listen(lambda layout: layout.particles), flush=True)
while True:
    server.poll(0.05)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_trainer_learns_that_the_fetcher_was_killed_or_hangs(
    tmp_path: Path, config: TransportConfig, number: signal.Signals
) -> None:
    if number == signal.SIGSTOP:
        config = config.model_copy(update={"heartbeat_timeout_s": 1.0})
    command = [sys.executable, "-c", SERVER, str(tmp_path), config.model_dump_json()]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            keys = None if config.keys is None else config.keys / "for-trainer"
            peer = remote_peer(config.model_copy(update={"connect": process.stdout.readline().strip(), "keys": keys}))
            if number == signal.SIGKILL:  # of the other one, a pause of this machine may be the end already
                assert peer.receive(0.0) is None
            process.send_signal(number)
            with pytest.raises(FetcherLost):
                receive(peer)
            peer.close()
        finally:
            process.kill()


def test_a_trainer_is_lost_only_when_nothing_reads_slots_for_it_any_more(serve: Serve, config: TransportConfig) -> None:
    server, where = serve(config)
    peer = connect(server, where)
    name = attach(server, peer)
    assert server._remote is not None
    still_read = threading.Event()
    server._remote._peers[name].trackers.append(zmq.MessageTracker(still_read))
    peer.close = peer._connection.close  # type: ignore[method-assign]
    peer.close()
    peer.arena.close()
    poll_until(server, lambda: server._remote is not None and server._remote.is_waiting_for_an_end)
    assert server.is_connected(name), "a new trainer may not have its slots yet"
    assert server.poll(0.5) == []
    still_read.set()
    assert not server.is_connected(name)
    assert poll_until_lost(server) == [Lost(name)]


def test_frames_that_a_trainer_did_not_read_are_let_go_of_when_its_connection_ends(
    serve: Serve, config: TransportConfig, dealer: zmq.Socket[bytes], arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, where = serve(config)
    dealer.setsockopt(zmq.RCVHWM, 1)
    dealer.setsockopt(zmq.RCVBUF, 4096)
    dealer.connect(where.connect)
    dealer.send_multipart([wire.JOIN, wire.encode_handshake(wire.Join())])
    dealer.send_multipart([wire.MESSAGE, m.encode(m.Want(1))])
    (event,) = poll_for(server, 1)
    assert server._remote is not None
    for k in range(40):  # more than the kernel's buffers take
        server.send(event.peer, unit(k, slot=k % SLOTS))
    peer = server._remote._peers[event.peer]
    poll_until(server, lambda: server.poll(0.05) == [])
    assert not peer.is_settled(), "40 MiB are with a reader that doesn't read"
    trackers = list(peer.trackers)
    dealer.close()
    assert poll_until_lost(server) == [Lost(event.peer)]
    assert all(tracker.done for tracker in trackers)
    arena.slot(0)[:] = 0
