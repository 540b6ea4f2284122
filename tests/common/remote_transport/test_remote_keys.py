"""Nothing is heard or said over TCP without the right keys."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zmq
from remote_peers import ANY_PORT, Serve, close, connect, poll_until, remote_peer

from common.config import TransportConfig
from common.errors import BadInputError
from common.transport import RemotePeerTransport
from common.transport.keys import make_client_keys, make_server_keys


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
