"""Claims of a token, read without checking its signature, which is the servers' task. Pure."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Any

from common.durations import duration
from common.pelican.answers import json_object
from common.pelican.tokens.scopes import Scope, is_any_audience, parse_scopes
from common.redact import shown

MAX_TOKEN_BYTES = 16_384
"""Maximum size of a token: servers refuse longer headers (aiohttp 8 KiB, XRootD 16 KiB)."""

_JWT = re.compile(r"[\w-]+\.[\w-]+\.[\w-]*", re.ASCII)
_PRINTABLE = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True)
class TokenClaims:
    """Issuer, scopes and expiry of a token; the subject is not read. Times are seconds since 1970; None: not stated."""

    issuer: str = ""
    scopes: frozenset[Scope] | None = None
    audience: tuple[str, ...] = ()
    not_before_s: float | None = None
    issued_s: float | None = None
    expires_s: float | None = None

    def margin_s(self, longest_s: float) -> float:
        """Time before its end at which the token is renewed: at most a tenth of its lifetime."""
        if self.expires_s is None or self.issued_s is None:
            return longest_s
        return min(longest_s, max(0.0, self.expires_s - self.issued_s) / 10)

    def is_valid(self, now_s: float, ahead_s: float = 0.0) -> bool:
        """True if the token is valid now and ``ahead_s`` from now. A token without expiry is."""
        return self.expires_s is None or self.expires_s > now_s + ahead_s

    def describe(self, now_s: float) -> str:
        """Scopes, audience and time left, in one line."""
        if self.scopes is None:
            scopes = "scopes unknown (an opaque token)"
        else:
            scopes = shown(" ".join(map(str, sorted(self.scopes))) or "no storage scope")
        audience = "any server" if is_any_audience(self.audience) else shown(" ".join(self.audience), 200)
        issuer = f", by {shown(self.issuer, 200)}" if self.issuer else ""
        return f"{scopes}; for {audience}{issuer}; {self._end(now_s)}"

    def _end(self, now_s: float) -> str:
        if self.not_before_s is not None and self.not_before_s > now_s + 1:
            return f"valid only in {duration(self.not_before_s - now_s)} (is the clock right?)"
        if self.expires_s is None:
            return "end unknown"
        left_s = self.expires_s - now_s
        return f"expires in {duration(left_s)}" if left_s > 0 else f"expired {duration(-left_s)} ago"


def what_is_wrong(text: str) -> str | None:
    """Reason that a text can't be a token; None: it can. The answer never quotes the text."""
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
    """Claims of a JWT; empty for an opaque token, or a JWT that can't be read."""
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
        not_before_s=finite(payload.get("nbf")),
        issued_s=finite(payload.get("iat")),
        expires_s=finite(payload.get("exp")),
    )


def _decoded(part: str) -> dict[str, Any] | None:
    try:
        return json_object(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except ValueError:
        return None


def finite(value: object) -> float | None:
    """Number of seconds as sent by servers; None for anything else, infinity and 10**400 included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        return None
    return float(value)
