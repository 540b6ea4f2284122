"""Pelican addresses: read, written, and compared with what directors write."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from common.errors import BadInputError
from common.pelican.url import PelicanUrl, escaped, is_pelican, server_of

NAMES = ["with space", "100%", "a,b;c", "ü-µ-∇", "a=b&c+d@e:$", "#hash", "q?x=1", "[1]*", '"<>"']


@pytest.mark.parametrize(
    ("text", "federation", "path"),
    [
        ("pelican://osg-htc.org/icecube/a.parquet", "osg-htc.org", "/icecube/a.parquet"),
        ("pelican://localhost:8443/x", "localhost:8443", "/x"),
        ("pelican://host/dir/", "host", "/dir"),
        ("pelican://host", "host", "/"),
        ("osdf:///icecube/a.parquet", "osg-htc.org", "/icecube/a.parquet"),
        ("osdf://icecube/a.parquet", "osg-htc.org", "/icecube/a.parquet"),
    ],
)
def test_addresses_are_read(text: str, federation: str, path: str) -> None:
    assert PelicanUrl.parse(text) == PelicanUrl(federation, path)
    assert is_pelican(text)


@pytest.mark.parametrize(
    "text",
    ["pelican://", "pelican:///x", "https://host/x", "/local/x", "pelican:/host/x", "pelican://user:secret@host/x"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    assert is_pelican(text) == text.startswith("pelican://")
    with pytest.raises(BadInputError, match="expected pelican://HOST/path"):
        PelicanUrl.parse(text)


def go_escaped(path: str) -> str:
    """As Go's url.URL.EscapedPath: it leaves more as it is than we do."""
    return quote(path, safe="$&+,/:;=@")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("write", [escaped, go_escaped])
def test_the_server_is_what_stands_before_the_path_however_it_is_escaped(name: str, write: object) -> None:
    path = f"/ns/{name}"
    assert callable(write)
    assert server_of(f"https://cache:8443{write(path)}", path) == "https://cache:8443"
    assert server_of(f"https://cache:8443{write(path)}?authz=x&directread", path) == "https://cache:8443"


def test_a_prefix_of_the_server_belongs_to_it_and_stays_escaped() -> None:
    path = "/ns/a b.parquet"
    assert server_of("https://cache/api/v1%20beta/ns/a%20b.parquet", path) == "https://cache/api/v1%20beta"
    assert server_of("https://cache/a,b/ns/a%20b.parquet", path) == "https://cache/a%2Cb"


@pytest.mark.parametrize(
    "url",
    [
        "https://cache/ns/other.parquet",
        "https://cache/ns/a.parquet/more",
        "https://cache",
        "cache/ns/a.parquet",
        "",
        "https://cache/?path=/ns/a.parquet",
    ],
)
def test_the_address_of_something_else_has_no_server(url: str) -> None:
    assert server_of(url, "/ns/a.parquet") is None
