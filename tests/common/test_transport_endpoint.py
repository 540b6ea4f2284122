from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import BadInputError
from common.transport.endpoint import Endpoint, parse_endpoint, require_keys


def parse(text: str) -> Endpoint:
    return parse_endpoint(text, "transport.listen", example="tcp://0.0.0.0:5570")


@pytest.mark.parametrize(
    ("text", "endpoint", "url"),
    [
        ("tcp://0.0.0.0:5570", Endpoint("0.0.0.0", 5570), "tcp://0.0.0.0:5570"),
        ("tcp://*:*", Endpoint("*", 0), "tcp://*:*"),
        ("tcp://127.0.0.1:0", Endpoint("127.0.0.1", 0), "tcp://127.0.0.1:*"),
        ("tcp://localhost:5570", Endpoint("127.0.0.1", 5570), "tcp://127.0.0.1:5570"),
        ("tcp://[::1]:5570", Endpoint("::1", 5570), "tcp://[::1]:5570"),
        (
            "tcp://data-node.example.org:5570",
            Endpoint("data-node.example.org", 5570),
            "tcp://data-node.example.org:5570",
        ),
    ],
)
def test_an_address_is_read(text: str, endpoint: Endpoint, url: str) -> None:
    assert parse(text) == endpoint
    assert endpoint.url == url


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0:5570",
        "ipc://x",
        "tcp://0.0.0.0",
        "tcp://:5570",
        "tcp://host:port",
        "tcp://host:70000",
        "tcp://host:1/path",
        "tcp://a b:1",
        "tcp://127.0.0.1:0;192.0.2.1:5570",
        "tcp://::1:5570",
        "tcp://user@host:1",
        "tcp://host:1\n",
    ],
)
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(BadInputError, match=r"transport\.listen = .*: expected tcp://HOST:PORT, for example tcp://0"):
        parse(text)


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1", "tcp://*:1", "tcp://lo:1"])
def test_every_address_needs_keys(text: str) -> None:
    with pytest.raises(BadInputError, match="a trainer over tcp needs keys"):
        require_keys(None, parse(text), "transport.listen")
    assert require_keys(Path("keys"), parse(text), "transport.listen") == Path("keys")
