"""Transfers of one object: download with resumption and verification, upload to the origin, deletion."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from common.pelican import answers
from common.pelican.client import TRANSPORT_ERRORS, Federation, Sources, request, told
from common.pelican.url import PelicanUrl, escaped
from common.text import shown

_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")
"""Content-Range header: first and last byte, and the total size."""
ROUNDS = 2
"""Rounds over all sources without progress after which a download has failed."""
_UPLOAD_TRIES = 3
_WRITTEN = (200, 201, 204)
_MANY_BYTES = 1 << 18
_PROGRESS_BYTES = 1 << 16
"""Minimum progress of a round, beyond the maximum reached before."""


class _Failed(Exception):
    """Failure of one source; its argument is the reason."""

    def __init__(self, what: str, kind: str = "") -> None:
        super().__init__(what)
        self.kind = kind


async def download(
    federation: Federation,
    path: str,
    part: Path,
    *,
    size_bytes: int,
    checksum: str = "",
    received: Callable[[int], None] = lambda num_bytes: None,
) -> tuple[str, ...]:
    """Fetch ``path`` into ``part``, which may hold its beginning already; the caller renames it. Return the attempts.

    ``received`` is called with the size of every received piece. Raises NotFoundError, DeniedError, CorruptError if
    every source reports that, else UnavailableError; the bytes on disk stay for the next attempt, unless they were
    corrupt. Raises OSError (ENOSPC) with the part's name.
    """
    transfer = _Transfer(federation, path, part, size_bytes, checksum, received)
    try:
        return await transfer.run()
    finally:
        transfer.close()


@dataclass(eq=False)
class _Transfer:
    """State of one download: the open part and the hash of its bytes."""

    _federation: Federation
    _path: str
    _part: Path
    _size_bytes: int
    _checksum: str
    _received: Callable[[int], None]

    def __post_init__(self) -> None:
        self._attempts: list[str] = []
        self._kinds: set[str] = set()
        self._hasher: answers.Hasher | None = None
        self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._have = os.fstat(self._fd).st_size
        if self._have > self._size_bytes:
            self._begin_anew()
        self._is_mixed = self._have > 0
        """True if bytes of other sources precede those of the current one."""
        self._most = self._have
        """Maximum bytes reached, which a round must exceed; the full size after corruption: so every download ends."""

    def close(self) -> None:
        os.close(self._fd)

    async def run(self) -> tuple[str, ...]:
        fruitless = 0
        while fruitless < ROUNDS:
            sources = await self._sources(fresh=bool(self._attempts))
            asks_origin = self._federation.config.checksums == "origin" and not self._attempts
            if asks_origin and not self._checksum:
                self._checksum = await _origin_checksum(self._federation, self._path, sources)
            for server in self._federation.in_order(sources):
                if await self._try(server, sources):
                    return tuple(self._attempts)
            # Servers that break off each time still complete the download, a piece at a time.
            fruitless = 0 if self._have >= self._most + _PROGRESS_BYTES else fruitless + 1
            self._most = max(self._most, self._have)
        raise self._error()

    async def _sources(self, *, fresh: bool) -> Sources:
        """Return the sources from the director. Raises its errors, with the attempts made before."""
        try:
            return await self._federation.sources(self._path, fresh=fresh)
        except (answers.NotFoundError, answers.DeniedError, answers.UnavailableError) as error:
            if self._attempts:
                raise type(error)(str(error), self._attempts) from None
            raise

    async def _try(self, server: str, sources: Sources) -> bool:
        """True once the object is complete."""
        try:
            await self._deliver(server, sources)
        except _Failed as failure:
            what = str(failure)
            self._kinds.add(failure.kind)
        except TRANSPORT_ERRORS as error:
            if isinstance(error, OSError) and error.filename == str(self._part):
                raise  # our own disk
            what = told(error)
            self._kinds.add("")
        else:
            self._attempts.append(f"{server}: ok")
            return True
        self._federation.failed(server)
        self._attempts.append(f"{server}: {what}")
        return False

    async def _deliver(self, server: str, sources: Sources) -> None:
        """Fetch the rest from this source; all of it, if bytes of others were wrong. Raises this source's failure."""
        if self._have < self._size_bytes or not self._size_bytes:
            await self._stream_authorised(server, sources)
        try:
            self._verify()
        except _Failed as failure:
            if failure.kind != "corrupt" or not self._is_mixed:
                raise
            await self._stream_authorised(server, sources)
            self._verify()

    async def _stream_authorised(self, server: str, sources: Sources) -> None:
        to = self._federation.recipient(sources, server, self._path)
        headers, token = self._federation.authorisation(sources, to)
        try:
            await self._stream(server, headers)
        except _Failed as failure:
            tokens = self._federation.tokens
            if failure.kind != "denied" or tokens is None or not tokens.refused(token, to):
                raise
            headers, _ = self._federation.authorisation(sources, to)
            await self._stream(server, headers)

    async def _stream(self, server: str, headers: dict[str, str]) -> None:
        if self._have:
            # Always a closed range inside the object: XRootD 5.5 answers 206 with an empty body to `bytes=N-`, and
            # promises more than it has when the last byte is beyond the end.
            headers = {**headers, "Range": f"bytes={self._have}-{self._size_bytes - 1}"}
        url = server + escaped(self._path)
        async with request(
            self._federation.session, "GET", url, headers=headers, timeout=self._federation.transfer_timeout
        ) as response:
            self._check_answer(response)
            if self._have and response.status == 200:
                self._begin_anew()  # the server doesn't support ranges
            self._is_mixed = self._have > 0
            self._read_what_is_there()
            waiting: list[bytes] = []
            num_waiting = 0
            try:
                async for chunk in response.content.iter_any():
                    waiting.append(chunk)
                    num_waiting += len(chunk)
                    if num_waiting >= _MANY_BYTES:
                        full, num_full, waiting, num_waiting = waiting, num_waiting, [], 0
                        self._write(full, num_full)
            finally:
                self._write(waiting, num_waiting)  # received bytes need not be sent again

    def _check_answer(self, response: aiohttp.ClientResponse) -> None:
        status = response.status
        if status in (404, 410):
            raise _Failed(str(status), "not found")
        if status in (401, 403):
            raise _Failed(str(status), "denied")
        if status not in (200, 206):
            raise _Failed(str(status))
        if status == 206 and not self._have:
            raise _Failed("206 without a range")
        size_bytes = self._size_bytes
        if status == 206:
            self._check_range(response.headers.get("Content-Range", ""))
        length = _length(response)
        expected = size_bytes - (self._have if status == 206 else 0)
        if length not in (None, expected):
            raise _Failed(f"it offers {length} bytes of the {expected} that are missing", "size")

    def _check_range(self, header: str) -> None:
        """Raise _Failed for a wrong Content-Range, any part of which may be missing."""
        found = _RANGE.fullmatch(header.strip(" \t"))
        if found is None or int(found[1]) != self._have or int(found[2]) < self._have:
            raise _Failed(f"bytes from {self._have} on were asked for, it sends {shown(header, 60) or 'no range'!r}")
        if found[3] != "*" and int(found[3]) != self._size_bytes:
            raise _Failed(f"it has {found[3]} bytes there, the inventory says {self._size_bytes}", "size")

    def _write(self, chunks: list[bytes], num_bytes: int) -> None:
        """Append bytes. Raises OSError with the part's name, _Failed above the size."""
        if not num_bytes:
            return
        if self._have + num_bytes > self._size_bytes:
            raise _Failed(f"more than {self._size_bytes} bytes", "size")
        with self._own_disk():
            written = os.pwritev(self._fd, chunks, self._have)
            if written < num_bytes:  # the disk is full, or a signal came: the rest in one piece, or the error
                rest = memoryview(b"".join(chunks))[written:]
                while rest:
                    rest = rest[os.pwrite(self._fd, rest, self._have + num_bytes - len(rest)) :]
        if self._hasher is not None:
            for chunk in chunks:
                self._hasher.update(chunk)
        self._have += num_bytes
        self._received(num_bytes)

    # -------------------------------------------------------------- size and checksum

    def _read_what_is_there(self) -> None:
        """Hash the bytes on disk, before more are added."""
        if self._checksum and self._hasher is None:
            found, offset = answers.hasher(self._checksum), 0
            with self._own_disk():
                while offset < self._have and (data := os.pread(self._fd, 1 << 20, offset)):
                    found.update(data)
                    offset += len(data)
            self._hasher = found

    def _verify(self) -> None:
        """Raise _Failed, and start again, if the bytes on disk are not the object."""
        if self._have != self._size_bytes:
            raise _Failed(f"{self._have} of {self._size_bytes} bytes", "size")
        if not self._checksum:
            return
        self._read_what_is_there()
        assert self._hasher is not None
        if not answers.matches(self._checksum, self._hasher):
            found = f"{self._checksum.partition('=')[0]}={self._hasher.hexdigest()}"
            self._begin_anew()
            self._most = self._size_bytes
            raise _Failed(f"{found} arrived, expected {self._checksum}", "corrupt")

    @contextmanager
    def _own_disk(self) -> Iterator[None]:
        """Add the part's name to errors of the local disk, to distinguish them from a server's."""
        try:
            yield
        except OSError as error:
            error.filename = str(self._part)
            raise

    def _begin_anew(self) -> None:
        with self._own_disk():
            os.ftruncate(self._fd, 0)
        self._have = 0
        self._hasher = None

    def _error(self) -> Exception:
        """Return the error after every source failed: the one common to all, or UnavailableError."""
        url = PelicanUrl(self._federation.host, self._path)
        kinds = self._kinds
        if kinds == {"not found"}:
            return answers.NotFoundError(f"{url}: no source has it", self._attempts)
        if kinds == {"denied"}:
            return self._federation.denial(f"{url}: refused by every source", self._attempts)
        if kinds and kinds <= {"corrupt", "size", "not found"} and "" not in kinds:
            self._begin_anew()
            text = f"{url}: no source has the {self._size_bytes} bytes that the inventory says"
            return answers.CorruptError(text, self._attempts)
        return answers.UnavailableError(f"{url}: no source delivered it", self._attempts)


async def _origin_checksum(federation: Federation, path: str, sources: Sources) -> str:
    """Return the checksum that the origin gives for its own copy; empty if it gives none.

    The request uses a new connection: XRootD 5.5 repeats an old digest on one that is kept alive, and its caches label
    the origin's digest with the requested algorithm.
    """
    if not sources.collections:
        return ""
    headers, _ = federation.authorisation(sources, federation.recipient(sources, sources.collections, path))
    headers |= {"Want-Digest": ",".join(answers.ORIGIN_ALGORITHMS), "Connection": "close"}
    url = sources.collections + escaped(path)
    try:
        async with request(federation.session, "HEAD", url, headers=headers, timeout=federation.timeout) as response:
            return answers.from_digest(response.headers.get("Digest", "")) if response.status == 200 else ""
    except TRANSPORT_ERRORS:
        return ""


def _length(response: aiohttp.ClientResponse) -> int | None:
    """Announced size of the body in bytes; None: not announced."""
    text = response.headers.get("Content-Length")
    if text is None:
        return None
    length = answers.number(text)
    if length is None:
        raise _Failed(f"it promises {shown(text, 60)!r} bytes")
    return length


# -------------------------------------------------------------- upload


async def upload(federation: Federation, path: str, file: Path) -> None:
    """Replace ``path`` by a local file. Raises DeniedError, UnavailableError, OSError of the local file.

    A reader may see a part of it while it is written: use it only for names that no reader knows yet, or for content of
    which every part is valid to its reader.
    """
    size_bytes = file.stat().st_size
    for attempt in range(_UPLOAD_TRIES):
        try:
            status, text = await _request(federation, "PUT", path, file)
            if status not in _WRITTEN:
                raise answers.UnavailableError(f"{_url(federation, path)}: writing it was answered {status}: {text}")
            arrived = await size_of(federation, path)
            if arrived != size_bytes:
                raise answers.UnavailableError(f"{_url(federation, path)}: {arrived} bytes arrived of {size_bytes}")
            return
        except (answers.UnavailableError, answers.NotFoundError) as error:
            if attempt + 1 == _UPLOAD_TRIES:
                raise answers.UnavailableError(str(error)) from None
            await asyncio.sleep(0.5 * 2**attempt)


async def size_of(federation: Federation, path: str) -> int:
    """Return the size of a file in bytes. Raises NotFoundError, and a listing's errors."""
    listing = await federation.list_directory(path)
    if listing.itself is None or listing.itself.is_dir:
        raise answers.NotFoundError(f"{_url(federation, path)}: no such file")
    return listing.itself.size_bytes


async def delete(federation: Federation, path: str) -> None:
    """Remove a file; a missing one is no error. Raises DeniedError, UnavailableError."""
    status, text = await _request(federation, "DELETE", path, None)
    if status not in (*_WRITTEN, 404):
        raise answers.UnavailableError(f"{_url(federation, path)}: deleting it was answered {status}: {text}")


async def _request(federation: Federation, method: str, path: str, file: Path | None) -> tuple[int, str]:
    """Return the status and answer of the origin. A write needs a token even where reading does not."""
    sources = await federation.sources(path, write=True)
    # A server may be silent for longer after it has got a whole file: it stores it.
    limits = federation.timeout
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=limits.sock_connect, sock_read=limits.total)
    server = next(iter(federation.in_order(sources)), None)
    if server is None:
        raise answers.UnavailableError(f"{_url(federation, path)}: the director names no origin that may get a token")
    url = server + escaped(path)
    to = federation.recipient(sources, server, path, writes=True)

    async def ask(headers: dict[str, str]) -> tuple[int, str]:
        try:
            with file.open("rb") if file is not None else nullcontext() as body:
                async with request(
                    federation.session, method, url, headers=headers, data=body, timeout=timeout
                ) as response:
                    return response.status, (await response.content.read(500)).decode(errors="replace")
        except TRANSPORT_ERRORS as error:
            if isinstance(error, OSError) and error.filename is not None:
                raise  # error of the local file
            federation.failed(server)
            raise answers.UnavailableError(f"{_url(federation, path)}: {server}: {told(error)}") from None

    status, answer = await federation.authorised(sources, to, ask)
    if status in (401, 403):
        raise federation.denial(f"{_url(federation, path)}: {server} refuses to write it ({status})")
    return status, shown(answer, 200)


def _url(federation: Federation, path: str) -> PelicanUrl:
    return PelicanUrl(federation.host, path)
