"""Client of one federation on one event loop: discovery, director, listings. Every wait is bounded."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import aiohttp
from multidict import CIMultiDictProxy
from yarl import URL

from common.errors import BadInputError
from common.pelican.answers import json_object
from common.pelican.config import PelicanConfig
from common.pelican.director import Sources, parse_sources
from common.pelican.errors import Attempt, DeniedError, NotFoundError, UnavailableError
from common.pelican.proxies import proxy_for
from common.pelican.tokens.generation import parse_token_generation
from common.pelican.tokens.recipient import Recipient
from common.pelican.url import PelicanUrl, escaped, may_get_token, server_address
from common.pelican.webdav import Listing, ListingParser, MalformedListing
from common.redact import shown

logger = logging.getLogger(__name__)

_DISCOVERY_TTL_S = 900.0
_AVOID_S = 60.0
"""Time for which a server that failed is tried last."""
_MAX_ANSWER_BYTES = 1 << 20
_MAX_LISTING_BYTES = 1 << 28
_READ_BUFFER_BYTES = 1 << 20
TRANSPORT_ERRORS = (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError)
"""Errors of a request. ValueError: an address or answer that aiohttp, yarl or a codec can't handle."""


class TokenSource(Protocol):
    """Source of one federation's token (common/pelican/tokens)."""

    async def current(self, recipient: Recipient) -> str | None:
        """Currently valid token for this server; None: send none.

        Raises BadInputError or TransientError with guidance.
        """

    async def refused(self, token: str | None, recipient: Recipient) -> bool:
        """Search again after a server denied the token. True if another token may work now."""

    @property
    def expires_s(self) -> float | None:
        """Time (seconds since 1970) at which the token in use expires; None: no token, or one that doesn't say it."""

    def describe(self) -> str:
        """Origin and permissions of the token; never the token itself."""

    def not_covered(self) -> str:
        """Needed scopes that the token lacks; empty if it has all, or none is known."""


def open_session() -> aiohttp.ClientSession:
    """Separate HTTP session: pelicanfs' instances share theirs, tokens included.

    It trusts the same authorities as OpenSSL, SSL_CERT_FILE and SSL_CERT_DIR included.
    """
    connector = aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context())
    return aiohttp.ClientSession(
        connector=connector,
        auto_decompress=False,
        read_bufsize=_READ_BUFFER_BYTES,
        headers={"Accept-Encoding": "identity", "User-Agent": "icestream"},
        cookie_jar=aiohttp.DummyCookieJar(),
    )


class Federation:
    """Client of one federation. ``tokens``: source of the token; None: no token is ever sent."""

    def __init__(
        self, host: str, config: PelicanConfig, session: aiohttp.ClientSession, tokens: TokenSource | None = None
    ) -> None:
        self.host = host
        self.config = config
        self.session = session
        self.tokens = tokens
        self._director: tuple[float, str] | None = None
        self._sources: dict[str, tuple[float, Sources]] = {}
        self._avoid_until_s: dict[str, float] = {}
        self._timeout = aiohttp.ClientTimeout(total=config.list_timeout_s, sock_connect=config.connect_timeout_s)

    # -------------------------------------------------------------- sources

    async def sources(self, path: str, *, fresh: bool = False, write: bool = False) -> Sources:
        """Servers of ``path``, from the director; a recent answer for its directory is reused, unless ``fresh``.

        Raises NotFoundError, DeniedError, UnavailableError, each with the answer of discovery or director.
        """
        key = ("write " if write else "") + path.rpartition("/")[0]
        known = self._sources.get(key)
        if known is not None and not fresh and time.monotonic() - known[0] < self.config.sources_ttl_s:
            return known[1]
        method = "PUT" if write else "GET"
        query = "?directread" if self.config.direct_reads and not write else ""
        sources = await self._ask_director(method, path, query)
        self._sources[key] = (time.monotonic(), sources)
        return sources

    def in_order(self, sources: Sources) -> list[str]:
        """Servers in the director's order, those that failed recently last."""
        now_s = time.monotonic()
        return sorted(sources.servers, key=lambda server: self._avoid_until_s.get(server, 0.0) > now_s)

    def failed(self, server: str) -> None:
        """Try other servers first, for some time."""
        self._avoid_until_s[server] = time.monotonic() + _AVOID_S

    def recipient(self, sources: Sources, server: str, path: str, *, writes: bool = False) -> Recipient:
        """Recipient of a token: a server of these sources."""
        generation = parse_token_generation(sources.token_generation)
        base_path = generation.base_path if generation is not None else ""
        return Recipient(self.host, server, path, sources.issuers, base_path, writes=writes)

    async def authorisation(self, sources: Sources, to: Recipient) -> tuple[dict[str, str], str | None]:
        """Headers and token for a request to a server of these sources. Raises the token source's errors.

        A write needs a token even where reading does not.
        """
        if self.tokens is None or not (sources.require_token or to.writes) or not may_get_token(to.server):
            return {}, None
        token = await self.tokens.current(to)
        return ({"Authorization": f"Bearer {token}"} if token else {}), token

    def denial(self, text: str, attempts: Sequence[Attempt] = ()) -> DeniedError | UnavailableError:
        """Error for refusing servers: permanent if the token should suffice, else until there is another one."""
        lacks = self.tokens is not None and self.tokens.not_covered()
        kind = UnavailableError if lacks else DeniedError
        return kind(f"{text}; {self.token_text()}", attempts)

    def token_text(self) -> str:
        """Description of the token, for people."""
        return self.tokens.describe() if self.tokens is not None else "no token was sent"

    async def _ask_director(self, method: str, path: str, query: str = "") -> Sources:
        url = await self._director_url() + escaped(path) + query
        async with self._request("the director", method, url) as response:
            status, headers = response.status, response.headers
            text = "" if status in (200, 307) else await _short_text(response)
        where = f"{PelicanUrl(self.host, path)}: the director of {self.host}"
        if status == 404:
            raise NotFoundError(f"{where} knows no such object or namespace: {text}")
        if status in (401, 403):
            raise DeniedError(f"{where} refuses the request ({status}): {text}; {self.token_text()}")
        if status == 405:
            raise BadInputError(f"{where} has no server that allows it ({method}): {text}")
        if status not in (200, 307):
            raise UnavailableError(f"{where} answered {status}: {text}")
        sources = parse_sources(single(headers), path, writes=method == "PUT")
        if not sources.servers and not sources.collections:
            raise UnavailableError(f"{where} named no server, or none with TLS where a token is needed")
        return sources

    async def _director_url(self) -> str:
        if self._director is not None and time.monotonic() - self._director[0] < _DISCOVERY_TTL_S:
            return self._director[1]
        url = f"https://{self.host}/.well-known/pelican-configuration"
        async with self._request(f"the federation {self.host}", "GET", url) as response:
            status, body = response.status, await _bounded(response, _MAX_ANSWER_BYTES)
        answer = json_object(body) if status == 200 else None
        director = answer.get("director_endpoint") if answer is not None else None
        if status in (404, 410) or (status == 200 and not isinstance(director, str)):
            said = f"answered {status}" if status != 200 else "names no director"
            raise BadInputError(
                f"{self.host} is no Pelican federation: {url} {said}; is the host right? OSDF is osg-htc.org"
            )
        if not isinstance(director, str):
            raise UnavailableError(f"{self.host}: discovery answered {status} ({url})")
        if not may_get_token(director):
            raise BadInputError(f"{self.host}: its director {shown(director, 200)!r} is no https address")
        self._director = (time.monotonic(), server_address(director))
        return self._director[1]

    # -------------------------------------------------------------- listings

    async def list_directory(self, path: str) -> Listing:
        """Entries of a directory, or the file itself: one request, retried where that may help.

        Raises NotFoundError, DeniedError, UnavailableError; never waits longer than the configured times.
        """
        for number in range(self.config.list_tries):
            try:
                return await self._list_once(path)
            except UnavailableError as error:
                if number + 1 == self.config.list_tries:
                    raise
                logger.info("%s; trying again", error)
                await asyncio.sleep(min(0.3 * 2**number, 5.0) * random.uniform(0.5, 1.0))
        raise AssertionError

    async def _list_once(self, path: str) -> Listing:
        sources = await self._collections(path)
        if not sources.collections:
            raise BadInputError(
                f"{PelicanUrl(self.host, path)}: the namespace {sources.namespace or '?'} can't be listed; "
                "name the files in a list file (-i @files.txt)"
            )
        to = self.recipient(sources, sources.collections, path)
        for is_last in (False, True):
            headers, token = await self.authorisation(sources, to)
            status, listing, text = await self._propfind(sources.collections, path, headers)
            if (
                status in (401, 403)
                and self.tokens is not None
                and not is_last
                and await self.tokens.refused(token, to)
            ):
                continue
            break
        where = f"{PelicanUrl(self.host, path)}: {sources.collections}"
        if status == 404:
            raise NotFoundError(f"{PelicanUrl(self.host, path)}: no such file or directory at {sources.collections}")
        if status in (401, 403):
            raise self.denial(f"{where} refuses the listing ({status})")
        if listing is None:
            raise UnavailableError(f"{where} answered {status}: {text}")
        if listing.num_refused:
            logger.warning("%s lists %d impossible names: %s", where, listing.num_refused, ", ".join(listing.refused))
        return listing

    async def _collections(self, path: str) -> Sources:
        for namespace, (then_s, sources) in self._sources.items():
            fits = namespace.startswith("ls ") and (path + "/").startswith(namespace.removeprefix("ls ") + "/")
            if fits and time.monotonic() - then_s < self.config.sources_ttl_s:
                return sources
        sources = await self._ask_director("PROPFIND", path)
        if sources.namespace:
            self._sources[f"ls {sources.namespace.rstrip('/')}"] = (time.monotonic(), sources)
        return sources

    async def _propfind(self, server: str, path: str, headers: Mapping[str, str]) -> tuple[int, Listing | None, str]:
        """Status, listing, and the server's text if there is no listing."""
        url, parser, num_bytes = server + escaped(path), ListingParser(), 0
        async with self._request("the listing", "PROPFIND", url, {**headers, "Depth": "1"}) as response:
            if response.status != 207:
                return response.status, None, await _short_text(response)
            try:
                async for chunk in response.content.iter_any():
                    parser.feed(chunk)
                    num_bytes += len(chunk)
                    if num_bytes > _MAX_LISTING_BYTES:
                        raise MalformedListing(f"more than {_MAX_LISTING_BYTES >> 20} MiB")
                raw_names = "xrootd" in response.headers.get("Server", "").lower()
                return response.status, parser.listing(path, raw_names=raw_names), ""
            except MalformedListing as error:
                raise UnavailableError(f"{PelicanUrl(self.host, path)}: {server} sent no listing: {error}") from None

    @asynccontextmanager
    async def _request(
        self, what: str, method: str, url: str, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Response to a request. Raises UnavailableError if the server can't be reached, or falls silent."""
        try:
            async with request(self.session, method, url, headers=headers, timeout=self._timeout) as response:
                yield response
        except TRANSPORT_ERRORS as error:
            limit = f" within {self.config.list_timeout_s:g} s" if isinstance(error, asyncio.TimeoutError) else ""
            raise UnavailableError(f"{what} can't be reached{limit}: {url.partition('?')[0]}: {told(error)}") from None


def request(
    session: aiohttp.ClientSession, method: str, url: str, **more: Any
) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    """HTTP request through the environment's proxy.

    Redirects are not followed: they would carry the token to another server.
    """
    address = URL(url, encoded=True)
    return session.request(method, address, proxy=proxy_for(address), allow_redirects=False, **more)


def told(error: BaseException) -> str:
    """Error of the transport in one line."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted (SSL_CERT_FILE names a file with more authorities)"
    text = shown(str(error), 200)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_LISTS = ("Link", "X-Pelican-Authorization", "X-Pelican-Token-Generation")
"""Headers that may be repeated: a director repeats that of the issuers."""


def single(headers: CIMultiDictProxy[str]) -> dict[str, str]:
    """Headers of the director under the names expected by pelicanfs."""
    found = {name: headers[name] for name in ("Location", "X-Pelican-Namespace") if name in headers}
    return found | {name: ", ".join(headers.getall(name)) for name in _LISTS if name in headers}


async def _bounded(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Body, or its first bytes; ``read()`` alone returns only the bytes received so far."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) >= most:
            break
    return bytes(body[:most])


async def _short_text(response: aiohttp.ClientResponse) -> str:
    return shown((await _bounded(response, 2000)).decode(errors="replace"), 200)
