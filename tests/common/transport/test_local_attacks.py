"""The local sockets against other users of the host, and against peers that send without end."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from descriptors import no_descriptor_left
from local_peers import MANY_POLLS, PLAN, connect, dealer_of, poll_until_lost, raw_lifeline, welcome_of

from common import messages as m
from common import transport
from common import transport as wire
from common.config import TransportConfig
from common.errors import BadInputError


@pytest.fixture
def config() -> TransportConfig:
    """Sockets without a file, which any user of the host can reach."""
    return TransportConfig()


# ------------------------------------------------------------------ another user


def test_connections_of_another_user_without_end_fill_no_log_and_keep_no_poll_from_returning(
    server: wire.ServerTransport, run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
            strangers = [opened.enter_context(raw_lifeline(run_dir)) for _ in range(60)]
            monkeypatch.setattr(os, "getuid", lambda: uid + 1)
            before = accepted
            while accepted - before < len(strangers):
                at_first = accepted
                assert server.poll(20.0) == []
                assert accepted - at_first <= wire.ACCEPTS_A_POLL
            monkeypatch.setattr(os, "getuid", lambda: uid)
            assert all(stranger.recv(1) == b"" for stranger in strangers)
    assert [record.getMessage() for record in caplog.records] == [f"refused a peer of another user (uid {uid})"] * 5
    connect(server, run_dir, TransportConfig()).close()


@pytest.mark.parametrize("listens", [True, False])
def test_a_socket_name_that_another_user_took_is_told_with_the_way_out(
    run_dir: Path, arena: wire.Arena, listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)  # we are another user than who holds the name
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as thief:
        thief.bind(wire.Addresses(run_dir, "abstract").lifeline)
        expected = "or another process has taken its socket's name; if it is none of yours"
        if listens:
            thief.listen()
            expected = f"its socket's name is taken by user {uid}"
        with pytest.raises(BadInputError, match=rf"{expected}.*set transport\.sockets=folder"):
            wire.ServerTransport(run_dir, TransportConfig(), arena, PLAN)
        if listens:
            with pytest.raises(
                BadInputError, match=rf"belongs to another user \(uid {uid}\).*transport\.sockets=folder"
            ):
                wire.PeerTransport(run_dir, TransportConfig(), writable=True, stopped=lambda: False)
        wire.ServerTransport(run_dir, TransportConfig(sockets="folder"), arena, PLAN).close()


# ------------------------------------------------------------------ no descriptor left


def test_a_fetcher_without_a_free_descriptor_goes_on_and_takes_the_peer_later(
    server: wire.ServerTransport, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with raw_lifeline(run_dir) as waiting:
        with no_descriptor_left():
            assert server.poll(20.0) == []
        assert waiting.recv(1) == b"", "it is let go, and connects again"
    assert "can't accept a peer: Too many open files" in caplog.text
    connect(server, run_dir, TransportConfig()).close()


# ------------------------------------------------------------------ messages without end


@contextlib.contextmanager
def dealer(server: wire.ServerTransport, run_dir: Path) -> Iterator[tuple[str, zmq.Socket[bytes], socket.socket]]:
    """A peer's name, its control socket, and its lifeline."""
    with raw_lifeline(run_dir) as line:
        server.poll(1.0)
        welcome = welcome_of(line)
        with dealer_of(welcome) as made:
            yield welcome["peer"], made, line


def test_messages_without_end_keep_no_poll_from_returning_and_no_other_peer_from_being_heard(
    server: wire.ServerTransport, run_dir: Path
) -> None:
    other = connect(server, run_dir, TransportConfig())
    with dealer(server, run_dir) as (rogue, control, _):
        beats = 5000
        for _ in range(beats):
            control.send(m.encode(m.Beat()))
        other.send(m.Hello(3))
        events: list[wire.Event] = []
        while not any(isinstance(event, wire.Received) and event.message == m.Hello(3) for event in events):
            new = server.poll(1.0)
            assert len(new) <= wire.MESSAGES_A_POLL
            events += new
            for _ in new:  # there is no end of them, however late the other one's comes
                control.send(m.encode(m.Beat()))
            beats += len(new)
        while sum(isinstance(event, wire.Received) and event.peer == rogue for event in events) < beats:
            events += server.poll(1.0)
    other.close()


def test_a_killed_peer_is_not_lost_while_messages_are_unread_but_not_kept_for_ever(
    server: wire.ServerTransport, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MESSAGES_A_POLL", 0)  # a flood of others: nothing is read up
    monkeypatch.setattr(transport, "_LAST_MESSAGES_S", 60.0)
    with dealer(server, run_dir) as (name, _, line):
        line.close()  # without a last word
        for _ in range(5):
            assert server.poll(0.01) == []
        monkeypatch.setattr(transport, "_LAST_MESSAGES_S", 0.0)
        assert poll_until_lost(server) == [wire.Lost(name)]


def test_malformed_messages_without_end_fill_no_log(
    server: wire.ServerTransport, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with dealer(server, run_dir) as (_, control, _):
        for _ in range(3000):
            control.send(b"rubbish")
        for _ in range(MANY_POLLS):
            server.poll(0.05)
            if server.malformed == 3000:
                break
    assert server.malformed == 3000
    assert len(caplog.records) == 5
