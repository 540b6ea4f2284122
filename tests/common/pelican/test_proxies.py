"""Proxies of the environment are used; ~/.netrc is not, whatever it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from federation.federation import Federation
from federation.loop import LoopThread
from yarl import URL

from common.config import PelicanConfig
from common.pelican.answers import UnavailableError
from common.pelican.client import proxy_for
from common.pelican.threads import PelicanThread
from common.pelican.transfers import upload

Connect = Callable[..., PelicanThread]


class Proxy:
    """Opens a tunnel to wherever it is asked for, and keeps what it was asked with."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self._loop = LoopThread()
        self._server = self._loop.run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        host, _, port = head.split()[1].rpartition(":")
        there, to_there = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_pipe(reader, to_there), _pipe(there, writer), return_exceptions=True)

    def close(self) -> None:
        if self._server.is_serving():
            self._loop.loop.call_soon_threadsafe(self._server.close)
            self._loop.stop()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine localhost login me password s3cret\ndefault login me password s3cret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(netrc))
    return tmp_path


@pytest.fixture
def proxy(home: Path) -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


def all_kinds_of_requests(federation: Federation, connect: Connect, folder: Path) -> None:
    """Discovery, director, listing, HEAD, GET and PUT."""
    federation.put("/public/n/a.bin", b"12345")
    (folder / "file").write_bytes(b"x")
    thread = connect(PelicanConfig(checksums="origin"))
    assert len(thread.expand(federation.url("/public/n/*.bin"), (".bin",))) == 1
    thread.download(federation.url("/public/n/a.bin"), folder / "a", 5)
    with pytest.raises(Exception, match="refuses to write"):
        thread.run(lambda one: upload(one, "/public/n/b", folder / "file"), federation.url("/public/n"))


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY", "http_proxy"])
def test_what_stands_in_netrc_goes_to_no_server_and_to_no_proxy(
    federation: Federation, connect: Connect, home: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, proxy.url)
    all_kinds_of_requests(federation, connect, home)
    assert {entry["server"] for entry in federation.log} >= {"discovery", "director", "origin", "cache0"}
    assert not any(entry["auth"] for entry in federation.log)
    assert (len(proxy.heads) >= 4) == (name != "http_proxy"), "it was all through the one for https"
    assert not any("authorization" in head.lower() for head in proxy.heads)


def test_a_proxys_own_password_goes_to_the_proxy_and_into_no_message(
    federation: Federation, connect: Connect, home: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", proxy.url.replace("//", "//me:pa55word@"))
    all_kinds_of_requests(federation, connect, home)
    assert all("Proxy-Authorization: Basic" in head for head in proxy.heads)
    assert not any(entry["auth"] for entry in federation.log)
    proxy.close()
    with pytest.raises(UnavailableError) as caught:
        connect(timeout_s=1).expand(federation.url("/public/n/*.bin"), (".bin",))
    assert "pa55word" not in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "url", "expected"),
    [
        ({}, "https://h/p", None),
        ({"https_proxy": "http://p:1"}, "https://h/p", "http://p:1"),
        ({"https_proxy": "http://p:1"}, "http://h/p", None),
        ({"https_proxy": "http://p:1", "no_proxy": ".org"}, "https://h.org:8443/p", None),
        ({"https_proxy": "http://p:1", "no_proxy": "h:8443"}, "https://h:8443/p", None),
        ({"https_proxy": "http://p:1", "no_proxy": "other"}, "https://h/p", "http://p:1"),
    ],
)
def test_the_environments_proxies_and_exceptions_hold(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, expected: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(URL(url)) == (URL(expected) if expected else None)
