"""Redirects of web servers: where an input may be led."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from yarl import URL

from common.errors import BadInputError
from common.files import redirects
from common.files.inputs import _expand_remote
from common.files.redirects import http_options, is_internal, refusal
from common.files.transfer import fetch
from common.plan import SourceFile


class Leads(http.server.BaseHTTPRequestHandler):
    """Leads from `localhost` to 127.0.0.1, and notes who comes there."""

    came: list[str]

    def do_GET(self) -> None:
        if self.headers["Host"].startswith("127"):
            self.came.append(self.path)
            self.send_response(200)
        else:
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/latest/meta-data")  # type: ignore[attr-defined]
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Leads.came = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Leads) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://localhost:{running.server_port}/f.parquet"
        running.shutdown()
        thread.join()


@pytest.fixture
def public_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine for which `localhost` is a server on the internet."""

    async def internal(host: str) -> bool:
        return host != "localhost"

    monkeypatch.setattr(redirects, "is_internal", internal)


@pytest.mark.usefixtures("public_localhost")
def test_a_server_on_the_internet_leads_no_input_into_this_network(server: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"localhost: its redirect leads to 127\.0\.0\.1, which is inside"):
        fetch(SourceFile(server, 10), tmp_path / "f.parquet")
    with pytest.raises(BadInputError, match=r"can't be listed.*its redirect leads to 127\.0\.0\.1"):
        list(_expand_remote(server))
    assert Leads.came == []


def test_a_server_in_this_network_may_lead_to_another_one(server: str, tmp_path: Path) -> None:
    fetch(SourceFile(server, 0), tmp_path / "f.parquet")
    assert set(Leads.came) == {"/latest/meta-data"}


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


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "localhost", "0.0.0.0"],
)
def test_addresses_that_only_this_network_reaches(host: str) -> None:
    assert asyncio.run(is_internal(host))


@pytest.mark.parametrize("host", ["8.8.8.8", "2001:4860:4860::8888", "no-such-host.invalid"])
def test_addresses_that_the_internet_reaches_or_that_only_a_proxy_knows(host: str) -> None:
    assert not asyncio.run(is_internal(host))


def test_other_addresses_have_no_options() -> None:
    assert http_options("s3://a/b") == {}
    assert http_options("http://a/b") == http_options("https://c/d") != {}
