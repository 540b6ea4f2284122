"""How peers of this host meet their fetcher; closed by default."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import pytest
from local_peers import PLAN, connect, dealer_of, joined, poll_for, poll_until, raw_lifeline, receive, welcome_of

from common import messages as m
from common import transport
from common.config import TransportConfig
from common.errors import BadInputError
from common.transport import SOCKET_FOLDER, Arena, PeerTransport, Received, ServerTransport, StopRequested


def test_a_peer_gets_plan_and_arena_and_messages_go_both_ways(
    server: ServerTransport, run_dir: Path, config: TransportConfig, arena: Arena
) -> None:
    peer = connect(server, run_dir, config)
    assert peer.plan_hash == PLAN
    peer.arena.slot(1)[:3] = [7, 8, 9]
    assert arena.slot(1)[:3].tolist() == [7, 8, 9]
    peer.send(m.Hello(3))
    (event,) = poll_for(server, 1)
    assert isinstance(event, Received)
    assert event.message == m.Hello(3)
    server.send(event.peer, m.Refuse("no"))
    assert receive(peer) == m.Refuse("no")
    peer.close()


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
        joined(server, future).close()
        server.close()


def test_a_peer_gives_up_when_no_fetcher_comes(
    run_dir: Path, config: TransportConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "CONNECT_TIMEOUT_S", 0.01)
    with pytest.raises(BadInputError, match=r"no fetcher answered for 0\.01 s"):
        PeerTransport(run_dir, config, writable=True, stopped=lambda: False)


def test_a_peer_that_is_asked_to_stop_waits_no_more(run_dir: Path, config: TransportConfig) -> None:
    with pytest.raises(StopRequested):
        PeerTransport(run_dir, config, writable=True, stopped=lambda: True)


def test_a_peer_of_another_protocol_version_is_told_so(
    server: ServerTransport, run_dir: Path, config: TransportConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as thread:
        packb = msgpack.packb
        monkeypatch.setattr(msgpack, "packb", lambda welcome: packb({**welcome, "v": 99}))
        future = thread.submit(PeerTransport, run_dir, config, writable=True, stopped=lambda: False)
        with pytest.raises(BadInputError, match=f"speaks protocol version 99, this process {m.PROTOCOL_VERSION}"):
            joined(server, future)


def test_what_is_no_message_is_counted_and_dropped(run_dir: Path, arena: Arena) -> None:
    server = ServerTransport(run_dir, TransportConfig(sockets="abstract"), arena, PLAN)
    with raw_lifeline(run_dir) as lifeline:
        server.poll(1.0)
        welcome = welcome_of(lifeline)
        hello = [Received(welcome["peer"], m.Hello(1))]
        for name, malformed, wanted in (("", 2, hello), ("a-name-that-nobody-was-given", 5, [])):
            with dealer_of(welcome, name) as dealer:
                dealer.send(b"rubbish")
                dealer.send_multipart([b"one", b"too many"])
                dealer.send(m.encode(m.Hello(1)))
                heard = poll_until(
                    server,
                    lambda events: server.malformed == malformed and len(events) == len(wanted),  # noqa: B023
                )
                assert heard == wanted
    server.close()


def test_the_socket_folder_is_the_owners_only(run_dir: Path, arena: Arena) -> None:
    server = ServerTransport(run_dir, TransportConfig(sockets="folder"), arena, PLAN)
    assert stat.S_IMODE((run_dir / SOCKET_FOLDER).stat().st_mode) == 0o700
    server.close()


def test_a_second_fetcher_in_a_run_directory_is_refused(run_dir: Path, arena: Arena) -> None:
    config = TransportConfig()  # socket files: the run's lock keeps it out, tests/common/test_locks.py
    server = ServerTransport(run_dir, config, arena, PLAN)
    with pytest.raises(BadInputError, match="a fetcher is already running in this run directory"):
        ServerTransport(run_dir, config, arena, PLAN)
    connect(server, run_dir, config).close()  # and the first one is none the worse for it
    server.close()
