"""Permissions of a token and needs of a run: storage scopes of the WLCG profile and of SciTokens. Pure.

WLCG Common JWT Profiles 1.2, "Capability-based authorization: scope"; SciTokens claims, "scope".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from common.errors import BadInputError

ANY_AUDIENCE = ("https://wlcg.cern.ch/jwt/v1/any", "ANY")
OSDF = "osg-htc.org"

_IMPLIED = {
    "storage.read": ("storage.read", "storage.stage"),
    "storage.create": ("storage.create", "storage.modify"),
    "storage.modify": ("storage.modify",),
}
"""Permission needed → permissions that grant it."""

_SCITOKENS = {"read": ("storage.read",), "write": ("storage.modify", "storage.create")}
"""SciTokens' own names → WLCG's."""

_FILE = re.compile(r"\.(parquet|h5|hdf5|i3(\.\w+)?)$")
_RANGE = re.compile(r"(\d+)-(\d+)")
_UNKNOWN = re.compile(r"[*?\[\]{}]")
_URL = re.compile(r"(?:pelican|osdf)://", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Scope:
    """Permission on a directory (or file) and all below it. ``path`` is absolute; ``/`` is everything."""

    permission: str
    path: str

    def __str__(self) -> str:
        return f"{self.permission}:{self.path}"

    def covers(self, needed: Scope) -> bool:
        """True if this scope allows everything in ``needed``: ``/a`` covers ``/a`` and ``/a/b``, not ``/ab``."""
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
    """Scopes that are needed and not granted."""
    granted = tuple(granted)
    return tuple(need for need in needed if not any(scope.covers(need) for scope in granted))


def is_any_audience(audience: Iterable[str]) -> bool:
    """True if a token is for every server, as one without audience is."""
    audience = tuple(audience)
    return not audience or any(name in ANY_AUDIENCE for name in audience)


def needs(inputs: Iterable[str], outputs: Iterable[str] = (), *, storage_prefix: str = "") -> tuple[Need, ...]:
    """Scopes that a run needs, by federation; none for local files and other kinds of URLs.

    A path is cut at its first component that has a wildcard, is a range (``0000000-0000999``, ``{range}``) or has a
    space, which no scope can hold; a file counts as its directory, which is listed. So all ranges of a data set have
    one scope. ``outputs`` get ``storage.create`` and ``storage.modify``, and ``storage.read`` to be read on resume.
    """
    found: dict[str, set[Scope]] = {}
    written = {federation_of(url) for url in outputs}
    for url in inputs:
        if _URL.match(url):
            federation, path = directory(url, storage_prefix)
            found.setdefault(federation, set()).add(Scope("storage.read", path))
    for url in outputs:
        if _URL.match(url):
            federation, path = directory(url, storage_prefix)
            for permission in ("storage.read", "storage.create", "storage.modify"):
                found.setdefault(federation, set()).add(Scope(permission, path))
    return tuple(Need(name, reduced(scopes), name in written) for name, scopes in sorted(found.items()))


def reduced(scopes: Iterable[Scope]) -> tuple[Scope, ...]:
    """Same permissions without scopes contained in another of the same permission, in order."""
    kept: set[Scope] = set()
    for scope in sorted(set(scopes), key=lambda scope: (len(scope.path), scope)):
        if not any(Scope(scope.permission, parent) in kept for parent in _parents(scope.path)):
            kept.add(scope)
    return tuple(sorted(kept))


def trimmed(scopes: Iterable[Scope], max_depth: int | None) -> tuple[Scope, ...]:
    """Scopes of at most ``max_depth`` components, for an issuer that grants no deeper ones (``max-scope-depth``)."""
    if max_depth is None:
        return reduced(scopes)
    cut = (Scope(scope.permission, "/" + "/".join(scope.path.split("/")[1 : max_depth + 1])) for scope in scopes)
    return reduced(cut)


def federation_of(url: str) -> str | None:
    """Federation of a pelican:// or osdf:// URL; None for anything else."""
    return directory(url)[0] if _URL.match(url) else None


def directory(url: str, storage_prefix: str = "") -> tuple[str, str]:
    """Federation and directory of an input, as named in scopes. Raises BadInputError for ``..``."""
    scheme, _, rest = url.partition("://")
    federation, slash, path = rest.partition("/")
    if scheme.lower() == "osdf":  # osdf:///path and osdf://path mean the same
        federation, path = OSDF, f"{federation}{slash}{path}"
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadInputError(f"{url}: '..' is not allowed in the path; write it without")
    is_directory = path.endswith("/")
    for depth, part in enumerate(parts):
        if _UNKNOWN.search(part) or _is_range(part) or re.search(r"[^\x21-\x7e]", part):
            parts, is_directory = parts[:depth], True
            break
    if not is_directory and parts and _FILE.search(parts[-1]):
        parts = parts[:-1]
    prefix = [part for part in storage_prefix.split("/") if part]
    if parts[: len(prefix)] == prefix:
        parts = parts[len(prefix) :]
    return federation.lower(), "/" + "/".join(parts)


def _is_range(name: str) -> bool:
    """True for a range such as ``0000000-0000999``, but not the month ``2025-01``."""
    match = _RANGE.fullmatch(name)
    return match is not None and int(match[1]) < int(match[2])


def _parents(path: str) -> Iterable[str]:
    """Directories above a path, ``/`` first."""
    if path == "/":
        return
    yield "/"
    parts = path.split("/")[1:]
    for depth in range(1, len(parts)):
        yield "/" + "/".join(parts[:depth])
