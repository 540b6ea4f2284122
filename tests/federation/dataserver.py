"""A light cache or origin in pure Python that answers as XrdHttp does."""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
from aiohttp import web

from .issuer import Issuer, allowed
from .listing import multistatus
from .namespaces import Namespace, namespace_for
from .server import CHUNK_BYTES, Answer, Server, plain


class DataServer(Server):
    """Serves ``root``."""

    def __init__(
        self, name: str, log: list[dict[str, Any]], root: Path, issuer: Issuer, writable: bool = False
    ) -> None:
        super().__init__(name, log)
        self.root, self.issuer = root, issuer
        self.writable = writable

    async def answer(self, request: web.Request, path: str) -> Answer:
        namespace = namespace_for(path)
        if namespace is None or ".." in path.split("/"):
            return plain(403, f"Opening path '{path}' is disallowed.\n")
        denied = self._denied(request, path, namespace)
        if denied is not None:
            return denied
        local = self.root / path.lstrip("/")
        match request.method:
            case "GET" | "HEAD":
                return self._read(request, path, local)
            case "PROPFIND":
                return _listing(request, path, local)
            case "DELETE" if not local.is_file():
                return plain(404, f"Unable to remove {path}; no such file or directory\n")
            case "DELETE":
                local.unlink()
                return plain(200, ":-)")
            case "PUT":
                return await _written(request, local)
        return plain(405)

    def _denied(self, request: web.Request, path: str, namespace: Namespace) -> Answer | None:
        writes = request.method in ("PUT", "DELETE")
        if namespace.public and not writes:
            return None
        if writes and not (self.writable and namespace.writes):
            return plain(403, "writes are not allowed here\n")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not token:
            return plain(403, "no token\n")
        try:
            claims = self.issuer.verify(token)
        except jwt.PyJWTError as error:
            return plain(403, f"bad token: {type(error).__name__}\n")
        operation = {"PUT": "create", "DELETE": "modify"}.get(request.method, "read")
        if not allowed(claims, operation, path, namespace.scope_base):
            return plain(403, "scope does not cover the path\n")
        return None

    def _read(self, request: web.Request, path: str, local: Path) -> Answer:
        if not local.is_file() or path.endswith("/"):
            return plain(404, f"Unable to open {path}; no such file or directory\n")
        size = local.stat().st_size
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        if "adler32" in request.headers.get("Want-Digest", ""):  # of those that are asked for, what XrdHttp has
            headers["Digest"] = f"adler32={zlib.adler32(local.read_bytes()):08x}"
        return self._ranged(request.headers.get("Range", ""), local, size, headers)

    def _ranged(self, text: str, local: Path, size: int, headers: dict[str, str]) -> Answer:
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", text.strip())
        if asked is None or not (asked[1] or asked[2]):
            return Answer(200, headers, _blocks(local, 0, size), size)
        first, last = asked[1], asked[2]
        start = int(first) if first else max(0, size - int(last))
        end = min(int(last), size - 1) if first and last else size - 1
        if start >= size:
            return plain(416, headers={"Content-Range": f"bytes */{size}"})
        headers["Content-Range"] = f"bytes {start}-{end}/{size}"
        length = end - start + 1
        return Answer(206, headers, _blocks(local, start, length), length, start)


def _listing(request: web.Request, path: str, local: Path) -> Answer:
    depth = request.headers.get("Depth", "1")
    if not local.exists():
        return plain(404, f"Unable to locate {path}; no such file or directory\n")
    if local.is_file() and path.endswith("/"):
        return plain(500, f"Unable to locate {path}; not a directory\n")
    return plain(207, multistatus(path, local, depth), {"Content-Type": 'text/xml; charset="utf-8"'})


async def _written(request: web.Request, local: Path) -> Answer:
    local.parent.mkdir(parents=True, exist_ok=True)
    part = local.with_name(local.name + ".part")
    with part.open("wb") as file:
        async for chunk in request.content.iter_chunked(1 << 20):
            file.write(chunk)
    part.rename(local)
    return plain(200, ":-)")


async def _blocks(local: Path, start: int, length: int) -> AsyncIterator[bytes]:
    with local.open("rb") as file:
        file.seek(start)
        while length > 0 and (block := file.read(min(CHUNK_BYTES, length))):
            length -= len(block)
            yield block
