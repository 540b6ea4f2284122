"""The director's redirects and discovery (Pelican's director/director.go, emulated)."""

from __future__ import annotations

import posixpath
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote, unquote

import jwt
from aiohttp import web

from .faults import Fault, first_that_applies
from .issuer import Issuer
from .namespaces import Namespace, namespace_for
from .server import Server

MAX_SOURCES = 6
"""serverResLimit"""
REDIRECTS_ONLY = r"^(?!/\.well-known)"
EXPIRY_GRACE_S = 10.0
FAULT: ContextVar[str] = ContextVar("fault", default="")
"""Kind of the fault that the request in work has met."""


class Director(Server):
    """``sources(from_origin)`` gives base URLs of data servers, best first."""

    def __init__(self, log: list[dict[str, Any]], sources: Callable[[bool], list[str]], issuer: Issuer) -> None:
        super().__init__("director", log)
        self.sources, self.issuer = sources, issuer

    def fault(
        self,
        kind: str,
        value: float = 0,
        match: str = REDIRECTS_ONLY,
        methods: tuple[str, ...] = ("GET", "HEAD", "PROPFIND", "PUT", "POST"),
        times: int | None = None,
        **more: Any,
    ) -> Fault:
        """As of a data server. For discovery ``match="pelican-configuration"``.

        Kinds of its own: html (200 and a page), no-director (discovery without it).
        """
        return super().fault(kind, value, match, methods, times, **more)

    def add_routes(self, app: web.Application) -> None:
        app.middlewares.append(self._with_faults)
        app.router.add_get("/.well-known/pelican-configuration", self._discovery)
        app.router.add_route("*", "/{path:.*}", self._redirect)

    async def opened(self) -> None:
        self.issuer.url = self.url + "/issuer"

    @web.middleware
    async def _with_faults(self, request: web.Request, handler: Any) -> web.StreamResponse:
        path = _path(request)
        entry = self.logged("discovery" if path.endswith("pelican-configuration") else "director", request, path)
        fault = first_that_applies(self.faults, request.method, path)
        early = await self.early(request, fault, entry)
        if early is not None:
            return early
        FAULT.set(fault.kind if fault else "")
        if FAULT.get() == "html":
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

    async def _redirect(self, request: web.Request) -> web.Response:
        path = _path(request)
        namespace = namespace_for(path)
        if namespace is None:
            return _error(404, f"no origin serves {path}")
        if request.method not in ("GET", "HEAD", "PROPFIND", *(["PUT", "DELETE"] if namespace.writes else [])):
            return _error(405, "no source of this namespace allows the request")
        if _expired(request.headers.get("Authorization", "").removeprefix("Bearer ")):
            refused = _error(401, "bearer token has expired")
            why = 'Bearer error="invalid_token", error_description="token has expired"'
            refused.headers["WWW-Authenticate"] = why
            return refused
        from_origin = request.method in ("PUT", "DELETE", "PROPFIND") or "directread" in request.query
        servers = self.sources(from_origin) or self.sources(True)
        return self._redirection(request, namespace, path, servers)

    def _redirection(self, request: web.Request, namespace: Namespace, path: str, servers: list[str]) -> web.Response:
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
        about += f", collections-url={self.sources(True)[0]}"
        headers += [("X-Pelican-Namespace", about), ("X-Pelican-JobId", str(uuid.uuid4()))]
        headers += [("Access-Control-Allow-Origin", "*"), ("Server", "pelican/7.20.0"), ("Location", urls[0])]
        page = f'<a href="{urls[0]}">Temporary Redirect</a>.\n\n' if request.method == "GET" else ""
        return web.Response(status=307, headers=headers, text=page, content_type="text/html")


def _error(status: int, message: str) -> web.Response:
    content = {"status": "error", "msg": f"{message}: Request ID: {uuid.uuid4()}"}
    return web.json_response(content, status=status)


def _path(request: web.Request) -> str:
    return posixpath.normpath("/" + unquote(request.raw_path.split("?", 1)[0]).lstrip("/"))


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
