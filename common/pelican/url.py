"""Pelican addresses `pelican://HOST[:PORT]/path` and `osdf:///path`, and globs over their paths. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from urllib.parse import quote, unquote

from common.errors import BadInputError
from common.text import HIDDEN

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
        """Return the address from its text. Raises BadInputError."""
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


def is_pelican(url: str) -> bool:
    """True for addresses that parse() accepts."""
    return url.startswith(SCHEMES)


def escaped(path: str) -> str:
    """Return the path as escaped in an HTTP address."""
    return quote(path, safe=_SAFE)


def server_address(url: str) -> str:
    """Return the address of a server as named by others, without a final slash; empty if it is no target for requests.

    Only http and https, a host that can be resolved, a port, printable ASCII; no user, query or fragment.
    """
    found = _SERVER.fullmatch(url)
    return url.rstrip("/") if found is not None and _is_authority(found[2]) else ""


def may_get_token(server: str) -> bool:
    """Return True if a request can't be read on its way to the server: over TLS, or on this host."""
    found = _SERVER.fullmatch(server)
    return found is not None and _is_authority(found[2]) and (found[1] == "https" or found[3].lower() in _LOOPBACK)


def host_of(server: str) -> str:
    """Return the host and port of a server's address; empty if it is none."""
    found = _SERVER.fullmatch(server)
    return found[2].lower() if found is not None else ""


def server_of(url: str, path: str) -> str | None:
    """Return the prefix before ``path`` in the address of an object, as written by a director; None if it isn't its
    address.

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


# -------------------------------------------------------------- globs


_ANY_DEPTH = "**"
_MAGIC = re.compile(r"[*?[]")

Places = frozenset[int]
"""Segments of the pattern that may match the next name."""


def has_magic(text: str) -> bool:
    """Return True if the text is a pattern."""
    return _MAGIC.search(text) is not None


class GlobWalk:
    """Pattern such as `a/b/*/c?.parquet`: ``root`` is the part before its first wildcard.

    A directory carries a set of positions in the pattern, so that it is listed once even if several ways match it.
    `*`, `?` and `[…]` match inside a name, `**` any number of directories; none matches a leading dot or underscore.
    """

    def __init__(self, pattern: str) -> None:
        segments = pattern.strip("/").split("/")
        first = next((i for i, segment in enumerate(segments) if has_magic(segment)), len(segments))
        self.root = "/" + "/".join(segments[:first])
        self._segments = segments[first:]
        self.start = self._closed({0})

    def into(self, places: Places, name: str) -> Places:
        """Return the places in the directory ``name``; empty if nothing below it can match."""
        return frozenset(place for place in self._after(places, name) if place < len(self._segments))

    def takes(self, places: Places, name: str) -> bool:
        """Return True if the file ``name`` matches: with the last segment, not with one that a `**` follows."""
        last = len(self._segments) - 1
        if last not in places:
            return False
        segment = self._segments[last]
        return _matches(segment, name) if segment != _ANY_DEPTH else not name.startswith(HIDDEN)

    def leaves_out(self, places: Places, name: str) -> bool:
        """Return True if ``name`` does not match for its first character alone."""
        last = len(self._segments) - 1
        if last not in places or not name.startswith(HIDDEN) or self.takes(places, name):
            return False
        return self._segments[last] == _ANY_DEPTH or _compiled(self._segments[last]).match(name) is not None

    def hides(self, path: str) -> bool:
        """Return True if a whole path, which another matcher has found, is left out for a hidden name below the
        root."""
        *folders, name = path.strip("/").removeprefix(self.root.strip("/")).strip("/").split("/")
        if not any(part.startswith(HIDDEN) for part in (*folders, name)):
            return False
        places = self.start
        for folder in folders:
            places = self.into(places, folder)
        return not self.takes(places, name)

    def _after(self, places: Places, name: str) -> Places:
        following = set()
        for place in places:
            if place == len(self._segments):
                continue  # this place ended with a `**`
            segment = self._segments[place]
            if segment == _ANY_DEPTH:
                following |= {place} if not name.startswith(HIDDEN) else set()
            elif _matches(segment, name):
                following.add(place + 1)
        return self._closed(following)

    def _closed(self, places: Iterable[int]) -> Places:
        """Places, with those after a `**`, which may also match no directory at all."""
        closed = set(places)
        for place in sorted(closed):
            while place < len(self._segments) and self._segments[place] == _ANY_DEPTH:
                place += 1
                closed.add(place)
        return frozenset(closed)


def _matches(segment: str, name: str) -> bool:
    if not has_magic(segment):
        return segment == name
    if name.startswith(HIDDEN) and segment[0] != name[0]:
        return False
    return _compiled(segment).match(name) is not None


@lru_cache(maxsize=256)
def _compiled(segment: str) -> re.Pattern[str]:
    return re.compile(translate(segment))
