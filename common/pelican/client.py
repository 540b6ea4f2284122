"""Client of one federation on one event loop: discovery, director, listings. Every wait is bounded.

A glob costs one listing request for each directory, and none for a file.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.request import getproxies, proxy_bypass

import aiohttp
from multidict import CIMultiDictProxy
from pelicanfs.dir_header_parser import parse_director_response
from yarl import URL

from common import text as hidden_names
from common.config import PelicanConfig
from common.errors import BadInputError
from common.pelican.answers import (
    DeniedError,
    Listing,
    ListingParser,
    MalformedListing,
    NotFoundError,
    UnavailableError,
    json_object,
    named_issuers,
    scope_base_path,
)
from common.pelican.token_claims import Recipient
from common.pelican.tokens import FoundTokens
from common.pelican.url import (
    GlobWalk,
    PelicanUrl,
    Places,
    escaped,
    has_magic,
    may_get_token,
    server_address,
    server_of,
)
from common.text import shown

logger = logging.getLogger(__name__)

T = TypeVar("T")


def proxy_for(url: URL) -> URL | None:
    """Return the proxy that the environment names for an address (http_proxy, https_proxy, no_proxy), or None.

    aiohttp's ``trust_env`` is not used: it would also send the user's ~/.netrc to servers named by others. Raises
    ValueError for a variable that holds no URL.
    """
    text = getproxies().get(url.scheme, "")
    if not text or proxy_bypass(url.authority):
        return None
    return URL(text)


# -------------------------------------------------------------- the director's answers


_LINK = re.compile(r"<([^<>]*)>([^<]*)")


@dataclass(frozen=True)
class Sources:
    """Answer of the director for one path, also valid for its neighbours."""

    servers: tuple[str, ...]
    """Prefixes of an object's address before its path, the nearest first."""
    namespace: str
    require_token: bool
    collections: str
    """Server that lists directories; empty if none does."""
    base_path: str
    """Prefix of the path that scopes of its tokens omit."""
    issuers: tuple[str, ...] = ()
    """Issuers of tokens that the namespace accepts."""


def parse_sources(headers: Mapping[str, str], path: str, *, writes: bool = False) -> Sources:
    """Return the sources in the headers of a redirect for ``path``, without servers that must not see a token if one is
    needed. pelicanfs splits links at every comma, but names may contain commas: links are parsed here."""
    links = []
    for url, attributes in _LINK.findall(headers.get("Link", "")):
        priority = re.search(r"pri=([0-9]{1,6})", attributes)
        server = server_of(url, path)
        if server is not None:
            links.append((int(priority[1]) if priority else 1_000_000, server))
    header = parse_director_response(dict(headers)).x_pel_ns_hdr
    namespace = header.namespace if header else ""
    require_token = header.require_token if header else False
    collections = server_address(header.collections_url or "") if header else ""
    servers = dict.fromkeys(server for _, server in sorted(links, key=lambda link: link[0]))
    if require_token or writes:
        servers = {server: None for server in servers if may_get_token(server)}
        collections = collections if may_get_token(collections) else ""
    generation = headers.get("X-Pelican-Token-Generation", "")
    return Sources(
        servers=tuple(servers),
        # It is reused for other paths below it.
        namespace=namespace if is_below(path, namespace) else "",
        require_token=require_token,
        collections=collections,
        base_path=scope_base_path(generation),
        issuers=named_issuers(headers.get("X-Pelican-Authorization", ""), generation),
    )


def is_below(path: str, folder: str) -> bool:
    """Return True if the path is an absolute ``folder``, or below it."""
    return folder.startswith("/") and (path + "/").startswith(folder.rstrip("/") + "/")


_DISCOVERY_TTL_S = 900.0
_SOURCES_TTL_S = 300.0
"""Time for which the director's sources are reused for other files of a directory: Pelican's own tokens and redirects
last for minutes, and a source that has gone is noticed by its failure."""
TIMEOUT_S = 30.0
"""Maximum silence of a server while it sends: caches fetch from their origin, sometimes from tape, before the first
byte. A connection has a third of it; an answer of discovery or director, or a listing, twice of it in all."""
_LIST_TRIES = 3
"""Attempts at a listing: a server that is restarted answers within their pauses, or the run waits anyway."""
_AVOID_S = 60.0
"""Time for which a server that failed is tried last."""
_MAX_ANSWER_BYTES = 1 << 20
_MAX_LISTING_BYTES = 1 << 28
_READ_BUFFER_BYTES = 1 << 20
TRANSPORT_ERRORS = (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError)
"""Errors of a request. ValueError: an address or answer that aiohttp, yarl or a codec can't handle."""


# -------------------------------------------------------------- the client


async def open_session() -> aiohttp.ClientSession:
    """Return an HTTP session that trusts the same authorities as OpenSSL, SSL_CERT_FILE and SSL_CERT_DIR included."""
    connector = aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context())
    return aiohttp.ClientSession(
        connector=connector,
        auto_decompress=False,
        read_bufsize=_READ_BUFFER_BYTES,
        headers={"Accept-Encoding": "identity", "User-Agent": "icestream"},
        cookie_jar=aiohttp.DummyCookieJar(),
    )


class Federation:
    """Client of one federation. ``tokens``: source of the token; None: no token is ever sent. ``direct``: objects are
    read from their origin, not from caches. ``timeout_s``: maximum silence of a server."""

    def __init__(
        self,
        host: str,
        config: PelicanConfig,
        session: aiohttp.ClientSession,
        tokens: FoundTokens | None = None,
        *,
        direct: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.host = host
        self.config = config
        self.session = session
        self.tokens = tokens
        self._direct = direct
        self._director: tuple[float, str] | None = None
        self._sources: dict[str, tuple[float, Sources]] = {}
        self._avoid_until_s: dict[str, float] = {}
        self.timeout = aiohttp.ClientTimeout(total=2 * timeout_s, sock_connect=timeout_s / 3)
        """Time limits of a listing, and of one answer of discovery or director."""
        self.transfer_timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_s / 3, sock_read=timeout_s)
        """Time limits of a transfer, whose duration is not limited."""

    # -------------------------------------------------------------- sources

    async def sources(self, path: str, *, fresh: bool = False, write: bool = False) -> Sources:
        """Servers of ``path``, from the director; a recent answer for its directory is reused, unless ``fresh``.

        Raises NotFoundError, DeniedError, UnavailableError, each with the answer of discovery or director.
        """
        key = ("write " if write else "") + path.rpartition("/")[0]
        known = self._sources.get(key)
        if known is not None and not fresh and time.monotonic() - known[0] < _SOURCES_TTL_S:
            return known[1]
        method = "PUT" if write else "GET"
        query = "?directread" if self._direct and not write else ""
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
        """Return the recipient of a token: a server of these sources."""
        return Recipient(self.host, server, path, sources.issuers, sources.base_path, writes=writes)

    def authorisation(self, sources: Sources, to: Recipient) -> tuple[dict[str, str], str | None]:
        """Return the headers and token for a request to a server of these sources. Raises the token source's errors.

        A write needs a token even where reading does not.
        """
        if self.tokens is None or not (sources.require_token or to.writes) or not may_get_token(to.server):
            return {}, None
        token = self.tokens.current(to)
        return ({"Authorization": f"Bearer {token}"} if token else {}), token

    async def authorised(
        self, sources: Sources, to: Recipient, ask: Callable[[dict[str, str]], Awaitable[tuple[int, T]]]
    ) -> tuple[int, T]:
        """Return the status and answer of a request, which ``ask`` makes with headers; if its token is refused, with
        the next one that may work."""
        headers, token = self.authorisation(sources, to)
        status, answer = await ask(headers)
        if status in (401, 403) and self.tokens is not None and self.tokens.refused(token, to):
            headers, _ = self.authorisation(sources, to)
            status, answer = await ask(headers)
        return status, answer

    def denial(self, text: str, attempts: Sequence[str] = ()) -> DeniedError | UnavailableError:
        """Return the error for refusing servers: permanent if the token should suffice, else until there is another
        one."""
        lacks = self.tokens is not None and self.tokens.not_covered()
        kind = UnavailableError if lacks else DeniedError
        return kind(f"{text}; {self.token_text()}", attempts)

    def token_text(self) -> str:
        """Return the description of the token, for people."""
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
        """Return the entries of a directory, or the file itself: one request, retried where that may help.

        Raises NotFoundError, DeniedError, UnavailableError; never waits longer than the configured times.
        """
        for attempt in range(_LIST_TRIES - 1):
            try:
                return await self._list_once(path)
            except UnavailableError as error:
                logger.info("%s; trying again", error)
                await asyncio.sleep(min(0.3 * 2**attempt, 5.0) * random.uniform(0.5, 1.0))
        return await self._list_once(path)

    async def _list_once(self, path: str) -> Listing:
        sources = await self._collections(path)
        if not sources.collections:
            raise BadInputError(
                f"{PelicanUrl(self.host, path)}: the namespace {sources.namespace or '?'} can't be listed; "
                "name the files in a list file (-i @files.txt)"
            )
        to = self.recipient(sources, sources.collections, path)
        status, listing = await self.authorised(sources, to, partial(self._propfind, sources.collections, path))
        where = f"{PelicanUrl(self.host, path)}: {sources.collections}"
        if status == 404:
            raise NotFoundError(f"{PelicanUrl(self.host, path)}: no such file or directory at {sources.collections}")
        if status in (401, 403):
            raise self.denial(f"{where} refuses the listing ({status})")
        if isinstance(listing, str):
            raise UnavailableError(f"{where} answered {status}: {listing}")
        if listing.num_refused:
            logger.warning("%s lists %d impossible names: %s", where, listing.num_refused, ", ".join(listing.refused))
        return listing

    async def _collections(self, path: str) -> Sources:
        for namespace, (then_s, sources) in self._sources.items():
            fits = namespace.startswith("ls ") and is_below(path, namespace.removeprefix("ls "))
            if fits and time.monotonic() - then_s < _SOURCES_TTL_S:
                return sources
        sources = await self._ask_director("PROPFIND", path)
        if sources.namespace:
            self._sources[f"ls {sources.namespace}"] = (time.monotonic(), sources)
        return sources

    async def _propfind(self, server: str, path: str, headers: Mapping[str, str]) -> tuple[int, Listing | str]:
        """Status, listing, and the server's text if there is no listing."""
        url, parser, num_bytes = server + escaped(path), ListingParser(), 0
        async with self._request("the listing", "PROPFIND", url, {**headers, "Depth": "1"}) as response:
            if response.status != 207:
                return response.status, await _short_text(response)
            try:
                async for chunk in response.content.iter_any():
                    parser.feed(chunk)
                    num_bytes += len(chunk)
                    if num_bytes > _MAX_LISTING_BYTES:
                        raise MalformedListing(f"more than {_MAX_LISTING_BYTES >> 20} MiB")
                raw_names = "xrootd" in response.headers.get("Server", "").lower()
                return response.status, parser.listing(path, raw_names=raw_names)
            except MalformedListing as error:
                raise UnavailableError(f"{PelicanUrl(self.host, path)}: {server} sent no listing: {error}") from None

    @asynccontextmanager
    async def _request(
        self, what: str, method: str, url: str, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Response to a request. Raises UnavailableError if the server can't be reached, or falls silent."""
        try:
            async with request(self.session, method, url, headers=headers, timeout=self.timeout) as response:
                yield response
        except TRANSPORT_ERRORS as error:
            limit = f" within {self.timeout.total:g} s" if isinstance(error, asyncio.TimeoutError) else ""
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
    """Return the error of the transport in one line."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted (SSL_CERT_FILE names a file with more authorities)"
    text = shown(str(error), 200)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_LISTS = ("Link", "X-Pelican-Authorization", "X-Pelican-Token-Generation")
"""Headers that may be repeated: a director repeats that of the issuers."""


def single(headers: CIMultiDictProxy[str]) -> dict[str, str]:
    """Return the headers of the director under the names expected by pelicanfs."""
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


# -------------------------------------------------------------- files of a path or glob


_MAX_DEPTH = 64
_DIRECTORIES_AT_A_TIME = 8
"""Directories listed at a time: an origin lists each in a process or thread of its own, and serves others, too."""


OnProgress = Callable[[int, int], None]
"""Callback with the numbers of directories and of files so far."""


async def expand(
    federation: Federation, path: str, suffixes: Collection[str], on_progress: OnProgress
) -> list[tuple[str, int]]:
    """Return the path and size of every file, sorted: of a glob, of a file itself, or of a directory's files with
    ``suffixes``.

    Raises NotFoundError if there is none, and a listing's errors: the result is complete or an error, never a part.
    """
    hidden: list[str] = []
    if has_magic(path):
        walk = GlobWalk(path)
        found = await _walk(
            federation, walk, walk.root, await federation.list_directory(walk.root), on_progress, hidden
        )
    else:
        listing = await federation.list_directory(path)
        if listing.itself is not None and not listing.itself.is_dir:
            return [(path, listing.itself.size_bytes)]
        below = await _walk(federation, GlobWalk("**"), path, listing, on_progress, hidden)
        found = [(name, size) for name, size in below if name.endswith(tuple(suffixes))]
    if left_out := [name for name in hidden if name.endswith((*suffixes, "/"))]:
        logger.warning("%s", hidden_names.told(str(PelicanUrl(federation.host, path)), left_out))
    if not found:
        looked_for = "no file matches" if has_magic(path) else f"no file with one of {' '.join(suffixes)} below it"
        raise NotFoundError(f"{PelicanUrl(federation.host, path)}: {looked_for}")
    return sorted(found)


async def _walk(
    federation: Federation, walk: GlobWalk, root: str, listing: Listing, on_progress: OnProgress, hidden: list[str]
) -> list[tuple[str, int]]:
    """Return the path and size of every matching file, level by level, with several directories listed at a time.

    What is left out for its hidden name is appended to ``hidden``, a directory with a slash at its end.
    """
    found: list[tuple[str, int]] = []
    num_directories = 0
    limit = asyncio.Semaphore(_DIRECTORIES_AT_A_TIME)

    async def list_one(path: str) -> Listing:
        async with limit:
            try:
                return await federation.list_directory(path)
            except NotFoundError as error:  # it was in its parent's listing
                raise UnavailableError(f"{error}; it was there a moment ago") from None

    level: list[tuple[str, Places, Listing]] = [(root.rstrip("/"), walk.start, listing)]
    for _ in range(_MAX_DEPTH):
        below: list[tuple[str, Places]] = []
        for path, places, entries in level:
            num_directories += 1
            for entry in entries.entries:
                if not entry.is_dir and walk.takes(places, entry.name):
                    found.append((f"{path}/{entry.name}", entry.size_bytes))
                elif entry.is_dir and (following := walk.into(places, entry.name)):
                    below.append((f"{path}/{entry.name}", following))
                elif walk.leaves_out(places, entry.name):
                    hidden.append(f"{path}/{entry.name}" + "/" * entry.is_dir)
        on_progress(num_directories, len(found))
        if not below:
            return found
        tasks = [asyncio.ensure_future(list_one(path)) for path, _ in below]
        try:
            listings = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        level = [(path, places, one) for (path, places), one in zip(below, listings, strict=True)]
    raise UnavailableError(f"{PelicanUrl(federation.host, root)}: directories more than {_MAX_DEPTH} deep")
