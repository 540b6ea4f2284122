"""Namespaces of the federation (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Namespace:
    prefix: str
    public: bool = True
    """Readable without a token. Writing always needs one."""
    writes: bool = False
    base_path: str = ""
    """Scope paths of tokens are relative to it; empty: the prefix. On OSDF it may differ from the prefix."""

    @property
    def scope_base(self) -> str:
        return self.base_path or self.prefix


NAMESPACES = (
    Namespace("/public", writes=True),
    Namespace("/private", public=False, writes=True),
    Namespace("/icecube/wipac/sim", public=False, writes=True, base_path="/icecube/wipac"),
)


def namespace_for(path: str) -> Namespace | None:
    """The namespace with the longest prefix of whole path components."""
    found = [ns for ns in NAMESPACES if path == ns.prefix or path.startswith(ns.prefix.rstrip("/") + "/")]
    return max(found, key=lambda ns: len(ns.prefix), default=None)
