"""The director's answers: links with anything in their names, priorities, repeated headers, junk."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from common.pelican.client import single
from common.pelican.director import Sources, parse_sources
from common.pelican.url import escaped, may_get_token

PATH = "/ns/d/a.parquet"


def link(server: str, priority: int | None = None, path: str = PATH) -> str:
    attributes = "" if priority is None else f"; pri={priority}; depth=3"
    return f'<{server}{path}>; rel="duplicate"{attributes}'


def servers(*links: str, path: str = PATH) -> tuple[str, ...]:
    return parse_sources({"Link": ", ".join(links)}, path).servers


def test_servers_come_in_the_order_of_their_priorities() -> None:
    links = (link("https://c:8443", 12), link("https://a", 1), link("https://b", 2))
    assert servers(*links) == ("https://a", "https://b", "https://c:8443")


def test_links_without_a_priority_come_last_in_their_own_order() -> None:
    links = (link("https://x"), link("https://b", 2), link("https://y"), link("https://a", 1))
    assert servers(*links) == ("https://a", "https://b", "https://x", "https://y")


def test_equal_priorities_keep_the_directors_order() -> None:
    assert servers(link("https://z", 1), link("https://a", 1)) == ("https://z", "https://a")


def test_a_server_named_twice_is_asked_once_at_its_better_place() -> None:
    links = (link("https://a", 3), link("https://b", 2), link("https://a", 1))
    assert servers(*links) == ("https://a", "https://b")


@pytest.mark.parametrize("name", ["a,b;c", "x, y", "z; pri=9", "ü,µ", "100%,", "a=b&c", "[1],{2}", "<a>,<b>"])
def test_names_with_commas_and_the_like_do_not_split_a_link(name: str) -> None:
    path = f"/ns/{name}"
    as_written = escaped(path).replace("%2C", ",").replace("%3B", ";").replace("%3D", "=").replace("%26", "&")
    links = (link("https://b", 2, as_written), link("https://a", 1, as_written))
    assert servers(*links, path=path) == ("https://a", "https://b")


def test_queries_of_links_are_left_out_and_prefixes_kept() -> None:
    links = (link("https://a/prefix", 1, f"{PATH}?authz=secret"), link("https://b", 2, f"{PATH}?directread"))
    assert servers(*links) == ("https://a/prefix", "https://b")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "junk",
        "<>",
        "<https://a/ns/d/a.parquet",
        "https://a/ns/d/a.parquet",
        "<https://a/ns/d/other.parquet>; pri=1",
        "<ftp://a/ns/d/a.parquet>; pri=1",
        "<file:///ns/d/a.parquet>; pri=1",
        "</ns/d/a.parquet>; pri=1",
        "<<<>>>,,,;;;pri=pri=",
    ],
)
def test_what_is_no_link_to_the_object_names_no_server(header: str) -> None:
    assert parse_sources({"Link": header}, PATH).servers == ()


@pytest.mark.parametrize("priority", ["x", "", "-1", "1.5", "0x1"])
def test_a_broken_priority_loses_no_server(priority: str) -> None:
    broken = f"<https://a{PATH}>; pri={priority}"
    assert set(servers(broken, link("https://b", 1))) == {"https://a", "https://b"}


def test_junk_beside_good_links_is_passed_over() -> None:
    assert servers("junk", link("https://a", 2), "<ftp://x/y>; pri=1", "<>") == ("https://a",)


def test_links_in_several_headers_count_as_one_list() -> None:
    headers = CIMultiDictProxy(CIMultiDict([("link", link("https://b", 2)), ("Link", link("https://a", 1))]))
    assert parse_sources(single(headers), PATH).servers == ("https://a", "https://b")


def test_header_names_in_lower_case_are_found() -> None:
    headers = CIMultiDictProxy(CIMultiDict([("x-pelican-namespace", "namespace=/ns, require-token=true")]))
    assert parse_sources(single(headers), PATH).namespace == "/ns"


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
        token_generation="issuer=https://issuer, max-scope-depth=3, strategy=OAuth2, base-path=/ns",
        issuers=("https://issuer",),
    )


@pytest.mark.parametrize("header", ["", "junk", "namespace", "namespace=", "require-token=true", ",,,", "=, ="])
def test_a_namespace_header_of_junk_is_as_good_as_none(header: str) -> None:
    assert parse_sources({"X-Pelican-Namespace": header}, PATH) == parse_sources({}, PATH)


def test_an_answer_without_headers_names_nothing() -> None:
    assert parse_sources({}, PATH) == Sources((), "", False, "", "")


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
