from __future__ import annotations

import contextlib
import errno
import http.server
import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import tenacity

from common.errors import BadInputError, TransientError
from common.files import transfer
from common.files.transfer import WrongSizeError, cache_path, fetch
from common.plan import SourceFile

BODY = bytes(range(256)) * 5000  # more than one chunk


class Server(http.server.ThreadingHTTPServer):
    """Answers with these statuses in turn, then 200; `short` bodies end before the length that was told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[int | str] = []
        self.gets = self.sent = 0

    @property
    def source(self) -> SourceFile:
        return SourceFile(f"http://127.0.0.1:{self.server_port}/f.parquet", len(BODY))


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()

    def do_GET(self) -> None:
        self.server.gets += 1
        answer = self.server.answers.pop(0) if self.server.answers else 200
        if isinstance(answer, int) and answer != 200:
            self.send_error(answer)
            return
        if isinstance(answer, str) and answer.startswith("endless"):
            self.send_endlessly(206 if answer == "endless range" else 200)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
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


def test_a_file_arrives_in_full_under_its_name(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "ab" / "f.parquet"
    fetch(server.source, path)
    assert path.read_bytes() == BODY
    assert [p.name for p in path.parent.iterdir()] == ["f.parquet"]


def test_what_is_there_already_is_written_anew(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    path.write_bytes(b"x")
    fetch(server.source, path)
    assert path.read_bytes() == BODY


@pytest.mark.parametrize("failure", [500, 503, 408, 429, "short"])
def test_a_transfer_that_failed_is_tried_again(server: Server, tmp_path: Path, failure: int | str) -> None:
    server.answers = [failure, failure]
    fetch(server.source, tmp_path / "f.parquet")
    assert (tmp_path / "f.parquet").read_bytes() == BODY
    assert server.gets >= 3


@pytest.mark.parametrize("failure", [503, "short"])
def test_a_transfer_that_fails_each_time_is_given_up_and_leaves_nothing(
    server: Server, tmp_path: Path, failure: int | str
) -> None:
    server.answers = [failure] * 100
    with pytest.raises(TransientError):
        fetch(server.source, tmp_path / "f.parquet")
    assert list(tmp_path.iterdir()) == []
    assert server.gets >= 4


def test_a_file_that_is_gone_is_not_tried_again(server: Server, tmp_path: Path) -> None:
    server.answers = [404] * 100
    with pytest.raises(BadInputError, match="does not exist any more"):
        fetch(server.source, tmp_path / "f.parquet")
    assert server.gets == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", [400, 401, 403])
def test_a_file_that_the_server_refuses_is_not_tried_again(server: Server, tmp_path: Path, failure: int) -> None:
    server.answers = [failure] * 100
    with pytest.raises(BadInputError, match="the server refuses it"):
        fetch(server.source, tmp_path / "f.parquet")
    assert server.gets == 1
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_gone_is_transient(tmp_path: Path) -> None:
    with pytest.raises(TransientError):
        fetch(SourceFile("http://127.0.0.1:9/f.parquet", 5), tmp_path / "f.parquet")
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

    monkeypatch.setattr(transfer.Path, "unlink", noting)
    with pytest.raises(WrongSizeError, match="more bytes arrive"):
        fetch(SourceFile(server.source.url, 5_000), tmp_path / "f.parquet")
    assert len(written) == transfer._ATTEMPTS
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

    monkeypatch.setattr(transfer.Path, "open", lambda *args: Full())
    path = tmp_path / "f.parquet"
    with pytest.raises(OSError, match="No space left") as told:
        fetch(server.source, path)
    assert told.value.filename == "f.parquet"
    assert server.gets == 1, "another try would not help"


def test_a_folder_that_vanished_is_not_taken_for_a_file_that_the_server_has_not(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer.Path, "mkdir", lambda *args, **settings: None)
    with pytest.raises(FileNotFoundError):
        fetch(server.source, tmp_path / "nowhere" / "f.parquet")
    assert server.gets == 0


@pytest.mark.parametrize(
    "url",
    [
        "http://h/../../../../etc/passwd",
        "http://h/..",
        "http://h/a/.bashrc",
        "http://h/..%2f..%2fx",
        "http://h/\\..\\x",
        "http://h/a\0b",
        "http://h/" + "x" * 5000,
        "http://h/a b, %c%2f%00.parquet",
        "http://h/\u2026\u00e9\ud800.parquet",
        "http://h/x\n.parquet",
        "pelican://h/a/../../b",
        "memory://x/~root",
    ],
)
def test_no_remote_name_leaves_the_cache_directory(tmp_path: Path, url: str) -> None:
    path = cache_path(tmp_path, SourceFile(url, 1))
    assert path.resolve().parent.parent == tmp_path.resolve()
    assert not path.name.startswith(".")
    assert len(path.name) < 250
    path.parent.mkdir()
    path.touch()


def test_equal_names_of_other_folders_have_other_places(tmp_path: Path) -> None:
    places = {cache_path(tmp_path, SourceFile(f"http://h/{folder}/f.parquet", 1)) for folder in "abc"}
    assert len(places) == 3
    assert all(path.name.endswith("-f.parquet") for path in places)
