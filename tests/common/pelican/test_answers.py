"""Checksums and the director's headers."""

from __future__ import annotations

import base64
import hashlib

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from common.errors import BadInputError
from common.pelican.answers import hasher, matches, scope_base_path
from common.pelican.client import Sources, parse_sources, single
from common.pelican.url import escaped, may_get_token

CONTENT = bytes(range(256)) * 40
MD5 = hashlib.md5(CONTENT).hexdigest()


def is_checksum_of(checksum: str, content: bytes) -> bool:
    found = hasher(checksum)
    found.update(content[:100])
    found.update(content[100:])
    return matches(checksum, found)


@pytest.mark.parametrize(
    ("checksum", "content"),
    [
        ("adler32=11e60398", b"Wikipedia"),
        ("crc32=cbf43926", b"123456789"),
        ("md5=900150983cd24fb0d6963f7d28e17f72", b"abc"),
        ("sha1=a9993e364706816aba3e25717850c26c9cd0d89d", b"abc"),
        ("sha256=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", b""),
        ("adler32=620062", b"a"),  # 00620062, without its leading zeros
    ],
)
def test_published_values_match(checksum: str, content: bytes) -> None:
    algorithm, _, value = checksum.partition("=")
    assert is_checksum_of(checksum, content)
    assert is_checksum_of(f"{algorithm}= {value.upper()} ", content)
    assert not is_checksum_of(checksum, content + b"x")


def test_md5_is_taken_in_base64_as_digest_headers_have_it() -> None:
    value = base64.b64encode(hashlib.md5(CONTENT).digest()).decode()
    assert is_checksum_of(f"md5={value}", CONTENT)
    assert not is_checksum_of(f"md5={value}", CONTENT + b"x")


def test_an_unknown_algorithm_is_refused_with_those_that_are_known() -> None:
    for checksum in ("crc64=00", "MD5=00", ""):
        with pytest.raises(BadInputError, match="expected adler32"):
            hasher(checksum)


@pytest.mark.parametrize("value", ["", "xyz", "0", MD5[:-1], MD5 + "0", "not base64!"])
def test_what_is_no_value_of_the_algorithm_matches_nothing(value: str) -> None:
    assert not is_checksum_of(f"md5={value}", CONTENT)


PATH = "/ns/d/a.parquet"


def link(server: str, priority: int | str | None = None, path: str = PATH) -> str:
    attributes = "" if priority is None else f"; pri={priority}; depth=3"
    return f'<{server}{path}>; rel="duplicate"{attributes}'


def servers(*links: str, path: str = PATH) -> tuple[str, ...]:
    return parse_sources({"Link": ", ".join(links)}, path).servers


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ([("c:8443", "12"), ("a", "1"), ("b", "2")], ["a", "b", "c:8443"]),
        ([("x", None), ("b", "2"), ("y", None), ("a", "1")], ["a", "b", "x", "y"]),
        ([("z", "1"), ("a", "1")], ["z", "a"]),
        ([("a", "3"), ("b", "2"), ("a", "1")], ["a", "b"]),
        *(([("a", priority), ("b", "1")], ["b", "a"]) for priority in ("x", "", "-1")),
    ],
)
def test_servers_come_once_in_the_order_of_their_priorities_then_in_that_of_the_director(
    links: list[tuple[str, str | None]], expected: list[str]
) -> None:
    texts = [link(f"https://{host}", priority) for host, priority in links]
    assert servers("junk", *texts, "<ftp://x/y>; pri=1", "<>") == tuple(f"https://{host}" for host in expected)


@pytest.mark.parametrize("name", ["a,b;c", "x, y", "z; pri=9", "ü,µ", "100%,", "a=b&c", "[1],{2}", "<a>,<b>"])
def test_names_with_commas_and_the_like_do_not_split_a_link(name: str) -> None:
    path = f"/ns/{name}"
    as_written = escaped(path).replace("%2C", ",").replace("%3B", ";").replace("%3D", "=").replace("%26", "&")
    links = (link("https://b", 2, as_written), link("https://a", 1, as_written))
    assert servers(*links, path=path) == ("https://a", "https://b")


def test_queries_of_links_are_left_out_and_prefixes_kept() -> None:
    links = (link("https://a/prefix", 1, f"{PATH}?authz=secret"), link("https://b", 2, f"{PATH}?directread"))
    assert servers(*links) == ("https://a/prefix", "https://b")


def test_links_in_several_headers_count_as_one_list() -> None:
    headers = CIMultiDictProxy(CIMultiDict([("link", link("https://b", 2)), ("Link", link("https://a", 1))]))
    assert parse_sources(single(headers), PATH).servers == ("https://a", "https://b")


def test_the_namespace_says_whether_a_token_is_needed_and_who_lists() -> None:
    headers = {
        "Link": link("https://a", 1),
        "X-Pelican-Namespace": "namespace=/ns, require-token=True, collections-url=https://origin:8443/",
        "X-Pelican-Token-Generation": "issuer=https://issuer, max-scope-depth=3, strategy=OAuth2, base-path=/ns",
    }
    assert parse_sources(headers, PATH) == Sources(
        servers=("https://a",),
        namespace="/ns",
        require_token=True,
        collections="https://origin:8443",
        base_path="/ns",
        issuers=("https://issuer",),
    )


def test_a_server_without_tls_is_left_out_where_a_token_is_needed() -> None:
    links = ", ".join([link("http://plain", 1), link("http://localhost:8000", 2), link("https://tls", 3)])
    needed = {"Link": links, "X-Pelican-Namespace": "namespace=/ns, require-token=true, collections-url=http://plain"}
    free = {"Link": links, "X-Pelican-Namespace": "namespace=/ns, require-token=false, collections-url=http://plain"}
    for sources in (parse_sources(needed, PATH), parse_sources(free, PATH, writes=True)):
        assert sources.servers == ("http://localhost:8000", "https://tls")
        assert sources.collections == ""
    assert parse_sources(free, PATH).servers == ("http://plain", "http://localhost:8000", "https://tls")
    assert parse_sources(free, PATH).collections == "http://plain"


@pytest.mark.parametrize(
    "server", ["http://localhost.evil.org", "http://127.0.0.1.evil.org", "ftp://localhost", "", "x"]
)
def test_a_token_goes_to_no_host_that_only_looks_like_this_one(server: str) -> None:
    assert not may_get_token(server)


@pytest.mark.parametrize(
    ("header", "base_path"),
    [
        ("issuer=https://i, max-scope-depth=3, strategy=OAuth2, base-path=/ns", "/ns"),
        ("issuer=https://i, strategy=Vault, base-path=/ns", ""),
        ("base-path=/ns", ""),
        ("issuer=https://i, base-path=ns", ""),
        ("", ""),
    ],
)
def test_what_scopes_leave_out_is_told_by_the_director(header: str, base_path: str) -> None:
    assert scope_base_path(header) == base_path
