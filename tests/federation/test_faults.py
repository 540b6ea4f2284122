"""Every fault does what docs/development/local-federation.md says, seen by a bare client, with both kinds of server."""

from __future__ import annotations

import os

import aiohttp
import pytest

from .client import with_client
from .faults import HOSTILE_NAMES, Fault
from .federation import Federation
from .proxy import FaultProxy

CONTENT = os.urandom(600_000)
PATH = "/public/faults/file.bin"


@pytest.fixture(autouse=True)
def file(federation: Federation) -> None:
    if not (federation.root / PATH.lstrip("/")).exists():
        federation.put(PATH, CONTENT)


def got(federation: Federation, url: str, read_s: float = 30, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    """Status and what arrived of the body; an error is raised with the connection's own type."""

    async def ask(session: aiohttp.ClientSession) -> tuple[int, bytes]:
        async with session.request(method, url, headers=headers, allow_redirects=False) as answer:
            return answer.status, await answer.read()

    return with_client(federation.certs, ask, read_s)


def arrived(federation: Federation, url: str, read_s: float = 30) -> tuple[int, str]:
    """Bytes that came before the body ended, and how it ended."""

    async def ask(session: aiohttp.ClientSession) -> tuple[int, str]:
        count = 0
        try:
            async with session.get(url) as answer:
                async for chunk in answer.content.iter_any():
                    count += len(chunk)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            return count, type(error).__name__
        return count, "whole"

    return with_client(federation.certs, ask, read_s)


def test_without_a_fault_every_byte_arrives(federation: Federation) -> None:
    for server in [federation.origin, *federation.caches]:
        assert got(federation, server.url + PATH) == (200, CONTENT)
        assert got(federation, server.url + PATH, Range="bytes=5-99") == (206, CONTENT[5:100])


@pytest.mark.parametrize("code", [403, 404, 429, 500])
def test_a_status_is_answered_as_often_as_asked(federation: Federation, code: int) -> None:
    cache = federation.caches[0]
    cache.fault("status", code, match="file", times=1)
    assert got(federation, cache.url + PATH)[0] == code
    assert got(federation, cache.url + PATH)[0] == 200
    assert [entry["status"] for entry in federation.log] == [code, 200]


def test_a_hang_says_nothing(federation: Federation) -> None:
    fault = federation.caches[0].fault("hang")
    with pytest.raises(TimeoutError):
        got(federation, federation.caches[0].url + PATH, read_s=0.2)
    assert fault.happened.is_set()


def test_a_disconnect_comes_before_the_first_byte(federation: Federation) -> None:
    federation.caches[0].fault("disconnect", methods=("GET", "HEAD"))
    with pytest.raises((aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):  # closed, or reset by TLS
        got(federation, federation.caches[0].url + PATH)


@pytest.mark.parametrize("kind", ["short", "reset"])
def test_a_body_that_breaks_off_is_an_error(federation: Federation, kind: str) -> None:
    for cache in federation.caches:
        cache.fault(kind, 300_000)
        count, end = arrived(federation, cache.url + PATH)
        assert count == 300_000 if kind == "short" else count <= 300_000
        assert end in ("ClientPayloadError", "ClientOSError", "ClientConnectionResetError", "ServerDisconnectedError")


def test_a_stall_keeps_the_connection(federation: Federation) -> None:
    federation.caches[0].fault("stall", 1000)
    assert arrived(federation, federation.caches[0].url + PATH, read_s=0.3) == (1000, "SocketTimeoutError")


def test_a_lie_is_a_whole_answer_of_wrong_length(federation: Federation) -> None:
    federation.caches[0].fault("lie", 1000)
    assert got(federation, federation.caches[0].url + PATH) == (200, CONTENT[:1000])


def test_one_byte_of_the_file_is_corrupt_whatever_range_is_asked_for(federation: Federation) -> None:
    federation.caches[0].fault("corrupt", 300_000)
    url = federation.caches[0].url + PATH
    _, body = got(federation, url)
    assert [i for i in range(len(CONTENT)) if body[i] != CONTENT[i]] == [300_000]
    _, part = got(federation, url, Range="bytes=299990-300009")
    assert [i for i in range(20) if part[i] != CONTENT[299_990 + i]] == [10]


def test_a_slow_body_arrives_whole(federation: Federation) -> None:
    fault = federation.caches[0].fault("slow", 2_000_000)
    assert got(federation, federation.caches[0].url + PATH) == (200, CONTENT)
    assert fault.hits == 1


def test_hostile_names_are_in_the_listing(federation: Federation) -> None:
    federation.origin.fault("names", methods=("PROPFIND",))
    status, body = got(federation, federation.origin.url + "/public/faults", method="PROPFIND", Depth="1")
    assert status == 207
    for name in HOSTILE_NAMES:
        href = name if name.startswith("/") else f"/public/faults/{name}"
        assert f"<D:href>{href}</D:href>".encode() in body
    assert b"file.bin</D:href>" in body


def test_a_listing_hangs_fails_and_disconnects(federation: Federation) -> None:
    url = federation.origin.url + "/public/faults"
    federation.origin.fault("hang", methods=("PROPFIND",), times=1)
    with pytest.raises(TimeoutError):
        got(federation, url, read_s=0.2, method="PROPFIND", Depth="1")
    federation.origin.fault("status", 503, methods=("PROPFIND",), times=1)
    assert got(federation, url, method="PROPFIND", Depth="1")[0] == 503
    federation.origin.fault("disconnect", methods=("PROPFIND",), times=1)
    with pytest.raises(aiohttp.ServerDisconnectedError):
        got(federation, url, method="PROPFIND", Depth="1")
    assert got(federation, url, method="PROPFIND", Depth="1")[0] == 207


@pytest.mark.parametrize("which", ["cache", "director"])
def test_a_killed_server_refuses_connections_until_it_is_back(federation: Federation, which: str) -> None:
    server = federation.director if which == "director" else federation.caches[0]
    before = got(federation, server.url + PATH)[0]
    server.kill()
    with pytest.raises(aiohttp.ClientConnectorError):
        got(federation, server.url + PATH)
    server.restart()
    assert got(federation, server.url + PATH)[0] == before


def test_a_frozen_cache_is_silent_until_it_is_back(federation: Federation) -> None:
    cache = federation.caches[0]
    cache.freeze()
    with pytest.raises(TimeoutError):
        got(federation, cache.url + PATH, read_s=0.2)
    cache.restart()
    assert got(federation, cache.url + PATH) == (200, CONTENT)


def test_the_director_answers_wrongly(federation: Federation) -> None:
    director = federation.director
    director.fault("html", times=1)
    assert got(federation, director.url + PATH) == (200, b"<html>Welcome</html>")
    director.fault("no-link", times=1)
    assert got(federation, director.url + PATH) == (307, b"")
    director.fault("nowhere", times=1)
    assert b"localhost:1/" in got(federation, director.url + PATH)[1]
    director.fault("status", 503, times=1)
    assert got(federation, director.url + PATH)[0] == 503
    director.fault("hang")
    with pytest.raises(TimeoutError):
        got(federation, director.url + PATH, read_s=0.2)
    assert got(federation, director.url + "/.well-known/pelican-configuration")[0] == 200


def test_discovery_is_wrong(federation: Federation) -> None:
    url = federation.director.url + "/.well-known/pelican-configuration"
    assert b"director_endpoint" in got(federation, url)[1]
    federation.director.fault("no-director", match="pelican-configuration", times=1)
    status, body = got(federation, url)
    assert status == 200
    assert b"director_endpoint" not in body
    federation.director.fault("html", match="pelican-configuration", times=1)
    assert got(federation, url)[1].startswith(b"<html>")
    federation.director.fault("status", 404, match="pelican-configuration", times=1)
    assert got(federation, url)[0] == 404


@pytest.mark.parametrize("started_federation", ["xrootd"], indirect=True)
def test_a_byte_is_corrupted_on_a_caches_disk(federation: Federation) -> None:
    cache = federation.caches[0]
    assert isinstance(cache, FaultProxy)
    federation.put("/public/faults/disk.bin", CONTENT)
    url = cache.url + "/public/faults/disk.bin"
    assert got(federation, url) == (200, CONTENT)
    cache.kill()  # what it holds in memory is written or lost; what is on disk is read again
    cache.restart()
    assert got(federation, url) == (200, CONTENT)
    cache.process.corrupt_on_disk("/public/faults/disk.bin", 1000)
    cache.kill()
    cache.restart()
    _, body = got(federation, url)
    assert [i for i in range(len(CONTENT)) if body[i] != CONTENT[i]] == [1000]


def test_a_fault_of_chance_hits_the_same_requests_for_the_same_seed() -> None:
    def hits(seed: int) -> list[bool]:
        fault = Fault("status", 500, chance=0.3, seed=seed)
        return [fault.applies("GET", "/x") for _ in range(1000)]

    assert hits(1) == hits(1) != hits(2)
    assert 200 < sum(hits(1)) < 400


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="one of"):
        Fault("statu")
