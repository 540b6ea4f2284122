"""Servers and peers of this host, closed after each test; each test runs with both kinds of sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_peers import MODES, PLAN, SLOT_BYTES, SLOTS

from common.config import TransportConfig
from common.transport import Arena, ServerTransport


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena.create(SLOTS, SLOT_BYTES) as made:
        yield made


@pytest.fixture(params=MODES)
def config(request: pytest.FixtureRequest) -> TransportConfig:
    return TransportConfig(sockets=request.param)


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
