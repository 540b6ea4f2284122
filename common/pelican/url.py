"""Pelican addresses: `pelican://HOST[:PORT]/path` and `osdf:///path`. Pure. Paths are literal: nothing is escaped."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from common.errors import BadInputError

SCHEMES = ("pelican://", "osdf://")
OSDF = "osg-htc.org"
"""Federation behind `osdf://`."""

_SAFE = "/~"
_LABEL = "[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
_HOST = rf"({_LABEL}(?:\.{_LABEL})*\.?|\[[0-9A-Fa-f:.]{{2,45}}\])(?::([0-9]{{1,5}}))?"
_AUTHORITY = re.compile(_HOST)
_SERVER = re.compile(rf"(https?)://({_HOST})((?:/[!$-;=@A-Z_a-z~\[\]]*)?)")
_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_MAX_HOST = 253
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class PelicanUrl:
    """Address in a federation."""

    federation: str
    """Host that answers discovery, with its port if it has one."""
    path: str
    """Path that begins with "/"."""

    @classmethod
    def parse(cls, text: str) -> PelicanUrl:
        """Address from its text. Raises BadInputError."""
        if _CONTROL.search(text):
            raise BadInputError(f"{text!a}: an address has no control characters, and is UTF-8")
        if text.startswith("osdf://"):
            return cls(OSDF, "/" + text.removeprefix("osdf://").strip("/"))
        host, _, path = text.removeprefix("pelican://").partition("/")
        if not text.startswith("pelican://") or not _is_authority(host):
            raise BadInputError(f"{text}: expected pelican://HOST/path or osdf:///path")
        return cls(host, "/" + path.strip("/"))

    def __str__(self) -> str:
        return f"pelican://{self.federation}{self.path}"

    def at(self, path: str) -> PelicanUrl:
        """Address of another path in the same federation."""
        return PelicanUrl(self.federation, path)


def is_pelican(url: str) -> bool:
    """True for addresses that parse() accepts."""
    return url.startswith(SCHEMES)


def escaped(path: str) -> str:
    """Path as escaped in an HTTP address."""
    return quote(path, safe=_SAFE)


def server_address(url: str) -> str:
    """Address of a server as named by others, without a final slash; empty if it is no target for requests.

    Only http and https, a host that can be resolved, a port, printable ASCII; no user, query or fragment.
    """
    found = _SERVER.fullmatch(url)
    return url.rstrip("/") if found is not None and _is_authority(found[2]) else ""


def may_get_token(server: str) -> bool:
    """True if a request can't be read on its way to the server: over TLS, or on this host."""
    found = _SERVER.fullmatch(server)
    return found is not None and _is_authority(found[2]) and (found[1] == "https" or found[3].lower() in _LOOPBACK)


def host_of(server: str) -> str:
    """Host and port of a server's address; empty if it is none."""
    found = _SERVER.fullmatch(server)
    return found[2].lower() if found is not None else ""


def server_of(url: str, path: str) -> str | None:
    """Prefix before ``path`` in the address of an object, as written by a director; None if it isn't its address.

    Go leaves `$&+,/:;=@` as they are, so the two are compared unescaped.
    """
    scheme, slashes, rest = url.partition("://")
    host, slash, tail = rest.partition("/")
    whole = unquote(slash + tail.partition("?")[0])
    if not slashes or not whole.endswith(path):
        return None
    prefix = whole[: len(whole) - len(path)]
    return (server_address(f"{scheme}://{host}{escaped(prefix)}") or None) if prefix.isascii() else None


def _is_authority(text: str) -> bool:
    """True for a host, and possibly a port, usable for a connection: `[::1` or port 99999 raise elsewhere."""
    found = _AUTHORITY.fullmatch(text)
    if found is None or len(found[1]) > _MAX_HOST or not 0 < int(found[2] or 1) < 1 << 16:
        return False
    try:
        return found[1][0] != "[" or bool(ipaddress.IPv6Address(found[1][1:-1]))
    except ValueError:
        return False
