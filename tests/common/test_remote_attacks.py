"""A connection over tcp against peers without a key, with a wrong one, and with a good one and bad intentions."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgpack
import pytest
import zmq

from common import messages as m
from common.arena import Arena
from common.config import TransportConfig
from common.transport import Event, Lost, Received, wire
from common.transport import gate as gate_module
from common.transport import remote_server as server_module
from common.transport.events import MESSAGES_A_POLL
from common.transport.gate import Gate
from common.transport.keys import KeyPair, client_keys, make_client_keys, make_server_keys
from common.transport.remote_server import RemoteServer

PLAN = "ab" * 16
JOIN = [wire.JOIN, wire.encode_handshake(wire.Join())]
WANT = [wire.MESSAGE, m.encode(m.Want(1))]
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
_MANY_POLLS = 600  # of 0.05 s: a bound, never a wait


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates") / "keys"
    make_server_keys(folder)
    make_client_keys(folder, "trainer")
    return folder


@pytest.fixture
def server(keys: Path) -> Iterator[RemoteServer]:
    with Arena.create(1, 4096) as arena:
        config = TransportConfig(listen=f"tcp://{HERE}:*", keys=keys, heartbeat_timeout_s=3600.0)
        made = RemoteServer(config, arena, PLAN, lambda layout: layout.particles)
        yield made
        made.close()


Peer = Callable[..., "zmq.Socket[bytes]"]


@pytest.fixture
def peer(keys: Path, server: RemoteServer) -> Iterator[Peer]:
    """Connects a socket that keeps to no rules."""
    with ExitStack() as opened:

        def connect(certificate: tuple[bytes, KeyPair] | None, *, name: bytes = b"") -> zmq.Socket[bytes]:
            made = opened.enter_context(opened.enter_context(zmq.Context()).socket(zmq.DEALER))
            for option in (zmq.LINGER, zmq.SNDHWM, zmq.RCVHWM):
                made.setsockopt(option, 0)
            made.setsockopt(zmq.RECONNECT_IVL, 60_000)
            made.setsockopt(zmq.ROUTING_ID, name or secrets.token_hex(16).encode())
            if certificate is not None:
                made.setsockopt(zmq.CURVE_SERVERKEY, certificate[0])
                made.setsockopt(zmq.CURVE_PUBLICKEY, certificate[1].public)
                made.setsockopt(zmq.CURVE_SECRETKEY, certificate[1].secret)
            made.connect(server.endpoint)
            return made

        yield connect


@pytest.fixture
def good(keys: Path) -> tuple[bytes, KeyPair]:
    return client_keys(keys / "for-trainer")


def poll(server: RemoteServer) -> list[Event]:
    server.router.poll(50)
    return server.poll()


def wait_for(what: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 60.0
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def poll_until(server: RemoteServer, what: Callable[[], object]) -> list[Event]:
    events: list[Event] = []
    for _ in range(_MANY_POLLS):
        if what():
            return events
        events += poll(server)
    raise AssertionError("it didn't come")


def poll_for(server: RemoteServer, kind: type[Event]) -> list[Event]:
    """Everything up to the first event of a kind."""
    events: list[Event] = []
    for _ in range(_MANY_POLLS):
        events += poll(server)
        if any(isinstance(event, kind) for event in events):
            return events
    raise AssertionError(f"only {events}")


def open_connections(server: RemoteServer) -> int:
    return len(server._gate._open)


def joined(server: RemoteServer, peer: Peer, certificate: tuple[bytes, KeyPair]) -> zmq.Socket[bytes]:
    """A trainer as the gate expects it: of one that it does not know yet, more than a handshake ends the connection."""
    others = open_connections(server)
    made = peer(certificate)
    wait_for(lambda: open_connections(server) > others)  # messages that are read before count for no connection
    made.send_multipart(JOIN)
    poll_until(server, lambda: made.poll(0))
    return made


def idle(server: RemoteServer, num: int, where: str, opened: ExitStack) -> list[socket.socket]:
    """Connections of somebody who says nothing."""
    address = (HERE, int(server.endpoint.rpartition(":")[2]))
    return [
        opened.enter_context(socket.create_connection(address, timeout=20, source_address=(where, 0)))
        for _ in range(num)
    ]


def is_ended(connection: socket.socket) -> bool:
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 connections in all, 5 from an address; no handshake ends by its time."""
    monkeypatch.setattr(gate_module, "_MOST", 20)
    monkeypatch.setattr(server_module, "HANDSHAKE_S", 60.0)


@pytest.mark.usefixtures("small")
def test_who_only_connects_takes_few_descriptors_and_a_trainer_from_elsewhere_still_comes(
    server: RemoteServer, peer: Peer, good: tuple[bytes, KeyPair], caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as opened:
        connections = idle(server, 40, ELSEWHERE, opened)
        assert all(is_ended(one) for one in connections[5:]), "five of them stay"
        poll_until(server, lambda: open_connections(server) == 5)
        trainer = peer(good)
        trainer.send_multipart(JOIN)
        trainer.send_multipart(WANT)
        assert [event.message for event in poll_for(server, Received) if isinstance(event, Received)] == [m.Want(1)]
    poll_until(server, lambda: open_connections(server) == 1)
    assert sum("ended a connection from 127.0.0.2" in record.getMessage() for record in caplog.records) <= 5


@pytest.mark.usefixtures("small")
def test_many_addresses_take_no_more_than_all_connections(server: RemoteServer) -> None:
    with ExitStack() as opened:
        for network in range(2, 8):
            idle(server, 5, f"127.0.0.{network}", opened)
        last = idle(server, 1, "127.0.0.9", opened)[0]
        assert is_ended(last)
        poll_until(server, lambda: open_connections(server) == 20)


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\0" + bytes(31)
HELLO = b"\x04\xc8\x05HELLO\x01\x00" + bytes(192)  # of the right size, with nothing right in it


@pytest.mark.parametrize(
    "said", [b"", b"\xff", GREETING[:20], GREETING, GREETING.replace(b"CURVE", b"NULL\0"), GREETING + HELLO[:50]]
)
def test_a_handshake_that_never_ends_is_ended(keys: Path, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_S", 0.3)
    config = TransportConfig(listen=f"tcp://{HERE}:*", keys=keys)
    with Arena.create(1, 4096) as arena, ExitStack() as opened:
        server = RemoteServer(config, arena, PLAN, lambda layout: 0)
        opened.callback(server.close)
        (connection,) = idle(server, 1, HERE, opened)
        connection.sendall(said)
        assert is_ended(connection)
        poll_until(server, lambda: open_connections(server) == 0)


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", GREETING + HELLO, GREETING + b"\x06" + b"\xff" * 8, b"\0" * 99]
)
def test_what_is_no_handshake_is_ended(server: RemoteServer, said: bytes) -> None:
    with ExitStack() as opened:
        (connection,) = idle(server, 1, HERE, opened)
        connection.sendall(said)
        assert is_ended(connection)
        poll_until(server, lambda: open_connections(server) == 0)


@pytest.mark.parametrize("who", ["without a key", "with a key that is not known", "with another key of the fetcher"])
def test_who_has_no_key_that_fits_is_not_heard(
    server: RemoteServer, peer: Peer, good: tuple[bytes, KeyPair], who: str
) -> None:
    stranger = KeyPair(*zmq.curve_keypair())
    certificates = {
        "without a key": None,
        "with a key that is not known": (good[0], stranger),
        "with another key of the fetcher": (stranger.public, good[1]),
    }
    rogue, trainer = peer(certificates[who]), peer(good)
    with contextlib.suppress(zmq.Again):  # its own library has already given up
        for _ in range(100):
            rogue.send_multipart(JOIN, flags=zmq.NOBLOCK)
            rogue.send_multipart(WANT, flags=zmq.NOBLOCK)
    poll_until(server, lambda: open_connections(server) == 1)  # the rogue has come and gone, or not come yet
    trainer.send_multipart(JOIN)
    trainer.send_multipart(WANT)
    assert poll_for(server, Received) == [Received(f"tcp-{trainer.getsockopt(zmq.ROUTING_ID).decode()}", m.Want(1))]
    assert server.malformed == 0
    assert not rogue.poll(0)


def test_refused_keys_fill_no_log(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    clients = server_module._Clients(keys)
    for _ in range(1000):
        assert not clients.callback("", zmq.curve_keypair()[0])
    assert sum("refused a trainer" in record.getMessage() for record in caplog.records) == 5


READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
MORE = b"\x03" + (1 << 16).to_bytes(8, "big") + bytes(1 << 16)  # a frame of 64 KiB which says that another one follows


@pytest.mark.parametrize("is_known", [True, False])
def test_a_message_of_endless_frames_ends_its_connection(is_known: bool) -> None:
    """ZeroMQ's own sockets send no message before its last frame: this is spoken by hand, and so without encryption."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, ExitStack() as opened:
        gate = Gate(router, 5.0)
        opened.callback(gate.close)
        port = router.bind_to_random_port(f"tcp://{HERE}")
        gate.start(port)
        rogue = opened.enter_context(socket.create_connection((HERE, port), timeout=20))
        rogue.sendall(GREETING.replace(b"CURVE", b"NULL\0") + READY)
        answer = b""
        while b"READY" not in answer:
            answer += rogue.recv(1)
        rogue.sendall(b"\x00\x05hello")
        assert router.poll(20_000)
        name, body = router.recv_multipart(copy=False)
        assert body.bytes == b"hello"
        wait_for(lambda: gate._open)  # its thread may see the connection later than the message
        if is_known:
            gate.read(name.get(zmq.SRCFD), [body])
        rogue.settimeout(0.05)
        sent, deadline_s = 0, time.monotonic() + 60.0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while gate._open:  # where ZeroMQ has stopped reading of it, its own socket sees the end much later
                assert sent < 1 << 30
                assert time.monotonic() < deadline_s
                with contextlib.suppress(TimeoutError):
                    sent += rogue.send(MORE[sent % len(MORE) :])
        assert sent >= (4 << 20 if is_known else 0)
        wait_for(lambda: not gate._open)


def test_messages_that_are_read_may_be_as_many_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_UNREAD_BYTES", 1 << 17)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, ExitStack() as opened:
        gate = Gate(router, 60.0)
        opened.callback(gate.close)
        port = router.bind_to_random_port(f"tcp://{HERE}")
        gate.start(port)
        sender = opened.enter_context(opened.enter_context(zmq.Context()).socket(zmq.DEALER))
        sender.connect(f"tcp://{HERE}:{port}")
        wait_for(lambda: gate._open)  # messages that are read before count for no connection
        for _ in range(400):
            for _ in range(10):
                sender.send(bytes(1000))
            for _ in range(10):
                assert router.poll(20_000)
                name, body = router.recv_multipart(copy=False)
                gate.read(name.get(zmq.SRCFD), [body])
        assert len(gate._open) == 1, "4 MB, 128 KiB of which may be unread"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_descriptors_that_run_out_for_a_moment_end_no_good_connection(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def dup(fd: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(gate_module, "_UNREAD_BYTES", 1 << 17)
    monkeypatch.setattr(gate_module, "_UNKNOWN_BYTES", 1 << 17)  # its thread may look before the first one is read
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, ExitStack() as opened:
        gate = Gate(router, 60.0)
        opened.callback(gate.close)
        port = router.bind_to_random_port(f"tcp://{HERE}")
        gate.start(port)
        sender = opened.enter_context(opened.enter_context(zmq.Context()).socket(zmq.DEALER))
        sender.connect(f"tcp://{HERE}:{port}")
        wait_for(lambda: gate._open)  # messages that are read before count for no connection
        for _ in range(5):
            sender.send(bytes(100_000))
            assert router.poll(20_000)
            name, body = router.recv_multipart(copy=False)
            gate.read(name.get(zmq.SRCFD), [body])
        with gate._lock:
            (fd,) = gate._open
            with monkeypatch.context() as short:
                short.setattr(gate_module.os, "dup", dup)
                gate._look(fd)
            gate._look(fd)
            assert list(gate._open) == [fd]


def test_messages_without_end_keep_no_poll_from_returning_and_no_other_trainer_from_being_heard(
    server: RemoteServer, peer: Peer, good: tuple[bytes, KeyPair]
) -> None:
    rogue, trainer = joined(server, peer, good), joined(server, peer, good)
    for _ in range(5000):
        rogue.send_multipart(WANT)
    trainer.send_multipart([wire.MESSAGE, m.encode(m.Release(7))])
    new: list[Event] = []
    deadline_s = time.monotonic() + 60.0
    while not any(isinstance(event, Received) and event.message == m.Release(7) for event in new):
        assert time.monotonic() < deadline_s
        new = poll(server)
        assert len(new) <= MESSAGES_A_POLL
        for _ in new:  # there is no end of them, however late the other one's comes
            rogue.send_multipart(WANT)
    poll_until(server, lambda: not server.poll())
    assert server.malformed == 0


def test_malformed_messages_without_end_end_the_connection_and_fill_no_log(
    server: RemoteServer, peer: Peer, good: tuple[bytes, KeyPair], caplog: pytest.LogCaptureFixture
) -> None:
    rogue = joined(server, peer, good)
    for _ in range(2000):
        rogue.send_multipart([wire.MESSAGE, b"rubbish"])
    assert poll_for(server, Lost) == [Lost(f"tcp-{rogue.getsockopt(zmq.ROUTING_ID).decode()}")]
    assert 100 < server.malformed <= 2000
    assert sum("dropped a message" in record.getMessage() for record in caplog.records) == 5


ATTACH = {"op": "Attach", "v": m.PROTOCOL_VERSION, "rank": 0, "ranks": 1, "plan_hash": PLAN, "cursor": {}}


@pytest.mark.parametrize(
    "raw",
    [
        msgpack.packb(ATTACH | {"bad_files": (-1,) * 1_000_000}),
        msgpack.packb(ATTACH | {"cursor": ({},) * 100_000}),
        msgpack.packb(ATTACH | {"rank": ((1,),) * 100_000}),
    ],
    ids=["bad files", "cursor", "rank"],
)
def test_bad_tuples_cost_a_trainer_with_a_key_its_message_and_nobody_anything_else(
    server: RemoteServer, peer: Peer, good: tuple[bytes, KeyPair], raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    rogue = joined(server, peer, good)
    for frames in ([wire.MESSAGE, raw], WANT):
        rogue.send_multipart(frames)
    (event,) = poll_for(server, Received)
    assert isinstance(event, Received)
    assert event.message == m.Want(1)
    assert server.malformed == 1
    assert all(len(record.getMessage()) < 400 for record in caplog.records)


def test_a_second_connection_under_the_name_of_a_trainer_is_not_heard(
    server: RemoteServer, peer: Peer, good: tuple[bytes, KeyPair]
) -> None:
    trainer = peer(good)
    trainer.send_multipart(JOIN)
    trainer.send_multipart(WANT)
    poll_for(server, Received)
    thief = peer(good, name=trainer.getsockopt(zmq.ROUTING_ID))
    thief.send_multipart(JOIN)
    thief.send_multipart([wire.MESSAGE, m.encode(m.Finished())])
    poll_until(server, lambda: open_connections(server) == 2)
    trainer.send_multipart([wire.MESSAGE, m.encode(m.Release(1))])
    events = poll_for(server, Received)
    thief.close()
    events += poll_until(server, lambda: open_connections(server) == 1)
    trainer.send_multipart([wire.MESSAGE, m.encode(m.Release(2))])
    events += poll_for(server, Received)
    assert [event.message for event in events if isinstance(event, Received)] == [m.Release(1), m.Release(2)]
