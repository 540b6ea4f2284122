"""How a trainer elsewhere meets its fetcher, and units come to it."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zmq
from polls import poll_for, poll_until_lost, receive
from remote_peers import (
    PLAN,
    SLOT_BYTES,
    SLOTS,
    Serve,
    attach,
    close,
    connect,
    payload_bytes,
    poll_until,
    remote_peer,
    unit,
)

from common import arena as arena_module
from common import messages as m
from common.arena import Arena
from common.config import TransportConfig
from common.errors import BadInputError
from common.transport import Received, RemotePeerTransport, ServerTransport, StopRequested, wire
from common.transport.remote_server import RemoteServer


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
    with pytest.raises(BadInputError, match=r"no fetcher answered for 0\.01 s \(no process listens there\)"):
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


def test_a_payload_is_sent_without_a_copy(
    serve: Serve, config: TransportConfig, dealer: zmq.Socket[bytes], arena: Arena
) -> None:
    server, where = serve(config)
    dealer.setsockopt(zmq.RCVHWM, 1)
    dealer.setsockopt(zmq.RCVBUF, 4096)
    dealer.connect(where.connect)
    dealer.send_multipart([wire.JOIN, wire.encode_handshake(wire.Join())])
    dealer.send_multipart([wire.MESSAGE, m.encode(m.Want(1))])
    (event,) = poll_for(server, 1)
    for k in range(40):
        server.send(event.peer, unit(k, slot=2))
    arena.slot(2)[:] = 77  # written while it is sent, which the dispatcher never does
    assert dealer.recv_multipart()[0] == wire.WELCOME
    last = b""
    while last == b"" or b"\xa1k\x27" not in last:
        _, last, payload = dealer.recv_multipart()
    assert set(payload[-1000:]) == {77}, "a copy would have what was there when it was sent"


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
