"""Claims of a token: compare what it allows with what a run needs, and name the servers that may get it. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from common.errors import BadInputError
from common.pelican.answers import json_object
from common.pelican.url import OSDF, host_of
from common.text import duration, shown

ANY_AUDIENCE = ("https://wlcg.cern.ch/jwt/v1/any", "ANY")

_IMPLIED = {
    "storage.read": ("storage.read", "storage.stage"),
    "storage.create": ("storage.create", "storage.modify"),
    "storage.modify": ("storage.modify",),
}
"""Permission needed → permissions that grant it."""

_SCITOKENS = {"read": ("storage.read",), "write": ("storage.modify", "storage.create")}
"""SciTokens' own names → WLCG's."""

_WRITES = ("storage.create", "storage.modify")
_FILE = re.compile(r"\.(parquet|h5|hdf5|i3(\.\w+)?)$")
_RANGE = re.compile(r"(\d+)-(\d+)")
_UNKNOWN = re.compile(r"[*?\[\]{}]")
_URL = re.compile(r"(?:pelican|osdf)://", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Scope:
    """Permission on a directory (or file) and all below it. ``path`` is absolute; ``/`` is everything.

    WLCG Common JWT Profiles 1.2, "Capability-based authorization: scope"; SciTokens claims, "scope".
    """

    permission: str
    path: str

    def __str__(self) -> str:
        return f"{self.permission}:{self.path}"

    def covers(self, needed: Scope) -> bool:
        """Return True if this scope allows everything in ``needed``: ``/a`` covers ``/a`` and ``/a/b``, not ``/ab``."""
        if self.permission not in _IMPLIED.get(needed.permission, (needed.permission,)):
            return False
        return self.path == "/" or needed.path == self.path or needed.path.startswith(self.path + "/")


@dataclass(frozen=True)
class Need:
    """Scopes needed for a run's files in one federation: one token must have all of them."""

    federation: str
    scopes: tuple[Scope, ...]
    writes: bool = False
    """True if outputs are written to the federation, too: a token that allows writing is expected there."""
    path: str = field(default="/", compare=False)
    """Directory in the federation for which the other programs are asked for a token."""


def parse_scopes(claim: str) -> frozenset[Scope]:
    """Storage scopes of a ``scope`` claim; others (``openid``, ``compute.read``) are left out.

    A scope with ``..`` in its path grants nothing: servers disagree on what it means.
    """
    found = set()
    for text in claim.split():
        name, _, path = text.partition(":")
        for permission in _SCITOKENS.get(name, (name,)):
            parts = [part for part in path.split("/") if part not in ("", ".")]
            if permission.startswith("storage.") and ".." not in parts:
                found.add(Scope(permission, "/" + "/".join(parts)))
    return frozenset(found)


def missing(granted: Iterable[Scope], needed: Iterable[Scope]) -> tuple[Scope, ...]:
    """Return the scopes that are needed and not granted."""
    granted = tuple(granted)
    return tuple(need for need in needed if not any(scope.covers(need) for scope in granted))


def is_any_audience(audience: Iterable[str]) -> bool:
    """Return True if a token is for every server, as one without audience is."""
    audience = tuple(audience)
    return not audience or any(name in ANY_AUDIENCE for name in audience)


def needs(inputs: Iterable[str], outputs: Iterable[str] = (), *, storage_prefix: str = "") -> tuple[Need, ...]:
    """Return the scopes that a run needs, by federation; none for local files and other kinds of URLs.

    A path is cut at its first component that has a wildcard, is a range (``0000000-0000999``, ``{range}``) or has a
    space, which no scope can hold; a file counts as its directory, which is listed. So all ranges of a data set have
    one scope. ``outputs`` get ``storage.create`` and ``storage.modify``, and ``storage.read`` to be read on resume.
    """
    found: dict[str, set[Scope]] = {}
    paths: dict[str, str] = {}
    written = {federation_of(url) for url in outputs}
    of_inputs = [(url, ("storage.read",)) for url in inputs]
    of_outputs = [(url, ("storage.read", *_WRITES)) for url in outputs]
    for url, permissions in (*of_outputs, *of_inputs):
        if _URL.match(url):
            federation, path = directory(url, storage_prefix)
            found.setdefault(federation, set()).update(Scope(permission, path) for permission in permissions)
            paths.setdefault(federation, directory(url)[1])
    return tuple(
        Need(name, reduced(scopes), name in written, path=paths[name]) for name, scopes in sorted(found.items())
    )


def reduced(scopes: Iterable[Scope]) -> tuple[Scope, ...]:
    """Same permissions without scopes contained in another of the same permission, in order."""
    kept: list[Scope] = []
    # By the parts of the path: what lies below a directory follows it at once.
    for scope in sorted(set(scopes), key=lambda scope: (scope.permission, scope.path.split("/"))):
        if not (kept and kept[-1].permission == scope.permission and kept[-1].covers(scope)):
            kept.append(scope)
    return tuple(sorted(kept))


def federation_of(url: str) -> str | None:
    """Return the federation of a pelican:// or osdf:// URL; None for anything else."""
    return directory(url)[0] if _URL.match(url) else None


def directory(url: str, storage_prefix: str = "") -> tuple[str, str]:
    """Return the federation and directory of an input, as named in scopes. Raises BadInputError for ``..``."""
    scheme, _, rest = url.partition("://")
    federation, slash, path = rest.partition("/")
    if scheme.lower() == "osdf":  # osdf:///path and osdf://path mean the same
        federation, path = OSDF, f"{federation}{slash}{path}"
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadInputError(f"{url}: '..' is not allowed in the path; write it without")
    is_directory = path.endswith("/")
    for depth, part in enumerate(parts):
        is_range = (match := _RANGE.fullmatch(part)) is not None and int(match[1]) < int(match[2])  # no month: 2025-01
        if _UNKNOWN.search(part) or is_range or re.search(r"[^\x21-\x7e]", part):
            parts, is_directory = parts[:depth], True
            break
    if not is_directory and parts and _FILE.search(parts[-1]):
        parts = parts[:-1]
    prefix = [part for part in storage_prefix.split("/") if part]
    if parts[: len(prefix)] == prefix:
        parts = parts[len(prefix) :]
    return federation.lower(), "/" + "/".join(parts)


# -------------------------------------------------------------- claims


MAX_TOKEN_BYTES = 16_384
"""Maximum size of a token: servers refuse longer headers (aiohttp 8 KiB, XRootD 16 KiB)."""

_JWT = re.compile(r"[\w-]+\.[\w-]+\.[\w-]*", re.ASCII)
_PRINTABLE = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True)
class TokenClaims:
    """Issuer, scopes and expiry of a token, read without checking its signature, which is the servers' task.

    The subject is not read. ``expires_s``: seconds since 1970; None: not stated.
    """

    issuer: str = ""
    scopes: frozenset[Scope] | None = None
    audience: tuple[str, ...] = ()
    expires_s: float | None = None

    def is_valid(self, now_s: float) -> bool:
        """Return True if the token is valid now. A token without expiry is."""
        return self.expires_s is None or self.expires_s > now_s

    def describe(self, now_s: float) -> str:
        """Scopes, audience and time left, in one line."""
        if self.scopes is None:
            scopes = "scopes unknown (an opaque token)"
        else:
            scopes = shown(" ".join(map(str, sorted(self.scopes))) or "no storage scope")
        audience = "any server" if is_any_audience(self.audience) else shown(" ".join(self.audience), 200)
        issuer = f", by {shown(self.issuer, 200)}" if self.issuer else ""
        if self.expires_s is None:
            end = "end unknown"
        else:
            left_s = self.expires_s - now_s
            end = f"expires in {duration(left_s)}" if left_s > 0 else f"expired {duration(-left_s)} ago"
        return f"{scopes}; for {audience}{issuer}; {end}"


def what_is_wrong(text: str) -> str | None:
    """Return the reason that a text can't be a token; None: it can. The answer never quotes the text."""
    if not text:
        return "it is empty"
    if len(text) > MAX_TOKEN_BYTES:
        return f"it is longer than {MAX_TOKEN_BYTES} bytes"
    if text.lower().startswith("bearer "):
        return "it begins with 'Bearer': only the token itself belongs there"
    if not _PRINTABLE.fullmatch(text):
        return "a token has neither spaces nor control characters"
    if text[0] in "<{[\"'":
        return "it looks like JSON, HTML or quoted text"
    return None


def read_claims(token: str) -> TokenClaims:
    """Return the claims of a JWT; empty for an opaque token, or a JWT that can't be read."""
    if not _JWT.fullmatch(token):
        return TokenClaims()
    header, payload = (_decoded(part) for part in token.split(".")[:2])
    if header is None or payload is None:
        return TokenClaims()
    scope = payload.get("scope")
    if isinstance(scope, list):
        scope = " ".join(part for part in scope if isinstance(part, str))
    audience = payload.get("aud")
    return TokenClaims(
        issuer=issuer if isinstance(issuer := payload.get("iss"), str) else "",
        scopes=parse_scopes(scope) if isinstance(scope, str) else frozenset(),
        audience=tuple(str(name) for name in (audience if isinstance(audience, list) else [audience]) if name),
        expires_s=finite(payload.get("exp")),
    )


def _decoded(part: str) -> dict[str, Any] | None:
    try:
        return json_object(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except ValueError:
        return None


def finite(value: object) -> float | None:
    """Return the number of seconds as sent by servers; None for anything else, infinity and 10**400 included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        return None
    return float(value)


# -------------------------------------------------------------- recipients


@dataclass(frozen=True)
class Recipient:
    """Server, and the request that would carry a token.

    Servers can misuse a token, and any host named in an input counts as a federation. So before a token is sent, its
    issuer, audience and scopes are compared with the director's answer for the namespace.
    """

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
    """Federation of the token, from `token.federation`. Empty: not given."""
    may_write: bool = False
    """True if the token may be sent to servers that are only read from although it allows writing."""


def why_not_here(claims: TokenClaims, federation: str, consent: Consent) -> str:
    """Return the reason not to send the token to any server of a federation, and remedy; empty: it may be sent to
    some."""
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
    """Return the reason not to send the token to this server, and remedy; empty: it may be sent."""
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
    return f"it is of {claims.issuer or 'no issuer'}, and {to.path} takes those of {wanted}; {_get(to)}"


def _other_audience(claims: TokenClaims, to: Recipient) -> str:
    """Return the reason by audience: a token may name a server, with or without scheme and port, or the whole
    federation."""
    if is_any_audience(claims.audience):
        return ""
    server = host_of(to.server)
    takes = {server, re.sub(r":[0-9]+$", "", server), to.federation.lower()}
    names = {(host_of(name) or name).lower().removesuffix(":443") for name in claims.audience}
    if names & takes:
        return ""
    return f"it is for {' '.join(claims.audience)[:200]}, not for {server}; {_get(to)}"


def _other_scope(scopes: frozenset[Scope], to: Recipient, storage_prefix: str) -> str:
    """Return the reason by scope. The issuer names the path in a scope: with the user's prefix, the director's or
    none."""
    permissions = _WRITES if to.writes else ("storage.read",)
    names = dict.fromkeys(_without(to.path, prefix) for prefix in (storage_prefix, to.base_path, ""))
    needs = [Scope(permission, name) for name in names for permission in permissions]
    if any(not missing(scopes, [need]) for need in needs):
        return ""
    return f"it doesn't allow {needs[0]} (a scope leaves out token.storage_prefix, {storage_prefix or 'nothing'})"


def how_to_get(federation: str, path: str, *, writes: bool = False) -> str:
    """Return the command that gets a token, in words."""
    verb = "write" if writes else "read"
    return f"`pelican credentials token get {verb} pelican://{federation}{path}`, htgettoken or oidc-agent gets one"


def _get(to: Recipient) -> str:
    return how_to_get(to.federation, to.path, writes=to.writes)


def _say_so(federation: str) -> str:
    return f"if it is for {federation}, say so with --set token.federation={federation}"


def _without(path: str, prefix: str) -> str:
    prefix = prefix.rstrip("/")
    rest = path.removeprefix(prefix) if (path + "/").startswith(prefix + "/") else path
    return "/" + "/".join(part for part in rest.split("/") if part not in ("", "."))
