"""A TLS server with a log and faults: what director, light data server and proxy have in common."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote
from xml.sax.saxutils import escape

from aiohttp import web

from .faults import HOSTILE_NAMES, Fault, first_that_applies
from .loop import LoopThread

CHUNK_BYTES = 1 << 18
FOR_EVER_S = 3600.0


class Aborted(Exception):
    """The real server broke off: so does this one."""


@dataclass
class Answer:
    """A response before faults."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    length_bytes: int | None
    """None: not known before (chunked)."""
    offset_bytes: int = 0
    """Where in the file the body begins."""


async def once(content: bytes) -> AsyncIterator[bytes]:
    yield content


def plain(status: int, content: str | bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    body = content.encode() if isinstance(content, str) else content
    return Answer(status, headers or {}, once(body), len(body))


class Server:
    """``fault()`` and ``heal()``; ``kill()``, ``freeze()`` and ``restart()``: gone, alive but silent, and back."""

    def __init__(self, name: str, log: list[dict[str, Any]]) -> None:
        self.name, self.log = name, log
        self.faults: list[Fault] = []
        self.url = ""
        self.port = 0
        self._frozen = False
        self._runner: web.AppRunner | None = None

    # -- faults

    def fault(
        self,
        kind: str,
        value: float = 0,
        match: str = "",
        methods: tuple[str, ...] = ("GET",),
        times: int | None = None,
        **more: Any,
    ) -> Fault:
        """Inject one, until ``heal()`` or ``times`` hits. More: chance, seed, raw (see Fault)."""
        self.faults.append(Fault(kind, value, match, tuple(methods), times, **more))
        return self.faults[-1]

    def heal(self) -> None:
        self.faults.clear()
        self.restart()

    def kill(self) -> None:
        """Nothing listens any more: connections are refused, open ones are cut."""
        if self._runner is not None:
            self._loop.run(self._close())

    def freeze(self) -> None:
        """Accepts connections and requests, and says nothing."""
        self._frozen = True

    def restart(self) -> None:
        """Back after ``kill()`` or ``freeze()``, on the same port."""
        self._frozen = False
        if self._runner is None and self.port:
            self._loop.run(self._open())

    # -- life

    def start(self, loop: LoopThread, context: ssl.SSLContext) -> None:
        self._loop, self._context = loop, context
        loop.run(self._open())

    def stop(self) -> None:
        self.kill()
        self.port = 0

    async def _open(self) -> None:
        app = web.Application(client_max_size=1 << 40)
        self.add_routes(app)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=self._context, reuse_address=True).start()
        self.port = runner.addresses[0][1]
        self.url = f"https://localhost:{self.port}"
        self._runner = runner
        await self.opened()

    async def _close(self) -> None:
        runner, self._runner = self._runner, None
        assert runner is not None
        if runner.server is not None:
            for connection in runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
        await runner.cleanup()
        await self.closed()

    async def opened(self) -> None:
        """For what a subclass opens with the server."""

    async def closed(self) -> None:
        """For what a subclass closes with the server."""

    def add_routes(self, app: web.Application) -> None:
        app.router.add_route("*", "/{path:.*}", self.handle)

    # -- requests

    def logged(self, server: str, request: web.Request, path: str) -> dict[str, Any]:
        entry = {
            "server": server,
            "method": request.method,
            "path": path,
            "range": request.headers.get("Range"),
            "auth": request.headers.get("Authorization", ""),
            "query": request.query_string,
            "status": None,
        }
        self.log.append(entry)
        return entry

    async def answer(self, request: web.Request, path: str) -> Answer:
        """The answer without faults, of a server that serves data."""
        raise NotImplementedError

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = unquote(request.raw_path.split("?", 1)[0])
        entry = self.logged(self.name, request, path)
        fault = first_that_applies(self.faults, request.method, path)
        early = await self.early(request, fault, entry)
        if early is not None:
            return early
        try:
            answer = await self.answer(request, path)
            entry["status"] = answer.status
            return await self._send(request, answer, fault)
        except Aborted:
            return cut(request)

    async def early(self, request: web.Request, fault: Fault | None, entry: dict[str, Any]) -> web.Response | None:
        """Faults that need no answer of the server."""
        if self._frozen or (fault and fault.kind == "hang"):
            await asyncio.sleep((fault.value if fault else 0) or FOR_EVER_S)
            return web.Response(status=504)
        if fault and fault.kind == "status":
            entry["status"] = int(fault.value)
            return web.Response(status=int(fault.value), text=f"injected {int(fault.value)}\n")
        if fault and fault.kind == "raw" and request.transport is not None:
            request.transport.write(fault.raw)
            return cut(request)
        if fault and fault.kind == "disconnect":
            return cut(request)
        return None

    async def _send(self, request: web.Request, answer: Answer, fault: Fault | None) -> web.StreamResponse:
        if fault and fault.kind == "names" and answer.status == 207:
            answer = await with_names(answer, request.path)
        kind = fault.kind if fault and answer.status in (200, 206) else ""
        value = int(fault.value) if fault else 0
        headers, length = dict(answer.headers), answer.length_bytes
        limit = None
        if kind in ("short", "stall", "reset", "lie") and length is not None:
            limit = min(value, length)
        if kind == "lie" and limit is not None:
            length = limit
            if answer.status == 206 and limit:
                last = answer.offset_bytes + limit - 1
                headers["Content-Range"] = re.sub(r"-\d+/", f"-{last}/", headers.get("Content-Range", ""))
        response = web.StreamResponse(status=answer.status, headers=headers)
        response.content_length = length
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        sent = 0
        async for chunk in answer.chunks:
            if limit is not None:
                chunk = chunk[: limit - sent]
            if kind == "corrupt":
                chunk = flipped(chunk, value - answer.offset_bytes - sent)
            if chunk:
                await response.write(chunk)
            sent += len(chunk)
            if limit is not None and sent >= limit:
                break
        if length is not None and sent < length:
            if kind == "stall":
                await asyncio.sleep(FOR_EVER_S)
            elif kind == "reset" and request.transport is not None:
                request.transport.abort()
            else:
                cut(request)
            return response
        await response.write_eof()
        return response


def cut(request: web.Request) -> web.Response:
    """Close the connection; the response that is returned is never sent."""
    if request.transport is not None:
        request.transport.close()
    return web.Response(status=499)


def flipped(chunk: bytes, at: int) -> bytes:
    """With every bit of the byte ``at`` turned over, if the chunk has it."""
    if not 0 <= at < len(chunk):
        return chunk
    return chunk[:at] + bytes([chunk[at] ^ 0xFF]) + chunk[at + 1 :]


async def with_names(answer: Answer, path: str) -> Answer:
    """A listing with more files in it, named as given: XrdHttp doesn't escape, neither does this."""
    body = b"".join([chunk async for chunk in answer.chunks])
    more = ""
    for name in HOSTILE_NAMES:
        href = name if name.startswith("/") else f"{path.rstrip('/')}/{name}"
        more += (
            f"<D:response><D:href>{escape(href)}</D:href><D:propstat><D:prop>"
            '<lp1:getcontentlength xmlns:lp1="DAV:">7</lp1:getcontentlength>'
            '<lp1:resourcetype xmlns:lp1="DAV:"/></D:prop>'
            "<D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>\n"
        )
    body = body.replace(b"</D:multistatus>", more.encode() + b"</D:multistatus>")
    return Answer(answer.status, answer.headers, once(body), len(body))
