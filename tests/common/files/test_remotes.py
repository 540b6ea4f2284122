"""Transfers of remote files, and the redirects that they may follow."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.server
import io
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import tenacity
from yarl import URL

from common.errors import BadInputError, TransientError
from common.files import remotes
from common.files.inputs import _expand_remote
from common.files.remotes import WrongSizeError, fetch, is_internal, name_of, refusal
from common.plan import SourceFile

BODY = bytes(range(256)) * 5000  # more than one chunk


class Server(http.server.ThreadingHTTPServer):
    """Answers with these statuses in turn, then 200; `short` bodies end before the length that was told.

    Whoever asks `localhost` is led to 127.0.0.1.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[int | str] = []
        self.head_status = 200
        self.heads = self.gets = self.sent = 0

    @property
    def source(self) -> SourceFile:
        return SourceFile(f"http://127.0.0.1:{self.server_port}/f.parquet", len(BODY))

    @property
    def leading(self) -> SourceFile:
        return SourceFile(f"http://localhost:{self.server_port}/f.parquet", len(BODY))


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def begin(self, status: int, length: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def leads_away(self) -> bool:
        is_led = self.headers["Host"].startswith("localhost")
        if is_led:
            self.begin(302, 0, Location=self.server.source.url)
        return is_led

    def do_HEAD(self) -> None:
        if not self.leads_away():
            self.server.heads += 1
            self.begin(self.server.head_status, len(BODY))

    def do_GET(self) -> None:
        if self.leads_away():
            return
        self.server.gets += 1
        answer = self.server.answers.pop(0) if self.server.answers else 200
        if isinstance(answer, int) and answer != 200:
            self.send_error(answer)
            return
        if isinstance(answer, str) and answer.startswith("endless"):
            self.send_endlessly(206 if answer == "endless range" else 200)
            return
        self.begin(200, len(BODY))
        self.wfile.write(BODY[:1000] if answer == "short" else BODY)
        self.close_connection = True

    def send_endlessly(self, status: int) -> None:
        self.send_response(status)
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            for _ in range(1 << 10):
                self.wfile.write(bytes(1 << 20))
                self.server.sent += 1 << 20


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch.retry, "wait", tenacity.wait_none())  # type: ignore[attr-defined]


def test_a_file_behind_http_has_its_size_and_its_query_is_part_of_the_url(server: Server) -> None:
    for url in (server.source.url, f"{server.source.url}?set=1"):
        assert list(_expand_remote(url)) == [SourceFile(url, len(BODY))]


@pytest.mark.parametrize("status", [404, 500])
def test_a_file_or_server_that_is_not_there_or_fails_is_named_in_one_line(server: Server, status: int) -> None:
    server.head_status, server.answers = status, [status] * 10
    for url in (server.source.url, "http://127.0.0.1:9/x.parquet"):
        with pytest.raises(BadInputError, match=re.escape(url)) as error:
            list(_expand_remote(url))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("failure", [500, 503, 408, 429, "short"])
def test_a_transfer_that_failed_is_tried_again(server: Server, tmp_path: Path, failure: int | str) -> None:
    server.answers = [failure, failure]
    fetch(server.source, tmp_path / "f.parquet")
    assert (tmp_path / "f.parquet").read_bytes() == BODY
    assert server.gets >= 3


@pytest.mark.parametrize(
    ("failure", "error", "told"),
    [
        *((failure, TransientError, ".") for failure in (503, "short")),
        (404, BadInputError, "does not exist any more"),
        *((failure, BadInputError, "the server refuses it") for failure in (400, 403)),
    ],
)
def test_a_transfer_that_fails_each_time_is_given_up_and_one_that_is_refused_at_once_and_nothing_is_left(
    server: Server, tmp_path: Path, failure: int | str, error: type[Exception], told: str
) -> None:
    server.answers = [failure] * 100
    with pytest.raises(error, match=told):
        fetch(server.source, tmp_path / "f.parquet")
    assert server.gets >= 4 if error is TransientError else server.gets == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_changed_since_the_inventory_is_told(server: Server, tmp_path: Path) -> None:
    with pytest.raises(WrongSizeError, match="more bytes arrive than the inventory's 7"):
        fetch(SourceFile(server.source.url, 7), tmp_path / "f.parquet")
    longer = len(BODY) + 7
    with pytest.raises(WrongSizeError, match=f"{len(BODY)} bytes arrived, the inventory says {longer}"):
        fetch(SourceFile(server.source.url, longer), tmp_path / "f.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answer", ["endless", "endless range"])
def test_a_server_that_never_stops_sending_fills_neither_disk_nor_memory(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    server.answers = [answer] * 10
    written: list[int] = []
    unlink = Path.unlink

    def noting(path: Path, **options: bool) -> None:
        written.append(path.stat().st_size)
        unlink(path, **options)

    monkeypatch.setattr(remotes.Path, "unlink", noting)
    with pytest.raises(WrongSizeError, match="more bytes arrive"):
        fetch(SourceFile(server.source.url, 5_000), tmp_path / "f.parquet")
    assert len(written) == remotes._ATTEMPTS
    assert max(written) <= 5_000
    # Of 1 GB each, what had been on its way: buffers of sockets and of aiohttp.
    assert server.sent < 100 << 20


def test_a_full_disk_is_no_fault_of_the_remote_side(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        name = "f.parquet"

        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(remotes.Path, "open", lambda *args: Full())
    path = tmp_path / "f.parquet"
    with pytest.raises(OSError, match="No space left") as told:
        fetch(server.source, path)
    assert told.value.filename == "f.parquet"
    assert server.gets == 1, "another try would not help"


@pytest.mark.parametrize(
    "url",
    [
        "http://h/../../../../etc/passwd",
        "http://h/\\..\\x",
        "http://h/a\0b",
        "http://h/" + "x" * 5000,
        "http://h/\u2026\u00e9\ud800.parquet",
        "pelican://h/a/../../b",
    ],
)
def test_no_remote_name_leaves_the_cache_directory(tmp_path: Path, url: str) -> None:
    path = tmp_path / name_of(SourceFile(url, 1))
    assert path.resolve().parent == tmp_path.resolve()
    assert not path.name.startswith(".")
    assert len(path.name) < 250
    path.touch()


@pytest.fixture
def public_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine for which `localhost` is a server on the internet."""

    async def internal(host: str) -> bool:
        return host != "localhost"

    monkeypatch.setattr(remotes, "is_internal", internal)


@pytest.mark.usefixtures("public_localhost")
def test_a_server_on_the_internet_leads_no_input_into_this_network(server: Server, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"localhost: its redirect leads to 127\.0\.0\.1, which is inside"):
        fetch(server.leading, tmp_path / "f.parquet")
    with pytest.raises(BadInputError, match=r"can't be listed.*its redirect leads to 127\.0\.0\.1"):
        list(_expand_remote(server.leading.url))
    assert server.gets == server.heads == 0


def test_a_server_in_this_network_may_lead_to_another_one(server: Server, tmp_path: Path) -> None:
    fetch(server.leading, tmp_path / "f.parquet")
    assert (tmp_path / "f.parquet").read_bytes() == BODY


@pytest.mark.usefixtures("public_localhost")
@pytest.mark.parametrize(
    ("origin", "target", "why"),
    [
        ("https://localhost/a", "http://localhost/a", "leaves https"),
        ("http://localhost/a", "https://10.0.0.1/a", "inside of this network"),
        ("http://10.0.0.1/a", "http://10.0.0.2/a", ""),
        ("http://localhost/a", "https://localhost:8443/b", ""),
    ],
)
def test_which_redirects_are_followed(origin: str, target: str, why: str) -> None:
    found = asyncio.run(refusal(URL(origin), URL(target)))
    assert why in found
    assert bool(found) == bool(why)


def test_addresses_are_told_apart_by_who_reaches_them() -> None:
    for host in ("127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "::ffff:127.0.0.1", "localhost", "0.0.0.0"):
        assert asyncio.run(is_internal(host))
    for host in ("8.8.8.8", "2001:4860:4860::8888", "no-such-host.invalid"):
        assert not asyncio.run(is_internal(host))
