"""Keys, servers and trainers elsewhere, closed after each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq
from remote_peers import ANY_PORT, PLAN, SLOT_BYTES, SLOTS, Serve, payload_bytes

from common.arena import Arena
from common.config import TransportConfig
from common.transport import RemotePeerTransport, ServerTransport
from common.transport.keys import client_keys, make_client_keys, make_server_keys


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
