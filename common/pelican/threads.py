"""Clients of all federations on an event loop in its own thread; other threads call and wait for the result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, TypeVar

from common.config import PelicanConfig
from common.errors import TransientError
from common.pelican.client import TIMEOUT_S, Federation, OnProgress, expand, open_session
from common.pelican.tokens import FoundTokens
from common.pelican.transfers import download
from common.pelican.url import PelicanUrl

_FAREWELL_TURNS = 5

T = TypeVar("T")
MakeTokens = Callable[[str], FoundTokens | None]
"""Factory of a federation's token source, by its host."""


class ClosedError(TransientError):
    """Call during the end of the process."""


class PelicanThread:
    """Thread with the clients. ``transfers``: maximum simultaneous downloads. ``direct``: objects are read from their
    origins, not from caches. ``timeout_s``: maximum silence of a server."""

    def __init__(
        self,
        config: PelicanConfig,
        make_tokens: MakeTokens = lambda host: None,
        *,
        transfers: int = 4,
        direct: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.bytes_received = 0
        self.running = 0
        """Number of running downloads."""
        self._config = config
        self._make_tokens = make_tokens
        self._direct = direct
        self._timeout_s = timeout_s
        self._room = asyncio.Semaphore(transfers)
        self._closed = False
        self._federations: dict[str, Federation] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pelican", daemon=True)
        self._thread.start()
        self._session = asyncio.run_coroutine_threadsafe(open_session(), self._loop).result()

    def expand(
        self, url: str, suffixes: Collection[str], on_progress: OnProgress = lambda directories, files: None
    ) -> list[tuple[str, int]]:
        """URL and size of every file of an address or glob. Blocks; ``on_progress`` is called in the loop's thread."""
        place = PelicanUrl.parse(url)
        found = self._call(expand(self._federation(place.federation), place.path, suffixes, on_progress))
        federation = f"pelican://{place.federation}"
        return [(federation + path, size_bytes) for path, size_bytes in found]

    def download(self, url: str, part: Path, size_bytes: int, checksum: str = "") -> tuple[str, ...]:
        """Download a file (see transfers.download()). Blocks until the download has had its turn and ended."""
        place = PelicanUrl.parse(url)
        return self._call(self._download(place, part, size_bytes, checksum))

    def run(self, make: Callable[[Federation], Coroutine[Any, Any, T]], url: str) -> T:
        """Result of ``make`` for the federation of an address, run on the loop."""
        return self._call(make(self._federation(PelicanUrl.parse(url).federation)))

    @property
    def token_expires_s(self) -> float | None:
        """Time (seconds since 1970) at which the first of the tokens in use expires; None: none is known."""
        sources = [federation.tokens for federation in list(self._federations.values())]
        ends_s = [source.expires_s for source in sources if source is not None]
        return min((end_s for end_s in ends_s if end_s is not None), default=None)

    def close(self) -> None:
        """Cancel running downloads (parts stay, to be resumed) and end the thread. May be called twice."""
        if self._closed:
            return
        self._closed = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -------------------------------------------------------------- on the loop

    async def _end(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._session.close()
        # Connections that wait for a silent server's TLS farewell would outlive the loop, which has no public list.
        for transport in list(getattr(self._loop, "_transports", {}).values()):
            transport.abort()
        for _ in range(_FAREWELL_TURNS):
            await asyncio.sleep(0)  # the transports' own ends

    async def _download(self, place: PelicanUrl, part: Path, size_bytes: int, checksum: str) -> tuple[str, ...]:
        async with self._room:
            self.running += 1
            try:
                federation = self._federation(place.federation)
                return await download(
                    federation, place.path, part, size_bytes=size_bytes, checksum=checksum, received=self._received
                )
            finally:
                self.running -= 1

    def _received(self, num_bytes: int) -> None:
        self.bytes_received += num_bytes

    # -------------------------------------------------------------- between threads

    def _federation(self, host: str) -> Federation:
        if host not in self._federations:
            tokens = self._make_tokens(host)
            federation = Federation(
                host, self._config, self._session, tokens, direct=self._direct, timeout_s=self._timeout_s
            )
            self._federations.setdefault(host, federation)
        return self._federations[host]

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise ClosedError("the fetcher is ending")
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (CancelledError, asyncio.CancelledError):
            raise ClosedError("the fetcher is ending") from None
