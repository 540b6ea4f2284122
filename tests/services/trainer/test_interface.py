"""The network interface that leads to rank 0."""

from __future__ import annotations

import socket

import pytest

from services.trainer.ranks import interface as module
from services.trainer.ranks.interface import interface_to


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_the_way_to_this_machine_is_its_loopback_interface(address: str) -> None:
    if address == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    assert interface_to(address, 29500) == "lo"


def test_an_unknown_host_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert interface_to("no-such-host", 29500) == ""


def test_it_is_the_interface_with_the_address_that_the_kernel_would_use(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"lo": {"127.0.0.1"}, "eth0": {"192.0.2.7"}, "ib0": {"198.51.100.7", "fe80::1"}}
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(addresses, 1)))
    monkeypatch.setattr(module, "_addresses", addresses.__getitem__)
    for source, name in (("198.51.100.7", "ib0"), ("192.0.2.7", "eth0"), ("203.0.113.1", "")):
        monkeypatch.setattr(socket.socket, "getsockname", lambda self, source=source: (source, 1))
        assert interface_to("127.0.0.1", 29500) == name


def test_the_addresses_of_an_interface_are_read_from_the_kernel() -> None:
    assert "127.0.0.1" in module._addresses("lo")
    assert module._addresses("no-such-interface") == set()
