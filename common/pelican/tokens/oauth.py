"""Requests to an OAuth2 issuer: metadata (RFC 8414), registration (RFC 7591), tokens (RFC 6749 and 8628)."""

from __future__ import annotations

import ipaddress
import re
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus, urlsplit

import aiohttp

from common.pelican.answers import json_object
from common.pelican.client import TRANSPORT_ERRORS, request, told
from common.pelican.tokens.claims import finite, what_is_wrong
from common.pelican.tokens.errors import IssuerError, IssuerUnavailable
from common.pelican.tokens.store import Client, StoredToken
from common.redact import shown

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
MAX_ANSWER_BYTES = 1 << 20
TIMEOUT_S = 30.0
CLIENT_NAME = "icestream"
_TEXT = re.compile(r"[\x20-\x7e]{0,65536}")


@dataclass(frozen=True)
class Endpoints:
    """Endpoints of an issuer. Empty: it has no such endpoint."""

    issuer: str
    token: str
    device: str
    registration: str
    scopes: tuple[str, ...] = ()
    """Supported scopes, from its metadata; empty: not given."""


@dataclass(frozen=True)
class Granted:
    """Granted token. The repr contains no secret."""

    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    scope: str
    lifetime_s: float | None


class Refused(IssuerError):
    """The issuer answered with an OAuth2 error; ``code`` is its name: ``invalid_grant``, ``slow_down``, …"""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


def open_session(context: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
    """HTTP session with bounded waits that verifies TLS; ``context``: for an authority unknown to OpenSSL."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=True if context is None else context),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=TIMEOUT_S / 3),
        headers={"Accept": "application/json"},
    )


def checked_url(url: str, what: str) -> str:
    """URL that secrets may be sent to: https, or a server on this machine. Raises IssuerError."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise IssuerError(f"{what}: not a URL") from None
    if parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host)):
        if host and not parts.username and not parts.fragment and re.fullmatch(r"[\x21-\x7e]+", url):
            return url
        raise IssuerError(f"{what}: expected a plain URL with a host, without user or fragment")
    raise IssuerError(f"{what} {shown(url, 200)!r}: expected an https:// URL; tokens don't travel in the clear")


def text_of(content: Mapping[str, Any], name: str) -> str | None:
    """Text value as defined in RFC 6749 (appendix A): ASCII without control characters; None for anything else."""
    value = content.get(name)
    return value if isinstance(value, str) and _TEXT.fullmatch(value) else None


async def discover(session: aiohttp.ClientSession, issuer: str) -> Endpoints:
    """Endpoints of the issuer, from its metadata."""
    parts = urlsplit(checked_url(issuer, "issuer"))
    base = issuer.rstrip("/")
    path = parts.path.rstrip("/")
    last = "no metadata"
    for url in dict.fromkeys(
        (
            f"{base}/.well-known/openid-configuration",  # used by Pelican
            f"{parts.scheme}://{parts.netloc}/.well-known/oauth-authorization-server{path}",  # RFC 8414, section 3
        )
    ):
        status, content = await _request(session, "GET", url)
        if status == 200:
            return _endpoints(issuer, content)
        last = f"HTTP {status} for {url}"
    raise IssuerError(f"issuer {issuer}: {last}; is this the URL of an OAuth2 issuer? Name another with --issuer")


async def register(session: aiohttp.ClientSession, endpoints: Endpoints, scopes: str) -> Client:
    """New client, registered at the issuer."""
    if not endpoints.registration:
        raise IssuerError(f"issuer {endpoints.issuer}: has no registration of clients; name yours with --client-id")
    wanted = {
        "client_name": CLIENT_NAME,
        "grant_types": ["refresh_token", DEVICE_GRANT],
        "response_types": ["code"],
        "redirect_uris": ["https://localhost/icestream"],  # never used; some issuers require one
        "token_endpoint_auth_method": "client_secret_basic",
        "scope": scopes,
    }
    status, content = await _request(session, "POST", endpoints.registration, document=wanted)
    if status not in (200, 201):
        raise _refusal(endpoints.issuer, "registration of a client", status, content)
    client_id, secret = text_of(content, "client_id"), text_of(content, "client_secret")
    if not client_id or (secret is None and "client_secret" in content):
        raise IssuerError(f"issuer {endpoints.issuer}: registered a client without client_id")
    return Client(issuer=endpoints.issuer, client_id=client_id, client_secret=secret or "")


async def ask_device_code(
    session: aiohttp.ClientSession, endpoints: Endpoints, client: Client, scope: str
) -> Mapping[str, Any]:
    """Answer of the device authorisation endpoint (RFC 8628, section 3.2)."""
    if not endpoints.device:
        raise IssuerError(
            f"issuer {endpoints.issuer}: has no device flow; get a token in another way (docs/how-to/tokens.md)"
        )
    form = {"client_id": client.client_id, "scope": scope}
    status, content = await _request(session, "POST", endpoints.device, form=form, client=client)
    if status != 200:
        raise _refusal(endpoints.issuer, "device authorisation", status, content)
    return content


async def ask_token(
    session: aiohttp.ClientSession, token_endpoint: str, client: Client, form: Mapping[str, str], scope: str
) -> Granted:
    """Token granted by one request to the token endpoint. Raises Refused, IssuerError, IssuerUnavailable."""
    form = {"client_id": client.client_id, **form}
    status, content = await _request(session, "POST", token_endpoint, form=form, client=client)
    if status != 200:
        raise _refusal(client.issuer, "token", status, content)
    access = content.get("access_token")
    wrong = what_is_wrong(access) if isinstance(access, str) else "there is none"
    if wrong or not isinstance(access, str):
        raise IssuerError(f"issuer {client.issuer}: granted no usable access token: {wrong}")
    kind = content.get("token_type", "bearer")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise IssuerError(f"issuer {client.issuer}: granted a token of another kind than Bearer")
    return Granted(
        access_token=access,
        refresh_token=text_of(content, "refresh_token") or "",
        scope=text_of(content, "scope") or scope,  # RFC 6749, 5.1: the requested one
        lifetime_s=finite(content.get("expires_in")),
    )


async def refresh(session: aiohttp.ClientSession, stored: StoredToken, clock: Callable[[], float]) -> StoredToken:
    """Renewed token. The refresh token may be a new one, with the old one invalid from now on."""
    form = {"grant_type": "refresh_token", "refresh_token": stored.refresh_token}
    granted = await ask_token(
        session, checked_url(stored.token_endpoint, "token endpoint"), stored.client, form, stored.scope
    )
    return stored.model_copy(
        update={
            "access_token": granted.access_token,
            "refresh_token": granted.refresh_token or stored.refresh_token,
            "expires_s": None if granted.lifetime_s is None else clock() + granted.lifetime_s,
        }
    )


async def _request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    form: Mapping[str, str] | None = None,
    document: Mapping[str, Any] | None = None,
    client: Client | None = None,
) -> tuple[int, Mapping[str, Any]]:
    """Status and JSON object (empty if the body is none). A redirect isn't followed: it would carry secrets."""
    headers = {}
    if client is not None and client.client_secret:  # RFC 6749, 2.3.1; a public client only names itself in the form
        pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret)}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    host = urlsplit(url).netloc
    try:
        async with request(session, method, url, data=form, json=document, headers=headers) as response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(1 << 16):
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise IssuerError(f"issuer at {host}: answers with more than {MAX_ANSWER_BYTES} bytes")
            status = response.status
    except TimeoutError:
        raise IssuerUnavailable(f"issuer at {host}: no answer within {TIMEOUT_S:.0f} s") from None
    except aiohttp.ClientConnectorCertificateError as error:
        raise IssuerError(
            f"issuer at {host}: its certificate isn't trusted ({error.certificate_error}); SSL_CERT_FILE names a file"
            " with more authorities"
        ) from None
    except TRANSPORT_ERRORS as error:
        raise IssuerUnavailable(f"issuer at {host}: {told(error)}") from None
    if status >= 500 or status == 429:
        raise IssuerUnavailable(f"issuer at {host}: HTTP {status}")
    content = json_object(bytes(body))
    if content is None:
        if status == 200:
            raise IssuerError(f"issuer at {host}: its answer is no JSON object")
        content = {}
    return status, content


def _endpoints(issuer: str, content: Mapping[str, Any]) -> Endpoints:
    def url(name: str) -> str:
        value = content.get(name, "")
        return checked_url(value, name) if isinstance(value, str) and value else ""

    named = content.get("issuer")
    if not isinstance(named, str) or named.rstrip("/") != issuer.rstrip("/"):
        raise IssuerError(f"issuer {issuer}: its metadata are those of another issuer")
    if not url("token_endpoint"):
        raise IssuerError(f"issuer {issuer}: its metadata name no token_endpoint; it can't grant tokens")
    known = content.get("scopes_supported")
    return Endpoints(
        issuer=issuer,
        token=url("token_endpoint"),
        device=url("device_authorization_endpoint"),
        registration=url("registration_endpoint"),
        scopes=tuple(text for text in known if isinstance(text, str)) if isinstance(known, list) else (),
    )


def _refusal(issuer: str, what: str, status: int, content: Mapping[str, Any]) -> Refused:
    code, text = content.get("error"), content.get("error_description")
    code = code if isinstance(code, str) and re.fullmatch(r"[\w.-]{1,60}", code, re.ASCII) else ""
    words = ""
    if isinstance(text, str):
        words = f" ({shown(text, 200)})"
    return Refused(f"issuer {issuer}: {what} refused: {code or f'HTTP {status}'}{words}", code)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
