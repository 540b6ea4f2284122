"""Parser of a director's X-Pelican-Token-Generation header: issuer of the tokens for a path. Pure.

issuer=https://I, max-scope-depth=3, strategy=OAuth2, base-path=/ns
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from common.pelican.answers import number

_ISSUER = re.compile(r"https?://[!-~]{1,500}")
_PATH = re.compile(r"(?:/[!-~]*)?")
_MAX_DEPTH = 1000


@dataclass(frozen=True)
class TokenGeneration:
    """Issuer of the tokens for a path, and the base path of its scopes."""

    issuer: str
    base_path: str = ""
    """Prefix of the path that scopes omit."""
    max_scope_depth: int | None = None
    """Maximum number of components in a scope granted by the issuer."""


IssuerLookup = Callable[[str], Awaitable[TokenGeneration | None]]
"""Lookup of the issuer at the director of a pelican:// URL; None: no issuer for it."""


def parse_token_generation(header: str) -> TokenGeneration | None:
    """Content of the header; None: it names no issuer, or another way to get tokens than OAuth2."""
    values: dict[str, str] = {}
    for name, value in _fields(header):
        values.setdefault(name, value)
    issuer = values.get("issuer", "")
    if not issuer or values.get("strategy", "OAuth2").lower() != "oauth2":
        return None
    base_path = values.get("base-path", "")
    return TokenGeneration(
        issuer,
        base_path if _PATH.fullmatch(base_path) else "",
        number(values.get("max-scope-depth", ""), most=_MAX_DEPTH),
    )


def named_issuers(*headers: str) -> tuple[str, ...]:
    """Issuers in X-Pelican-Authorization and X-Pelican-Token-Generation, each once, without a slash at its end."""
    fields = [field for header in headers for field in _fields(header)]
    found = [value.rstrip("/") for name, value in fields if name == "issuer" and _ISSUER.fullmatch(value)]
    return tuple(dict.fromkeys(found))


def _fields(header: str) -> Iterator[tuple[str, str]]:
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        yield name.strip().lower(), value.strip()
