"""The address at which the nodes meet."""

from __future__ import annotations

import socket

import pytest
from federation.free_ports import free_port

from common.errors import BadInputError
from services.supervisor.nodes.master import Master, Presence, parse_master


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("node-0:29500", "node-0", 29500), ("192.0.2.1:1", "192.0.2.1", 1), ("[2001:db8::1]:80", "2001:db8::1", 80)],
)
def test_host_and_port(text: str, host: str, port: int) -> None:
    assert parse_master(text) == Master(host, port)
    assert str(parse_master(text)) == text


@pytest.mark.parametrize("text", ["", "node-0", "node-0:", ":29500", "node-0:http", "node-0:0", "node-0:65536"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match=r"--master .*: expected HOST:PORT"):
        parse_master(text)


def test_an_unknown_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(BadInputError, match=r"the host 'nod-0' is not known here .Name or service not known."):
        Master("nod-0", 29500).require_known()


def test_a_port_in_use_is_named_and_a_free_one_is_listened_at() -> None:
    master = Master("127.0.0.1", free_port())
    with Presence(master) as presence, master.listen(0):
        assert presence.is_there()
        with pytest.raises(BadInputError, match=r"can't listen there .Address already in use.; choose another port"):
            master.listen(0)
    master.listen(0).close()


def test_the_host_of_another_machine_is_refused_on_node_0() -> None:
    with pytest.raises(BadInputError, match=r"192.0.2.1 is not this machine, and node 0 runs here"):
        Master("192.0.2.1", free_port()).listen(0)


def test_the_presence_of_node_0_ends_with_its_listener() -> None:
    master = Master("127.0.0.1", free_port())
    with Presence(master) as presence:
        assert not presence.is_there()
        with master.listen(0):
            assert all(presence.is_there() for _ in range(1000))
        assert not presence.is_there()
        with master.listen(0):
            assert presence.is_there()
