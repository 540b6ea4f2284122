"""What a director says about who makes tokens for a path: its X-Pelican-Token-Generation header. Pure.

issuer=https://I, max-scope-depth=3, strategy=OAuth2, base-path=/ns
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class TokenGeneration:
    """Who grants tokens for a path, and what its scopes are relative to."""

    issuer: str
    base_path: str = ""
    """Start of the path that scopes leave out."""
    max_scope_depth: int | None = None
    """The issuer grants no scope of more components."""


IssuerLookup = Callable[[str], Awaitable[TokenGeneration | None]]
"""Asks the director of a pelican:// URL; None: nobody makes tokens for it."""


def parse_token_generation(header: str) -> TokenGeneration | None:
    """None: the header names no issuer, or a way to get tokens that isn't OAuth2."""
    values: dict[str, str] = {}
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        values.setdefault(name.strip().lower(), value.strip())
    issuer = values.get("issuer", "")
    if not issuer or values.get("strategy", "OAuth2").lower() != "oauth2":
        return None
    depth = values.get("max-scope-depth", "")
    return TokenGeneration(issuer, values.get("base-path", ""), int(depth) if depth.isdecimal() else None)
