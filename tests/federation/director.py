"""The director's redirects, discovery and the issuer's endpoints (Pelican's director/director.go, emulated)."""

from __future__ import annotations

import posixpath
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote, unquote, urlencode

import jwt
from aiohttp import web

from .faults import Fault, first_that_applies
from .issuer import Issuer
from .namespaces import Namespace
from .server import Server

MAX_SOURCES = 6
"""serverResLimit"""
REDIRECTS_ONLY = r"^(?!/\.well-known|/issuer)"
EXPIRY_GRACE_S = 10.0
FAULT: ContextVar[str] = ContextVar("fault", default="")
"""Kind of the fault that the request in work has met."""


class Director(Server):
    """``sources(namespace, from_origin)`` gives base URLs of data servers, best first."""

    def __init__(
        self,
        log: list[dict[str, Any]],
        namespace: Callable[[str], Namespace | None],
        sources: Callable[[Namespace, bool], list[str]],
        issuer: Issuer,
    ) -> None:
        super().__init__("director", log)
        self.namespace, self.sources, self.issuer = namespace, sources, issuer

    def fault(
        self,
        kind: str,
        value: float = 0,
        match: str = REDIRECTS_ONLY,
        methods: tuple[str, ...] = ("GET", "HEAD", "PROPFIND", "PUT", "POST"),
        times: int | None = None,
        **more: Any,
    ) -> Fault:
        """As of a data server. For discovery ``match="pelican-configuration"``, for the issuer ``match="^/issuer"``.

        Kinds of its own: html (200 and a page), no-director (discovery without it).
        """
        return super().fault(kind, value, match, methods, times, **more)

    def add_routes(self, app: web.Application) -> None:
        self.issuer.url = self.issuer.url or "/issuer"
        app.middlewares.append(self._with_faults)
        app.router.add_get("/.well-known/pelican-configuration", self._discovery)
        app.router.add_get("/issuer/.well-known/openid-configuration", self._openid)
        app.router.add_get("/issuer/.well-known/issuer.jwks", self._jwks)
        app.router.add_get("/.well-known/issuer.jwks", self._jwks)
        app.router.add_route("*", "/{path:.*}", self._redirect)

    async def opened(self) -> None:
        self.issuer.url = self.url + "/issuer"

    @web.middleware
    async def _with_faults(self, request: web.Request, handler: Any) -> web.StreamResponse:
        path = posixpath.normpath("/" + unquote(request.raw_path.split("?", 1)[0]).lstrip("/"))
        known = "discovery" if path.endswith("pelican-configuration") else "issuer"
        redirects = not path.startswith(("/.well-known", "/issuer"))
        entry = self.logged("director" if redirects else known, request, path)
        fault = first_that_applies(self.faults, request.method, path)
        early = await self.early(request, fault, entry)
        if early is not None:
            return early
        FAULT.set(fault.kind if fault else "")
        if FAULT.get() == "html":
            entry["status"] = 200
            return web.Response(text="<html>Welcome</html>", content_type="text/html")
        response: web.StreamResponse = await handler(request)
        entry["status"] = response.status
        return response

    async def _discovery(self, request: web.Request) -> web.Response:
        content = {
            "discovery_endpoint": self.url,
            "director_endpoint": self.url,
            "namespace_registration_endpoint": self.url,
            "jwks_uri": self.url + "/.well-known/issuer.jwks",
            "broker_endpoint": self.url,
        }
        if FAULT.get() == "no-director":
            del content["director_endpoint"]
        return web.json_response(
            content, headers={"Content-Disposition": "attachment; filename=pelican-configuration.json"}
        )

    async def _openid(self, request: web.Request) -> web.Response:
        return web.json_response(self.issuer.openid_configuration())

    async def _jwks(self, request: web.Request) -> web.Response:
        return web.json_response(self.issuer.jwks())

    async def _redirect(self, request: web.Request) -> web.Response:
        path = posixpath.normpath("/" + unquote(request.raw_path.split("?", 1)[0]).lstrip("/"))
        from_origin = request.method in ("PUT", "DELETE", "PROPFIND") or "directread" in request.query
        for api in ("object", "origin"):
            prefix = f"/api/v1.0/director/{api}"
            if path == prefix or path.startswith(prefix + "/"):
                path, from_origin = path[len(prefix) :] or "/", from_origin or api == "origin"
        if request.method == "OPTIONS":
            return web.Response(headers={"Allow": "HEAD,GET,PUT,PROPFIND,COPY,OPTIONS,POST"})
        if "directread" in request.query and "prefercached" in request.query:
            return _error(400, "directread and prefercached exclude each other")
        namespace = self.namespace(path)
        if namespace is None:
            return _error(404, f"no origin serves {path}")
        if not _supports(namespace, request):
            return _error(405, "no source of this namespace allows the request")
        token = (request.query.get("authz") or request.headers.get("Authorization") or "").removeprefix("Bearer ")
        if _expired(token):
            refused = _error(401, "bearer token has expired")
            why = 'Bearer error="invalid_token", error_description="token has expired"'
            refused.headers["WWW-Authenticate"] = why
            return refused
        servers = self.sources(namespace, from_origin) or self.sources(namespace, True)
        return self._redirection(request, namespace, path, servers, token)

    def _redirection(
        self, request: web.Request, namespace: Namespace, path: str, servers: list[str], token: str
    ) -> web.Response:
        rest = path[len(namespace.prefix) :].strip("/")
        depth = len(rest.split("/")) if rest else 0
        urls = [server + quote(path, safe="/$&+,:;=@~") for server in servers]  # as Go's url.URL.String()
        links = [f'<{url}>; rel="duplicate"; pri={i}; depth={depth}' for i, url in enumerate(urls[:MAX_SOURCES], 1)]
        headers = [("Link", ", ".join(links))]
        if not namespace.public or namespace.writes:
            issuer = f"issuer={self.issuer.url}"
            generation = f"{issuer}, max-scope-depth=3, strategy=OAuth2, base-path={namespace.scope_base}"
            headers += [("X-Pelican-Authorization", issuer), ("X-Pelican-Token-Generation", generation)]
        about = f"namespace={namespace.prefix}, require-token={'false' if namespace.public else 'true'}"
        about += f", collections-url={self.sources(namespace, True)[0]}"
        headers += [("X-Pelican-Namespace", about), ("X-Pelican-JobId", str(uuid.uuid4()))]
        headers += [("Access-Control-Allow-Origin", "*"), ("Server", "pelican/7.20.0")]
        if request.query.get("redirect") == "false":
            return web.Response(status=200, headers=headers)
        query = {**request.query, **({"authz": token} if token else {})}
        location = urls[0] + ("?" + urlencode(sorted(query.items())) if query else "")
        page = f'<a href="{location}">Temporary Redirect</a>.\n\n' if request.method == "GET" else ""
        headers.append(("Location", location))
        return web.Response(status=307, headers=headers, text=page, content_type="text/html")


def _error(status: int, message: str) -> web.Response:
    content = {"status": "error", "msg": f"{message}: Request ID: {uuid.uuid4()}"}
    return web.json_response(content, status=status)


def _supports(namespace: Namespace, request: web.Request) -> bool:
    writes = namespace.writes
    return {"GET": True, "HEAD": True, "PUT": writes, "DELETE": writes, "PROPFIND": True}.get(request.method, False)


def _expired(token: str) -> bool:
    """validateClientToken: the expiry as the token claims it, with a grace of at most half its lifetime."""
    if not token:
        return False
    try:
        claims = jwt.decode(token, options={"verify_signature": False, "verify_exp": False, "verify_aud": False})
    except jwt.PyJWTError:
        return False
    if "exp" not in claims:
        return False
    lifetime_s = claims["exp"] - claims["iat"] if "iat" in claims else 2 * EXPIRY_GRACE_S
    grace_s = min(EXPIRY_GRACE_S, lifetime_s / 2)
    return bool(lifetime_s <= 0 or time.time() + grace_s > claims["exp"])
