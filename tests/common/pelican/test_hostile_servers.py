"""Whatever one server answers is that server's failure: the next one delivers, and only expected errors rise."""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from federation.federation import Federation
from hostile_values import UNHURRIED
from hypothesis import given, settings
from hypothesis import strategies as st

from common.config import PelicanConfig
from common.errors import IcestreamError
from common.pelican.answers import UnavailableError
from common.pelican.threads import PelicanThread
from common.pelican.transfers import upload

ORIGIN = PelicanConfig(checksums="origin")
FUZZ = settings(max_examples=12, deadline=None, suppress_health_check=UNHURRIED)
CONTENT = random.Random(3).randbytes(1000)
OSC_52 = "\x1b]52;c;cm0gLXJmIH4=\x07"


def answer(status: str, *headers: str | bytes, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers]
    return b"\r\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + b"\r\n\r\n" + body


@pytest.fixture
def thread(
    federation: Federation, connect: Callable[..., PelicanThread], monkeypatch: pytest.MonkeyPatch
) -> PelicanThread:
    monkeypatch.setattr("common.pelican.client._LIST_TRIES", 1)
    monkeypatch.setattr("common.pelican.client._SOURCES_TTL_S", 0.0)
    federation.put("/public/h/a.bin", CONTENT)
    return connect()


HALF = CONTENT[500:]
RANGES = ["bytes 0-1/²", f"bytes 500-999/{'9' * 5000}", "bytes 0-499/1000", "bytes 999-500/1000", "", OSC_52]
ODD_RANGES = [
    answer("206 Partial Content", *[f"Content-Range: {text}"] * bool(text), "Content-Length: 500", body=HALF)
    for text in RANGES
]
ODD = [
    answer("200 OK", "Content-Length: ²", body=CONTENT),
    answer("200 OK", f"Content-Length: {'9' * 5000}", body=CONTENT),
    answer("200 OK", "Content-Length: 1000", "Content-Length: 999", body=CONTENT),
    answer("200 OK", "Transfer-Encoding: chunked", body=b"zz\r\n" + CONTENT),
    answer("200 OK", b"X: \xff\xfe\x80", "Content-Length: 3", body=b"abc"),
    answer("200 OK", "X: " + "y" * 200_000),
    answer("200 OK", "Set-Cookie: \x01=;;;=", "Content-Length: 5", body=b"abcde"),
    answer("200 OK", "Content-Encoding: nonsense", "Content-Length: 4", body=b"abcd"),
    answer("206 Partial Content", "Content-Range: bytes 0-999/1000", "Content-Length: 1000", body=CONTENT),
    answer("302 Found", "Location: https://evil.example/x"),
    answer("200 " + OSC_52, "Content-Length: 1", body=b"x"),
    answer("²00 OK"),
    b"\x16\x03\x01",
    answer("100 Continue") * 50,
    answer("204 No Content", "Content-Length: 1000", body=CONTENT),
    b"",
]


@pytest.mark.parametrize(
    ("have_bytes", "raw"),
    [*((0, raw) for raw in ODD), *((500, raw) for raw in ODD_RANGES)],
    ids=range(len(ODD) + len(ODD_RANGES)),
)
def test_one_caches_odd_answer_costs_one_attempt(
    federation: Federation, thread: PelicanThread, tmp_path: Path, have_bytes: int, raw: bytes
) -> None:
    (tmp_path / "a").write_bytes(CONTENT[:have_bytes])
    federation.caches[0].fault("raw", raw=raw)
    attempts = thread.download(federation.url("/public/h/a.bin"), tmp_path / "a", 1000)
    assert attempts[-1].endswith(": ok")
    assert len(attempts) == 2 or not have_bytes
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert all(attempt.isprintable() for attempt in attempts)


NUMBERS = ["0", "1", "500", "1000", "1001", "²", "-1", "", "٣", "0x10", "1e3", "9" * 30, "9" * 5000, str(1 << 63), " 7"]
RANGE_TEXTS = st.builds("{}{}-{}/{}".format, st.sampled_from(["bytes ", "bytes=", ""]), *[st.sampled_from(NUMBERS)] * 3)
HEADERS = st.lists(
    st.one_of(
        st.builds("Content-Length: {}".format, st.sampled_from(NUMBERS)),
        st.builds("Content-Range: {}".format, RANGE_TEXTS),
        st.builds("Link: {}".format, st.text(max_size=40)),
        st.builds("Digest: adler32={}".format, st.text(max_size=20)),
        st.builds("{}: {}".format, st.sampled_from(["Server", "Date", "Age", "Retry-After"]), st.text(max_size=20)),
    ),
    max_size=4,
).map(lambda lines: [line.replace("\n", "").encode(errors="surrogatepass") for line in lines])
ANSWERS = st.builds(
    lambda status, headers, body: answer(f"{status} X", *headers, body=body),
    st.sampled_from([200, 200, 206, 206, 207, 301, 400, 401, 403, 404, 416, 500, 503, 999]),
    HEADERS,
    st.one_of(
        st.binary(max_size=50), st.sampled_from([CONTENT, HALF, b"{}", b"[" * 20_000, b'{"director_endpoint": 1}'])
    ),
)


CHECKSUM = f"adler32={zlib.adler32(CONTENT):08x}"
WRONG = {
    "half, and a proper end": answer(
        "200 OK", "Transfer-Encoding: chunked", body=b"1f4\r\n%b\r\n0\r\n\r\n" % bytes(500)
    ),
    "half, and no end": answer("200 OK", "Content-Length: 1000", "Connection: close", body=bytes(500)),
    "all": answer("200 OK", "Content-Length: 1000", body=bytes(1000)),
}


@pytest.mark.parametrize("have", [0, 300, 1000])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_bytes_of_one_cache_make_no_file_bad_that_another_cache_has(
    federation: Federation, thread: PelicanThread, tmp_path: Path, wrong: str, have: int
) -> None:
    part = tmp_path / "a"
    part.write_bytes(bytes(have))  # an earlier try left wrong bytes, too
    federation.caches[0].fault("raw", raw=WRONG[wrong])
    attempts = thread.download(federation.url("/public/h/a.bin"), part, 1000, CHECKSUM)
    assert [attempt.endswith(": ok") for attempt in attempts] == [False, True]
    assert part.read_bytes() == CONTENT


def test_servers_that_break_off_and_are_corrupt_in_the_end_are_not_asked_for_ever(
    federation: Federation, thread: PelicanThread, tmp_path: Path
) -> None:
    federation.put("/public/h/b.bin", random.Random(1).randbytes(400_000))
    for cache in federation.caches:
        cache.fault("reset", 70_000)
    raised: list[BaseException] = []

    def fetch() -> None:
        try:
            thread.download(federation.url("/public/h/b.bin"), tmp_path / "b", 400_000, "adler32=00000001")
        except IcestreamError as error:
            raised.append(error)

    fetching = threading.Thread(target=fetch, daemon=True)
    fetching.start()
    fetching.join(20)
    assert not fetching.is_alive(), f"{thread.bytes_received} bytes came, and it goes on"
    assert isinstance(raised[0], UnavailableError), "they broke off: it may work later"
    assert thread.bytes_received < 4 * 400_000


@pytest.mark.slow
@FUZZ
@given(raw=ANSWERS, who=st.sampled_from(["cache", "origin", "director", "discovery"]))
def test_only_the_expected_errors_rise_whatever_anybody_answers(
    federation: Federation, thread: PelicanThread, tmp_path: Path, raw: bytes, who: str
) -> None:
    federation.heal()
    methods = ("GET", "PROPFIND", "HEAD", "PUT")
    servers = {"cache": federation.caches, "origin": [federation.origin]}.get(who, [federation.director])
    match = {"discovery": "pelican-configuration", "director": "^/public"}.get(who, "")
    for server in servers:
        server.fault("raw", raw=raw, methods=methods, match=match)
    place = federation.url("/public/h/a.bin")
    with closing(PelicanThread(ORIGIN, timeout_s=0.5)) as fresh:  # an error is as good as an answer
        for call in (
            lambda: fresh.download(place, tmp_path / "part", 1000),
            lambda: fresh.expand(federation.url("/public/h/*"), (".bin",)),
            lambda: fresh.run(lambda one: one.sources("/public/h/a.bin", fresh=True), place),
            lambda: fresh.run(lambda one: upload(one, "/public/h/b", tmp_path / "file"), place),
        ):
            (tmp_path / "file").write_bytes(b"x")
            (tmp_path / "part").unlink(missing_ok=True)
            try:
                call()
            except IcestreamError as error:
                assert str(error).isprintable()  # noqa: PT017  most answers are no error


def test_no_words_of_a_director_reach_the_terminal_as_orders(federation: Federation, thread: PelicanThread) -> None:
    federation.director.fault("raw", raw=answer("500 X", body=f"no {OSC_52}\u202e\x9b2J".encode()), match="^/public")
    with pytest.raises(UnavailableError, match="answered 500: no ") as caught:
        thread.expand(federation.url("/public/h/*"), (".bin",))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("digest", ["adler32=zz", "md5=" + "x" * 9000, f"adler32={OSC_52}", "md5=é", "=", "adler32="])
def test_an_origins_nonsense_for_a_checksum_makes_no_file_bad(
    federation: Federation, connect: Callable[..., PelicanThread], tmp_path: Path, digest: str
) -> None:
    federation.put("/public/h/a.bin", CONTENT)
    raw = answer("200 OK", f"Digest: {digest[:4000]}", "Content-Length: 1000")
    federation.origin.fault("raw", raw=raw, methods=("HEAD",))
    attempts = connect(ORIGIN).download(federation.url("/public/h/a.bin"), tmp_path / "a", 1000)
    assert [attempt.endswith(": ok") for attempt in attempts] == [True]
