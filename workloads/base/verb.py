"""Command of a workload. Imports nothing: `icestream --help` lists all of them."""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """Import path of a click command, and its line in the list of commands."""

    target: str
    """`module:attribute`, imported when the command is called."""
    summary: str
