"""A tree of settings as dotted keys and values. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in the tree that is not a table itself."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
