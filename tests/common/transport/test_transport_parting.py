"""How peers of this host and their fetcher part, in good order or not."""

from __future__ import annotations

import gc
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_peers import PLAN, ROOT, connect, dealer_of, poll_for, poll_until_lost, raw_lifeline, receive, welcome_of

from common import messages as m
from common import transport
from common.config import TransportConfig
from common.transport import SOCKET_FOLDER, Arena, FetcherLost, Lost, Received, ServerTransport

pytestmark = pytest.mark.process


def test_a_peer_that_left_in_good_order_is_lost_only_once_its_last_message_is_there(
    run_dir: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_LAST_MESSAGES_S", 60.0)
    server = ServerTransport(run_dir, TransportConfig(sockets="abstract"), arena, PLAN)
    with raw_lifeline(run_dir) as lifeline:
        server.poll(1.0)
        welcome = welcome_of(lifeline)
        lifeline.send(struct.pack("<Q", 1))
    assert server.poll(0.0) == []
    assert not server.is_connected(welcome["peer"])
    with dealer_of(welcome) as dealer:
        dealer.send(m.encode(m.Finished()))
        assert poll_until_lost(server) == [Received(welcome["peer"], m.Finished()), Lost(welcome["peer"])]
    server.close()


def test_a_peer_learns_of_the_fetchers_end(run_dir: Path, config: TransportConfig, arena: Arena) -> None:
    server = ServerTransport(run_dir, config, arena, PLAN)
    peer = connect(server, run_dir, config)
    server.close()
    with pytest.raises(FetcherLost):
        receive(peer)
    peer.close()


CHILD = """
import signal, sys
from pathlib import Path
from common import messages as m
from common import transport
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


def test_a_fence_kills_a_process_that_hangs(server: ServerTransport, child: subprocess.Popen[bytes]) -> None:
    (event,) = poll_for(server, 1)
    child.send_signal(signal.SIGSTOP)  # a stopped process can't be told, only killed
    assert server.fence(event.peer)
    assert poll_until_lost(server) == [Lost(event.peer)]
    assert child.wait(timeout=20) == -signal.SIGKILL
    assert server.fence(event.peer), "who is gone needs no fence"


def test_who_can_not_be_seen_can_not_be_fenced(
    server: ServerTransport, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_here(pid: int) -> int:
        raise ProcessLookupError(pid)

    monkeypatch.setattr(os, "pidfd_open", not_here)
    (event,) = poll_for(server, 1)
    assert not server.fence(event.peer)
    assert child.poll() is None


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
from common.transport import Arena
from common.config import TransportConfig
from common.transport import ServerTransport
server = ServerTransport(Path(sys.argv[1]), TransportConfig(sockets=sys.argv[2]), Arena.create(2, 8192), "ab" * 16)
os.kill(os.getpid(), signal.SIGKILL)
"""


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
