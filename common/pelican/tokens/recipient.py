"""Check that a token may be sent to a server: it must have been issued for that namespace. Pure.

Servers can misuse a token, and any host named in an input counts as a federation. So before a token is sent, its
issuer, audience and scopes are compared with the director's answer for the namespace.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from common.pelican.tokens.claims import TokenClaims
from common.pelican.tokens.scopes import Scope, is_any_audience, missing
from common.pelican.url import host_of

_WRITES = ("storage.create", "storage.modify")


@dataclass(frozen=True)
class Recipient:
    """Server, and the request that would carry a token."""

    federation: str
    server: str
    """Address of the server."""
    path: str
    issuers: tuple[str, ...] = ()
    """Issuers of tokens that the namespace accepts, from the director."""
    base_path: str = ""
    """Prefix of the path that scopes omit, from the director."""
    writes: bool = False


@dataclass(frozen=True)
class Consent:
    """Permissions of the user for a token, beyond its claims."""

    federation: str = ""
    """Federation of the token: `token.federation`, or that of a stored token. Empty: not given."""
    may_write: bool = False
    """True if the token may be sent to servers that are only read from although it allows writing."""


def why_not_here(claims: TokenClaims, federation: str, consent: Consent) -> str:
    """Reason not to send the token to any server of a federation, and remedy; empty: it may be sent to some."""
    if consent.federation and consent.federation.lower() != federation.lower():
        return f"it is for the federation {consent.federation}, not for {federation}"
    if claims.scopes is None and not consent.federation:
        return f"it names no issuer; {_say_so(federation)}"
    too_much = sorted(scope for scope in claims.scopes or () if scope.permission in _WRITES)
    if too_much and not consent.may_write:
        return (
            f"it also allows {too_much[0]}, and this run only reads there; to send it all the same, name its file with"
            " --token-file"
        )
    return ""


def why_not(claims: TokenClaims, to: Recipient, consent: Consent, storage_prefix: str = "") -> str:
    """Reason not to send the token to this server, and remedy; empty: it may be sent."""
    reason = why_not_here(claims, to.federation, consent)
    if reason or claims.scopes is None:
        return reason
    return (
        _other_issuer(claims, to, consent)
        or _other_audience(claims, to)
        or _other_scope(claims.scopes, to, storage_prefix)
    )


def _other_issuer(claims: TokenClaims, to: Recipient, consent: Consent) -> str:
    if not to.issuers:
        return "" if consent.federation else f"the federation names no issuer; {_say_so(to.federation)}"
    if claims.issuer.rstrip("/") in to.issuers:
        return ""
    wanted = " or ".join(to.issuers[:3])
    return f"it is of {claims.issuer or 'no issuer'}, and {to.path} takes those of {wanted}: `icestream token` gets one"


def _other_audience(claims: TokenClaims, to: Recipient) -> str:
    """Reason by audience: a token may name a server, with or without scheme and port, or the whole federation."""
    if is_any_audience(claims.audience):
        return ""
    server = host_of(to.server)
    takes = {server, re.sub(r":[0-9]+$", "", server), to.federation.lower()}
    names = {(host_of(name) or name).lower().removesuffix(":443") for name in claims.audience}
    if names & takes:
        return ""
    return f"it is for {' '.join(claims.audience)[:200]}, not for {server}: `icestream token` gets one"


def _other_scope(scopes: frozenset[Scope], to: Recipient, storage_prefix: str) -> str:
    """Reason by scope. The issuer names the path in a scope: with the user's prefix, the director's or none."""
    permissions = _WRITES if to.writes else ("storage.read",)
    names = dict.fromkeys(_without(to.path, prefix) for prefix in (storage_prefix, to.base_path, ""))
    needs = [Scope(permission, name) for name in names for permission in permissions]
    if any(not missing(scopes, [need]) for need in needs):
        return ""
    return f"it doesn't allow {needs[0]} (a scope leaves out token.storage_prefix, {storage_prefix or 'nothing'})"


def _say_so(federation: str) -> str:
    return f"if it is for {federation}, say so with --set token.federation={federation}"


def _without(path: str, prefix: str) -> str:
    prefix = prefix.rstrip("/")
    rest = path.removeprefix(prefix) if (path + "/").startswith(prefix + "/") else path
    return "/" + "/".join(part for part in rest.split("/") if part not in ("", "."))
