"""Acquisition of a token for a run's inputs from their issuer, and its storage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import BadInputError
from common.pelican.tokens.device_flow import DeviceCode, grant_by_device
from common.pelican.tokens.errors import IssuerError
from common.pelican.tokens.generation import IssuerLookup, TokenGeneration
from common.pelican.tokens.oauth import Endpoints, Refused, discover, register
from common.pelican.tokens.scopes import Need, Scope, missing, parse_scopes, trimmed
from common.pelican.tokens.store import Client, StoredToken, client_path, load_client, save, token_path

if TYPE_CHECKING:
    import aiohttp

MOST_SCOPES = 50
"""Maximum scopes: more make a token too long for a header."""


@dataclass(frozen=True)
class TokenRequest:
    """Token to acquire."""

    need: Need
    issuer: str
    client_id: str = ""
    """Empty: the registered client, registered now if there is none."""


async def who_grants(url: str, issuer: str, issuer_of: IssuerLookup | None) -> TokenGeneration:
    """Issuer for a URL: the given one, else the one named by the federation's director."""
    if issuer:
        return TokenGeneration(issuer)
    generation = await issuer_of(url) if issuer_of is not None else None
    if generation is None:
        raise BadInputError(
            f"{url}: no issuer of tokens for it is known; name one with --issuer https://…, or token.issuer"
        )
    return generation


def wanted_scopes(need: Need, generation: TokenGeneration, given: str = "") -> Need:
    """Scopes to request: those given, or those needed, as deep as the issuer grants them."""
    if given:
        scopes = tuple(sorted(parse_scopes(given)))
        if not scopes or len(scopes) != len(given.split()):
            raise BadInputError(f"--scope {given!r}: expected storage scopes, for example 'storage.read:/data/sim'")
    else:
        scopes = trimmed(need.scopes, generation.max_scope_depth)
    if len(scopes) > MOST_SCOPES:
        raise BadInputError(
            f"the inputs lie in {len(scopes)} directories, too many for one token; name their common one with --scope,"
            f" for example --scope {_common(scopes)}"
        )
    return Need(need.federation, scopes)


async def acquire(
    session: aiohttp.ClientSession,
    wanted: TokenRequest,
    folder: Path,
    *,
    show: Callable[[DeviceCode], None],
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> tuple[Path, StoredToken]:
    """Run the device flow, check what was granted, and store it in ``folder``."""
    endpoints = await discover(session, wanted.issuer)
    scope = _with_extras(wanted.need.scopes, endpoints)
    client, is_new = await _client(session, endpoints, wanted.client_id, scope, folder)
    try:
        granted = await grant_by_device(session, endpoints, client, scope, show=show, sleep=sleep)
    except Refused as refusal:
        if refusal.code not in ("invalid_client", "unauthorized_client") or wanted.client_id or is_new:
            raise
        client_path(folder, endpoints.issuer).unlink(missing_ok=True)  # the issuer has forgotten the client
        client, _ = await _client(session, endpoints, "", scope, folder)
        granted = await grant_by_device(session, endpoints, client, scope, show=show, sleep=sleep)
    stored = StoredToken(
        access_token=granted.access_token,
        refresh_token=granted.refresh_token,
        scope=" ".join(sorted(granted.scope.split())),
        federation=wanted.need.federation,
        expires_s=None if granted.lifetime_s is None else clock() + granted.lifetime_s,
        token_endpoint=endpoints.token,
        client=client,
    )
    lacking = missing(stored.claims.scopes or (), wanted.need.scopes)
    if lacking:
        raise IssuerError(
            f"issuer {endpoints.issuer}: granted {_told(stored.claims.scopes or ())}, but not"
            f" {_told(lacking)}; ask whoever runs it for access, or name another scope with --scope"
        )
    path = token_path(folder, stored)
    save(path, stored)
    return path, stored


async def _client(
    session: aiohttp.ClientSession, endpoints: Endpoints, client_id: str, scope: str, folder: Path
) -> tuple[Client, bool]:
    """Client for the request, and True if it was registered just now."""
    if client_id:
        return Client(issuer=endpoints.issuer, client_id=client_id), False
    path = client_path(folder, endpoints.issuer)
    known = load_client(path)
    if known is not None and known.issuer == endpoints.issuer:
        return known, False
    client = await register(session, endpoints, scope)
    save(path, client)
    return client, True


def _with_extras(scopes: Sequence[Scope], endpoints: Endpoints) -> str:
    """Scope text, extended by those of a WLCG token and a refresh token, if supported by the issuer."""
    extras = [name for name in ("wlcg", "offline_access") if not endpoints.scopes or name in endpoints.scopes]
    return " ".join([*extras, *map(str, scopes)])


def _told(scopes: Sequence[Scope] | frozenset[Scope]) -> str:
    return " ".join(map(str, sorted(scopes))) or "no storage scope"


def _common(scopes: Sequence[Scope]) -> str:
    parts = [scope.path.split("/")[1:] for scope in scopes]
    shared = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return str(Scope(scopes[0].permission, "/" + "/".join(shared)))
