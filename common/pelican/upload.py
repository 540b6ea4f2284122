"""Upload of one file to the origin of a federation; size query and deletion. Sizes are verified afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from common.pelican.client import TRANSPORT_ERRORS, Federation, request, told
from common.pelican.errors import NotFoundError, UnavailableError
from common.pelican.url import PelicanUrl, escaped
from common.redact import shown

_TRIES = 3
_WRITTEN = (200, 201, 204)


async def upload(federation: Federation, path: str, file: Path) -> None:
    """Replace ``path`` by a local file. Raises DeniedError, UnavailableError, OSError of the local file.

    A reader may see a part of it while it is written: use it only for names that no reader knows yet, or for content of
    which every part is valid to its reader.
    """
    size_bytes = file.stat().st_size
    for number in range(_TRIES):
        try:
            await _put(federation, path, file)
            found = await size_of(federation, path)
            if found != size_bytes:
                raise UnavailableError(f"{_url(federation, path)}: {found} bytes arrived of {size_bytes}")
            return
        except (UnavailableError, NotFoundError) as error:
            if number + 1 == _TRIES:
                raise UnavailableError(str(error)) from None
            await asyncio.sleep(0.5 * 2**number)


async def size_of(federation: Federation, path: str) -> int:
    """Size of a file in bytes. Raises NotFoundError, and a listing's errors."""
    listing = await federation.list_directory(path)
    if listing.itself is None or listing.itself.is_dir:
        raise NotFoundError(f"{_url(federation, path)}: no such file")
    return listing.itself.size_bytes


async def delete(federation: Federation, path: str) -> None:
    """Remove a file; a missing one is no error. Raises DeniedError, UnavailableError."""
    status, text = await _request(federation, "DELETE", path, None)
    if status not in (*_WRITTEN, 404):
        raise UnavailableError(f"{_url(federation, path)}: deleting it was answered {status}: {text}")


async def _put(federation: Federation, path: str, file: Path) -> None:
    status, text = await _request(federation, "PUT", path, file)
    if status not in _WRITTEN:
        raise UnavailableError(f"{_url(federation, path)}: writing it was answered {status}: {text}")


async def _request(federation: Federation, method: str, path: str, file: Path | None) -> tuple[int, str]:
    """Status and answer of the origin. A write needs a token even where reading does not."""
    sources = await federation.sources(path, write=True)
    config = federation.config
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=config.connect_timeout_s, sock_read=config.list_timeout_s)
    server = next(iter(federation.in_order(sources)), None)
    if server is None:
        raise UnavailableError(f"{_url(federation, path)}: the director names no origin that may get a token")
    url = server + escaped(path)
    to = federation.recipient(sources, server, path, writes=True)
    for is_last in (False, True):
        headers, token = await federation.authorisation(sources, to)
        try:
            with file.open("rb") if file is not None else _Nothing() as body:
                async with request(
                    federation.session, method, url, headers=headers, data=body, timeout=timeout
                ) as response:
                    status = response.status
                    answer = (await response.content.read(500)).decode(errors="replace")
        except TRANSPORT_ERRORS as error:
            if isinstance(error, OSError) and error.filename is not None:
                raise  # error of the local file
            federation.failed(server)
            raise UnavailableError(f"{_url(federation, path)}: {server}: {told(error)}") from None
        tokens = federation.tokens
        if status in (401, 403) and not is_last and tokens is not None and await tokens.refused(token, to):
            continue
        break
    if status in (401, 403):
        raise federation.denial(f"{_url(federation, path)}: {server} refuses to write it ({status})")
    return status, shown(answer, 200)


class _Nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _url(federation: Federation, path: str) -> PelicanUrl:
    return PelicanUrl(federation.host, path)
