"""Result of one check. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """Result of one check."""

    level: Literal["ok", "warning", "problem"]
    """A problem ends a run, or keeps it from its start; a warning does not."""
    name: str
    text: str
