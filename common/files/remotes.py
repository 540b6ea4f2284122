"""Remote files: listed and fetched by the client of their scheme."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from common.errors import BadInputError
from common.files.list_files import expand_lists
from common.files.remote_access import RemoteAccess
from common.files.suffixes import SUFFIXES
from common.files.transfer import fetch
from common.pelican.errors import NotFoundError
from common.pelican.url import is_pelican
from common.plan import SourceFile
from common.redact import shown

if TYPE_CHECKING:
    from common.pelican.client import TokenSource
    from common.pelican.listing import ListingProgress
    from common.pelican.threads import PelicanThread

logger = logging.getLogger(__name__)


class Remotes:
    """Clients for remote files, used by many threads. A federation's client is started at the first of its addresses.

    ``on_progress`` is called with the progress of a listing, from another thread.
    """

    def __init__(
        self, access: RemoteAccess, on_progress: Callable[[ListingProgress], None] = lambda progress: None
    ) -> None:
        self._access = access
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._thread: PelicanThread | None = None

    def __enter__(self) -> Remotes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            report = self._pelican().download(source.url, part, source.size_bytes, source.checksum)
        except NotFoundError as error:
            raise BadInputError(f"it does not exist any more: {error}") from None
        if len(report.attempts) > 1:
            told = "; ".join(map(str, report.attempts))
            logger.warning("%s: fetched by %d attempts: %s", shown(source.url), len(report.attempts), told)

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

    def _tokens(self, host: str) -> TokenSource | None:
        from common.pelican.tokens.scopes import Need, needs
        from common.pelican.tokens.source import FoundTokens

        inputs, prefix = expand_lists(self._access.inputs), self._access.token.storage_prefix
        found = needs(inputs, storage_prefix=prefix)
        need = next((need for need in found if need.federation == host.lower()), Need(host, ()))
        written = needs([], [self._access.output], storage_prefix=prefix)
        writes = any(other.federation == host.lower() for other in written)
        return FoundTokens(replace(need, writes=writes), self._access.token)
