"""A local OAuth2 issuer as CILogon and SciTokens offer one, scripted: metadata, registration, device flow, renewal.

    flow = DeviceFlow(mint=issuer.mint, url=lambda: issuer.url)
    app.add_routes(flow.routes("/issuer"))       # or device_flow.routes(issuer): issuer.device_flow is made if missing
    flow.answers = ["pending", "slow_down", "success"]

RFC 8414 (and OpenID) metadata, RFC 7591 registration, RFC 8628 device authorisation, RFC 6749 token endpoint with
rotation: a refresh token works once, and using it twice ends its whole line, as RFC 9700 wants.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from aiohttp import web

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


class DeviceFlow:
    """What the issuer knows, what it was asked, and what it is to answer."""

    def __init__(self, mint: Callable[..., str], url: Callable[[], str]) -> None:
        self.mint, self.url = mint, url
        self.answers: list[str] = []
        """To the polls of a device code, in order: pending, slow_down, denied, expired, unavailable, garbage, huge,
        redirect, success. Empty: success."""
        self.refresh_answers: list[str] = []
        """To refresh requests, in order: unavailable, invalid_grant, success. Empty: success."""
        self.ttl_s: float = 600
        self.refresh_ttl_s: float = 600
        self.interval_s: float | None = 1
        self.expires_in_s: float = 600
        self.granted: str | None = None
        """Scope that is granted; None: as asked for."""
        self.opaque = False
        self.refreshable = True
        self.device_answer: dict[str, Any] = {}
        """Overrides fields of the device authorisation's answer; None leaves one out."""
        self.metadata_overrides: dict[str, Any] = {}
        self.well_known = ("openid-configuration", "oauth-authorization-server")
        self.clients: dict[str, str] = {}
        self.device_codes: dict[str, tuple[str, str]] = {}
        self.refresh_tokens: dict[str, tuple[str, str]] = {}
        self.spent: set[str] = set()
        self.tokens: list[str] = []
        self.log: list[tuple[str, dict[str, str]]] = []
        """Endpoint and form of each request, in order."""

    @property
    def handed_out(self) -> set[str]:
        """Everything that must be seen nowhere: tokens, codes and passwords that were handed out."""
        found = {*self.tokens, *self.device_codes, *self.refresh_tokens, *self.spent, *self.clients.values()}
        return {text for text in found if text}

    def requests(self, endpoint: str) -> int:
        """How often an endpoint was asked."""
        return sum(name == endpoint for name, _ in self.log)

    def routes(self, path: str) -> list[web.RouteDef]:
        """The issuer's endpoints, where ``path`` is the path of its URL."""
        path = path.rstrip("/")
        found = [
            web.get(f"{path}/.well-known/openid-configuration", self._openid),
            web.get(f"/.well-known/oauth-authorization-server{path}", self._rfc8414),
            web.post(f"{path}/oidc-cm", self._register),
            web.post(f"{path}/device_authorization", self._device),
            web.post(f"{path}/token", self._token),
            web.get(f"{path}/device", self._page),
        ]
        return found

    def metadata(self) -> dict[str, Any]:
        url = self.url()
        content = {
            "issuer": url,
            "jwks_uri": f"{url}/.well-known/issuer.jwks",
            "token_endpoint": f"{url}/token",
            "device_authorization_endpoint": f"{url}/device_authorization",
            "registration_endpoint": f"{url}/oidc-cm",
            "grant_types_supported": [DEVICE_GRANT, "refresh_token"],
            "scopes_supported": ["openid", "offline_access", "wlcg", "storage.read:/", "storage.modify:/"],
            **self.metadata_overrides,
        }
        return {name: value for name, value in content.items() if value is not None}

    async def _openid(self, request: web.Request) -> web.Response:
        return self._metadata("openid-configuration")

    async def _rfc8414(self, request: web.Request) -> web.Response:
        return self._metadata("oauth-authorization-server")

    def _metadata(self, name: str) -> web.Response:
        self.log.append((name, {}))
        return web.json_response(self.metadata()) if name in self.well_known else web.Response(status=404)

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(text="approve here\n")

    async def _register(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        self.log.append(("register", {name: str(value) for name, value in wanted.items()}))
        if DEVICE_GRANT not in wanted.get("grant_types", []) or not wanted.get("redirect_uris"):
            return web.json_response({"error": "invalid_client_metadata"}, status=400)
        client_id, secret = f"client:/{secrets.token_hex(4)}", secrets.token_urlsafe(24)  # CILogon's ids are URLs
        self.clients[client_id] = secret
        return web.json_response({"client_id": client_id, "client_secret": secret, **wanted}, status=201)

    async def _device(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.log.append(("device_authorization", form))
        client = self._client(request, form)
        if client is None:
            return _error("invalid_client", 401)
        code, user_code = secrets.token_urlsafe(24), secrets.token_hex(4).upper()
        self.device_codes[code] = (client, form.get("scope", ""))
        page = f"{self.url()}/device"
        content = {
            "device_code": code,
            "user_code": user_code,
            "verification_uri": page,
            "verification_uri_complete": f"{page}?user_code={user_code}",
            "expires_in": self.expires_in_s,
            "interval": self.interval_s,
            **self.device_answer,
        }
        return web.json_response({name: value for name, value in content.items() if value is not None})

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.log.append(("token" if form.get("grant_type") == DEVICE_GRANT else "refresh", form))
        client = self._client(request, form)
        if client is None:
            return _error("invalid_client", 401)
        if form.get("grant_type") == DEVICE_GRANT:
            return self._by_device(client, form)
        if form.get("grant_type") == "refresh_token":
            return self._by_refresh(client, form)
        return _error("unsupported_grant_type")

    def _by_device(self, client: str, form: dict[str, str]) -> web.Response:
        owner, scope = self.device_codes.get(form.get("device_code", ""), ("", ""))
        if owner != client:
            return _error("invalid_grant")
        match self.answers.pop(0) if self.answers else "success":
            case "pending":
                return _error("authorization_pending")
            case "slow_down":
                return _error("slow_down")
            case "denied":
                return _error("access_denied")
            case "expired":
                return _error("expired_token")
            case "unavailable":
                return web.Response(status=503, text="<html>later</html>")
            case "garbage":
                return web.Response(text="<html>no JSON</html>", content_type="text/html")
            case "huge":
                return web.Response(body=b"[" + b"1," * (1 << 20) + b"1]", content_type="application/json")
            case "redirect":
                return web.Response(status=307, headers={"Location": "/elsewhere"})
        return self._grant(client, scope, self.ttl_s)

    def _by_refresh(self, client: str, form: dict[str, str]) -> web.Response:
        answer = self.refresh_answers.pop(0) if self.refresh_answers else "success"
        if answer == "unavailable":
            return web.Response(status=503)
        old = form.get("refresh_token", "")
        if old in self.spent:
            self.refresh_tokens.clear()
        owner, scope = self.refresh_tokens.pop(old, ("", ""))
        if answer == "invalid_grant" or owner != client:
            return _error("invalid_grant", description="this refresh token is worthless")
        self.spent.add(old)
        return self._grant(client, scope, self.refresh_ttl_s)

    def _grant(self, client: str, scope: str, ttl_s: float) -> web.Response:
        granted = self.granted if self.granted is not None else scope
        token = f"opaque{secrets.token_urlsafe(24)}" if self.opaque else self.mint(granted, ttl=ttl_s)
        self.tokens.append(token)
        content = {"access_token": token, "token_type": "Bearer", "expires_in": ttl_s, "scope": granted}
        if self.refreshable:
            refresh = f"refresh{secrets.token_urlsafe(24)}"
            self.refresh_tokens[refresh] = (client, scope)
            content["refresh_token"] = refresh
        return web.json_response(content)

    def _client(self, request: web.Request, form: dict[str, str]) -> str | None:
        """Who asks, by HTTP Basic (RFC 6749, section 2.3.1) or, for a public client, by its id alone."""
        kind, _, text = request.headers.get("Authorization", "").partition(" ")
        if kind != "Basic":
            client_id = form.get("client_id", "")
            return client_id if self.clients.get(client_id) == "" else None
        client_id, _, secret = base64.b64decode(text).decode().partition(":")
        client_id = unquote_plus(client_id)
        known = self.clients.get(client_id)
        return client_id if known is not None and secrets.compare_digest(known, unquote_plus(secret)) else None


def routes(issuer: Any) -> list[web.RouteDef]:
    """The endpoints for a federation's Issuer, at the path of its URL (/issuer); its script is issuer.device_flow."""
    if not hasattr(issuer, "device_flow"):
        issuer.device_flow = DeviceFlow(mint=issuer.mint, url=lambda: issuer.url)
    flow: DeviceFlow = issuer.device_flow
    return flow.routes(urlsplit(issuer.url).path if issuer.url else "/issuer")


def _error(code: str, status: int = 400, description: str = "") -> web.Response:
    content = {"error": code, **({"error_description": description} if description else {})}
    return web.json_response(content, status=status)
