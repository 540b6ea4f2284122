"""A light cache/origin in aiohttp that answers the way XrdHttp does, with fault injection."""
import asyncio
import base64
import email.utils
import hashlib
import os
import pathlib
import re
import time
import zlib
from dataclasses import dataclass, field
from urllib.parse import unquote
from xml.sax.saxutils import escape

import jwt
from aiohttp import web

from tests.federation.issuer import allowed

CHUNK = 1 << 18


@dataclass
class Fault:
    """One injected failure. `times` None = until removed; otherwise consumed."""
    kind: str                       # status | hang | disconnect | short | lie | slow | corrupt | stall | reset
    value: float = 0                # status code, seconds, byte count or bytes/s
    match: str = ""                 # regex on the decoded path
    methods: tuple = ("GET",)
    times: int | None = None
    hits: int = field(default=0)

    def applies(self, method, path):
        if method not in self.methods or (self.times is not None and self.hits >= self.times):
            return False
        if not re.search(self.match, path):
            return False
        self.hits += 1
        return True


class DataServer:
    def __init__(self, name, root, fed, writable=False, listings=True, prefix="", quirks=False):
        self.name, self.root, self.fed = name, pathlib.Path(root), fed
        self.writable, self.listings, self.prefix = writable, listings, prefix
        self.faults = []
        self.quirks = quirks            # XrdHttp 5.5.3: broken open/suffix/overlong ranges, Want-Digest turns errors into 500
        self.url = None
        self.app = web.Application(client_max_size=1 << 40)
        self.app.router.add_route("*", "/{path:.*}", self.handle)

    # -- faults -------------------------------------------------------
    def fault(self, kind, value=0, match="", methods=("GET",), times=None):
        f = Fault(kind, value, match, tuple(methods), times)
        self.faults.append(f)
        return f

    def heal(self):
        self.faults.clear()

    # -- HTTP -----------------------------------------------------------
    async def handle(self, req):
        path = unquote(req.raw_path.split("?", 1)[0])
        if self.prefix and path.startswith(self.prefix):
            path = path[len(self.prefix):]
        elif self.prefix:
            return web.Response(status=404, text="outside the server's prefix\n")
        entry = self.fed.log_request(self.name, req, path)
        fault = next((f for f in self.faults if f.applies(req.method, path)), None)
        try:
            resp = await self._dispatch(req, path, fault, entry)
            entry["status"] = resp.status
            return resp
        except web.HTTPException as e:
            entry["status"] = e.status
            raise
        except (ConnectionError, asyncio.CancelledError) as e:   # the client went away
            entry["status"] = type(e).__name__
            if isinstance(e, asyncio.CancelledError):
                raise
            return web.Response(status=499)

    async def _dispatch(self, req, path, fault, entry):
        if fault:
            entry["fault"] = fault.kind
            if fault.kind == "status":
                return web.Response(status=int(fault.value), text=f"injected {int(fault.value)}\n")
            if fault.kind == "hang":           # accept, say nothing
                await asyncio.sleep(fault.value or 3600)
                return web.Response(status=504)
            if fault.kind == "disconnect":     # close before any response byte
                req.transport.close()
                return web.Response(status=499)
        denied = self._authorize(req, path)
        if denied:
            return denied
        if ".." in path.split("/"):
            return web.Response(status=403)
        local = self.root / path.lstrip("/")
        if self.fed.namespace_for(path) is None:
            return web.Response(status=403, text=f"Opening path '{path}' is disallowed.\n")
        if req.method in ("GET", "HEAD"):
            return await self._get(req, path, local, fault, entry)
        if req.method == "PROPFIND":
            return self._propfind(req, path, local)
        if req.method == "PUT":
            return await self._put(req, path, local, entry)
        if req.method == "OPTIONS":
            return web.Response(headers={"DAV": "1", "Allow": "HEAD,GET,PUT,PROPFIND,DELETE,OPTIONS"})
        return web.Response(status=405)

    def _authorize(self, req, path):
        ns = self.fed.namespace_for(path)
        if ns is None:
            return None
        write = req.method == "PUT"
        if ns.public and not write:
            return None
        if write and (not self.writable or not ns.writes):
            return web.Response(status=403, text="writes are not allowed here\n")
        token = req.headers.get("Authorization", "").removeprefix("Bearer ") or req.query.get("authz", "").removeprefix("Bearer ")
        if not token or token == "None":
            return web.Response(status=ns.anon_status, text="no token\n")
        try:
            claims = self.fed.issuer.verify(token)
        except jwt.PyJWTError as e:
            return web.Response(status=ns.anon_status, text=f"bad token: {type(e).__name__}\n")
        if not allowed(claims, "create" if write else "read", path, ns.base_path or ns.prefix):
            return web.Response(status=403, text="scope does not cover the path\n")
        return None

    async def _get(self, req, path, local, fault, entry):
        missing = not local.exists() or (path.endswith("/") and local.is_file())
        if self.quirks and "Want-Digest" in req.headers and (missing or not digest(local, req.headers["Want-Digest"])):
            return web.Response(status=500, text="Unable to compute checksum\n")
        if missing:
            return web.Response(status=404, text=f"Unable to open {path}; no such file or directory\n")
        if local.is_dir():
            if req.method == "HEAD":
                return web.Response(headers={"Content-Length": "4096"})
            return web.Response(text="<html><body>" + "".join(f'<a href="{path.rstrip("/")}/{n}">{n}</a>' for n in sorted(os.listdir(local))) + "</body></html>", content_type="text/html")
        size = local.stat().st_size
        start, end, status = 0, size - 1, 200
        headers = {"Accept-Ranges": "bytes"}
        m = re.fullmatch(r"bytes=(\d*)-(\d*)", req.headers.get("Range", "").strip())
        if m and self.quirks and m[1] and not m[2]:
            return web.Response(status=206, headers={"Content-Range": f"bytes {m[1]}--1/{size}", "Content-Length": "0"})
        overlong = 0
        if m and (m[1] or m[2]) and not (self.quirks and not m[1]):
            if self.quirks and m[2]:
                overlong = max(0, int(m[2]) - size + 1)
            if m[1]:
                start = int(m[1])
                end = min(int(m[2]), size - 1) if m[2] else size - 1
            else:
                start, end = max(0, size - int(m[2])), size - 1
            if start >= size:
                return web.Response(status=416, headers={"Content-Range": f"bytes */{size}"})
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end}/{size}"
        if want := req.headers.get("Want-Digest"):
            d = digest(local, want)
            if d:
                headers["Digest"] = d
        length = end - start + 1
        send = length
        if fault and fault.kind == "lie":      # consistent but too short: only a size or checksum check can tell
            send = length = min(length, int(fault.value))
            headers.pop("Content-Range", None)
            if status == 206:
                headers["Content-Range"] = f"bytes {start}-{start + send - 1}/{size}"
        if fault and fault.kind in ("short", "stall", "reset"):
            send = min(length, int(fault.value))
        if overlong:
            length += overlong
            headers["Content-Range"] = f"bytes {start}-{end + overlong}/{size}"
        resp = web.StreamResponse(status=status, headers=headers)
        resp.content_length = length
        resp.content_type = "application/octet-stream"
        await resp.prepare(req)
        if req.method == "HEAD":
            return resp
        rate = fault.value if fault and fault.kind == "slow" else 0
        t0, sent = time.monotonic(), 0
        with open(local, "rb") as f:
            f.seek(start)
            left = send
            while left:
                chunk = f.read(min(CHUNK if not rate else max(1, int(rate / 10)), left))
                if not chunk:
                    break
                if fault and fault.kind == "corrupt" and sent <= fault.value < sent + len(chunk):
                    b = bytearray(chunk)
                    b[int(fault.value) - sent] ^= 0xFF
                    chunk = bytes(b)
                await resp.write(chunk)
                left -= len(chunk)
                sent += len(chunk)
                entry["sent"] = sent
                if rate:
                    await asyncio.sleep(max(0, sent / rate - (time.monotonic() - t0)))
        if send < length:
            if fault and fault.kind == "stall":          # stop sending, keep the connection
                await asyncio.sleep(3600)
            if fault and fault.kind == "reset":
                req.transport.abort()
            else:
                req.transport.close()
            return resp
        await resp.write_eof()
        return resp

    def _propfind(self, req, path, local):
        if not self.listings and req.headers.get("Depth", "1") != "0":
            return web.Response(status=405, text="Listings are disabled.\n")
        if not local.exists():
            return web.Response(status=404, text=f"Unable to locate {path}; no such file or directory\n")
        if local.is_file() and path.endswith("/"):
            return web.Response(status=500, text=f"Unable to locate {path}; not a directory\n")
        parts = [self._prop(path, local)]
        if local.is_dir() and req.headers.get("Depth", "1") == "1":
            parts += [self._prop(path.rstrip("/") + "/" + p.name, p) for p in sorted(local.iterdir())]
        body = ('<?xml version="1.0" encoding="utf-8"?>\n<D:multistatus xmlns:D="DAV:" xmlns:ns1="http://apache.org/dav/props/" xmlns:ns0="DAV:">\n'
                + "".join(parts) + "</D:multistatus>\n")
        return web.Response(status=207, body=body.encode(), headers={"Content-Type": 'text/xml; charset="utf-8"'})

    def _prop(self, path, local):
        st = local.stat()
        isdir = local.is_dir()
        return (f'<D:response xmlns:lp1="DAV:" xmlns:lp2="http://apache.org/dav/props/" xmlns:lp3="LCGDM:">\n<D:href>{escape(self.prefix + path)}</D:href>\n'
                f"<D:propstat>\n<D:prop>\n<lp1:getcontentlength>{4096 if isdir else st.st_size}</lp1:getcontentlength>\n"
                f"<lp1:getlastmodified>{email.utils.formatdate(st.st_mtime, usegmt=True)}</lp1:getlastmodified>\n"
                + ("<lp1:resourcetype><D:collection/></lp1:resourcetype>\n<lp1:iscollection>1</lp1:iscollection>\n<lp1:executable>T</lp1:executable>\n" if isdir else "")
                + (f"<lp1:iscollection>{int(isdir)}</lp1:iscollection>\n" + ("" if isdir else "<lp1:executable>F</lp1:executable>\n"))
                + "</D:prop>\n<D:status>HTTP/1.1 200 OK</D:status>\n</D:propstat>\n</D:response>\n")

    async def _put(self, req, path, local, entry):
        local.parent.mkdir(parents=True, exist_ok=True)
        n = 0
        tmp = local.with_name(local.name + ".part")
        with open(tmp, "wb") as f:
            async for chunk in req.content.iter_chunked(1 << 20):
                f.write(chunk)
                n += len(chunk)
        tmp.rename(local)
        entry["received"] = n
        return web.Response(status=200, text=":-)")


def digest(local, want):
    """RFC 3230 Digest as XrdHttp writes it: hex for adler32, base64 for the others."""
    for alg in [a.split(";")[0].strip().lower() for a in want.split(",")]:
        data = pathlib.Path(local).read_bytes()
        if alg == "adler32":
            return f"adler32={zlib.adler32(data) & 0xffffffff:08x}"
        if alg == "md5":
            return "md5=" + base64.b64encode(hashlib.md5(data).digest()).decode()
        if alg == "crc32":
            return "crc32=" + base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
    return None
