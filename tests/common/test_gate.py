"""Limits of the gate before a remote server's socket."""

from __future__ import annotations

import resource

import pytest
import zmq

from common.transport.gate import Gate, _network


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_an_address_counts_as_the_network_that_one_host_has(address: str, network: str) -> None:
    assert _network(address) == network


def test_the_descriptor_limit_is_raised_as_far_as_it_may_be() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
            gate = Gate(router, 5.0)
            gate.close()
            raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    expected = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    assert raised == (expected, hard)
    assert gate.most == min(1024, expected // 4)
