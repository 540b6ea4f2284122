"""A command of a workload's own. Imports nothing: `icestream --help` lists all of them."""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """Where a click command is, and its line in the list of commands."""

    target: str
    """`module:attribute`, imported when the command is called."""
    summary: str
