"""The local sockets against other users of the host, and against peers that send without end."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import pytest
import zmq
from polls import MANY_POLLS, poll_until_lost

from common import messages as m
from common.arena import Arena
from common.config import TransportConfig
from common.errors import BadInputError
from common.transport import Event, Lost, PeerTransport, Received, ServerTransport
from common.transport import server as server_module
from common.transport.addresses import Addresses
from common.transport.events import MESSAGES_A_POLL
from common.transport.server import _ACCEPTS_A_POLL

PLAN = "ab" * 16
LOCAL = TransportConfig(connect_timeout_s=20)


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena.create(1, 4096) as made:
        yield made


@pytest.fixture
def server(tmp_path: Path, arena: Arena) -> Iterator[ServerTransport]:
    made = ServerTransport(tmp_path, LOCAL, arena, PLAN)
    yield made
    made.close()


def connect(server: ServerTransport, run_dir: Path) -> PeerTransport:
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(PeerTransport, run_dir, LOCAL, writable=True, stopped=lambda: False)
        for _ in range(MANY_POLLS):
            server.poll(0.05)
            if future.done():
                break
        return future.result(timeout=1)


def lifeline(run_dir: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(20)
    made.connect(Addresses(run_dir, "abstract").lifeline)
    return made


# ------------------------------------------------------------------ another user


def test_connections_of_another_user_without_end_fill_no_log_and_keep_no_poll_from_returning(
    server: ServerTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    uid = os.getuid()
    accepted = 0
    accept = socket.socket.accept

    def count(listener: socket.socket) -> tuple[socket.socket, object]:
        nonlocal accepted
        found = accept(listener)
        accepted += 1
        return found

    monkeypatch.setattr(socket.socket, "accept", count)
    with contextlib.ExitStack() as opened:
        for _ in range(8):
            strangers = [opened.enter_context(lifeline(tmp_path)) for _ in range(60)]
            monkeypatch.setattr(os, "getuid", lambda: uid + 1)
            before = accepted
            while accepted - before < len(strangers):
                at_first = accepted
                assert server.poll(20.0) == []
                assert accepted - at_first <= _ACCEPTS_A_POLL
            monkeypatch.setattr(os, "getuid", lambda: uid)
            assert all(stranger.recv(1) == b"" for stranger in strangers)
    assert [record.getMessage() for record in caplog.records] == [f"refused a peer of another user (uid {uid})"] * 5
    connect(server, tmp_path).close()


@pytest.mark.parametrize("listens", [True, False])
def test_a_socket_name_that_another_user_took_is_told_with_the_way_out(
    tmp_path: Path, arena: Arena, listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)  # we are another user than who holds the name
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as thief:
        thief.bind(Addresses(tmp_path, "abstract").lifeline)
        expected = "or another process has taken its socket's name; if it is none of yours"
        if listens:
            thief.listen()
            expected = f"its socket's name is taken by user {uid}"
        with pytest.raises(BadInputError, match=rf"{expected}.*set transport\.sockets=folder"):
            ServerTransport(tmp_path, LOCAL, arena, PLAN)
        if listens:
            with pytest.raises(
                BadInputError, match=rf"belongs to another user \(uid {uid}\).*transport\.sockets=folder"
            ):
                PeerTransport(tmp_path, LOCAL, writable=True, stopped=lambda: False)
        ServerTransport(tmp_path, TransportConfig(sockets="folder"), arena, PLAN).close()


# ------------------------------------------------------------------ no descriptor left


def test_a_fetcher_without_a_free_descriptor_goes_on_and_takes_the_peer_later(
    server: ServerTransport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    with lifeline(tmp_path) as waiting, contextlib.ExitStack() as at_the_end:
        at_the_end.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 20, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        try:
            assert server.poll(20.0) == []
        finally:
            for fd in taken:
                os.close(fd)
        assert waiting.recv(1) == b"", "it is let go, and connects again"
    assert "can't accept a peer: Too many open files" in caplog.text
    connect(server, tmp_path).close()


# ------------------------------------------------------------------ messages without end


@contextlib.contextmanager
def dealer(server: ServerTransport, run_dir: Path) -> Iterator[tuple[str, zmq.Socket[bytes], socket.socket]]:
    """A peer's name, its control socket, and its lifeline."""
    with lifeline(run_dir) as line, zmq.Context() as context, context.socket(zmq.DEALER) as made:
        server.poll(1.0)
        data, fds, _, _ = socket.recv_fds(line, 4096, 1)
        for fd in fds:
            os.close(fd)
        welcome = msgpack.unpackb(data)
        made.setsockopt(zmq.SNDHWM, 0)
        made.setsockopt(zmq.ROUTING_ID, welcome["peer"].encode())
        made.connect(f"ipc://@icestream-{welcome['control']}")
        yield welcome["peer"], made, line


def test_messages_without_end_keep_no_poll_from_returning_and_no_other_peer_from_being_heard(
    server: ServerTransport, tmp_path: Path
) -> None:
    other = connect(server, tmp_path)
    with dealer(server, tmp_path) as (rogue, control, _):
        beats = 5000
        for _ in range(beats):
            control.send(m.encode(m.Beat()))
        other.send(m.Hello(3))
        events: list[Event] = []
        while not any(isinstance(event, Received) and event.message == m.Hello(3) for event in events):
            new = server.poll(1.0)
            assert len(new) <= MESSAGES_A_POLL
            events += new
            for _ in new:  # there is no end of them, however late the other one's comes
                control.send(m.encode(m.Beat()))
            beats += len(new)
        while sum(isinstance(event, Received) and event.peer == rogue for event in events) < beats:
            events += server.poll(1.0)
    other.close()


def test_a_killed_peer_is_not_lost_while_messages_are_unread_but_not_kept_for_ever(
    server: ServerTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MESSAGES_A_POLL", 0)  # a flood of others: nothing is read up
    monkeypatch.setattr(server_module, "_LAST_MESSAGES_S", 60.0)
    with dealer(server, tmp_path) as (name, _, line):
        line.close()  # without a last word
        for _ in range(5):
            assert server.poll(0.01) == []
        monkeypatch.setattr(server_module, "_LAST_MESSAGES_S", 0.0)
        assert poll_until_lost(server) == [Lost(name)]


def test_malformed_messages_without_end_fill_no_log(
    server: ServerTransport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with dealer(server, tmp_path) as (_, control, _):
        for _ in range(3000):
            control.send(b"rubbish")
        for _ in range(MANY_POLLS):
            server.poll(0.05)
            if server.malformed == 3000:
                break
    assert server.malformed == 3000
    assert len(caplog.records) == 5
