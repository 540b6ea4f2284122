"""Pelican addresses: `pelican://HOST[:PORT]/path` and `osdf:///path`. Pure. Paths are literal: nothing is escaped."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from common.errors import BadInputError

SCHEMES = ("pelican://", "osdf://")
OSDF = "osg-htc.org"
"""The federation behind `osdf://`."""

_SAFE = "/~"


@dataclass(frozen=True)
class PelicanUrl:
    """A place in a federation."""

    federation: str
    """Host that answers discovery, with its port if it has one."""
    path: str
    """Begins with "/"."""

    @classmethod
    def parse(cls, text: str) -> PelicanUrl:
        """Raises BadInputError."""
        if text.startswith("osdf://"):
            return cls(OSDF, "/" + text.removeprefix("osdf://").strip("/"))
        host, _, path = text.removeprefix("pelican://").partition("/")
        if not text.startswith("pelican://") or not host or "@" in host:
            raise BadInputError(f"{text}: expected pelican://HOST/path or osdf:///path")
        return cls(host, "/" + path.strip("/"))

    def __str__(self) -> str:
        return f"pelican://{self.federation}{self.path}"

    def at(self, path: str) -> PelicanUrl:
        """Another place in the same federation."""
        return PelicanUrl(self.federation, path)


def is_pelican(url: str) -> bool:
    """True for addresses that parse() takes."""
    return url.startswith(SCHEMES)


def escaped(path: str) -> str:
    """The path as it stands in an HTTP address."""
    return quote(path, safe=_SAFE)


def may_get_token(server: str) -> bool:
    """True if what is sent there can be read by nobody on the way: over TLS, or on this host."""
    parts = urlsplit(server)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1"))


def server_of(url: str, path: str) -> str | None:
    """What stands before ``path`` in the address of an object, as a director writes it; None if it isn't its address.

    Go leaves `$&+,/:;=@` as they are, so the two are compared unescaped.
    """
    scheme, slashes, rest = url.partition("://")
    host, slash, tail = rest.partition("/")
    whole = unquote(slash + tail.partition("?")[0])
    if not slashes or not whole.endswith(path):
        return None
    return f"{scheme}://{host}{escaped(whole[: len(whole) - len(path)])}"
