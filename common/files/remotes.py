"""Remote files: listed and fetched by the client of their scheme, a federation's or that of fsspec.

A redirect of a web server is followed only if it leads nowhere that only this machine or its network reaches (a
metadata service, a database), and never from https to http.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import socket
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from ipaddress import IPv6Address, ip_address
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

import fsspec
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from common.config import PelicanConfig, TokenConfig
from common.errors import BadInputError, TransientError
from common.files.local import SUFFIXES, expand_lists
from common.pelican.answers import NotFoundError
from common.pelican.url import is_pelican
from common.plan import SourceFile
from common.text import shown, without_secrets, without_tokens

if TYPE_CHECKING:
    from types import SimpleNamespace

    import aiohttp
    from yarl import URL

    from common.pelican.client import OnProgress
    from common.pelican.threads import PelicanThread
    from common.pelican.tokens import FoundTokens

_LOCATIONS = ("Location", "URI")
_CHUNK_BYTES = 1 << 20
_ATTEMPTS = 4
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteAccess:
    """Clients of federations, and the tokens that they use."""

    pelican: PelicanConfig
    token: TokenConfig
    transfers: int
    """Transfers at a time."""
    inputs: tuple[str, ...]
    """Inputs as given by the user: the scopes of a token follow from them."""
    output: str
    """Destination of outputs; empty: none."""


def name_of(source: SourceFile) -> str:
    """Name of the file's copy in the cache. A digest makes it unique, and no remote name can leave the directory.

    A URL with another token gives the same name; another size or checksum gives another one.
    """
    identity = json.dumps([without_tokens(source.url), source.size_bytes, source.checksum])
    digest = hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    remote_name = PurePosixPath(without_secrets(source.url)).name
    return f"{digest}-{re.sub(r'[^A-Za-z0-9._-]', '_', remote_name)[-80:].lstrip('.')}"


def http_options(url: str) -> dict[str, Any]:
    """Options of fsspec for the address; none unless it is http or https."""
    return {"client_kwargs": _checked()} if url.startswith(("http://", "https://")) else {}


@cache
def _checked() -> dict[str, Any]:
    """Arguments of aiohttp's sessions. The same object each time: fsspec keeps a client for equal options."""
    import aiohttp  # most runs never need it

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_check)
    return {"trace_configs": [trace]}


async def _check(
    session: aiohttp.ClientSession, context: SimpleNamespace, redirect: aiohttp.TraceRequestRedirectParams
) -> None:
    """Raise BadInputError unless the redirect may be followed; without an address aiohttp raises by itself."""
    from yarl import URL

    location = next((redirect.response.headers[name] for name in _LOCATIONS if name in redirect.response.headers), "")
    target = redirect.url.join(URL(location))
    if reason := await refusal(redirect.url, target):
        redirect.response.close()
        raise BadInputError(f"{redirect.url.host}: its redirect {reason}; name the file's own address")


async def refusal(origin: URL, target: URL) -> str:
    """Reason not to follow a redirect; empty if it may be."""
    if origin.scheme == "https" and target.scheme != "https":
        return f"to {target.host} leaves https"
    if target.host == origin.host or await is_internal(origin.host or ""):
        return ""
    return f"leads to {target.host}, which is inside of this network" if await is_internal(target.host or "") else ""


async def is_internal(host: str) -> bool:
    """True for a host with an address that the internet doesn't reach; False if its name is known to a proxy only."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(not _is_public(str(address[0])) for *_, address in found)


def _is_public(text: str) -> bool:
    address = ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_global


class WrongSizeError(TransientError):
    """Transfer complete, but with another size than the inventory's."""


@retry(
    retry=retry_if_exception_type(TransientError),
    stop=stop_after_attempt(_ATTEMPTS),
    wait=wait_random_exponential(multiplier=0.2, max=10),
    reraise=True,
)
def fetch(source: SourceFile, path: Path) -> None:
    """Write the file at ``path``, always from its beginning; nothing is left there if that fails.

    Raises BadInputError if it does not exist or has another size than in the inventory, TransientError if the
    remote side failed each time, OSError (ENOSPC) if the disk is full.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with path.open("wb") as local:
            try:
                _copy(source, local)
            except _LocalError as error:
                raise error.reason from None
            size_bytes = local.tell()
        if size_bytes != source.size_bytes:
            raise WrongSizeError(f"{size_bytes} bytes arrived, the inventory says {source.size_bytes}")
    except BaseException:
        path.unlink(missing_ok=True)
        raise


class _LocalError(Exception):
    """Error of the local side: ENOSPC is no fault of the server."""

    def __init__(self, reason: OSError, path: str) -> None:
        super().__init__()
        reason.filename = reason.filename or path
        self.reason = reason


def _copy(source: SourceFile, local: BinaryIO) -> None:
    try:
        # As a stream: fsspec takes a range of a file into memory, however long the server's answer is.
        options = http_options(source.url)
        options |= {"block_size": 0} if options else {}
        with fsspec.open(source.url, "rb", **options) as remote:
            while chunk := remote.read(_CHUNK_BYTES):
                if local.tell() + len(chunk) > source.size_bytes:
                    raise WrongSizeError(f"more bytes arrive than the inventory's {source.size_bytes}")
                try:
                    local.write(chunk)
                    local.flush()
                except OSError as error:
                    raise _LocalError(error, local.name) from None
    except (_LocalError, WrongSizeError):
        raise
    except Exception as error:  # each kind of remote raises its own errors: aiohttp's are no OSError
        if isinstance(error.__cause__, BadInputError):  # a redirect that is not followed
            raise error.__cause__ from None
        if is_gone(error):
            raise BadInputError("it does not exist any more") from None
        # A retry won't help: a client error other than a time-out or "too many requests".
        status = getattr(error.__cause__ or error, "status", 0) or 0
        if isinstance(error, PermissionError) or (400 <= status < 500 and status not in (408, 429)):
            raise BadInputError(f"the server refuses it: {' '.join(str(error).split())[:300]}") from None
        raise TransientError(f"could not be fetched: {' '.join(str(error).split())[:300]}") from error


def is_gone(error: Exception) -> bool:
    """True if a remote side reported that a file does not exist.

    fsspec's http raises FileNotFoundError for any failure, an unreachable server included; the cause is in
    ``__cause__``.
    """
    cause = error.__cause__ or error
    return isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) in (404, 410)


class Remotes(AbstractContextManager["Remotes"]):
    """Clients for remote files, used by many threads. A federation's client is started at the first of its addresses.

    ``on_progress`` is called with the progress of a listing, from another thread.
    """

    def __init__(self, access: RemoteAccess, on_progress: OnProgress = lambda directories, files: None) -> None:
        self._access = access
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._thread: PelicanThread | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def expand_pelican(self, url: str) -> list[SourceFile]:
        """Files of an address or glob in a federation, sorted. Raises NotFoundError and the like."""
        files = self._pelican().expand(url, SUFFIXES, self._on_progress)
        return [SourceFile(name, size_bytes) for name, size_bytes in files]

    def fetch(self, source: SourceFile, part: Path) -> None:
        """Write a file at ``part``, resuming from the bytes present if possible.

        Raises BadInputError if it is permanently unavailable, TransientError, or OSError (ENOSPC).
        """
        if not is_pelican(source.url):
            fetch(source, part)
            return
        try:
            attempts = self._pelican().download(source.url, part, source.size_bytes, source.checksum)
        except NotFoundError as error:
            raise BadInputError(f"it does not exist any more: {error}") from None
        if len(attempts) > 1:
            told = "; ".join(attempts)
            logger.warning("%s: fetched by %d attempts: %s", shown(source.url), len(attempts), told)

    @property
    def bytes_received(self) -> int:
        """Bytes received from federations so far."""
        return self._thread.bytes_received if self._thread is not None else 0

    @property
    def running(self) -> int:
        """Number of running transfers from federations."""
        return self._thread.running if self._thread is not None else 0

    @property
    def token_expires_s(self) -> float | None:
        """Time (seconds since 1970) at which the first of the tokens in use expires; None: none is known."""
        return self._thread.token_expires_s if self._thread is not None else None

    def close(self) -> None:
        """Abort running transfers; their callers get an error."""
        with self._lock:
            if self._thread is not None:
                self._thread.close()

    def _pelican(self) -> PelicanThread:
        with self._lock:
            if self._thread is None:
                from common.pelican.threads import PelicanThread  # aiohttp and pelicanfs: most runs never need them

                self._thread = PelicanThread(self._access.pelican, self._tokens, transfers=self._access.transfers)
            return self._thread

    def _tokens(self, host: str) -> FoundTokens:
        from common.pelican.token_claims import Need, needs
        from common.pelican.tokens import FoundTokens

        inputs, prefix = expand_lists(self._access.inputs), self._access.token.storage_prefix
        found = needs(inputs, storage_prefix=prefix)
        need = next((need for need in found if need.federation == host.lower()), Need(host, ()))
        written = needs([], [self._access.output], storage_prefix=prefix)
        writes = any(other.federation == host.lower() for other in written)
        return FoundTokens(replace(need, writes=writes), self._access.token)
