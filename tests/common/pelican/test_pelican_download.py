"""Downloads from the local federation, light and XRootD alike: each fault has a stated outcome."""

from __future__ import annotations

import hashlib
import os
import random
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from federation.federation import Federation
from federation.fixtures import BOTH_KINDS

from common.config import PelicanConfig
from common.pelican.answers import CorruptError, DeniedError, NotFoundError, UnavailableError
from common.pelican.client import TIMEOUT_S
from common.pelican.threads import ClosedError, PelicanThread
from common.pelican.token_claims import Recipient

SIZE = 3_000_000
CONTENT = random.Random(1).randbytes(SIZE)
MD5 = "md5=" + hashlib.md5(CONTENT).hexdigest()
ADLER32 = f"adler32={zlib.adler32(CONTENT):08x}"
SHORT_S = 2.0
"""Timeout for servers that never answer; of a loaded machine others may be silent for a while."""

Make = Callable[..., PelicanThread]


class Tokens:
    """Tokens one after the other: each refusal brings the next."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)

    def current(self, recipient: Recipient) -> str | None:
        return self.tokens[0] if self.tokens else None

    def refused(self, token: str | None, recipient: Recipient) -> bool:
        if token == (self.tokens[0] if self.tokens else None) and len(self.tokens) > 1:
            self.tokens.pop(0)
            return True
        return False

    def describe(self) -> str:
        return "a token of the test"

    def not_covered(self) -> str:
        return ""


@pytest.fixture
def pelican(connect: Make) -> Make:
    def make(*tokens: str, checksums: str = "inventory", timeout_s: float = TIMEOUT_S) -> PelicanThread:
        source: Any = Tokens(*tokens)
        config = PelicanConfig.model_validate({"checksums": checksums})
        return connect(config, lambda host: source, timeout_s=timeout_s)

    return make


@pytest.fixture
def url(federation: Federation, request: pytest.FixtureRequest) -> str:
    path = f"/public/dl/{abs(hash(request.node.name))}.bin"  # a name of its own: Pfc caches keep what they have
    federation.put(path, CONTENT)
    return federation.url(path)


def fetched(thread: PelicanThread, url: str, part: Path, **more: object) -> list[str]:
    """What the attempts said, without the server."""
    attempts = thread.download(url, part, SIZE, **more)  # type: ignore[arg-type]
    assert part.read_bytes() == CONTENT
    return [attempt.split(": ", 1)[1] for attempt in attempts]


@BOTH_KINDS
def test_a_file_comes_with_one_request_and_its_neighbours_need_no_director(
    federation: Federation, pelican: Make, url: str, tmp_path: Path
) -> None:
    thread = pelican()
    assert fetched(thread, url, tmp_path / "a") == ["ok"]
    first = [(entry["server"], entry["method"]) for entry in federation.log]
    assert first == [("discovery", "GET"), ("director", "GET"), ("cache0", "GET")]
    federation.log.clear()
    assert fetched(thread, url, tmp_path / "b") == ["ok"]
    assert [(entry["server"], entry["method"]) for entry in federation.log] == [("cache0", "GET")]


@pytest.mark.parametrize(
    ("kind", "value", "first"),
    [
        ("status", 404, "404"),
        ("status", 403, "403"),
        ("hang", 0, "TimeoutError|SocketTimeoutError"),
        ("disconnect", 0, "ServerDisconnectedError"),
        ("reset", 1_000_000, "Client|Connection"),
        ("short", 1_000_000, "ClientPayloadError"),
        ("stall", 1_000_000, "TimeoutError|SocketTimeoutError"),
        ("lie", 1_000_000, "offers 1000000 bytes"),
    ],
)
def test_one_bad_cache_costs_one_attempt(
    federation: Federation, pelican: Make, url: str, tmp_path: Path, kind: str, value: float, first: str
) -> None:
    fault = federation.caches[0].fault(kind, value)
    bad, ok = fetched(pelican(timeout_s=SHORT_S if kind in ("hang", "stall") else TIMEOUT_S), url, tmp_path / "a")
    assert ok == "ok"
    assert any(text in bad for text in first.split("|")), bad
    assert fault.hits in (1, 2), "aiohttp itself asks again once where a kept connection was closed"


@BOTH_KINDS
def test_a_transfer_goes_on_where_the_last_server_broke_off(
    federation: Federation, pelican: Make, url: str, tmp_path: Path
) -> None:
    federation.caches[0].fault("short", 1_000_000)
    fetched(pelican(), url, tmp_path / "a")
    ranges = [entry["range"] for entry in federation.log if entry["server"] == "cache1"]
    assert len(ranges) == 1
    assert ranges[0].startswith("bytes=")
    begin, end = ranges[0].removeprefix("bytes=").split("-")
    assert 0 < int(begin) <= 1_000_000
    assert int(end) == SIZE - 1, "a range without end gives nothing from XRootD"


@BOTH_KINDS
@pytest.mark.parametrize(("checksums", "known"), [("inventory", MD5), ("origin", "")])
def test_a_corrupted_byte_is_found_by_the_checksum_of_the_list_or_the_origin_and_the_file_comes_from_elsewhere(
    federation: Federation, pelican: Make, url: str, tmp_path: Path, checksums: str, known: str
) -> None:
    federation.caches[0].fault("corrupt", 1_234_567)
    bad, ok = fetched(pelican(checksums=checksums), url, tmp_path / "a", checksum=known)
    assert (ok, f"expected {known or ADLER32}" in bad) == ("ok", True)


def test_what_is_corrupt_everywhere_is_bad_for_good_and_nothing_of_it_is_kept(
    federation: Federation, pelican: Make, url: str, tmp_path: Path
) -> None:
    for cache in federation.caches:
        cache.fault("corrupt", 5)
    with pytest.raises(CorruptError, match=r"no source has the 3000000 bytes.*cache|localhost") as error:
        pelican().download(url, tmp_path / "a", SIZE, MD5)
    assert len(error.value.attempts) == 4
    assert (tmp_path / "a").stat().st_size == 0


def test_a_file_of_another_size_than_the_inventory_says_is_bad(pelican: Make, url: str, tmp_path: Path) -> None:
    for size in (SIZE - 7, SIZE + 7):
        with pytest.raises(CorruptError, match=f"no source has the {size} bytes"):
            pelican().download(url, tmp_path / f"{size}", size)


@pytest.mark.parametrize(
    ("path", "told", "attempts"),
    [
        ("/public/dl/never.bin", "no source has it", 4),  # every cache, twice
        ("/nowhere/x.bin", r"the director .* knows no such object or namespace", 0),
    ],
)
def test_what_is_not_there_is_not_found_in_the_words_of_whoever_says_so(
    federation: Federation, pelican: Make, tmp_path: Path, path: str, told: str, attempts: int
) -> None:
    with pytest.raises(NotFoundError, match=told) as error:
        pelican().download(federation.url(path), tmp_path / "a", 5)
    assert len(error.value.attempts) == attempts


def test_dead_caches_are_unavailable_and_what_came_stays_for_the_next_try(
    federation: Federation, pelican: Make, url: str, tmp_path: Path
) -> None:
    federation.caches[0].fault("short", 2_000_000, times=1)
    federation.caches[0].fault("status", 500)
    federation.caches[1].fault("status", 503)
    with pytest.raises(UnavailableError) as error:
        pelican().download(url, tmp_path / "a", SIZE)
    assert {"500", "503"} & {attempt.rpartition(" ")[2] for attempt in error.value.attempts}
    assert 0 < (tmp_path / "a").stat().st_size < SIZE
    federation.heal()
    fetched(pelican(), url, tmp_path / "a")


@pytest.fixture
def private(federation: Federation, request: pytest.FixtureRequest) -> str:
    path = f"/private/dl/{abs(hash(request.node.name))}.bin"
    federation.put(path, CONTENT)
    return federation.url(path)


@BOTH_KINDS
def test_a_token_is_sent_as_a_header_to_a_namespace_that_asks_for_one_and_to_no_other(
    federation: Federation, pelican: Make, private: str, url: str, tmp_path: Path
) -> None:
    token = federation.issuer.mint("storage.read:/")
    thread = pelican(token)
    assert fetched(thread, private, tmp_path / "a") == ["ok"]
    federation.log.clear()
    assert fetched(thread, url, tmp_path / "b") == ["ok"]
    assert not any(entry["auth"] for entry in federation.log)
    assert not any(token in str(entry["query"]) for entry in federation.log)


@pytest.mark.parametrize("scope", [None, "storage.read:/elsewhere"])
def test_a_missing_token_and_one_of_another_scope_are_told_from_dead_caches(
    federation: Federation, pelican: Make, private: str, tmp_path: Path, scope: str | None
) -> None:
    tokens = [federation.issuer.mint(scope)] if scope else []
    with pytest.raises(DeniedError, match=r"refused by every source; a token of the test .*403") as error:
        pelican(*tokens).download(private, tmp_path / "a", SIZE)
    assert not any(token in str(error.value) for token in tokens)


def test_an_expired_token_is_replaced_by_the_next_one_at_once(
    federation: Federation, pelican: Make, private: str, tmp_path: Path
) -> None:
    expired, good = federation.issuer.mint("storage.read:/", ttl=-100), federation.issuer.mint("storage.read:/")
    assert fetched(pelican(expired, good), private, tmp_path / "a") == ["ok"]


@BOTH_KINDS
@pytest.mark.parametrize("name", ["with space", "a%41b", "a,b;c", "ü-µ-∇ a=b&c+d@e~'()[1]", "#hash q?x=1"])
def test_names_of_every_kind_come(federation: Federation, pelican: Make, tmp_path: Path, name: str) -> None:
    if federation.kind == "xrootd" and any(sign in name for sign in "%#?"):
        pytest.skip("XRootD itself does not serve such names over HTTP")
    federation.put(f"/public/names/{name}.bin", CONTENT)
    assert fetched(pelican(), federation.url(f"/public/names/{name}.bin"), tmp_path / "a") == ["ok"]


def test_an_empty_file_is_a_file(federation: Federation, pelican: Make, tmp_path: Path) -> None:
    federation.put("/public/dl/empty.bin", b"")
    assert pelican().download(federation.url("/public/dl/empty.bin"), tmp_path / "a", 0)[-1].endswith(": ok")
    assert (tmp_path / "a").stat().st_size == 0


def test_a_full_disk_is_our_problem_and_not_the_servers(
    pelican: Make, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="No space left") as error:
        pelican().download(url, tmp_path / "a", SIZE)
    assert error.value.filename == str(tmp_path / "a")


def test_a_certificate_that_is_not_trusted_is_told_with_the_cure(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with (
        closing(PelicanThread(PelicanConfig())) as thread,
        pytest.raises(UnavailableError, match=r"certificate is not trusted.*SSL_CERT_FILE"),
    ):
        thread.download(federation.url("/public/x"), tmp_path / "a", 1)


def test_close_ends_what_hangs_and_a_later_call_is_told(
    federation: Federation, pelican: Make, url: str, tmp_path: Path
) -> None:
    fault = federation.caches[0].fault("hang")
    thread = pelican()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(thread.download, url, tmp_path / "a", SIZE)
        assert fault.happened.wait(20)
        thread.close()
        with pytest.raises(ClosedError):
            waiting.result(20)
    with pytest.raises(ClosedError):
        thread.download(url, tmp_path / "a", SIZE)


def test_no_more_transfers_run_than_allowed(federation: Federation, connect: Make, url: str, tmp_path: Path) -> None:
    fault = federation.caches[0].fault("hang", 0.2)
    thread = connect(transfers=2)
    running: list[int] = []
    with ThreadPoolExecutor(6) as threads:
        transfers = [threads.submit(thread.download, url, tmp_path / f"{i}", SIZE) for i in range(6)]
        while not all(transfer.done() for transfer in transfers):
            running.append(thread.running)
            time.sleep(0.005)
    assert fault.hits >= 2
    assert max(running) == 2
    assert thread.running == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the fault proxy's own connections
@pytest.mark.parametrize(("how", "first"), [("kill", "Client"), ("freeze", "Timeout")])
def test_a_cache_process_that_is_killed_or_stopped_costs_one_attempt(
    federation: Federation, pelican: Make, url: str, tmp_path: Path, how: str, first: str
) -> None:
    getattr(federation.caches[0], how)()
    try:
        bad, ok = fetched(pelican(timeout_s=SHORT_S if how == "freeze" else TIMEOUT_S), url, tmp_path / "a")
    finally:
        federation.caches[0].restart()
    assert ok == "ok"
    assert first in bad
