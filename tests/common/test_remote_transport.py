from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zmq

from common import arena as arena_module
from common import messages as m
from common.arena import Arena
from common.config import TransportConfig
from common.errors import BadInputError
from common.transport import (
    Event,
    FetcherLost,
    Lost,
    Received,
    RemotePeerTransport,
    ServerTransport,
    StopRequested,
    wire,
)
from common.transport.keys import client_keys, make_client_keys, make_server_keys
from common.transport.remote_server import RemoteServer

ROOT = Path(__file__).resolve().parents[2]
PLAN = "ab" * 16
SLOTS, SLOT_BYTES = 3, 1 << 20  # large enough that pyzmq doesn't copy
ANY_PORT = "tcp://127.0.0.1:*"
CURSOR = m.Cursor()
_MANY_POLLS = 600  # of 0.05 s: a bound, never a wait


def payload_bytes(layout: m.Layout) -> int:
    """In these tests a particle is a byte."""
    return layout.particles


def unit(k: int, slot: int, *, particles: int = SLOT_BYTES) -> m.DeliveredUnit:
    return m.DeliveredUnit(k, 0, 0, 0, slot, 1, m.Layout(1, particles, 1), m.Tally(), ())


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena.create(SLOTS, SLOT_BYTES) as made:
        for slot in range(SLOTS):
            made.slot(slot)[:] = np.random.default_rng(slot).integers(0, 256, SLOT_BYTES, np.uint8)
        yield made


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates") / "keys"
    make_server_keys(folder)
    make_client_keys(folder, "trainer")
    return folder


@pytest.fixture
def config(keys: Path) -> TransportConfig:
    return TransportConfig(listen=ANY_PORT, connect_timeout_s=20, keys=keys)


Serve = Callable[[TransportConfig], tuple[ServerTransport, TransportConfig]]


@pytest.fixture
def serve(tmp_path: Path, arena: Arena) -> Iterator[Serve]:
    """Starts a server; the second value is how a trainer finds it."""
    servers: list[ServerTransport] = []

    def start(config: TransportConfig) -> tuple[ServerTransport, TransportConfig]:
        servers.append(server := ServerTransport(tmp_path, config, arena, PLAN))
        address = server.listen(payload_bytes)
        keys = None if config.keys is None else config.keys / "for-trainer"
        return server, config.model_copy(update={"connect": address, "keys": keys})

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def peers() -> Iterator[list[RemotePeerTransport]]:
    """Whoever is in this list at the end is closed."""
    connected: list[RemotePeerTransport] = []
    yield connected
    for peer in connected:
        peer._connection.close()
        peer.arena.close()


def remote_peer(
    config: TransportConfig,
    *,
    slots: int = 2,
    slot_bytes: int = SLOT_BYTES,
    stopped: Callable[[], bool] = lambda: False,
) -> RemotePeerTransport:
    return RemotePeerTransport(config, payload_bytes, slots=slots, slot_bytes=slot_bytes, stopped=stopped)


def connect(server: ServerTransport, config: TransportConfig, *, slots: int = 2) -> RemotePeerTransport:
    """A trainer in this process: it connects in a thread while the server polls."""
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(remote_peer, config, slots=slots)
        for _ in range(_MANY_POLLS):
            assert server.poll(0.05) == []
            if future.done():
                break
        return future.result(timeout=1)


def attach(server: ServerTransport, peer: RemotePeerTransport) -> str:
    """The name that the server knows ``peer`` by."""
    peer.send(m.Attach(0, 1, PLAN, (CURSOR,)))
    (event,) = poll_for(server, 1)
    assert isinstance(event, Received)
    assert event.message == m.Attach(0, 1, PLAN, (CURSOR,))
    return event.peer


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


def poll_until(server: ServerTransport, what: Callable[[], object]) -> None:
    for _ in range(_MANY_POLLS):
        assert server.poll(0.05) == []
        if what():
            return
    raise AssertionError("it didn't come")


def receive(peer: RemotePeerTransport) -> m.Message:
    for _ in range(_MANY_POLLS):
        message = peer.receive(0.05)
        if message is not None:
            return message
    raise AssertionError("no message came")


def close(server: ServerTransport, peer: RemotePeerTransport) -> list[Event]:
    """Close a trainer as it does it itself, with the server at work; what the server saw of it."""
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(peer.close)
        events = poll_until_lost(server)
        future.result(timeout=20)
        return events


@pytest.fixture
def dealer(keys: Path) -> Iterator[zmq.Socket[bytes]]:
    """A socket of somebody who has a key, and keeps to no rules."""
    server, own = client_keys(keys / "for-trainer")
    with zmq.Context() as context, context.socket(zmq.DEALER) as made:
        made.setsockopt(zmq.CURVE_SERVERKEY, server)
        made.setsockopt(zmq.CURVE_PUBLICKEY, own.public)
        made.setsockopt(zmq.CURVE_SECRETKEY, own.secret)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.RECONNECT_IVL, 60_000)
        made.setsockopt(zmq.ROUTING_ID, secrets.token_hex(16).encode())
        yield made


# ------------------------------------------------------------------ meeting


def test_a_trainer_learns_the_plan_and_messages_go_both_ways(
    serve: Serve, config: TransportConfig, peers: list[RemotePeerTransport]
) -> None:
    server, where = serve(config)
    peers.append(peer := connect(server, where))
    assert peer.plan_hash == PLAN
    name = attach(server, peer)
    assert server.is_connected(name)
    server.send(name, m.Refuse("no"))
    assert receive(peer) == m.Refuse("no")


def test_a_units_payload_comes_into_a_slot_of_the_trainers_own_arena(
    serve: Serve, config: TransportConfig, arena: Arena, peers: list[RemotePeerTransport]
) -> None:
    server, where = serve(config)
    peers.append(peer := connect(server, where))
    name = attach(server, peer)
    seen = set()
    for k in range(5):
        server.send(name, unit(k, slot=k % SLOTS, particles=SLOT_BYTES - k))
        message = receive(peer)
        assert isinstance(message, m.DeliveredUnit)
        assert message == unit(k, slot=message.slot, particles=SLOT_BYTES - k)
        expected = arena.slot(k % SLOTS)[: SLOT_BYTES - k]
        assert np.array_equal(peer.arena.slot(message.slot)[: SLOT_BYTES - k], expected)
        seen.add(message.slot)
        peer.send(m.Release(k))
        assert poll_for(server, 1) == [Received(name, m.Release(k))]
    assert seen <= {0, 1}


def test_a_skipped_unit_comes_without_a_payload(
    serve: Serve, config: TransportConfig, peers: list[RemotePeerTransport]
) -> None:
    server, where = serve(config)
    peers.append(peer := connect(server, where))
    server.send(attach(server, peer), unit(0, slot=-1, particles=0))
    assert receive(peer) == unit(0, slot=-1, particles=0)


def test_a_trainer_waits_for_a_fetcher_that_starts_later(serve: Serve, config: TransportConfig) -> None:
    first, where = serve(config)
    first.close()
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return False

    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(remote_peer, where, stopped=stopped)
        while asked < 2:  # it has tried in vain
            assert not future.done()
        server, _ = serve(config.model_copy(update={"listen": where.connect}))
        poll_until(server, future.done)
        close(server, future.result())


def test_a_trainer_gives_up_when_no_fetcher_comes(serve: Serve, config: TransportConfig) -> None:
    server, where = serve(config)
    server.close()
    with pytest.raises(BadInputError, match=r"no fetcher answered for 0\.01 s \(nobody listens there\)"):
        remote_peer(where.model_copy(update={"connect_timeout_s": 0.01}))


def test_a_trainer_that_is_asked_to_stop_waits_no_more(serve: Serve, config: TransportConfig) -> None:
    server, where = serve(config)
    server.close()
    with pytest.raises(StopRequested):
        remote_peer(where, stopped=lambda: True)


def test_an_address_in_use_is_refused(serve: Serve, config: TransportConfig, arena: Arena) -> None:
    _, where = serve(config)
    with pytest.raises(BadInputError, match=r"can't listen there.*in use"):
        RemoteServer(config.model_copy(update={"listen": where.connect}), arena, PLAN, payload_bytes)


def test_a_trainer_with_other_slots_is_refused(serve: Serve, config: TransportConfig) -> None:
    server, where = serve(config)
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(remote_peer, where, slot_bytes=4096)
        poll_until_lost(server)
        with pytest.raises(BadInputError, match=r"slots have 1048576 bytes, by this trainer's stream\.slot_mib 4096"):
            future.result(timeout=20)


def test_a_ring_that_does_not_fit_into_memory_is_refused(
    serve: Serve, config: TransportConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, where = serve(config)
    monkeypatch.setattr(arena_module, "available_memory_bytes", lambda: SLOT_BYTES)
    with pytest.raises(BadInputError, match=r"2 slots of 1 MiB .* lower trainer\.prefetch_units"):
        remote_peer(where, slots=2)


def test_a_trainer_of_another_protocol_version_is_told_so(
    serve: Serve, config: TransportConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, where = serve(config)
    encode = wire.encode_handshake
    monkeypatch.setattr(
        wire, "encode_handshake", lambda it: encode(it).replace(b"\xa1v%c" % m.PROTOCOL_VERSION, b"\xa1v\x63")
    )
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(remote_peer, where)
        poll_until_lost(server)
        with pytest.raises(BadInputError, match=f"speaks protocol version 99, this process {m.PROTOCOL_VERSION}"):
            future.result(timeout=20)


# ------------------------------------------------------------------ keys


@pytest.mark.parametrize(
    "address", ["tcp://0.0.0.0:0", "tcp://*:*", "tcp://[::]:0", "tcp://some-name:1", ANY_PORT, "tcp://localhost:1"]
)
def test_no_fetcher_listens_without_keys(serve: Serve, address: str) -> None:
    with pytest.raises(BadInputError, match=r"transport\.listen = .* needs keys: `icestream keys keys`, then --set"):
        serve(TransportConfig(listen=address))


@pytest.mark.parametrize(
    "address", ["tcp://192.0.2.1:5570", "tcp://node:5570", "tcp://127.0.0.1:1", "tcp://[2001:db8::1]:1"]
)
def test_no_trainer_connects_without_keys(address: str) -> None:
    with pytest.raises(BadInputError, match=r"transport\.connect = .* needs keys: copy `for-trainer`"):
        remote_peer(TransportConfig(connect=address))


def test_with_keys_a_fetcher_listens_to_every_interface(
    serve: Serve, keys: Path, peers: list[RemotePeerTransport]
) -> None:
    server, where = serve(TransportConfig(listen="tcp://*:*", keys=keys))
    port = where.connect.rpartition(":")[2]
    peers.append(connect(server, where.model_copy(update={"connect": f"tcp://localhost:{port}"})))


def test_a_trainer_whose_key_is_not_known_gets_nothing_and_both_sides_say_so(
    serve: Serve, keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, where = serve(TransportConfig(listen=ANY_PORT, keys=keys))
    make_server_keys(tmp_path / "other")
    stranger = make_client_keys(tmp_path / "other", "stranger")
    (stranger / "server.key").write_text((keys / "server.key").read_text())
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(remote_peer, where.model_copy(update={"keys": stranger}))
        poll_until(server, future.done)
        with pytest.raises(BadInputError, match="the fetcher refused this trainer's key"):
            future.result()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("refused a trainer: its key ")
    assert server.poll(0) == []


def test_a_trainer_that_was_locked_out_while_the_fetcher_runs_gets_nothing(
    serve: Serve, keys: Path, tmp_path: Path
) -> None:
    own = tmp_path / "keys"
    make_server_keys(own)
    make_client_keys(own, "trainer")
    server, where = serve(TransportConfig(listen=ANY_PORT, keys=own))
    close(server, connect(server, where))
    (own / "clients" / "trainer.key").unlink()
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(remote_peer, where)
        poll_until(server, future.done)
        with pytest.raises(BadInputError, match="the fetcher refused this trainer's key"):
            future.result()


def test_nobody_comes_in_when_nobody_checks_keys(serve: Serve, keys: Path) -> None:
    server, where = serve(TransportConfig(listen=ANY_PORT, keys=keys))
    assert server._remote is not None
    assert server._remote._authenticator is not None
    server._remote._authenticator.stop()
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(remote_peer, where.model_copy(update={"connect_timeout_s": 0.5}))
        poll_until(server, future.done)
        with pytest.raises(BadInputError, match=r"no fetcher answered for 0\.5 s"):
            future.result()


def test_a_fetcher_with_another_key_than_the_trainer_expects_gets_nothing(
    serve: Serve, keys: Path, tmp_path: Path
) -> None:
    server, where = serve(TransportConfig(listen=ANY_PORT, keys=keys))
    make_server_keys(tmp_path / "other")
    other = make_client_keys(tmp_path / "other", "trainer")
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(remote_peer, where.model_copy(update={"keys": other, "connect_timeout_s": 0.5}))
        poll_until(server, future.done)
        with pytest.raises(BadInputError, match=r"the handshake failed: is server\.key that of this fetcher"):
            future.result()


def test_what_is_sent_with_keys_can_not_be_read_on_the_way(
    serve: Serve, config: TransportConfig, peers: list[RemotePeerTransport]
) -> None:
    """The client's socket is asked, which would say NULL if encryption were lost on the way to it."""
    server, where = serve(config)
    peers.append(peer := connect(server, where))
    mechanism = peer._connection._dealer.getsockopt(zmq.MECHANISM)
    assert mechanism == zmq.CURVE


# ------------------------------------------------------------------ parting


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
    serve: Serve, config: TransportConfig
) -> None:
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
    server.send(name, m.End(0))


CHILD = """
import sys
from pathlib import Path
from common import messages as m
from common.config import TransportConfig
from common.transport import RemotePeerTransport
config = TransportConfig.model_validate_json(sys.argv[1])
peer = RemotePeerTransport(config, lambda layout: layout.particles, slots=2, slot_bytes=1 << 20, stopped=lambda: False)
peer.send(m.Want(0, 1))
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


@pytest.mark.process
def test_a_trainer_that_is_killed_is_lost_at_once(serve: Serve, config: TransportConfig, child: Child) -> None:
    server, where = serve(config)  # heartbeats would take 20 s
    process = child(where)
    (event,) = poll_for(server, 1)
    assert server.is_connected(event.peer)
    process.kill()
    for _ in range(60):
        events = server.poll(0.05)
        if events:
            break
    assert events == [Lost(event.peer)]


@pytest.mark.process
def test_a_killed_trainers_connection_is_seen_as_ended_before_it_is_reported(
    serve: Serve, config: TransportConfig, child: Child
) -> None:
    server, where = serve(config)
    process = child(where)
    (event,) = poll_for(server, 1)
    server.send(event.peer, unit(0, slot=0))
    process.kill()
    process.wait()
    for _ in range(_MANY_POLLS):
        if not server.is_connected(event.peer):
            break
        threading.Event().wait(0.05)
    assert not server.is_connected(event.peer)
    assert poll_until_lost(server) == [Lost(event.peer)]


@pytest.mark.process
def test_a_trainer_that_hangs_is_lost_after_the_heartbeats_timeout(
    serve: Serve, config: TransportConfig, child: Child
) -> None:
    server, where = serve(config.model_copy(update={"heartbeat_timeout_s": 1.0}))
    process = child(where)
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


@pytest.mark.process
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
            assert peer.receive(0.0) is None
            process.send_signal(number)
            with pytest.raises(FetcherLost):
                receive(peer)
            peer.close()
        finally:
            process.kill()


# ------------------------------------------------------------------ slots in flight


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
    dealer.send_multipart([wire.MESSAGE, m.encode(m.Want(0, 1))])
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


def test_a_payload_is_sent_without_a_copy(
    serve: Serve, config: TransportConfig, dealer: zmq.Socket[bytes], arena: Arena
) -> None:
    server, where = serve(config)
    dealer.setsockopt(zmq.RCVHWM, 1)
    dealer.setsockopt(zmq.RCVBUF, 4096)
    dealer.connect(where.connect)
    dealer.send_multipart([wire.JOIN, wire.encode_handshake(wire.Join())])
    dealer.send_multipart([wire.MESSAGE, m.encode(m.Want(0, 1))])
    (event,) = poll_for(server, 1)
    for k in range(40):
        server.send(event.peer, unit(k, slot=2))
    arena.slot(2)[:] = 77  # written while it is sent, which the dispatcher never does
    assert dealer.recv_multipart()[0] == wire.WELCOME
    last = b""
    while last == b"" or b"\xa1k\x27" not in last:
        _, last, payload = dealer.recv_multipart()
    assert set(payload[-1000:]) == {77}, "a copy would have what was there when it was sent"


# ------------------------------------------------------------------ closed by default: what a trainer may send


def test_what_is_no_trainers_message_is_counted_and_dropped(
    serve: Serve, config: TransportConfig, dealer: zmq.Socket[bytes]
) -> None:
    server, where = serve(config)
    dealer.connect(where.connect)
    join = [wire.JOIN, wire.encode_handshake(wire.Join())]
    want = [wire.MESSAGE, m.encode(m.Want(0, 1))]
    bad = [
        want,  # before the handshake
        [wire.LEAVE],
        [wire.JOIN],
        [wire.JOIN, b"rubbish"],
        [wire.JOIN, b"\x81\xa1v\xa1x"],
        [wire.JOIN, b"\x82\xa1v%c\xa1x\x01" % m.PROTOCOL_VERSION],  # an unknown field
    ]
    for frames in bad:
        dealer.send_multipart(frames)
    poll_until(server, lambda: server.malformed == len(bad))
    dealer.send_multipart(join)
    worse = [
        join,  # again
        [b"rubbish"],
        [wire.PROBE],
        [wire.WELCOME, b""],
        [wire.MESSAGE],
        [wire.MESSAGE, b"rubbish"],
        [wire.MESSAGE, m.encode(m.Want(0, 1)), b"payload"],
        *([wire.MESSAGE, m.encode(message)] for message in (m.Hello(1), m.Beat(), m.Bye(), m.Stop(), unit(0, -1))),
        [wire.MESSAGE, m.encode(m.Done(0, 0, m.Layout(0, 0, 0), m.Tally()))],
    ]
    for frames in worse:
        dealer.send_multipart(frames)
    poll_until(server, lambda: server.malformed == len(bad) + len(worse))
    dealer.send_multipart(want)
    (event,) = poll_for(server, 1)
    assert isinstance(event, Received)
    assert event.message == m.Want(0, 1)
    assert server.malformed == len(bad) + len(worse)


@pytest.mark.parametrize("name", [b"0-0123456789abcdef", b"tcp", b"\x01\x02", "ä".encode() * 16])
def test_who_has_no_name_as_trainers_choose_it_is_not_heard(
    serve: Serve, config: TransportConfig, dealer: zmq.Socket[bytes], name: bytes
) -> None:
    server, where = serve(config)
    dealer.setsockopt(zmq.ROUTING_ID, name)
    dealer.connect(where.connect)
    dealer.send_multipart([wire.JOIN, wire.encode_handshake(wire.Join())])
    poll_until(server, lambda: server.malformed == 1)


def test_a_message_that_is_too_large_ends_the_connection(
    serve: Serve, config: TransportConfig, dealer: zmq.Socket[bytes]
) -> None:
    server, where = serve(config)
    dealer.connect(where.connect)
    dealer.send_multipart([wire.JOIN, wire.encode_handshake(wire.Join())])
    dealer.send_multipart([wire.MESSAGE, m.encode(m.Want(0, 1))])
    (event,) = poll_for(server, 1)
    dealer.send_multipart([wire.MESSAGE, bytes(m.MAX_MESSAGE_BYTES + 1)])
    assert poll_until_lost(server) == [Lost(event.peer)]
    assert server.malformed == 0


# ------------------------------------------------------------------ what a fetcher may send


def sent_by(server: ServerTransport, name: str, *frames: bytes) -> None:
    assert server._remote is not None
    server._remote.router.send_multipart([name.removeprefix("tcp-").encode(), *frames])


PARTICLES = 1000


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        ([b"rubbish"], "1 frames of kind b'rubbish'"),
        ([wire.MESSAGE], "1 frames of kind b'M'"),
        ([wire.MESSAGE, b"rubbish"], "the fetcher sent .*rubbish|not msgpack|not a message"),
        ([wire.MESSAGE, m.encode(unit(0, 0, particles=PARTICLES))], "unit 0 without its payload"),
        ([wire.MESSAGE, m.encode(unit(0, 0, particles=PARTICLES)), bytes(PARTICLES - 1)], "999 bytes for unit 0"),
        ([wire.MESSAGE, m.encode(unit(0, 0, particles=PARTICLES)), bytes(PARTICLES + 1)], "1001 bytes for unit 0"),
        (
            [wire.MESSAGE, m.encode(unit(0, 0, particles=SLOT_BYTES + 1)), bytes(SLOT_BYTES + 1)],
            "a slot has 1048576",
        ),
        ([wire.MESSAGE, m.encode(unit(0, 0, particles=2**62)), bytes(1)], "1 bytes for unit 0"),
        ([wire.MESSAGE, m.encode(unit(0, -1, particles=0)), b"x"], "a DeliveredUnit with a payload"),
        ([wire.MESSAGE, m.encode(m.End(0)), b"x"], "a End with a payload"),
        ([wire.MESSAGE, m.encode(m.End(0)), b"x", b"y"], "4 frames of kind b'M'"),
    ],
)
def test_a_fetcher_that_breaks_the_protocol_is_named(
    serve: Serve, config: TransportConfig, peers: list[RemotePeerTransport], frames: list[bytes], complaint: str
) -> None:
    server, where = serve(config)
    peers.append(peer := connect(server, where))
    sent_by(server, attach(server, peer), *frames)
    with pytest.raises(BadInputError, match=complaint):
        receive(peer)


def test_units_that_come_twice_or_are_too_many_are_refused(
    serve: Serve, config: TransportConfig, peers: list[RemotePeerTransport]
) -> None:
    server, where = serve(config)
    peers.append(peer := connect(server, where, slots=2))
    name = attach(server, peer)
    for k in (0, 0, 1, 2):
        server.send(name, unit(k, slot=0))
    receive(peer)
    with pytest.raises(BadInputError, match="unit 0 twice"):
        receive(peer)
    receive(peer)
    with pytest.raises(BadInputError, match="unit 2 on top of the 2 that fit"):
        receive(peer)


def test_a_frame_that_no_slot_holds_ends_the_connection(
    serve: Serve, config: TransportConfig, peers: list[RemotePeerTransport]
) -> None:
    server, where = serve(config)
    peers.append(peer := connect(server, where))
    sent_by(server, attach(server, peer), wire.MESSAGE, b"", bytes(SLOT_BYTES + (1 << 20) + 1))
    with pytest.raises(FetcherLost):
        receive(peer)


# ------------------------------------------------------------------ nothing is left


def test_no_thread_socket_or_descriptor_is_left_after_close(
    tmp_path: Path, config: TransportConfig, arena: Arena
) -> None:
    def once() -> None:
        server = ServerTransport(tmp_path, config, arena, PLAN)
        keys = None if config.keys is None else config.keys / "for-trainer"
        where = config.model_copy(update={"connect": server.listen(payload_bytes), "keys": keys})
        peer = connect(server, where)
        server.send(attach(server, peer), unit(0, slot=0))
        receive(peer)
        close(server, peer)
        server.close()

    once()  # pyzmq's thread that frees what was sent without a copy stays
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    threads = threading.enumerate()
    for _ in range(2):
        once()
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert threading.enumerate() == threads
