"""A TLS proxy in front of one real XRootD server: the same faults as the light data server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from .server import CHUNK_BYTES, Aborted, Answer, Server
from .xrootd import XRootD

HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "host", "content-length"})


class FaultProxy(Server):
    """Without a fault every byte is the real server's. kill, freeze and restart act on its process."""

    def __init__(self, name: str, log: list[dict[str, Any]], process: XRootD) -> None:
        super().__init__(name, log)
        self.process = process
        self._session: aiohttp.ClientSession | None = None

    def kill(self) -> None:
        self.process.kill()
        super().kill()

    def freeze(self) -> None:
        self.process.freeze()

    def restart(self) -> None:
        self.process.restart()
        super().restart()

    def stop(self) -> None:
        super().kill()
        self.port = 0
        self.process.stop()

    async def opened(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self.process.certs.client_context(), limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, connector_owner=False, auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
        )

    async def closed(self) -> None:
        if self._session is not None and self._session.connector is not None:
            connector = self._session.connector
            await self._session.close()
            await connector.close(abort_ssl=True)  # a frozen process answers no TLS shutdown
            await asyncio.sleep(0)

    async def answer(self, request: web.Request, path: str) -> Answer:
        assert self._session is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        if request.body_exists and request.content_length is not None:
            headers["Content-Length"] = str(request.content_length)  # XrdHttp 5.5.3 takes no chunked body
        if "Want-Digest" in request.headers:
            headers["Connection"] = "close"  # the next response on this connection would repeat the digest
        url = URL(self.process.url + request.raw_path, encoded=True)
        try:
            response = await self._session.request(
                request.method,
                url,
                headers=headers,
                data=request.content if request.body_exists else None,
                allow_redirects=False,
            )
        except aiohttp.ClientError as error:
            raise Aborted from error
        kept = {name: value for name, value in response.headers.items() if name.lower() not in HOP_BY_HOP}
        length = response.headers.get("Content-Length")
        start = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        offset = int(start[1]) if start else 0
        return Answer(response.status, kept, _forwarded(response), int(length) if length else None, offset)


async def _forwarded(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            yield chunk
    except (aiohttp.ClientError, asyncio.IncompleteReadError) as error:
        raise Aborted from error
    finally:
        response.release() if response.content.at_eof() else response.close()
